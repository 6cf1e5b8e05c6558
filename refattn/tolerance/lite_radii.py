"""The radii of the cheap bound, from sums over the keys, which may be had tile by tile and of many heads at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..precision import Precision
from .extras import Extras
from .forward import COARSE, LARGEST, Forward
from .rounding import LAMBDA, SQUARES_VANISH, Units

__all__ = ["SHORTER", "Ends", "Lite", "Rotated", "Sums", "radii"]

Array = np.ndarray[Any, Any]

SHORTER = 1 - 2.0**-10
NOISE = 2.0**-48  # what float64's roundings may make of a difference, by which neither form need have it alike


class Lite(NamedTuple):
    """Values and radii before the output is rounded, as `Forward` has them; (..., Lq, Dv), of lse (..., Lq, 1).

    What only a backward asks for has the size 0 in place of Dv or 1 where there is none.
    """

    out: Array
    rigorous: Array
    sharp: Array
    deviation: Array
    accumulation_variance: Array
    coherent: Array
    lse: Array
    lse_rigorous: Array
    lse_sharp: Array
    lse_variance: Array

    def whole(self) -> Forward:
        return Forward(**self._asdict(), lse_drift=np.zeros_like(self.lse))


class Ends(NamedTuple):
    """The least and the largest v, (..., 1, Dv), and whether 0 is in between, for a sink or dropped weights."""

    low: Array
    high: Array
    zero: Array


@dataclass
class Sums:
    """Sums over the keys seen so far: (..., rows, 1), and those of values (..., rows, Dv).

    p are the weights, r the factors of dropout, a = p ē, w = p sqrt(v_θ), x = t - m.
    """

    count: Any = 0.0
    large: Any = 0.0
    """how many p > u"""
    small: Any = 0.0
    """sum of the other p"""
    p: Any = 0.0
    px: Any = 0.0
    pxx: Any = 0.0
    ps: Any = 0.0
    """sum p dt/dlog scale"""
    p2: Any = 0.0
    a: Any = 0.0
    w2: Any = 0.0
    furthest: Any = 0.0
    raised: Any = 0.0
    """the largest r"""
    o: Any = 0.0
    B: Any = 0.0
    """sum p r |v|"""
    S2: Any = 0.0
    """sum (p r v)²"""
    av: Any = 0.0
    avv: Any = 0.0
    wv: Any = 0.0
    wvv: Any = 0.0
    pxv: Any = 0.0
    psv: Any = 0.0
    smallV: Any = 0.0
    underflow: Any = 0.0
    lowest: Any = 0.0
    """prefix of o"""
    highest: Any = 0.0
    probable: Any = None
    """of rotated inputs: what p may be off by, in all likelihood"""
    bent: Any = 0.0
    bentV: Any = 0.0
    common_out: Any = 0.0
    """variance by the errors of queries, which are common to all keys"""
    common_lse: Any = 0.0


class Rotated:
    """What the errors of rotated queries do, which are common to all keys of a row (`extras`)."""

    def __init__(self, slack_q: Array) -> None:
        self.slack_q = slack_q
        self.weights: list[Any] = [0.0] * slack_q.shape[-1]
        """for each coordinate: sum p slope scale k"""
        self.values: list[Any] = [0.0] * slack_q.shape[-1]
        """and sum p r slope scale k v"""

    def pairwise(self, slope: Array, k: Array) -> Array:
        """The variance of each score."""
        return slope**2 / 3 * ((self.slack_q * self.slack_q) @ (k * k).swapaxes(-1, -2))

    def add(self, weight: Array, dropped: Array, k: Array, v: Array) -> None:
        for d in range(k.shape[-1]):
            along = k[..., None, :, d]
            self.weights[d] = self.weights[d] + (weight * along).sum(-1, keepdims=True)
            self.values[d] = self.values[d] + (dropped * along) @ v

    def variances(self, o: Array) -> tuple[Any, Any]:
        of_out: Any = 0.0
        of_lse: Any = 0.0
        for d, (weight, value) in enumerate(zip(self.weights, self.values, strict=True)):
            square = self.slack_q[..., d, None] ** 2 / 3
            of_out = of_out + square * (value - weight * o) ** 2
            of_lse = of_lse + square * weight**2
        return of_out, of_lse


def radii(z: Sums, m: Array, total: Array, ends: Ends, precision: Precision, c: Units, extras: Extras) -> Lite:
    """The bounds, by the formulas of `forward`; m is -inf in empty rows, total the sum of exp(t - m)."""
    kept = extras.kept is not None
    u, u_p, eps, T = c.u, c.u_weights, c.eps, c.rescalings
    dead = np.isneginf(m)
    m = np.where(dead, 0.0, m)
    o, B, S2, R = z.o, z.B, z.S2, z.large
    size = np.abs(o)
    half = (B + size) / 2

    # rigorous
    about = _spread(z.avv, z.av, z.a, o)
    theta, aV = np.sqrt(z.a) * np.sqrt(about), np.abs(z.av)
    rounding_p = (u_p + c.pv_rounds * u) * (B + aV)
    underflow = z.underflow + (z.count + 4) * c.eta * np.maximum(1.0, z.raised)
    many = (z.count - R) * u
    small_v, small_l = np.minimum(z.smallV, many * half), np.minimum(z.small, many)
    sum_v, sum_l = R * u * (half + aV) + 2 * T * u * (B + aV) + small_v, R * u + small_l + 2 * T * u
    rounded_l = u_p if precision.sum_rounded_weights else 0.0
    denominator = 1 - z.a - sum_l - rounded_l
    factors = (6 + 2 * z.raised if kept else 4) * u
    rigorous = theta + rounding_p + underflow + sum_v + size * (sum_l * (1 + z.a) + rounded_l)
    # where errors of scores decide which key leads this says next to nothing, so that the full form is asked
    rigorous = np.where(denominator > 0.01, rigorous / np.maximum(denominator, 0.01), 0.0) + factors * size
    low_v, high_v = (end * z.raised if kept else end for end in (ends.low, ends.high))
    low_v, high_v = np.where(ends.zero, np.minimum(low_v, 0), low_v), np.where(ends.zero, np.maximum(high_v, 0), high_v)
    largest = np.maximum(np.abs(low_v), np.abs(high_v))
    roundings = u_p + 2 * z.count * (u + c.weights_eta + c.smallest_normal) + 2 * T * u + 4 * u
    away = np.maximum(high_v - o, o - low_v) - NOISE * largest
    hull = np.maximum(away, 0.0) + largest * roundings + (z.count + 4) * c.eta
    rigorous = np.fmin(rigorous, hull)

    # sharp
    prefix = np.maximum(np.maximum(z.highest, o - z.lowest), np.maximum(-z.lowest, z.highest - o))
    walk = R * np.minimum(np.maximum(prefix, size) ** 2 / 3 + S2 / 6, half**2)
    variance = _spread(z.wvv, z.wv, z.w2, o)
    variance = variance + (u_p * u_p + c.pv_rounds * u * u) / 3 * S2
    variance = variance + u * u / 3 * (walk + R / 3 * o * o) + rounded_l**2 / 3 * o * o * z.p2
    away = np.abs(z.pxv - o * z.px) + np.abs(z.psv - o * z.ps)
    coherent = underflow + small_v + size * small_l + z.bentV + size * z.bent
    if u_p:
        narrow = z.pxx - z.px * z.px < SHORTER * (4 * u_p) ** 2 - NOISE * z.pxx
        coherent = coherent + np.where(narrow, rounding_p, 0.0)
    sharp = LAMBDA * np.sqrt(variance + z.common_out) + 2 * u * away + coherent + (u_p + 2 * u + factors) * size
    sharp = np.fmin(sharp, rigorous)
    probable, rough = (z.a, extras.rough) if z.probable is None else (z.probable, False)
    coarse = (probable > COARSE) | (c.u_scaled_q > 0) | rough
    beyond = (B < SQUARES_VANISH) | coarse
    sharp = np.where(beyond, rigorous, sharp)

    # lse
    log_l = np.log(np.where(total > 0, total, 1.0))
    lse = np.where(dead, -np.inf, m + log_l)
    final = u * (np.abs(m) + np.abs(np.where(dead, 0.0, lse)) + 2 * np.abs(log_l) + 4)
    lse_rigorous = final - np.log1p(-np.minimum(z.a + sum_l + rounded_l, 0.999))
    lse_rigorous = np.where(z.a + sum_l + rounded_l < 0.99, lse_rigorous, np.inf)
    furthest = z.furthest + (T + 1) * eps + T * u
    lse_rigorous = np.fmin(lse_rigorous, furthest + final - np.log1p(-np.minimum(sum_l + rounded_l, 0.999)))
    drift = 2 * u * (np.abs(z.px) + np.abs(z.ps)) + c.walk * eps + rounded_l + small_l
    lse_variance = z.w2 + u * u / 9 * R + z.common_lse
    lse_sharp = np.fmin(LAMBDA * np.sqrt(lse_variance) + final + drift, lse_rigorous)
    lse_sharp = np.where(coarse, lse_rigorous, lse_sharp)
    lse_variance = np.where(coarse, lse_rigorous**2, lse_variance) + (final + drift) ** 2 / 3
    if precision.weights_from_lse:
        rigorous = rigorous + np.expm1(np.minimum(lse_rigorous, LARGEST)) * (B + rigorous)
        sharp = np.fmin(sharp + np.expm1(np.minimum(lse_sharp, LARGEST)) * size, rigorous)
        variance = variance + lse_variance * o * o
    deviation = np.where(beyond, np.inf, np.sqrt(variance))
    shorter = np.where(dead, 0.0, SHORTER)
    return Lite(
        o, rigorous * shorter, sharp * shorter, deviation, u * u / 3 * walk, coherent * shorter,
        lse, lse_rigorous * shorter, lse_sharp * shorter, lse_variance * shorter,
    )  # fmt: skip


def _spread(wvv: Array, wv: Array, w: Array, o: Array) -> Array:
    """sum w (v - o)², at least."""
    whole = wvv + o * o * w
    return np.maximum(whole - 2 * o * wv - NOISE * whole, 0.0)
