"""A cheap bound of out and lse, for kernels that round the weights to 16 bits or fewer.

There the rounding of P outweighs the error of the scores, so that one number for each row bounds
the latter, by Cauchy and Schwarz: with A = |scale| |q_i| max_j |k_j|,

    e = expm1(A u (D + 2) + u (4 (A + F) + 2 F) + (T+1) ε + T u),   F = max(A, |sink|)

in place of `forward`'s ē_j, and nothing is sorted.  Ties only add to the full bound, so leaving
them out makes this one no looser; lse is given its final roundings alone.  Against the full form it is
too large by at most a factor of about 1 + 2 e / u_P, by which the radii are divided, with 5 % to
spare: an answer within them is within the full bound, and what is not, the full form decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..precision import Precision
from .forward import EVERYTHING, Forward, Tile, row_tiles
from .rounding import LAMBDA, Units

__all__ = ["forward_lite"]

Array = np.ndarray[Any, Any]


def forward_lite(
    q: Array, k: Array, v: Array, visible: Tile, scale: float, sink: float | None, precision: Precision
) -> Forward | None:
    """Bounds of one head without bias and softcap, or None where the cheap form is not sharp enough."""
    c = Units(precision, len(k))
    other = c.u_scores or c.u_scaled_q or precision.sum_rounded_weights or precision.weights_from_lse
    if not c.u_weights or other or not len(k):
        return None
    u, T = c.u, c.rescalings
    with np.errstate(over="ignore"):
        A = abs(scale) * np.sqrt((q * q).sum(1, keepdims=True) * (k * k).sum(1).max())
    F = np.maximum(A, 0.0 if sink is None else abs(sink))
    far = A + F
    e = np.expm1(A * u * (q.shape[1] + 2) + u * (4 * far + 2 * F) + (T + 1) * c.eps + T * u)
    if not (e <= c.u_weights / 2).all():
        return None
    one = np.zeros((len(q), 1))
    wide = np.zeros((len(q), v.shape[1]))
    bound = Forward(*(np.zeros_like(x) for x in (*[wide] * 5, *[one] * 4, wide)))
    vabs, v2 = np.abs(v), v * v
    for rows in row_tiles(len(q), len(k)):
        _rows(
            bound,
            rows,
            q[rows],
            k,
            v,
            vabs,
            v2,
            visible(rows, EVERYTHING),
            scale,
            sink,
            e[rows],
            far[rows],
            precision,
            c,
        )
    return bound


def _rows(
    bound: Forward, rows: slice, q: Array, k: Array, v: Array, vabs: Array, v2: Array, visible: Array, scale: float,
    sink: float | None, e: Array, far: Array, precision: Precision, c: Units,
) -> None:  # fmt: skip
    u, u_p, T = c.u, c.u_weights, c.rescalings
    x = (q * scale) @ k.T
    if not visible.all():
        x = np.where(visible, x, -np.inf)
    m = x.max(1, keepdims=True, initial=-np.inf if sink is None else sink)
    dead = np.isneginf(m)
    m = np.where(dead, 0.0, m)
    x -= m
    weight = np.exp(x)
    total = weight.sum(1, keepdims=True) + (0.0 if sink is None else np.exp(sink - m))
    inverse = 1 / np.where(total > 0, total, 1.0)
    unit = weight if not precision.weights_normalised else weight * inverse
    low = np.where(unit < c.weights_normal, np.minimum(c.weights_eta / 2, unit), 0.0)
    if not precision.weights_normalised:
        low *= inverse
    p = weight * inverse
    px = p * np.where(visible, x, 0.0)
    mean_x = px.sum(1, keepdims=True)
    narrow = (px * np.where(visible, x, 0.0)).sum(1, keepdims=True) - mean_x * mean_x < (4 * u_p) ** 2
    large = p > u
    R = large.sum(1, keepdims=True)
    small = np.where(large, 0.0, p)
    rest = small.sum(1, keepdims=True)
    o, B, S2 = p @ v, p @ vabs, (p * p) @ v2
    size = np.abs(o)
    half = (B + size) / 2
    few = (visible.sum(1, keepdims=True) - R) * u
    small_v, rest = np.minimum(small @ vabs, few * half), np.minimum(rest, few)
    underflow = low @ vabs + (visible.sum(1, keepdims=True) + 4) * c.eta
    rounding_p = (u_p + c.pv_rounds * u) * B * (1 + e)
    sum_v, sum_l = (R * u * half + 2 * T * u * B) * (1 + e) + small_v, R * u + rest + 2 * T * u
    rigorous = e * (B + size) + rounding_p + underflow + sum_v + size * sum_l * (1 + e)
    rigorous = rigorous / np.maximum(1 - e - sum_l, 0.01) + 4 * u * size
    variance_p, variance_l = (u_p**2 + c.pv_rounds * u * u) / 3 * S2, u * u / 9 * R * o * o
    walk = u * u / 3 * R * np.minimum(half**2, 4 * (S2 + o * o))  # partial sums of values of either sign
    bound.deviation[rows] = np.sqrt(variance_p + walk + variance_l)
    variance = variance_p + u * u / 3 * R * half**2 + variance_l
    variance += 2 * e * e / 3 * (S2 + o * o * (p * p).sum(1, keepdims=True))
    coherent = np.where(narrow, rounding_p, u_p * size) + underflow + small_v + 4 * u * far * (B + size) + 6 * u * size
    sharp = np.minimum(LAMBDA * np.sqrt(variance) + coherent, rigorous)
    log_l = np.abs(np.log(np.where(total > 0, total, 1.0)))
    lse = np.where(dead, -np.inf, m + np.log(np.where(total > 0, total, 1.0)))
    final = u * (np.abs(m) + np.abs(np.where(dead, 0.0, lse)) + 2 * log_l + 4)
    lse_sharp = LAMBDA * u / 3 * np.sqrt(R) + final + 2 * u * np.abs(mean_x) + c.walk * c.eps + rest
    lse_rigorous = final - np.log1p(-np.minimum(e + sum_l, 0.999))
    alive = np.where(dead, 0.0, 0.95 / (1 + 2 * e / u_p))
    bound.out[rows], bound.lse[rows] = o, lse
    bound.rigorous[rows], bound.sharp[rows] = rigorous * alive, sharp * alive
    bound.lse_rigorous[rows], bound.lse_sharp[rows] = lse_rigorous * alive, np.minimum(lse_sharp, lse_rigorous) * alive
