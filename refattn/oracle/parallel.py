"""Attention over parts of the keys: partial results, their merge and its gradients, and the ring of ranks.

What queries have got from the keys S is its state (out_S, lse_S).  For disjoint parts,

    lse = log(sum_n exp(lse_n) [+ exp(sink)]),   w_n = exp(lse_n - lse),   out = sum_n w_n out_n

is the state of their union.  An empty part has lse_n = -inf: its weight is 0 and its out_n is not
looked at; if all are empty, so is the result (out 0, lse -inf, no NaN).  A sink enters once, when all
parts have been merged, never in each part.  lse = +inf is not empty, and makes NaN.

lse is one number for what `refattn.online` keeps as two, m + log l: where |lse| is so large that adding
log l rounds it away, parts that tie merge as if each held one key.

Sources: Ye et al. 2025, "FlashInfer", section 2.2 (states and their merge).  The same under other
names: flashinfer.merge_state and merge_states (lse there is of base 2: times log 2 here),
flash_attn_combine(out_partial, lse_partial), xformers merge_attentions(attn_split, lse_split).
Ring: Liu et al. 2023, "Ring Attention with Blockwise Transformers for Near-Infinite Context"; its
zig-zag order: zhuzilin/ring-flash-attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..dtypes import exact64
from ..visibility import check_int
from .arguments import Inputs, shaped
from .attention import (
    Attention,
    Scores,
    attention,
    attention_scores,
    select_matmul,
    sum_to_shape,
)

__all__ = [
    "MergeGradients",
    "RingGradients",
    "merge_state",
    "merge_states",
    "merge_states_grad",
    "ring_attention",
    "ring_attention_grad",
    "shards",
    "split_kv",
]

Array = np.ndarray[Any, Any]
Order = Literal["contiguous", "zigzag"]


class MergeGradients(NamedTuple):
    """Gradients of sum(out * dout) + sum(lse * dlse) of a merge: to each part, and to the sinks if any."""

    douts: Array
    dlses: Array
    dsinks: Array | None


class RingGradients(NamedTuple):
    """Gradients of sum(out * dout) + sum(lse * dlse), each in the shape of what it belongs to."""

    dq: Array
    dk: Array
    dv: Array
    dbias: Array | None
    dsinks: Array | None


def merge_state(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, *, sinks: Any = None) -> Attention:
    """The state of two parts; out_a and out_b (B, H, Lq, Dv), lse_a and lse_b (B, H, Lq).

    >>> one, two = np.full((1, 1, 1, 1), 4.0), np.full((1, 1, 1, 1), 8.0)
    >>> merge_state(one, np.zeros((1, 1, 1)), two, np.full((1, 1, 1), np.log(3.0))).out.item()
    7.0
    """
    out_a = exact64(out_a, "out_a")
    if out_a.ndim != 4:
        raise ValueError(f"out_a.shape={out_a.shape} must have 4 dimensions (B, H, Lq, Dv)")
    lse_a = shaped(lse_a, "lse_a", out_a.shape[:3])
    out_b, lse_b = shaped(out_b, "out_b", out_a.shape), shaped(lse_b, "lse_b", out_a.shape[:3])
    return merge_states(np.stack([out_a, out_b]), np.stack([lse_a, lse_b]), sinks=sinks)


def merge_states(outs: Any, lses: Any, *, sinks: Any = None) -> Attention:
    """The state of N parts; outs (N, B, H, Lq, Dv), lses (N, B, H, Lq), N >= 0; sinks (H,) enter here, once.

    >>> nothing = np.full((2, 1, 1, 1, 3), np.nan), np.full((2, 1, 1, 1), -np.inf)
    >>> merge_states(*nothing).out.ravel(), merge_states(*nothing).lse.item()
    (array([0., 0., 0.]), -inf)
    """
    x = _Merge(outs, lses, sinks)
    return Attention(x.out, x.lse)


def merge_states_grad(outs: Any, lses: Any, dout: Any, dlse: Any = None, *, sinks: Any = None) -> MergeGradients:
    """What flows to the parts, given dout (B, H, Lq, Dv) and dlse (B, H, Lq):

        dout_n = w_n dout,   dlse_n = w_n (dout · (out_n - out) + dlse),
        dsink_h = sum_{b,i} exp(sink_h - lse) (dlse - dout · out)

    and 0 to a part that is empty.

    >>> outs, lses = np.array([4.0, 8.0]).reshape(2, 1, 1, 1, 1), np.log([1.0, 3.0]).reshape(2, 1, 1, 1)
    >>> g = merge_states_grad(outs, lses, np.ones((1, 1, 1, 1)))
    >>> g.douts.ravel(), g.dlses.ravel()
    (array([0.25, 0.75]), array([-0.75,  0.75]))
    """
    x = _Merge(outs, lses, sinks)
    dout = shaped(dout, "dout", x.out.shape)
    dlse = np.zeros_like(x.lse) if dlse is None else shaped(dlse, "dlse", x.lse.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        douts = np.where(x.empty[..., None], 0.0, x.weights[..., None] * dout)
        onto = (dout * np.where(x.empty[..., None], 0.0, x.outs - x.out)).sum(-1)
        dlses = np.where(x.empty, 0.0, x.weights * (onto + dlse))
        dsinks = None if x.share is None else _to_sinks(x.share, x.out, dout, x.lse, dlse, ~x.empty.all(0))
    return MergeGradients(douts, dlses, dsinks)


def split_kv(
    q: Any, k: Any, v: Any, parts: int | Sequence[int], *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None,
) -> Attention:  # fmt: skip
    """The states of consecutive parts of the keys, stacked: out (N, B, H, Lq, Dv), lse (N, B, H, Lq).

    parts: their number, sizes then differ by at most 1, or their sizes (0 is one), which sum to Lk.  The mask
    and the bias are those of the whole, and are cut with the keys: a mask made for a part by itself would
    sit on another diagonal.  No sinks: they are an argument of `merge_states`.

    >>> q, k, v = (np.array(x).reshape(1, 1, -1, 1) for x in ([1.0], [0.0, np.log(3.0)], [4.0, 8.0]))
    >>> states = split_kv(q, k, v, 2)
    >>> states.out.ravel(), merge_states(*states).out.item()
    (array([4., 8.]), 7.0)
    """
    x = _Pieces(q, k, v, mask, bias, scale, softcap, None)
    Lk = x.k.shape[2]
    if isinstance(parts, Sequence):
        for n in parts:
            check_int("size in parts", n, 0)
        if sum(parts) != Lk:
            raise ValueError(f"parts={tuple(parts)} must sum to Lk={Lk}")
        pieces = np.split(np.arange(Lk), np.cumsum(parts, dtype=np.int64)[:-1])[: len(parts)]
    else:
        check_int("parts", parts, 1, ", or a list of the sizes of the parts")
        pieces = np.array_split(np.arange(Lk), parts)
    rows, shape = np.arange(x.q.shape[2]), (len(pieces), *x.q.shape[:3])
    states = [x.attend(rows, columns) for columns in pieces]
    return Attention(
        np.array([state.out for state in states]).reshape(*shape, x.v.shape[3]),
        np.array([state.lse for state in states]).reshape(shape),
    )


def shards(L: int, ranks: int, order: Order = "contiguous") -> list[Array]:
    """The positions of the tokens that each rank holds.

    "contiguous": L is cut into as many pieces as there are ranks.  "zigzag": into twice as many, and rank r
    holds pieces r and 2 ranks - 1 - r, so that under a causal mask all have about as much to do.  Pieces
    differ in size by at most 1.

    >>> [x.tolist() for x in shards(8, 2, "zigzag")]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    """
    check_int("L", L, 0)
    check_int("ranks", ranks, 1)
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"order={order!r} must be 'contiguous' or 'zigzag'")
    if order == "contiguous":
        return list(np.array_split(np.arange(L), ranks))
    pieces = np.array_split(np.arange(L), 2 * ranks)
    return [np.concatenate([pieces[r], pieces[2 * ranks - 1 - r]]) for r in range(ranks)]


def ring_attention(
    q: Any, k: Any, v: Any, *, ranks: int, order: Order = "contiguous",
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Attention:  # fmt: skip
    """Attention as a ring computes it; arguments and results are of the whole, in the order of positions.

    Rank r holds the tokens `shards(Lq, ranks, order)[r]` of q, and those of Lk of k and v.  In step t it has the
    keys of rank r - t (mod ranks), attends to them, and merges the state with what it has.  mask and bias are of
    the whole, and a rank sees them at the positions of its tokens, wherever they lie.

    >>> x = np.arange(1.0, 6.0).reshape(1, 1, 5, 1)
    >>> ring, whole = ring_attention(x, x, x, ranks=2, order="zigzag"), attention(x, x, x)
    >>> bool(np.allclose(ring.out, whole.out, rtol=1e-14))
    True
    """
    x = _Pieces(q, k, v, mask, bias, scale, softcap, sinks)
    q_shards, k_shards = shards(x.q.shape[2], ranks, order), shards(x.k.shape[2], ranks, order)
    out, lse = np.zeros((*x.q.shape[:3], x.v.shape[3])), np.full(x.q.shape[:3], -np.inf)
    for step in range(ranks):
        for rank, rows in enumerate(q_shards):
            part = x.attend(rows, k_shards[(rank - step) % ranks])
            out[:, :, rows], lse[:, :, rows] = merge_state(out[:, :, rows], lse[:, :, rows], *part)
    return merge_states(out[None], lse[None], sinks=x.sinks)


def ring_attention_grad(
    q: Any, k: Any, v: Any, dout: Any, dlse: Any = None, *, ranks: int, order: Order = "contiguous",
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> RingGradients:  # fmt: skip
    """Gradients of `ring_attention`, as a ring computes them.

    The lse of the whole row makes the weights of any part of it, p = exp(t - lse), and delta = dout · out
    is that of the whole row too; so each step adds to dq of the rank, and to the dk and dv that travel with the
    keys.  Of `attention_grad` all is here but dscale and dsoftcap.

    >>> x = np.arange(1.0, 6.0).reshape(1, 1, 5, 1)
    >>> round(ring_attention_grad(x, x, x, np.ones_like(x), ranks=3).dv.sum().item(), 12)
    5.0
    """
    x = _Pieces(q, k, v, mask, bias, scale, softcap, sinks)
    out, lse = ring_attention(
        q, k, v, ranks=ranks, order=order, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks
    )
    dout = shaped(dout, "dout", out.shape)
    dlse = np.zeros_like(lse) if dlse is None else shaped(dlse, "dlse", lse.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        incoming = dlse - (dout * out).sum(-1)

    dq, dk, dv, dt = np.zeros(x.q.shape), np.zeros(x.k.shape), np.zeros(x.v.shape), np.zeros(x.visible.shape)
    q_shards, k_shards = shards(x.q.shape[2], ranks, order), shards(x.k.shape[2], ranks, order)
    for step in range(ranks):
        for rank, rows in enumerate(q_shards):
            columns = k_shards[(rank - step) % ranks]
            visible = x.visible[:, :, rows[:, None], columns]
            transposed = visible.swapaxes(-1, -2)
            w = x.scores(rows, columns)
            with np.errstate(invalid="ignore", over="ignore"):
                p = np.where(visible, np.exp(w.biased - lse[:, :, rows, None]), 0.0)
                dp = dout[:, :, rows] @ x.v[:, :, columns].swapaxes(-1, -2)
                here = np.where(visible, p * (dp + incoming[:, :, rows, None]), 0.0)
                slope = 1.0 if x.softcap is None else np.cosh(w.scores / x.softcap) ** -2.0
                ds = x.scale * np.where(visible, here * slope, 0.0)
            dq[:, :, rows] += select_matmul(ds, x.k[:, :, columns], visible)
            dk[:, :, columns] += select_matmul(ds.swapaxes(-1, -2), x.q[:, :, rows], transposed)
            dv[:, :, columns] += select_matmul(p.swapaxes(-1, -2), dout[:, :, rows], transposed)
            dt[:, :, rows[:, None], columns] = here
    dbias = None if x.bias_shape is None else sum_to_shape(dt, x.bias_shape)
    dsinks = None
    if x.sinks is not None:
        with np.errstate(invalid="ignore", over="ignore"):
            dsinks = _to_sinks(np.exp(x.sinks[:, None] - lse), out, dout, lse, dlse, np.any(x.visible, axis=-1))
    return RingGradients(dq, x.sum_over_group(dk), x.sum_over_group(dv), dbias, dsinks)


class _Merge:
    """The arguments of a merge, checked, and what it makes."""

    def __init__(self, outs: Any, lses: Any, sinks: Any) -> None:
        self.outs = exact64(outs, "outs")
        if self.outs.ndim != 5:
            raise ValueError(f"outs.shape={self.outs.shape} must have 5 dimensions (N, B, H, Lq, Dv)")
        lses = shaped(lses, "lses", self.outs.shape[:4])
        sinks = None if sinks is None else shaped(sinks, "sinks", self.outs.shape[2:3])
        self.empty = np.isneginf(lses)
        m = lses.max(0, initial=-np.inf)
        if sinks is not None:
            m = np.maximum(m, sinks[:, None])
        m = np.where(np.isneginf(m), 0.0, m)
        self.share: Array | None = None
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            weights = np.exp(lses - m)
            total = weights.sum(0)
            if sinks is not None:
                self.share = np.exp(sinks[:, None] - m)
                total = total + self.share
            self.lse = m + np.log(total)
            self.weights = weights / total  # 0 / 0 where all is empty, which is looked at no more than out_n
            self.share = None if self.share is None else self.share / total
            self.out = np.where(self.empty[..., None], 0.0, self.weights[..., None] * self.outs).sum(0)


def _to_sinks(share: Array, out: Array, dout: Array, lse: Array, dlse: Array, some: Array) -> Array:
    """dsinks (H,); `some`: rows that have an out of their own, of which alone dout matters."""
    with np.errstate(invalid="ignore", over="ignore"):
        delta = (np.where(some[..., None], dout, 0.0) * out).sum(-1)
        return np.where(np.isneginf(lse), 0.0, share * (dlse - delta)).sum((0, 2))


class _Pieces(Inputs):
    """The arguments, and attention of some of the queries over some of the keys."""

    def __init__(
        self, q: Any, k: Any, v: Any, mask: Any, bias: Any, scale: float | None, softcap: float | None, sinks: Any
    ) -> None:
        super().__init__(
            q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
            score_mod=None, dropout=None, keep=None,
        )  # fmt: skip

    def _options(self, rows: Array, columns: Array) -> dict[str, Any]:
        at = (slice(None), slice(None), rows[:, None], columns)
        bias = None if self.bias is None else self.bias[at]
        return {"mask": self.visible[at], "bias": bias, "scale": self.scale, "softcap": self.softcap}

    def attend(self, rows: Array, columns: Array) -> Attention:
        q, k, v = self.q[:, :, rows], self.k[:, :, columns], self.v[:, :, columns]
        return attention(q, k, v, **self._options(rows, columns))

    def scores(self, rows: Array, columns: Array) -> Scores:
        return attention_scores(self.q[:, :, rows], self.k[:, :, columns], **self._options(rows, columns))
