"""Attention and its gradients by definition: dense, in float64, NumPy only.

    s = scale * q kᵀ                           (B, H, Lq, Lk)
    t = softcap * tanh(s / softcap) + bias     and -inf where a key is hidden
    lse = log(sum_j exp(t_j) [+ exp(sink)])    (B, H, Lq)
    p = exp(t - lse),   out = p v              (B, H, Lq, Dv)

This is the page to read in order to know what is true; it knows no mask by name, no tiles and no
low precision.  Shapes are q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv); query head h
reads key head h // (H // Hkv).  A row that sees no key and has no sink gives out 0, lse -inf and
gradients 0.  What a row does not see never reaches it, NaN and infinity included.

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1, and section
3.2.2; the backward by differentiating the lines above (Dao et al. 2022, "FlashAttention",
appendix B.2, has the plain case).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .dtypes import exact64

__all__ = [
    "Attention",
    "Gradients",
    "attention",
    "attention_grad",
    "multi_head_attention",
    "scaled_dot_product_attention",
]

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


def attention(
    q: Any, k: Any, v: Any, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Attention:  # fmt: skip
    """softmax(scale * q kᵀ [softcap] [+ bias], over the visible keys [and the sink]) v.

    mask: boolean array that broadcasts to (B, H, Lq, Lk), True = may attend, or an object with
    `dense(B, H, Lq, Lk)` such as those of `refattn.masks`.  bias: floating array that broadcasts to
    (B, H, Lq, Lk); -inf hides like a mask.  scale: None means D**-0.5.  softcap > 0, or None.
    sinks: (H,) logits that join the denominator only.

    q·k beyond the range of float64 is not finite, and neither is what sees it.

    Refused by name: dtypes other than those of `refattn.dtypes`, shapes that do not fit, a boolean
    bias, a mask that is not boolean, softcap <= 0, a scale that is not finite.

    >>> q = np.eye(2).reshape(1, 1, 2, 2)
    >>> attention(q, q, q, scale=np.log(3.0)).out[0, 0]
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    x = _Inputs(q, k, v, mask, bias, scale, softcap, sinks)
    p, lse, _, _ = _weights(x)
    return Attention(_select_matmul(p, x.v, x.visible), lse)


def attention_grad(
    q: Any, k: Any, v: Any, dout: Any, dlse: Any = None, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Gradients:  # fmt: skip
    """Gradients of `attention`, by hand-derived formulas.

    dout (B, H, Lq, Dv) and dlse (B, H, Lq) are the gradients that arrive at out and lse.  With
    delta_i = out_i · dout_i,

        dv = pᵀ dout,   dp = dout vᵀ,   dt = p (dp - delta + dlse),   ds = dt / cosh²(s / softcap),
        dq = scale ds k,   dk = scale dsᵀ q,   dbias = dt summed over what bias broadcast over,
        dsinks_h = sum_{b,i} exp(sink_h - lse) (dlse - delta).

    (The slope of softcap tanh(s/softcap) is 1 - tanh² = 1 / cosh²; the latter does not cancel.)

    dlse of a row that sees nothing is ignored.

    >>> x = np.ones((1, 1, 1, 1))
    >>> attention_grad(x, x, x, dout=x).dv.item()
    1.0
    """
    x = _Inputs(q, k, v, mask, bias, scale, softcap, sinks)
    p, lse, share, slope = _weights(x)
    out = _select_matmul(p, x.v, x.visible)
    dout = _shaped(dout, "dout", out.shape)
    dlse = np.zeros_like(lse) if dlse is None else _shaped(dlse, "dlse", lse.shape)

    some = x.visible.any(-1, keepdims=True)  # a row that sees a sink alone depends on no key
    with np.errstate(invalid="ignore", over="ignore"):
        delta = np.where(some, (out * np.where(some, dout, 0.0)).sum(-1, keepdims=True), 0.0)
        incoming = dlse[..., None] - delta
        dp = dout @ x.v.swapaxes(-1, -2)
        dt = np.where(x.visible, p * (dp + incoming), 0.0)
        ds = dt if slope is None else np.where(x.visible, dt * slope, 0.0)
    dq = x.scale * _select_matmul(ds, x.k, x.visible)
    dk = x.scale * _select_matmul(ds.swapaxes(-1, -2), x.q, x.visible.swapaxes(-1, -2))
    dv = _select_matmul(p.swapaxes(-1, -2), dout, x.visible.swapaxes(-1, -2))

    dbias = None if x.bias_shape is None else _sum_to_shape(dt, x.bias_shape)
    dsinks = None
    if share is not None:
        with np.errstate(invalid="ignore"):
            dsinks = np.where(lse[..., None] == -np.inf, 0.0, share * incoming).sum((0, 2, 3))
    return Gradients(dq, x.sum_over_group(dk), x.sum_over_group(dv), dbias, dsinks)


class _Inputs:
    """The arguments, checked, in float64, with key heads repeated and the mask dense."""

    def __init__(
        self, q: Any, k: Any, v: Any, mask: Any, bias: Any, scale: float | None, softcap: float | None, sinks: Any
    ) -> None:
        q, k, v = exact64(q, "q"), exact64(k, "k"), exact64(v, "v")
        for name, array in (("q", q), ("k", k), ("v", v)):
            if array.ndim != 4:
                raise ValueError(f"{name}.shape={array.shape} must have 4 dimensions (B, heads, length, size)")
        B, H, Lq, D = q.shape
        Hkv, Lk = k.shape[1:3]
        if k.shape != (B, Hkv, Lk, D):
            raise ValueError(f"k.shape={k.shape} must be (B, Hkv, Lk, D) with B={B} and D={D} of q.shape={q.shape}")
        if v.shape[:3] != (B, Hkv, Lk):
            raise ValueError(f"v.shape={v.shape} must begin with {(B, Hkv, Lk)}, as k.shape={k.shape} does")
        if H != Hkv and (H == 0 or Hkv == 0 or H % Hkv):
            raise ValueError(f"q has H={H} heads, which must be a multiple of the Hkv={Hkv} heads of k and v")
        self.softcap: float | None = None
        if softcap is not None:
            self.softcap = _real(softcap, "softcap", "pass a number > 0, or None for no softcap")
            if not self.softcap > 0:
                raise ValueError(f"softcap={softcap} must be > 0; pass None for no softcap")
        self.group = H // Hkv if Hkv else 1
        self.scale = scale_of(scale, D)
        self.q, self.k, self.v = q, np.repeat(k, self.group, axis=1), np.repeat(v, self.group, axis=1)
        shape = (B, H, Lq, Lk)

        visible = np.ones(shape, dtype=bool)
        if mask is not None:
            if np.ma.isMaskedArray(mask):
                raise TypeError("mask is a masked array, whose own mask would be ignored; pass mask.filled(False)")
            if isinstance(mask, type):
                raise TypeError(f"mask={mask.__name__} is a class; make one, such as {mask.__name__}('top_left')")
            mask = np.asarray(mask.dense(*shape) if hasattr(mask, "dense") else mask)
            if mask.dtype != np.bool_:
                raise TypeError(f"mask.dtype={mask.dtype} must be bool, True = may attend; pass bias= for logits")
            visible = visible & _broadcast(mask, "mask", shape)
        self.bias_shape: tuple[int, ...] | None = None
        self.bias: Array | None = None
        if bias is not None:
            bias = exact64(bias, "bias")
            self.bias_shape = bias.shape
            self.bias = _broadcast(bias, "bias", shape)
            visible = visible & ~np.isneginf(self.bias)
        self.visible = visible
        self.sinks = None if sinks is None else _shaped(sinks, "sinks", (H,))

    def sum_over_group(self, x: Array) -> Array:
        B, H, L, D = x.shape
        return x if self.group == 1 else x.reshape(B, H // self.group, self.group, L, D).sum(2)


def scale_of(scale: float | None, D: int) -> float:
    """`scale`, or D**-0.5 for None (1 when D is 0); refused unless a finite real number."""
    if scale is None:
        return D**-0.5 if D else 1.0
    return _real(scale, "scale", "pass None for D**-0.5")


def _real(x: Any, name: str, cure: str) -> float:
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={x!r} must be a real number; {cure}")
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{name}={value} must be finite; {cure}")
    return value


def _weights(x: _Inputs) -> tuple[Array, Array, Array | None, Array | None]:
    """p, lse, the share of the sink (B, H, Lq, 1) and the slope of the softcap (None without one)."""
    with np.errstate(invalid="ignore", over="ignore"):
        s = x.scale * (x.q @ x.k.swapaxes(-1, -2))
        slope = None
        if x.softcap is not None:
            slope = np.cosh(s / x.softcap) ** -2.0
            s = x.softcap * np.tanh(s / x.softcap)
        if x.bias is not None:
            s = s + x.bias
        t = np.where(x.visible, s, -np.inf)
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
        return p, lse, None if share is None else share / total, slope


def _select_matmul(w: Array, x: Array, visible: Array) -> Array:
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


def _shaped(x: Any, name: str, shape: tuple[int, ...]) -> Array:
    x = exact64(x, name)
    if x.shape != shape:
        raise ValueError(f"{name}.shape={x.shape} must be {shape}")
    return x


def _broadcast(x: Array, name: str, shape: tuple[int, ...]) -> Array:
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{name}.shape={x.shape} must broadcast to (B, H, Lq, Lk)={shape}") from None


def _sum_to_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Sum over the dimensions that an array of `shape` was broadcast over."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    stretched = tuple(axis for axis, n in enumerate(shape) if n == 1)
    return np.asarray(x.sum(axis=stretched, keepdims=True))


def scaled_dot_product_attention(Q: Any, K: Any, V: Any, mask: Any = None) -> tuple[Array, Array]:
    """The textbook function: (output, weights) with scores filled by -1e9 where mask == 0.

    Equation 1 of Vaswani et al. 2017 (section 3.2.1): softmax(Q Kᵀ / sqrt(d_k)) V, over any leading
    dimensions.  -1e9 is not -inf: a row whose every key is masked gives the *mean* of V instead
    of 0, and scores below about -1e9 + 700 lose to masked keys.

    >>> Q = np.zeros((1, 2)); V = np.array([[1.0], [3.0]])
    >>> output, weights = scaled_dot_product_attention(Q, np.eye(2), V, mask=np.zeros((1, 2)))
    >>> output.item()   # every key masked, yet 2 = mean(V); attention() gives 0
    2.0
    """
    Q, K, V = exact64(Q, "Q"), exact64(K, "K"), exact64(V, "V")
    scores = Q @ K.swapaxes(-1, -2) * scale_of(None, Q.shape[-1])
    if mask is not None:
        scores = np.where(np.asarray(mask) == 0, -1e9, scores)
    weights = np.exp(scores - scores.max(-1, initial=-np.inf, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ V, weights


def multi_head_attention(
    Q: Any, K: Any, V: Any, W_Q: Any, W_K: Any, W_V: Any, W_O: Any, *, mask: Any = None
) -> Array:  # fmt: skip
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q[i], K W_K[i], V W_V[i]).

    Vaswani et al. 2017, section 3.2.2.  Q (B, Lq, d_model), K and V (B, Lk, d_model);
    W_Q, W_K (h, d_model, d_k), W_V (h, d_model, d_v), W_O (h * d_v, d_model); mask as in
    `attention`, (B, h, Lq, Lk).  Returns (B, Lq, d_model) in float64.
    """
    named = {"Q": Q, "K": K, "V": V, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "W_O": W_O}
    x = {name: exact64(array, name) for name, array in named.items()}
    for name, ndim, form in (
        *((n, 3, "(B, length, d_model)") for n in "QKV"),
        *((n, 3, "(h, d_model, d_head)") for n in ("W_Q", "W_K", "W_V")),
        ("W_O", 2, "(h * d_v, d_model)"),
    ):
        if x[name].ndim != ndim:
            raise ValueError(f"{name}.shape={x[name].shape} must have {ndim} dimensions, {form}")
    h, _, d_v = x["W_V"].shape
    for a, w in (("Q", "W_Q"), ("K", "W_K"), ("V", "W_V")):
        if x[w].shape[0] != h or x[w].shape[1] != x[a].shape[2]:
            raise ValueError(
                f"{w}.shape={x[w].shape} must begin with (h, d_model)={(h, x[a].shape[2])}, "
                f"of W_V.shape={x['W_V'].shape} and {a}.shape={x[a].shape}"
            )
    if x["W_O"].shape[0] != h * d_v:
        raise ValueError(f"W_O.shape={x['W_O'].shape} must begin with h * d_v = {h * d_v}")
    q, k, v = (np.einsum("blm,hmd->bhld", x[a], x[w]) for a, w in (("Q", "W_Q"), ("K", "W_K"), ("V", "W_V")))
    heads = attention(q, k, v, mask=mask).out
    B, _, Lq, _ = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(B, Lq, h * d_v) @ x["W_O"]
