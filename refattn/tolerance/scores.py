"""How far a computed score t = softcap(scale q·k) + bias can be from the exact one.

With x = q·k, A = |q|·|k| and D terms (`rounding` has the sum's bound),

    |dx| <= (D u (A + |x|)/2)(1 + D u) + [u A where products of inputs are inexact]
    s = scale x:     e = |scale| |dx| + 2 u |s| + [2 u_q |scale| A for q, k scaled beforehand]
                     + [2 u_s |s| for scores stored low, before and after scaling]
    softcap c (stored low too):  |tanh' | <= sech²((|s| - e)+ / c), so e <- sech² e + (eps_tanh + 3 u) |t|
    score_mod f:     e <- max|f'| e + evaluation (`extras`)
    bias:            e <- e + u (|t| + 2 |bias|) [+ u_s |t|]

The variance is the same with independent, centred roundings, uniform on +-h, hence h²/3 each; the
partial sums of a dot product in random order have mean square x²/3 + sum q²k² / 6.  Where the
products repeat (`rounding.repetitive`) the variance is |dx|², that of any error of that size.

Where sums are truncated u is 2 u in |dx|, and the drift of x (`rounding`) goes through the slopes as |dx| does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..precision import Precision
from .extras import Modified, Slack
from .rounding import Units

__all__ = ["Scores", "scores"]

Array = np.ndarray[Any, Any]


class Scores(NamedTuple):
    """Arrays (rows, keys); what is hidden has t = -inf, and error, variance and log_scale 0."""

    t: Array
    error: Array
    variance: Array
    slope: Array
    """dt/ds, 1 without softcap and score_mod"""
    slope_error: Array
    slope_deviation: Array
    log_scale: Array
    """dt / d log(scale) = s * slope: a rounded scale is off for all scores alike"""
    s: Array
    s_error: Array
    capped: Array
    """after softcap and score_mod"""
    capped_error: Array
    outer: Array
    """the slope of score_mod alone"""
    outer_error: Array
    drift: Array
    """the part of the error that truncation makes, all to one side"""
    slope_drift: Array


def scores(
    q: Array, k: Array, repeats: Array, visible: Array, bias: Array | None, scale: float, softcap: float | None,
    precision: Precision, c: Units, slack: Slack | None = None, mod: Modified | None = None,
) -> Scores:  # fmt: skip
    """Exact scores of a tile and how far computed ones may be; q (rows, D), k (keys, D).

    `repeats` (broadcasting to (rows, keys)) says which pairs have products that repeat; `slack`
    bounds what q·k is off by because q and k are; `mod` is score_mod on this tile.
    """
    D = q.shape[-1]
    u = c.u
    x = q @ k.swapaxes(-1, -2)
    ax = np.abs(x)
    A = np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    squares = (q * q) @ (k * k).swapaxes(-1, -2)
    dot = D * c.u_sum * (A + ax) / 2 * (1 + D * c.u_sum) + c.qk_rounds * u * A + D * c.eta
    dot_variance = u * u / 3 * (D * (x * x / 3 + squares / 6) + c.qk_rounds * squares)
    dot_variance = np.where(repeats, dot * dot, dot_variance)
    if slack is not None:  # products of what was rotated or dequantised are inexact
        dot = dot + slack.worst * (1 + (D + 1) * u) + u * A
        dot_variance = dot_variance + slack.variance + (u * A) ** 2
    size = abs(scale)
    s = scale * x
    magnitude = np.abs(s)
    e = size * dot + 2 * u * magnitude
    v = size * size * dot_variance + u * u / 3 * magnitude**2
    if c.u_scaled_q:
        e = e + 2 * c.u_scaled_q * size * A
        v = v + 2 * (size * c.u_scaled_q) ** 2 / 3 * squares
    if c.u_scores:
        e = e + 2 * c.u_scores * magnitude + c.scores_eta
        v = v + 2 * c.u_scores**2 / 3 * magnitude**2 + c.scores_eta**2
    s_error = e
    drift = size * np.where(repeats, dot, c.drift(D, x, squares, (A + ax) / 2)) if c.truncates else np.zeros(())
    t, slope, slope_error, slope_deviation, slope_drift = s, np.ones(()), *(np.zeros(()) for _ in range(3))
    if softcap is not None:
        tanh = np.tanh(s / softcap)
        t = softcap * tanh
        slope = 1 / np.cosh(np.minimum(magnitude / softcap, 300)) ** 2
        steepest = 1 / np.cosh(np.minimum(np.maximum(magnitude - e, 0) / softcap, 300)) ** 2
        slope_error = 2 * np.abs(tanh) * (steepest * e / softcap + c.tanh) + 4 * u
        slope_deviation = np.sqrt(4 * tanh**2 * (slope**2 * v / softcap / softcap + c.tanh**2 / 3) + u * u)
        slope_drift = 2 * np.abs(tanh) * steepest * drift / softcap
        drift = steepest * drift
        e = steepest * (e + c.u_scores * magnitude) + (c.tanh + 3 * u + c.u_scores) * np.abs(t) + c.scores_eta
        v = slope**2 * (v + c.u_scores**2 / 3 * s * s) + (c.tanh**2 + u * u + c.u_scores**2) / 3 * t * t
    outer, outer_error = np.ones(()), np.zeros(())
    if mod is not None:
        outer, outer_error, outer_deviation = mod.slope(t, e, v, u)
        slope_error = np.abs(outer) * slope_error + outer_error * (np.abs(slope) + slope_error) + 2 * u * np.abs(slope)
        slope_deviation = np.hypot(outer * slope_deviation, slope * outer_deviation)
        slope_drift = np.abs(outer) * slope_drift + mod.f.bend * drift * np.abs(slope)
        drift = mod.f.steepest(t, e, *mod.place) * drift
        slope = slope * outer
        t, e, v = mod.apply(t, e, v, u)
        e = e + c.u_scores * np.abs(t) + c.scores_eta
        v = v + c.u_scores**2 / 3 * t * t + c.scores_eta**2
    log_scale = s * slope
    capped, capped_error = t, e
    if bias is not None:
        b = np.where(visible, bias, 0.0)
        t = t + b
        e = e + u * (np.abs(t) + 2 * np.abs(b)) + c.u_scores * np.abs(t)
        v = v + u * u / 3 * (t * t + b * b) + c.u_scores**2 / 3 * t * t
    return Scores(
        np.where(visible, t, -np.inf), np.where(visible, e, 0.0), np.where(visible, v, 0.0),
        slope, slope_error, slope_deviation, np.where(visible, log_scale, 0.0),
        s, s_error, capped, capped_error, outer, outer_error,
        np.where(visible, drift, 0.0) if c.truncates else drift, slope_drift,
    )  # fmt: skip
