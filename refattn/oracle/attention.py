"""Attention and its gradients by definition: dense, in float64, NumPy only.

    s = scale * q kᵀ                                    (B, H, Lq, Lk)
    c = score_mod(softcap * tanh(s / softcap), b, h, i, j)
    t = c + bias, and -inf where a key is hidden
    lse = log(sum_j exp(t_j) [+ exp(sink)])             (B, H, Lq)
    p = exp(t - lse),   out = (p keep / (1 - dropout)) v    (B, H, Lq, Dv)

Each line but lse, p and out is there only if its argument is.

This is the page to read in order to know what is true; it knows no mask by name, no tiles and no
low precision.  Shapes are q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv); query head h
reads key head h // (H // Hkv).  A row that sees no key and has no sink gives out 0, lse -inf and
gradients 0.  What a row does not see never reaches it, NaN and infinity included.

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1, and section
3.2.2; the backward by differentiating the lines above (Dao et al. 2022, "FlashAttention",
appendix B.2, has the plain case).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dtypes import exact64
from .arguments import Inputs, broadcast, shaped

__all__ = [
    "Attention", "Gradients", "Scores",
    "attention", "attention_grad", "attention_scores", "select_matmul", "sum_to_shape",
]  # fmt: skip

Array = np.ndarray[Any, Any]


class Attention(NamedTuple):
    """out (B, H, Lq, Dv) and lse (B, H, Lq), the natural logarithm, sinks included; float64."""

    out: Array
    lse: Array


class Gradients(NamedTuple):
    """Gradients of sum(out * dout) + sum(lse * dlse), each in the shape of what it belongs to."""

    dq: Array
    dk: Array
    dv: Array
    dbias: Array | None
    dsinks: Array | None
    dscale: Array
    """(): with respect to the effective scale, the default one included"""
    dsoftcap: Array | None
    """()"""


class Scores(NamedTuple):
    """What attention computes on its way, (B, H, Lq, Lk): ONNX Attention's qk_matmul_output_mode 0 to 3.

    Where a key is hidden `biased` is -inf and `weights` 0; a row that sees nothing has weights 0.
    `weights` are without dropout.
    """

    scores: Array
    capped: Array
    """after softcap and score_mod"""
    biased: Array
    """after bias and mask"""
    weights: Array


def attention(
    q: Any, k: Any, v: Any, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    score_mod: Any = None, dropout: float | None = None, keep: Any = None,
) -> Attention:  # fmt: skip
    """softmax(scale * q kᵀ [softcap] [score_mod] [+ bias], over the visible keys [and the sink]) [dropout] v.

    mask: boolean array that broadcasts to (B, H, Lq, Lk), True = may attend, or an object with
    `dense(B, H, Lq, Lk)` such as those of `refattn.masks`.  bias: floating array that broadcasts to
    (B, H, Lq, Lk); -inf hides like a mask.  scale: None means D**-0.5.  softcap > 0, or None.
    sinks: (H,) logits that join the denominator only.  score_mod: a function of (s, b, h, i, j), such
    as those of `refattn.score_mods`; where it makes a finite score -inf, it hides.  dropout: the
    probability that a weight is dropped, and keep, a boolean array that broadcasts to (B, H, Lq, Lk),
    which ones are kept; lse knows nothing of them.

    q·k beyond the range of float64 is not finite, and neither is what sees it.

    Refused by name: dtypes other than those of `refattn.dtypes`, shapes that do not fit, a boolean
    bias, a mask or keep that is not boolean, softcap <= 0, a scale that is not finite, dropout
    without keep.

    >>> q = np.eye(2).reshape(1, 1, 2, 2)
    >>> attention(q, q, q, scale=np.log(3.0)).out[0, 0]
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    x = Inputs(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        score_mod=score_mod, dropout=dropout, keep=keep,
    )  # fmt: skip
    w = _weigh(x)
    return Attention(select_matmul(w.kept, x.v, x.visible), w.lse)


def attention_scores(
    q: Any, k: Any, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    score_mod: Any = None,
) -> Scores:  # fmt: skip
    """The scores at each stage, and the weights; arguments as in `attention`.

    >>> q = np.array([[[[1.0]]]]); k = np.array([[[[2.0], [3.0]]]])
    >>> attention_scores(q, k, mask=np.array([[True, False]])).biased[0, 0, 0]
    array([  2., -inf])
    """
    k = np.asanyarray(k)
    x = Inputs(
        q, k, k[..., :0], mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        score_mod=score_mod, dropout=None, keep=None,
    )  # fmt: skip
    w = _weigh(x)
    return Scores(w.scores, w.capped, w.biased, w.weights)


def attention_grad(
    q: Any, k: Any, v: Any, dout: Any, dlse: Any = None, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    score_mod: Any = None, dropout: float | None = None, keep: Any = None,
) -> Gradients:  # fmt: skip
    """Gradients of `attention`, by hand-derived formulas.

    dout (B, H, Lq, Dv) and dlse (B, H, Lq) are the gradients that arrive at out and lse.  With
    r = keep / (1 - dropout), z = s / softcap and delta_i = out_i · dout_i,

        dv = (p r)ᵀ dout,   dp = r (dout vᵀ),   dt = p (dp - delta + dlse),
        dc = dt * slope of score_mod,   ds = dc / cosh² z,
        dq = scale ds k,   dk = scale dsᵀ q,   dbias = dt summed over what bias broadcast over,
        dsinks_h = sum_{b,i} exp(sink_h - lse) (dlse - delta),
        dscale = sum ds (q kᵀ),   dsoftcap = sum dc (tanh z - z / cosh² z).

    (The slope of softcap tanh(s/softcap) is 1 - tanh² = 1 / cosh²; the latter does not cancel.)

    dlse of a row that sees nothing is ignored.

    >>> x = np.ones((1, 1, 1, 1))
    >>> attention_grad(x, x, x, dout=x).dv.item()
    1.0
    """
    x = Inputs(
        q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks,
        score_mod=score_mod, dropout=dropout, keep=keep, backward=True,
    )  # fmt: skip
    w = _weigh(x)
    out = select_matmul(w.kept, x.v, x.visible)
    dout = shaped(dout, "dout", out.shape)
    dlse = np.zeros_like(w.lse) if dlse is None else shaped(dlse, "dlse", w.lse.shape)

    some = x.visible.any(-1, keepdims=True)  # a row that sees a sink alone depends on no key
    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.where(some, (out * np.where(some, dout, 0.0)).sum(-1, keepdims=True), 0.0)
        incoming = dlse[..., None] - delta
        dp = dout @ x.v.swapaxes(-1, -2)
        if x.kept is not None:
            dp = dp * x.kept
        dt = np.where(x.visible, w.weights * (dp + incoming), 0.0)
        dc = dt if x.score_mod is None else np.where(x.visible, dt * _of_mod(x.score_mod.slope, w.before, x), 0.0)
        ds, dsoftcap = dc, None
        if x.softcap is not None:
            z = w.scores / x.softcap
            bend = np.cosh(z) ** -2.0
            ds = np.where(x.visible, dc * bend, 0.0)
            share = np.tanh(z) - np.where(bend == 0, 0.0, z * bend)
            dsoftcap = np.where(x.visible, dc * share, 0.0).sum()
        dscale = np.where(x.visible, ds * w.products, 0.0).sum()
    dq = x.scale * select_matmul(ds, x.k, x.visible)
    dk = x.scale * select_matmul(ds.swapaxes(-1, -2), x.q, x.visible.swapaxes(-1, -2))
    dv = select_matmul(w.kept.swapaxes(-1, -2), dout, x.visible.swapaxes(-1, -2))

    dbias = None if x.bias_shape is None else sum_to_shape(dt, x.bias_shape)
    dsinks = None
    if w.share is not None:
        with np.errstate(invalid="ignore"):
            dsinks = np.where(w.lse[..., None] == -np.inf, 0.0, w.share * incoming).sum((0, 2, 3))
    return Gradients(dq, x.sum_over_group(dk), x.sum_over_group(dv), dbias, dsinks, dscale, dsoftcap)


class _Weighed(NamedTuple):
    products: Array
    """q kᵀ"""
    scores: Array
    before: Array
    """what score_mod was given"""
    capped: Array
    biased: Array
    weights: Array
    kept: Array
    """weights after dropout"""
    lse: Array
    share: Array | None
    """that of the sink, (B, H, Lq, 1)"""


def _weigh(x: Inputs) -> _Weighed:
    with np.errstate(invalid="ignore", over="ignore"):
        products = x.q @ x.k.swapaxes(-1, -2)
        s = x.scale * products
        before = s if x.softcap is None else x.softcap * np.tanh(s / x.softcap)
        capped = before if x.score_mod is None else _of_mod(x.score_mod, before, x)
        biased = capped if x.bias is None else capped + x.bias
        if x.score_mod is not None:
            x.visible = x.visible & ~(np.isneginf(capped) & np.isfinite(before))
        t = np.where(x.visible, biased, -np.inf)
        m = t.max(-1, initial=-np.inf, keepdims=True)
        if x.sinks is not None:
            m = np.maximum(m, x.sinks[:, None, None])
        m = np.where(np.isneginf(m) & ~x.visible.any(-1, keepdims=True), 0.0, m)
        p = np.where(x.visible, np.exp(t - m), 0.0)
        total = p.sum(-1, keepdims=True)
        share = None
        if x.sinks is not None:
            share = np.exp(x.sinks[:, None, None] - m)  # not from lse, which rounds the difference away
            total = total + share
    with np.errstate(divide="ignore", invalid="ignore"):
        lse = (m + np.log(total))[..., 0]
        total = np.where(total == 0, 1.0, total)
        p = np.where(x.visible, p / total, 0.0)
        share = None if share is None else share / total
    return _Weighed(products, s, before, capped, t, p, p if x.kept is None else p * x.kept, lse, share)


def _of_mod(function: Any, s: Array, x: Inputs) -> Array:
    """What score_mod, or its slope, makes of s."""
    return broadcast(exact64(function(s, *x.place), "score_mod"), "score_mod", s.shape)


def select_matmul(w: Array, x: Array, visible: Array) -> Array:
    """w @ x, where the x of a pair that is not visible takes no part: there 0 * NaN is 0.

    w (..., M, N), 0 where not visible; x (..., N, D).
    """
    finite = np.isfinite(x)
    with np.errstate(invalid="ignore", over="ignore"):
        y = w @ np.where(finite, x, 0.0)
    if finite.all():
        return y
    for n in np.flatnonzero(~finite.all(axis=(*range(x.ndim - 2), -1))):
        with np.errstate(invalid="ignore"):
            part = w[..., :, n, None] * np.where(finite[..., n, None, :], 0.0, x[..., n, None, :])
            y = y + np.where(visible[..., :, n, None] & ~finite[..., n, None, :], part, 0.0)
    return y


def sum_to_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the dimensions that an array of `shape` was broadcast over."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    stretched = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return np.asarray(x.sum(axis=stretched, keepdims=True))
