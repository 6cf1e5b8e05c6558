"""The backward's weights and score gradients, pair by pair, with their errors.

A kernel recomputes P = exp(t - lse) from its own lse, and delta from its own rounded out or from
sum p dp; nothing is renormalised, so the error of lse does not cancel:

    ē = expm1(e_t + e_lse + u (4|t - lse| + 2 max(|t|, |lse|)) + ε)
    e_dP = Dv u (|dout||v|ᵀ + |dP|)/2 [+ ...],
    e_Δ = sum |dout| e_out + (Dv+1) u sum |dout||o| + sum p (e_dP + (ē + |R| u) |dP|)   (whichever way)
    dT = P (dP - Δ + dlse),  dS = dT·slope
    e_dT = P ē |dP - Δ + dlse| + P (1+ē)(e_dP + e_Δ + 2u (|dP| + |Δ| + |dlse|)),  e_dS likewise with slope

Where sums are truncated the drifts (`rounding`) d of t and lse, d_dP and d_slope make of dS

    P (d |dP - Δ + dlse| + d_dP) |slope| + |dT| d_slope,   and of Δ   sum p (d |dP| + d_dP + |R| u |dP|).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import FORMATS
from ..precision import Precision
from .extras import NONE, Extras
from .forward import LARGEST, Forward, Tile
from .rounding import Units, half_ulp, repetitive
from .scores import Scores, scores
from .ties import NoTies, Ties

__all__ = ["Head", "Keys", "Pairs", "Rows", "Slopes", "delta_errors", "pairs", "rows_of", "slopes"]

Array = np.ndarray[Any, Any]


class Head(NamedTuple):
    """One query head: q (Lq, D), dout (Lq, Dv), dlse (Lq, 1), its forward bound, mask, bias and sink."""

    q: Array
    dout: Array
    dlse: Array
    forward: Forward
    visible: Tile
    bias: Tile
    sink: Any
    """a number, or None"""
    extras: Extras = NONE
    scalars: bool = False
    """whether dscale or dsoftcap is wanted"""
    on_dt: Callable[[slice, Array, Array], None] | None = None
    """called with (rows, dT, its rigorous error) for each tile of rows"""


@dataclass
class Keys:
    """The key head k (Lk, D), v (Lk, Dv) and what all of its query heads share."""

    k: Array
    v: Array
    scale: float
    softcap: float | None
    precision: Precision
    c: Units

    def __post_init__(self) -> None:
        self.same_k, self.same_v = (repetitive(x).swapaxes(-1, -2) for x in (self.k, self.v))


@dataclass
class Rows:
    """What each row of a head knows, (Lq, 1); the errors of delta are filled in by `delta_errors`."""

    lse: Array
    e_lse: Array
    v_lse: Array
    delta: Array
    e_delta: Array
    v_delta: Array
    b_delta: Array
    lse_drift: Array
    same_q: Array
    same_dout: Array


class Pairs(NamedTuple):
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
    drift: Array
    """of t and lse together, by truncation"""
    drift_dP: Array
    burst: Array
    """where the exponent of P is off by so much that P may overflow"""
    over: Array
    """there, and where a stored dP may overflow"""
    flushed: Array
    """error where P or its rounding underflows"""
    kept: Array | None
    """the factors of dropout"""
    scores: Scores
    c: Units


class Slopes(NamedTuple):
    """dT and dS of a tile with their errors, (rows, keys)."""

    dT: Array
    e_dT: Array
    dS: Array
    e_dS: Array
    low: Array
    """the part of it that is underflow or drift"""
    relative: Array
    """standard deviation of what is proportional to dS, with its sign"""
    absolute: Array
    """standard deviation of the rest"""
    spread: Array
    """the same of dT"""


def rows_of(h: Head) -> Rows:
    f = h.forward
    dead = np.isneginf(f.lse)
    lse = np.where(dead, 0.0, f.lse)
    delta = np.where(dead, 0.0, (h.dout * f.out).sum(-1, keepdims=True))
    e, v, b = (np.zeros_like(lse) for _ in range(3))
    return Rows(lse, f.lse_rigorous, f.lse_variance, delta, e, v, b, f.lse_drift, repetitive(h.q), repetitive(h.dout))


def pairs(h: Head, r: Rows, g: Keys, rows: slice, keys: slice) -> Pairs:
    c, precision = g.c, g.precision
    u = c.u
    visible = h.visible(rows, keys)
    repeats = r.same_q[rows] & g.same_k[..., keys]
    kept = h.extras.factors(rows, keys)
    s = scores(
        h.q[rows], g.k[keys], repeats, visible, h.bias(rows, keys), g.scale, g.softcap, precision, c,
        h.extras.slack(h.q[rows], g.k[keys], rows, keys), h.extras.mod(rows, keys),
    )  # fmt: skip
    lse = r.lse[rows]
    t = np.where(visible, s.t, lse)
    P = np.where(visible, np.exp(np.minimum(t - lse, 0.0)), 0.0)
    away, far = np.abs(t - lse), np.maximum(np.abs(t), np.abs(lse))
    normalised = c.u_weights if precision.weights_normalised else 0.0
    exponent = s.error + r.e_lse[rows] + u * (4 * away + 2 * far) + c.eps + normalised
    burst = visible & ((exponent > LARGEST) | (t - lse + exponent > c.largest_exponent))
    e = np.expm1(np.minimum(exponent, LARGEST))
    variance = s.variance + u * u / 3 * (4 * away**2 + 2 * far**2) + c.eps**2 / 3 + normalised**2 / 3
    dout, v = h.dout[rows], g.v[keys]
    Dv = v.shape[-1]
    v_t = v.swapaxes(-1, -2)
    dP = dout @ v_t
    A = np.abs(dout) @ np.abs(v_t)
    squares = (dout * dout) @ (v_t * v_t)
    # dout has the output's dtype, v the inputs': products are exact where both have 16 bits
    rounds = float(FORMATS[precision.out].bits + FORMATS[precision.inputs].bits > FORMATS[precision.accumulate].bits)
    e_dP = Dv * c.u_sum * (A + np.abs(dP)) / 2 * (1 + Dv * c.u_sum) + rounds * u * A + Dv * c.eta
    v_dP = u * u / 3 * (Dv * (dP * dP / 3 + squares / 6) + rounds * squares)
    v_dP = np.where(r.same_dout[rows] & g.same_v[..., keys], e_dP * e_dP, v_dP)
    drift_dP = c.drift(Dv, dP, squares, (A + np.abs(dP)) / 2)
    if h.extras.slack_v is not None:
        e_dP = e_dP + np.abs(dout) @ h.extras.slack_v[keys].T + u * A
        v_dP = v_dP + e_dP * e_dP
    if kept is not None:
        own = (2 + kept) * u * np.abs(dP)  # 1 / (1 - dropout), had in the accumulators' dtype
        dP, e_dP, v_dP = dP * kept, (e_dP + own + c.eta) * kept, (v_dP + own * own) * kept * kept
        drift_dP = drift_dP * kept
    if c.u_scores:  # dP is stored in the scores' dtype too
        e_dP = e_dP + c.u_scores * np.abs(dP) + c.scores_eta
        v_dP = v_dP + c.u_scores**2 / 3 * dP * dP + c.scores_eta**2
    over = burst | visible & (np.abs(dP) + e_dP > c.scores_max)
    flushed = np.where(visible & (P < 4 * c.smallest_normal), np.minimum(P, c.smallest_normal), 0.0)
    if precision.weights_normalised:
        flushed = flushed + np.where(visible & (P < c.weights_normal), np.minimum(c.weights_eta / 2, P), 0.0)
    return Pairs(
        t, visible, np.where(visible, far, 0.0), P, e, variance,
        s.slope, s.slope_error, s.slope_deviation, dP, e_dP, v_dP, s.drift + r.lse_drift[rows], drift_dP, burst, over,
        flushed, kept, s, c,
    )  # fmt: skip


def slopes(p: Pairs, h: Head, r: Rows, g: Keys, rows: slice) -> Slopes:
    c = g.c
    u, u_p = c.u, c.u_weights
    delta, dlse = r.delta[rows], h.dlse[rows]
    core = np.where(p.visible, p.dP - delta + dlse, 0.0)
    sizes = np.abs(p.dP) + np.abs(delta) + np.abs(dlse)
    dT = p.P * core
    endless = np.isinf(r.e_delta[rows])
    inner = p.e_dP + np.where(endless, 0.0, r.e_delta[rows]) + (2 * u + c.u_scores) * sizes + c.scores_eta
    e_dT = p.P * p.e * np.abs(core) + p.P * (1 + p.e) * inner + p.flushed * (np.abs(core) + inner)
    e_dT = np.where(p.visible, e_dT + (3 * u + c.u_scores) * np.abs(dT) + 4 * c.eta + c.scores_eta, 0.0)
    e_dT = np.where(p.visible & (p.over | endless), np.inf, e_dT)
    dS = dT * p.slope
    size = np.abs(dS)
    e_dS = e_dT * np.abs(p.slope) + (np.abs(dT) + e_dT) * p.slope_error + 2 * u * size
    e_dS = np.where(np.isinf(e_dT), np.inf, e_dS)  # whatever the slope
    underflow = max(c.weights_eta / 2, c.smallest_normal, c.scores_eta)
    near_zero = p.visible & (size < 8 * max(c.weights_normal, c.smallest_normal))
    low = np.where(near_zero, np.minimum(underflow, size + e_dS), 0.0)
    if c.u_scores:  # dS times scale is stored as well
        e_dS = e_dS + c.u_scores * size
        low = low + np.where(p.visible, np.minimum(c.scores_eta / max(abs(g.scale), 1e-300), size + e_dS), 0.0)
    e_rounded = e_dS + u_p * (size + e_dS) + low
    low = low + p.flushed * np.abs(core * p.slope)
    if c.truncates:
        drift = p.P * (p.drift * np.abs(core) + p.drift_dP) * np.abs(p.slope) + np.abs(dT) * p.scores.slope_drift
        low = low + np.where(p.visible, drift, 0.0)
    # beyond the range of the weights' dtype an honest kernel overflows
    e_rounded = np.where(np.isinf(e_dS) | ((1 + u_p) * (size + e_dS) > c.weights_max), np.inf, e_rounded)
    rounding = (u_p * u_p + 3 * u * u + 2 * c.u_scores**2) / 3
    relative = np.copysign(np.hypot(size * np.sqrt(p.v + rounding), dT * p.slope_deviation), dS)
    spread = p.v_dP + (u * u + c.u_scores**2) / 3 * (p.dP**2 + delta**2 + dlse**2)
    spread = p.P * np.sqrt(spread)
    return Slopes(dT, e_dT, dS, e_rounded, low, relative, spread * p.slope, spread)


def delta_errors(p: Pairs, h: Head, r: Rows, rows: slice, ties: Ties | NoTies, c: Units) -> None:
    """Fill e_delta (rigorous), v_delta (variance) and b_delta (coherent) of the rows."""
    u, u_p = c.u, c.u_weights
    f, dout = h.forward, h.dout[rows]
    o, delta = f.out[rows], r.delta[rows]
    Dv = dout.shape[-1]
    most = np.abs(o) + f.rigorous[rows]
    flushed = np.where(np.abs(o) - f.rigorous[rows] < c.out_flushed, np.minimum(most, c.out_flushed), 0.0)
    e_out = f.rigorous[rows] + half_ulp(most, c.out) + flushed
    products = np.abs(dout) * np.abs(o)
    dot = (Dv + 1) * u * products.sum(-1, keepdims=True)
    large = (p.P > u).sum(-1, keepdims=True)
    by_keys = (p.P * (p.e_dP + (p.e + large * c.u_sum) * np.abs(p.dP))).sum(-1, keepdims=True)
    r.e_delta[rows] = (np.abs(dout) * e_out).sum(-1, keepdims=True) + dot + by_keys + (Dv + 2) * c.eta
    r.e_delta[rows] = np.where(p.over.any(-1, keepdims=True), np.inf, r.e_delta[rows])
    w = p.P * np.sqrt(p.v) * (p.dP - delta)
    wp = u_p * p.P * p.dP
    variance = (w * w).sum(-1, keepdims=True) + ties.sum_squares_of(w)
    variance += ((wp * wp).sum(-1, keepdims=True) + ties.sum_squares_of(wp)) / 3
    variance += r.v_lse[rows] * delta**2  # sum p dp scales with the weights
    rounded = dout * np.sqrt((c.u_out * o) ** 2 / 3 + (c.eta_out / 2) ** 2 + f.accumulation_variance[rows])
    peak = np.abs(o).max(-1, keepdims=True, initial=0.0)
    columns = ties.others(o, (1e-12 * peak, c.u_out / 4 * peak))  # equal columns round alike
    variance += (rounded**2).sum(-1, keepdims=True) + columns.sum_squares_of(rounded)
    variance += u * u / 3 * ((p.P * p.dP) ** 2).sum(-1, keepdims=True) + (p.P**2 * p.v_dP).sum(-1, keepdims=True)
    variance += ties.sum_squares_of(p.P * np.sqrt(p.v_dP))
    variance += u * u / 9 * large * delta**2
    variance += u * u / 3 * Dv * (delta**2 / 3 + (products**2).sum(-1, keepdims=True) / 6)
    r.v_delta[rows] = variance
    same = r.same_dout[rows] & repetitive(o)
    coherent = (np.abs(dout) * (f.coherent[rows] + flushed)).sum(-1, keepdims=True) + np.where(same, dot, 0.0)
    if c.truncates:
        coherent += (p.P * (p.drift_dP + (p.drift + large * u) * np.abs(p.dP))).sum(-1, keepdims=True)
    r.b_delta[rows] = (u_p + 4 * u) * np.abs(delta) + coherent + (Dv + 2) * c.eta
