"""Attention as a module: projections, biases, fewer key heads, packed weights, and the gradients of all of them.

    q_h = Q W_Q[h] + b_Q[h],   k_g = K W_K[g] + b_K[g],   v_g = V W_V[g] + b_V[g]
    head_h = attention(q_h, k_g, v_g),   g = h // (h_q // h_kv)
    out = Concat(head_1, ..., head_h_q) W_O + b_O

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2 (no biases, h_kv = h_q);
biases and packing as in torch.nn.MultiheadAttention; fewer key heads: Ainslie et al. 2023, "GQA",
section 2.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..dtypes import exact64
from ..visibility import check_int
from .arguments import Inputs, shaped
from .attention import attention, attention_grad

__all__ = ["MultiHeadGradients", "multi_head_attention", "multi_head_attention_grad", "split_qkv", "stack_qkv"]

Array = np.ndarray[Any, Any]


class MultiHeadGradients(NamedTuple):
    """Gradients of sum(out * dout), each in the shape of what it belongs to; None where no bias was given.

    For self-attention, Q = K = V = x, that with respect to x is dQ + dK + dV.
    """

    dQ: Array
    dK: Array
    dV: Array
    dW_Q: Array
    dW_K: Array
    dW_V: Array
    dW_O: Array
    db_Q: Array | None
    db_K: Array | None
    db_V: Array | None
    db_O: Array | None


def multi_head_attention(
    Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, *,
    b_Q: Any = None, b_K: Any = None, b_V: Any = None, b_O: Any = None, mask: Any = None, scale: float | None = None,
) -> Array:  # fmt: skip
    """Concat(head_1, ..., head_h) W_O + b_O with head_i = attention(Q W_Q[i] + b_Q[i], ...); (B, Lq, d_out).

    Q (B, Lq, d_q), K (B, Lk, d_k), V (B, Lk, d_v): the paper has one d_model.  W_Q (h, d_q, D),
    W_K (h_kv, d_k, D), W_V (h_kv, d_v, Dv), W_O (h * Dv, d_out), where h is a multiple of h_kv.
    b_Q (h, D), b_K (h_kv, D), b_V (h_kv, Dv), b_O (d_out,).  mask and scale as in `attention`, over
    (B, h, Lq, Lk).  A query that sees nothing gives b_O.

    Rows of W_O belong to heads in order: W_O[:Dv] is the first head's.  A matrix of the form
    x @ W.T with rows in order of heads, as torch's, is W.reshape(h, D, d_model).swapaxes(1, 2) here.

    >>> x, one = np.array([[[1.0], [3.0]]]), np.ones((1, 1, 1))
    >>> multi_head_attention(x, x, x, 0 * one, one, one, np.array([[10.0]]), b_O=np.array([5.0]))[0, :, 0]
    array([25., 25.])
    """
    x = _Heads(Q, K, V, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O)
    return x.join(attention(x.q, x.k, x.v, mask=mask, scale=scale).out) @ x.W_O + x.b_O


def multi_head_attention_grad(
    Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, dout: Any, *,
    b_Q: Any = None, b_K: Any = None, b_V: Any = None, b_O: Any = None, mask: Any = None, scale: float | None = None,
) -> MultiHeadGradients:  # fmt: skip
    """Gradients of `multi_head_attention`, given dout (B, Lq, d_out).

    With x a projection's input, y = x W + b: dx = sum over heads of dy Wᵀ, dW = xᵀ dy, db = sum dy.  A
    token that a head does not see (or that sees nothing there) has no part in that head's dW, NaN or not.

    >>> x, one = np.array([[[1.0], [3.0]]]), np.ones((1, 1, 1))
    >>> g = multi_head_attention_grad(x, x, x, 0 * one, one, one, np.array([[10.0]]), np.ones((1, 2, 1)))
    >>> g.dW_V.item(), g.dW_O.item(), g.db_O
    (40.0, 4.0, None)
    """
    x = _Heads(Q, K, V, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O)
    options: dict[str, Any] = {"mask": mask, "scale": scale}
    concat = x.join(attention(x.q, x.k, x.v, **options).out)
    dout = shaped(dout, "dout", (*concat.shape[:2], x.W_O.shape[1]))
    (B, h, Lq, _), (_, h_kv, Lk, Dv) = x.q.shape, x.v.shape
    dheads = (dout @ x.W_O.T).reshape(B, Lq, h, Dv).swapaxes(1, 2)
    g = attention_grad(x.q, x.k, x.v, dheads, **options)

    none: dict[str, Any] = dict.fromkeys(("bias", "softcap", "sinks", "score_mod", "dropout", "keep"))
    visible = Inputs(x.q, x.k, x.v, **options, **none).visible
    used = np.any(visible, axis=-1)
    read = np.any(np.any(visible, axis=-2).reshape(B, h_kv, h // h_kv if h_kv else 1, Lk), axis=2)
    return MultiHeadGradients(
        dQ=np.einsum("bhld,hmd->blm", g.dq, x.W_Q),
        dK=np.einsum("bhld,hmd->blm", g.dk, x.W_K),
        dV=np.einsum("bhld,hmd->blm", g.dv, x.W_V),
        dW_Q=_weight_gradient(x.Q, g.dq, used),
        dW_K=_weight_gradient(x.K, g.dk, read),
        dW_V=_weight_gradient(x.V, g.dv, read),
        dW_O=np.einsum("blx,bly->xy", concat, dout),
        db_Q=None if b_Q is None else g.dq.sum((0, 2)),
        db_K=None if b_K is None else g.dk.sum((0, 2)),
        db_V=None if b_V is None else g.dv.sum((0, 2)),
        db_O=None if b_O is None else dout.sum((0, 1)),
    )


def split_qkv(W_QKV: Any, h: int, h_kv: int | None = None) -> tuple[Array, Array, Array]:
    """(W_Q, W_K, W_V) of packed weights (h + 2 h_kv, d_model, D), or (b_Q, b_K, b_V) of biases (h + 2 h_kv, D).

    Stacked by kind: all heads of q, then of k, then of v; h_kv=None means h.  That is the order of
    torch's in_proj_weight (3 * h * D, d_model), which is W.reshape(3 * h, D, d_model).swapaxes(1, 2) here.
    Layouts that interleave q, k and v of each head, or of each group, are not this one.

    >>> [w.tolist() for w in split_qkv(np.arange(4.0), h=2, h_kv=1)]
    [[0.0, 1.0], [2.0], [3.0]]
    """
    check_int("h", h, 0)
    h_kv = h if h_kv is None else h_kv
    check_int("h_kv", h_kv, 0, "; pass None for h")
    W_QKV = exact64(W_QKV, "W_QKV")
    if W_QKV.ndim == 0 or W_QKV.shape[0] != h + 2 * h_kv:
        raise ValueError(f"W_QKV.shape={W_QKV.shape} must begin with h + 2 h_kv = {h + 2 * h_kv}")
    return W_QKV[:h], W_QKV[h : h + h_kv], W_QKV[h + h_kv :]


def stack_qkv(W_Q: Any, W_K: Any, W_V: Any) -> Array:
    """The inverse of `split_qkv`, for weights, biases and their gradients; D = Dv.

    >>> stack_qkv(*split_qkv(np.arange(4.0), h=2, h_kv=1))
    array([0., 1., 2., 3.])
    """
    x = {name: exact64(w, name) for name, w in (("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V))}
    for name, w in x.items():
        if w.ndim == 0 or w.shape[1:] != x["W_Q"].shape[1:]:
            raise ValueError(f"{name}.shape={w.shape} must be that of W_Q, {x['W_Q'].shape}, but for the first axis")
    if len(x["W_K"]) != len(x["W_V"]):
        raise ValueError(f"W_V has {len(x['W_V'])} heads, which must be the {len(x['W_K'])} of W_K")
    return np.concatenate(list(x.values()))


class _Heads:
    """The arguments, checked, in float64, and the projected heads q, k and v."""

    def __init__(
        self, Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, b_Q: Any, b_K: Any, b_V: Any, b_O: Any
    ) -> None:
        named = {"Q": Q, "K": K, "V": V, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
        x = {name: exact64(array, name) for name, array in named.items()}
        for name, ndim, form in (
            *((n, 3, "(B, length, d_model)") for n in "QKV"),
            ("W_Q", 3, "(h, d_model, d_head)"),
            *((n, 3, "(h_kv, d_model, d_head)") for n in ("W_K", "W_V")),
            ("W_O", 2, "(h * d_v, d_model)"),
        ):
            if x[name].ndim != ndim:
                raise ValueError(f"{name}.shape={x[name].shape} must have {ndim} dimensions, {form}")
        self.Q, self.K, self.V, self.W_Q, self.W_K, self.W_V, self.W_O = x.values()
        B, (h, _, D), (h_kv, _, Dv) = self.Q.shape[0], self.W_Q.shape, self.W_V.shape
        if self.K.shape[0] != B or self.K.shape[:2] != self.V.shape[:2]:
            raise ValueError(
                f"K.shape={self.K.shape} must begin with (B, Lk)={(B, self.V.shape[1])}, "
                f"of Q.shape={self.Q.shape} and V.shape={self.V.shape}"
            )
        for a, name, heads in (("Q", "h", h), ("K", "h_kv", h_kv), ("V", "h_kv", h_kv)):
            w, begin = x[f"W_{a}"].shape, (heads, x[a].shape[2])
            if w[:2] != begin:
                raise ValueError(
                    f"W_{a}.shape={w} must begin with ({name}, d_model)={begin}, of W_V.shape={self.W_V.shape} "
                    f"and {a}.shape={x[a].shape}"
                )
        if self.W_K.shape[2] != D:
            raise ValueError(f"W_K.shape={self.W_K.shape} must end with D={D}, as W_Q.shape={self.W_Q.shape} does")
        if h != h_kv and (h == 0 or h_kv == 0 or h % h_kv):
            raise ValueError(f"W_Q has h={h} heads, which must be a multiple of the h_kv={h_kv} of W_K and W_V")
        if self.W_O.shape[0] != h * Dv:
            raise ValueError(f"W_O.shape={self.W_O.shape} must begin with h * d_v = {h * Dv}")
        self.q = _project(self.Q, self.W_Q, b_Q, "b_Q")
        self.k = _project(self.K, self.W_K, b_K, "b_K")
        self.v = _project(self.V, self.W_V, b_V, "b_V")
        self.b_O = 0.0 if b_O is None else shaped(b_O, "b_O", self.W_O.shape[1:])

    def join(self, heads: Array) -> Array:
        """(B, h, Lq, Dv) to (B, Lq, h * Dv)."""
        B, h, Lq, Dv = heads.shape
        return heads.swapaxes(1, 2).reshape(B, Lq, h * Dv)


def _project(x: Array, w: Array, b: Any, name: str) -> Array:
    with np.errstate(invalid="ignore", over="ignore"):  # in tokens that nobody sees, too
        y = np.einsum("blm,hmd->bhld", x, w)
    return y if b is None else y + shaped(b, name, (w.shape[0], w.shape[2]))[:, None]


def _weight_gradient(x: Array, dy: Array, used: Array) -> Array:
    """xᵀ dy of each head, over the tokens that it uses; x (B, L, d), dy (B, heads, L, D), used (B, heads, L)."""
    return np.einsum("bhlm,bhld->hmd", np.where(used[..., None], x[:, None], 0.0), dy)
