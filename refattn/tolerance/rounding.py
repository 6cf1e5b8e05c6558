"""Roundings: what a sum of n terms costs, and the interval that an honest answer lies in.

Accumulation.  |fl(a+b) - (a+b)| <= min(u |a+b|, |a|, |b|) in rounding to nearest.  Every partial
sum of any summation tree is a subset sum; with A = sum |terms| and s = sum terms it lies in
[-(A-s)/2, (A+s)/2].  So a sum of n terms, in any order and by any tree, is off by at most
(n-1) u (A+|s|)/2, up to twice sharper than the textbook's (n-1) u A (Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., section 4.2), plus u A where products are rounded.

Truncation.  |fl(a+b) - (a+b)| < 2 u |a+b| toward zero: 2 n u (A+|s|)/2 at most, and no term costs less
for being small, since one of the other sign takes a whole unit off (not so where no term is negative).
Errors, uniform on [0, 2u) of the partial sum, are u of it on average, +-u about that: what is
random is as before, but the averages add up, to n u of the partial sums.  In a random order a partial sum
has a mean square of at most s² + sum t²/4 (of a walk that ends at s), and it is at most (A+|s|)/2, so

    drift = n u min( sqrt(s² + sum t²/4), (A+|s|)/2 ).

Drifts are coherent: they are added up with |.| wherever they go.  Adding k products at a time makes n / k of it.

Acceptance.  Rounding is monotone: an honest answer y = RN(z) with |z - o| <= t satisfies
RN(o - t) <= y <= RN(o + t), which is exact about subnormals, overflow and the rounding itself.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import FORMATS, Format, round_to
from ..precision import Precision

__all__ = ["LAMBDA", "SQUARES_VANISH", "Units", "half_ulp", "interval", "repetitive"]

Array = np.ndarray[Any, Any]

LAMBDA = 8.2
"""Sharp bounds hold for one element but for a probability 2 exp(-LAMBDA**2 / 2) = 5e-15, so that
2e8 elements, more than the suite has, all hold but for 1e-6."""

SQUARES_VANISH = 2.0**-480
"""Below this the squares in a variance underflow, and the rigorous bound is used."""


class Units:
    """The numbers of a contract: unit roundoffs and the like, by the symbols of the derivation."""

    def __init__(self, precision: Precision, keys: int) -> None:
        accumulate = FORMATS[precision.accumulate]

        def eta(f: Format) -> float:
            """The spacing of subnormal numbers; twice what is lost where they are flushed."""
            return 2 * f.smallest_normal if precision.flush_subnormal else f.eta

        self.u = accumulate.u
        self.truncates = precision.accumulate_rounding == "truncate"
        self.u_sum = 2 * self.u if self.truncates else self.u
        """what an addition to a sum of products is off by at most"""
        self.smallest_normal = accumulate.smallest_normal
        self.eta = accumulate.smallest_normal if precision.flush_subnormal else accumulate.eta
        self.largest_exponent = math.log(accumulate.max)
        self.eps = precision.exp_ulp * self.u
        self.tanh = precision.tanh_error if precision.accumulate != "float64" else 4 * self.u
        weights = FORMATS[precision.weights] if precision.weights else None
        self.u_weights = weights.u if weights else 0.0
        self.weights_eta = eta(weights) if weights else 0.0
        self.weights_normal = weights.smallest_normal if weights else 0.0
        self.weights_max = weights.max if weights else math.inf
        self.u_scores = FORMATS[precision.scores].u if precision.scores else 0.0
        self.scores_eta = eta(FORMATS[precision.scores]) if precision.scores else 0.0
        self.u_scaled_q = FORMATS[precision.scaled_q].u if precision.scaled_q else 0.0
        self.out = precision.out
        self.u_out = FORMATS[precision.out].u
        self.eta_out = eta(FORMATS[precision.out])
        self.out_flushed = FORMATS[precision.out].smallest_normal if precision.flush_subnormal else 0.0
        bits = FORMATS[precision.inputs].bits
        weight_bits = weights.bits if weights else accumulate.bits
        self.qk_rounds = float(2 * bits > accumulate.bits)  # 1 where products of inputs are inexact
        self.pv_rounds = float(weight_bits + bits > accumulate.bits)
        self.rescalings = math.ceil(keys / precision.tile) if keys > precision.tile else 0
        self.agree = 8 * self.u + self.u_scores  # scores that differ by less, relatively, round alike
        self.scores_max = FORMATS[precision.scores].max if precision.scores else math.inf
        self.walk = 1.0 + math.log1p(self.rescalings)  # rescalings that a random order of maxima makes

    def drift(self, count: Array | float, value: Array, squares: Array, most: Array) -> Array:
        """What truncation takes off sums of `count` terms, whose partial sums are at most `most`; 0 in rounding."""
        if not self.truncates:
            return np.zeros(())
        return np.asarray(count * self.u * np.minimum(np.sqrt(value * value + squares / 4), most))

    def widths(self, far: Array) -> tuple[Array, ...]:
        """Widths of the bins in which scores of size `far` round alike, narrowest first."""
        agree = self.agree * far
        return (agree, *(np.maximum(agree, self.u_weights / n) for n in (8, 1) if self.u_weights))


def repetitive(x: Array) -> Array:
    """Rows (..., n, 1) of x (..., n, d) that hold few different sizes, zero aside: one for eight places, or fewer.

    The products of two such rows repeat, and to add the same number over and over rounds the same
    way each time: their dot product gets the rigorous bound.
    """
    sizes = np.sort(np.abs(x), axis=-1)
    different = (sizes[..., :1] > 0).sum(-1) + (np.diff(sizes, axis=-1) > 0).sum(-1)
    return np.asarray(different <= x.shape[-1] / 8)[..., None]


def half_ulp(x: Array, name: str) -> Array:
    """Largest change that rounding to the format makes near |x|."""
    f = FORMATS[name]
    _, e = np.frexp(np.maximum(np.abs(x), f.smallest_normal))
    return np.asarray(np.ldexp(0.5, e - f.bits))


def interval(value: Array, t: Array, dtype: str, flush_subnormal: bool = False) -> tuple[Array, Array]:
    """[RN(value - t), RN(value + t)] in `dtype`, as float64; NaN where value or t is NaN.

    >>> lo, hi = interval(np.array([1.0]), np.array([1e-3]), "bfloat16")
    >>> float(lo[0]), float(hi[0])
    (1.0, 1.0)
    """
    with np.errstate(invalid="ignore", over="ignore"):
        lo, hi = _round(value - t, dtype), _round(value + t, dtype)
        if flush_subnormal:
            normal = FORMATS[dtype].smallest_normal
            lo = np.where((lo > 0) & (lo < normal), 0.0, lo)
            hi = np.where((hi < 0) & (hi > -normal), -0.0, hi)
    return lo, hi


def _round(x: Array, dtype: str) -> Array:
    """Rounding in which an overflow is an infinity, so that the interval keeps its ends."""
    y = round_to(x, dtype)
    return np.where(np.isnan(y) & ~np.isnan(x), np.copysign(np.inf, x), y)
