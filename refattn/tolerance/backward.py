"""The bound of the gradients of one key head and the query heads that read it.

A kernel recomputes P = exp(t - lse) from its own lse, and delta from its own rounded out (or from
sum p dp); nothing is renormalised, so the error of lse does not cancel:

    ē = expm1(e_t + e_lse + u (4|t - lse| + max(|t|, |lse|)) + ε)
    e_dP = Dv u (|dout||v|ᵀ + |dP|)/2 [+ ...],   e_Δ = sum |dout| e_out + (Dv+1) u sum |dout||o|
           + sum p e_dP + |R| u sum p |dP|                      (whichever way delta is computed)
    dT = P (dP - Δ + dlse),  dS = dT·slope
    e_dT = P ē |dP - Δ + dlse| + P (1+ē)(e_dP + e_Δ + 2u (|dP| + |Δ| + |dlse|)),  e_dS likewise with slope
    dq: |scale| (rounded dS, |k|),  dk: |scale| (rounded dS, |q|),  dv: (rounded P, |dout|)

Sharp: variances of independent errors add.  The errors of lse and Δ are common to a row and enter
dq coherently, as v_Δ (P k)² + v_lse (dS k)²; to dk and dv the rows contribute independently.  Keys
whose scores agree, or rows in which a key has the same score, add coherently (`ties`).
dbias and dsinks have the rigorous bound alone.

First a pass over tiles of rows (dq, and what a row knows), then one over tiles of keys (dk, dv).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import FORMATS
from ..precision import Precision
from .forward import EVERYTHING, LARGEST, Forward, Tile, row_tiles
from .rounding import LAMBDA, SQUARES_VANISH, Units, half_ulp
from .scores import scores
from .ties import Ties

__all__ = ["Backward", "Bound", "Head", "backward"]

Array = np.ndarray[Any, Any]


class Head(NamedTuple):
    """One query head: q (Lq, D), dout (Lq, Dv), dlse (Lq, 1), its forward bound, mask, bias and sink."""

    q: Array
    dout: Array
    dlse: Array
    forward: Forward
    visible: Tile
    bias: Tile
    sink: float | None
    on_dt: Callable[[slice, Array, Array], None] | None = None
    """called with (rows, dT, its rigorous error) for each tile of rows"""


class Bound(NamedTuple):
    value: Array
    rigorous: Array
    sharp: Array


class Backward(NamedTuple):
    dq: list[Bound]
    dk: Bound
    dv: Bound
    dsink: list[tuple[float, float]]
    """value and rigorous error of each head's sum"""


@dataclass
class _Sum:
    """A sum of products on its way: value, bounds, and its terms' absolute and square sums."""

    value: Array
    rigorous: Array
    variance: Array
    coherent: Array
    terms: Array
    squares: Array
    repeated: Array
    """terms that may be added in a row with the same rounding"""

    @classmethod
    def zeros(cls, shape: tuple[int, int]) -> _Sum:
        return cls(*(np.zeros(shape) for _ in range(7)))

    def add(self, rows: slice, *parts: Array) -> None:
        arrays = (
            self.value, self.rigorous, self.variance, self.coherent, self.terms, self.squares, self.repeated,
        )  # fmt: skip
        for mine, part in zip(arrays, parts, strict=True):
            mine[rows] += part

    def finish(self, count: Array, blocks: int, heads: Array, c: Units, scale: float = 1.0) -> Bound:
        """Add the accumulation of `count` terms, across `blocks` and `heads` in the output's dtype."""
        u, x = c.u, np.abs(self.value)
        grid = (count > 0) * (count + 4) * c.eta * max(1.0, abs(scale))  # subnormal products
        rigorous = self.rigorous + grid + count * u * (self.terms + self.rigorous) + 4 * u * self.terms
        variance = self.variance + u * u / 3 * count * (x * x / 3 + self.squares / 6)
        coherent = self.coherent + grid + 4 * u * x + count * u * self.repeated
        if blocks > 1:
            n, u_out = blocks - 1, c.u_out
            rigorous = rigorous * (1 + u_out) + n * (u_out * (self.terms + x) / 2 + c.eta_out / 2)
            variance = variance + n * u_out**2 / 3 * (x * x + self.squares)
            coherent = coherent + n * c.eta_out / 2
        rounded = c.u_out * heads + (heads > 0) * c.eta_out  # sums of heads rounded beforehand
        sharp = np.fmin(LAMBDA * np.sqrt(variance) + coherent + rounded, rigorous + rounded)
        sharp = np.where(self.terms < SQUARES_VANISH, rigorous + rounded, sharp)
        return Bound(self.value, rigorous + rounded, sharp)


@dataclass
class _Rows:
    """What each row of a head knows, (Lq, 1)."""

    lse: Array
    e_lse: Array
    v_lse: Array
    delta: Array
    e_delta: Array
    v_delta: Array
    b_delta: Array


class _Pairs(NamedTuple):
    """Arrays (rows, keys)."""

    t: Array
    visible: Array
    far: Array
    P: Array
    e: Array
    v: Array
    slope: Array
    slope_error: Array
    slope_deviation: Array
    dP: Array
    e_dP: Array
    v_dP: Array
    flushed: Array


class _Slopes(NamedTuple):
    """dT and dS of a tile with their errors, (rows, keys)."""

    dT: Array
    e_dT: Array
    dS: Array
    e_dS: Array
    low: Array
    relative: Array
    absolute: Array


def backward(
    heads: list[Head], k: Array, v: Array, scale: float, softcap: float | None, precision: Precision
) -> Backward:  # fmt: skip
    """Bounds of the gradients of one key head k (Lk, D), v (Lk, Dv) and of its query heads."""
    with np.errstate(over="ignore", invalid="ignore"):
        return _backward(heads, k, v, (scale, softcap, precision, Units(precision, len(k))))


def _backward(heads: list[Head], k: Array, v: Array, args: tuple[float, float | None, Precision, Units]) -> Backward:
    _, _, precision, c = args
    known = [_rows_of(h, len(k)) for h in heads]
    dq = [_rows_pass(h, r, k, v, *args) for h, r in zip(heads, known, strict=True)]
    dk, dv = _Sum.zeros(k.shape), _Sum.zeros(v.shape)
    count = np.zeros((len(k), 1))
    apart_k, apart_v = np.zeros(k.shape), np.zeros(v.shape)
    for h, r in zip(heads, known, strict=True):
        before_k, before_v = dk.value.copy(), dv.value.copy()
        _keys_pass(h, r, k, v, dk, dv, count, *args)
        if precision.grad_per_head:
            apart_k += np.abs(dk.value - before_k)
            apart_v += np.abs(dv.value - before_v)
    blocks = _blocks(sum(len(h.q) for h in heads), precision.grad_q_block)
    dsink = [_dsink(h, r, c) for h, r in zip(heads, known, strict=True)]
    return Backward(dq, dk.finish(count, blocks, apart_k, c, args[0]), dv.finish(count, blocks, apart_v, c), dsink)


def _blocks(n: int, size: int) -> int:
    return -(-n // size) if size else 1


def _rows_of(h: Head, keys: int) -> _Rows:
    f = h.forward
    lse = np.where(np.isneginf(f.lse), 0.0, f.lse)
    zeros = np.zeros_like(lse)
    delta = np.where(np.isneginf(f.lse), 0.0, (h.dout * f.out).sum(1, keepdims=True))
    return _Rows(lse, f.lse_rigorous.copy(), f.lse_variance.copy(), delta, zeros.copy(), zeros.copy(), zeros.copy())


def _pairs(
    h: Head, r: _Rows, k: Array, v: Array, rows: slice, keys: slice,
    scale: float, softcap: float | None, precision: Precision, c: Units,
) -> _Pairs:  # fmt: skip
    u = c.u
    visible = h.visible(rows, keys)
    s = scores(h.q[rows], k[keys], visible, h.bias(rows, keys), scale, softcap, precision, c)
    lse = r.lse[rows]
    t = np.where(visible, s.t, lse)
    P = np.where(visible, np.exp(np.minimum(t - lse, 0.0)), 0.0)
    away, far = np.abs(t - lse), np.maximum(np.abs(t), np.abs(lse))
    normalised = c.u_weights if precision.weights_normalised else 0.0
    e = np.expm1(np.minimum(s.error + r.e_lse[rows] + u * (4 * away + far) + c.eps + normalised, LARGEST))
    variance = s.variance + u * u / 3 * (4 * away**2 + far**2) + c.eps**2 / 3 + normalised**2 / 3
    dout, values = h.dout[rows], v[keys]
    dP = dout @ values.T
    A = np.abs(dout) @ np.abs(values).T
    squares = (dout * dout) @ (values * values).T
    Dv = v.shape[1]
    # dout has the output's dtype, v the inputs': products are exact where both have 16 bits
    rounds = float(FORMATS[precision.out].bits + FORMATS[precision.inputs].bits > FORMATS[precision.accumulate].bits)
    e_dP = Dv * u * (A + np.abs(dP)) / 2 * (1 + Dv * u) + rounds * u * A + c.u_scores * np.abs(dP) + Dv * c.eta
    v_dP = u * u / 3 * (Dv * (dP * dP / 3 + squares / 6) + rounds * squares) + c.u_scores**2 / 3 * dP * dP
    flushed = np.where(visible & (P < 4 * c.smallest_normal), np.minimum(P, c.smallest_normal), 0.0)
    return _Pairs(
        t, visible, np.where(visible, far, 0.0), P, e, variance,
        s.slope, s.slope_error, s.slope_deviation, dP, e_dP, v_dP, flushed,
    )  # fmt: skip


def _slopes(p: _Pairs, h: Head, r: _Rows, rows: slice, c: Units) -> _Slopes:
    u, u_p = c.u, c.u_weights
    delta, dlse = r.delta[rows], h.dlse[rows]
    core = np.where(p.visible, p.dP - delta + dlse, 0.0)
    sizes = np.abs(p.dP) + np.abs(delta) + np.abs(dlse)
    dT = p.P * core
    inner = p.e_dP + r.e_delta[rows] + 2 * u * sizes
    P_up = p.P * (1 + p.e)
    e_dT = p.P * p.e * np.abs(core) + P_up * inner + p.flushed * (np.abs(core) + inner) + 3 * u * np.abs(dT) + 4 * c.eta
    e_dT = np.where(p.visible, e_dT, 0.0)
    dS = dT * p.slope
    size = np.abs(dS)
    e_dS = e_dT * np.abs(p.slope) + (np.abs(dT) + e_dT) * p.slope_error + 2 * u * size
    underflow = max(c.weights_eta / 2, c.smallest_normal)
    low = np.where(
        p.visible & (size < 8 * max(c.weights_normal, c.smallest_normal)), np.minimum(underflow, size + e_dS), 0.0
    )
    e_rounded = e_dS + u_p * (size + e_dS) + low
    relative = np.hypot(size * np.sqrt(p.v + (u_p * u_p + 3 * u * u) / 3), dT * p.slope_deviation)
    relative = np.copysign(relative, dS)
    P_slope = p.P * p.slope
    absolute = P_slope * np.sqrt(p.v_dP + u * u / 3 * (p.dP**2 + delta**2 + dlse**2))
    return _Slopes(dT, e_dT, dS, e_rounded, low, relative, absolute)


def _rows_pass(
    h: Head, r: _Rows, k: Array, v: Array, scale: float, softcap: float | None, precision: Precision, c: Units
) -> Bound:
    """dq of a head; fills in what each row knows of delta's error."""
    total = _Sum.zeros(h.q.shape)
    count = np.zeros((len(h.q), 1))
    size, kabs, k2 = abs(scale), np.abs(k), k * k
    for rows in row_tiles(len(h.q), len(k)):
        p = _pairs(h, r, k, v, rows, EVERYTHING, scale, softcap, precision, c)
        agree = c.agree * p.far.max(1, keepdims=True, initial=0.0)
        ties = Ties(p.t, np.maximum(agree, c.u_weights), p.visible & (p.P > 0))
        _delta_errors(p, h, r, rows, ties, c)
        s = _slopes(p, h, r, rows, c)
        if h.on_dt is not None:
            h.on_dt(rows, s.dT, s.e_dT)
        value = s.dS @ k
        PK = (p.P * p.slope) @ k
        variance = (s.relative**2 + s.absolute**2) @ k2
        variance += ties.sum_squares(s.relative, k) + ties.sum_squares(s.absolute, k)
        variance += r.v_delta[rows] * PK**2 + r.v_lse[rows] * value**2
        coherent = (
            r.b_delta[rows] * np.abs(PK) + (s.low + p.flushed * np.abs(p.dP)) @ kabs + c.u_weights * np.abs(value)
        )
        rigorous = s.e_dS @ kabs
        narrow = _narrow(p.t, p.P, p.visible, c, axis=1)
        coherent = np.where(narrow, rigorous, coherent)
        terms = size * (np.abs(s.dS) @ kabs)
        total.add(
            rows, scale * value, size * rigorous, size**2 * variance, size * coherent, terms,
            size**2 * ((s.dS * s.dS) @ k2), terms * ties.repeated(p.P, agree),
        )  # fmt: skip
        count[rows] = p.visible.sum(1, keepdims=True)
    return total.finish(count, _blocks(len(k), precision.grad_k_block), np.zeros_like(total.value), c, scale)


def _delta_errors(p: _Pairs, h: Head, r: _Rows, rows: slice, ties: Ties, c: Units) -> None:
    """Fill e_delta (rigorous), v_delta (variance) and b_delta (coherent) of the rows."""
    u, u_p = c.u, c.u_weights
    f, dout = h.forward, h.dout[rows]
    o, delta = f.out[rows], r.delta[rows]
    Dv = dout.shape[1]
    e_out = f.rigorous[rows] + half_ulp(np.abs(o) + f.rigorous[rows], c.out)
    products = np.abs(dout) * np.abs(o)
    large = (p.P > u).sum(1, keepdims=True)
    by_keys = (p.P * (p.e_dP + large * u * np.abs(p.dP))).sum(1, keepdims=True)
    r.e_delta[rows] = (
        (np.abs(dout) * e_out).sum(1, keepdims=True)
        + (Dv + 1) * u * products.sum(1, keepdims=True)
        + by_keys
        + (Dv + 2) * c.eta
    )
    w = p.P * np.sqrt(p.v) * (p.dP - delta)
    wp = u_p * p.P * p.dP
    variance = (w * w).sum(1, keepdims=True) + ties.sum_squares_of(w)
    variance += ((wp * wp).sum(1, keepdims=True) + ties.sum_squares_of(wp)) / 3
    rounded = (c.u_out * o) ** 2 / 3 + (c.eta_out / 2) ** 2 + f.accumulation_variance[rows]
    variance += (dout**2 * rounded).sum(1, keepdims=True)
    variance += u * u / 3 * ((p.P * p.dP) ** 2).sum(1, keepdims=True) + (p.P**2 * p.v_dP).sum(1, keepdims=True)
    variance += u * u / 9 * large * delta**2
    variance += u * u / 3 * Dv * (delta**2 / 3 + (products**2).sum(1, keepdims=True) / 6)
    r.v_delta[rows] = variance
    coherent = (np.abs(dout) * f.coherent[rows]).sum(1, keepdims=True)
    r.b_delta[rows] = (u_p + 4 * u) * np.abs(delta) + coherent + (Dv + 2) * c.eta


def _narrow(t: Array, P: Array, visible: Array, c: Units, axis: int) -> Array:
    """Where the scores along the axis spread over less than four roundings of P."""
    if not c.u_weights:
        return np.zeros((), dtype=bool)
    total = np.maximum(P.sum(axis, keepdims=True), 1e-300)
    mean = (P * t).sum(axis, keepdims=True) / total
    narrow = (P * (t - mean) ** 2).sum(axis, keepdims=True) / total < (4 * c.u_weights) ** 2
    return narrow if axis == 1 else narrow.T


def _keys_pass(
    h: Head, r: _Rows, k: Array, v: Array, dk: _Sum, dv: _Sum, count: Array,
    scale: float, softcap: float | None, precision: Precision, c: Units,
) -> None:  # fmt: skip
    """Add a head's part of dk and dv."""
    u_p = c.u_weights
    size, q, dout = abs(scale), h.q, h.dout
    qabs, q2, dabs, d2 = np.abs(q), q * q, np.abs(dout), dout * dout
    for keys in row_tiles(len(k), len(q)):
        p = _pairs(h, r, k, v, EVERYTHING, keys, scale, softcap, precision, c)
        s = _slopes(p, h, r, EVERYTHING, c)
        x = np.where(p.visible, p.t - r.lse, 0.0).T
        agree = c.agree * p.far.max(0, initial=0.0)[:, None]
        ties = Ties(x, np.maximum(agree, u_p), p.visible.T & (p.P.T > 0))
        repeated = ties.repeated(p.P.T, agree)
        narrow = _narrow(p.t - r.lse, p.P, p.visible, c, axis=0)

        relative = np.copysign(np.hypot(s.relative, s.dS * np.sqrt(r.v_lse)), s.dS).T
        absolute = np.hypot(s.absolute, p.P * p.slope * np.sqrt(r.v_delta)).T
        value = s.dS.T @ q
        variance = (relative**2 + absolute**2) @ q2 + ties.sum_squares(relative, q) + ties.sum_squares(absolute, q)
        coherent = (s.low + p.flushed * np.abs(p.dP) + p.P * np.abs(p.slope) * r.b_delta).T @ qabs + u_p * np.abs(value)
        rigorous = s.e_dS.T @ qabs
        coherent = np.where(narrow, rigorous, coherent)
        terms = size * (np.abs(s.dS).T @ qabs)
        dk.add(
            keys, scale * value, size * rigorous, size**2 * variance, size * coherent, terms,
            size**2 * ((s.dS * s.dS).T @ q2), terms * repeated,
        )  # fmt: skip

        P = p.P.T
        low = np.where(p.visible & (p.P < c.weights_normal), np.minimum(c.weights_eta / 2, p.P), 0.0) + p.flushed
        rigorous = (p.P * p.e + u_p * p.P * (1 + p.e) + low).T @ dabs
        w = P * np.sqrt(p.v + r.v_lse + u_p * u_p / 3).T
        value = P @ dout
        coherent = low.T @ dabs + u_p * np.abs(value)
        coherent = np.where(narrow, rigorous, coherent)
        variance = w * w @ d2 + ties.sum_squares(w, dout)
        terms = P @ dabs
        dv.add(keys, value, rigorous, variance, coherent, terms, P * P @ d2, terms * repeated)
        count[keys] += p.visible.sum(0)[:, None]


def _dsink(h: Head, r: _Rows, c: Units) -> tuple[float, float]:
    """sum over rows of exp(sink - lse)(dlse - delta), and its rigorous error."""
    if h.sink is None:
        return 0.0, 0.0
    u = c.u
    away = np.abs(h.sink - r.lse)
    share = np.where(np.isneginf(h.forward.lse), 0.0, np.exp(np.minimum(h.sink - r.lse, 0.0)))
    e = np.expm1(np.minimum(r.e_lse + u * (4 * away + np.maximum(abs(h.sink), np.abs(r.lse))) + c.eps, LARGEST))
    incoming = h.dlse - r.delta
    error = share * (e * np.abs(incoming) + (1 + e) * (r.e_delta + 2 * u * (np.abs(h.dlse) + np.abs(r.delta))))
    terms = np.abs(share * incoming)
    error = error + c.smallest_normal * np.abs(incoming) + len(h.q) * u * (terms + error)
    return float((share * incoming).sum()), float(error.sum())
