"""What the statistics look at: generic problems, generic key heads, generic rows.

A *problem* is generic if its accumulators are float32, which truncate only where weights are rounded, and nothing but a
mask, a softcap, a bias or sinks stands between q, k, v and out: of a rotation, of quantised inputs and of a scaled q,
the errors of k are common to all rows; score_mod and dropout are left out for simplicity.  Where a softcap is flat,
tanh is rounded to the same side for all rows: that may be no more than 1/64 of a rounding of P.

A *key head* is generic if no more than a tenth of its keys are copies: their roundings are copies too, and add up.
Columns of out that do not spread over four half units in the last place from row to row are left out: all rows
are rounded alike there.  So are, where nothing is rounded to 16 bits, those in which the mean of v is above its
standard deviation: terms of one sign round alike when they are added up.

Weights must not take a few values again and again (integer inputs, a few score levels, ALiBi on flat scores), or rows
are not rounded independently.  Of a sample of exponents x < 0, pairs are counted that are in one bin, u_P / 8 wide; if
there are many, bins 16 times as wide must hold CLUSTERED times as many pairs (16 times, if x is smooth).

A *row* is generic if no other row has the same q, and

- its scores spread: their standard deviation under p is at least 32 roundings of P, and 2^-5;
- it has at least 16 effective keys, (sum p)² / sum p²: then P is rounded in many places at once;
- a sink takes no more than 15/16 of it;
- scores are below 2^13, so that p in float32 is good to three digits, which is enough to weigh errors with;
- what is lost, sum of p below a unit of the sum or flushed to 0 in the format of P, is below 1/16 of a rounding;
- more than half of its elements can be judged: finite, of a finite bound, and above 64 times the smallest number of
  out's format (with flushing, four times the smallest normal), since those below are rounded to 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import FORMATS
from ..inputs import Problem
from ..precision import Precision
from ..tolerance import Units, half_ulp
from ..truth import Expected

__all__ = ["FEWEST", "fresh", "generic", "generic_rows", "has_copies", "judged", "spread_out", "varied"]

Array = np.ndarray[Any, Any]

FEWEST = 43
"""rows below which no T can exceed its limit"""
SAMPLE = 1 << 14
"""exponents in which clusters are looked for"""
CLUSTERED = 4


def generic(problem: Problem, expected: Expected, precision: Precision) -> bool:
    """Whether the problem as a whole is."""
    case, c = problem.case, Units(precision, problem.case.Lk)
    plain = case.score_mod is case.dropout is case.rotary is case.quant is precision.scaled_q is None
    known = expected.deviation is not None and precision.accumulate == "float32"
    known &= c.u_weights > 0 or not c.truncates
    flat = case.softcap is not None and 64 * (c.tanh + 3 * c.u + c.u_scores) * case.softcap >= c.u_weights
    enough = case.B * case.H * case.Lq >= FEWEST and case.Lk >= 16 and case.D * case.Dv > 0
    return plain and known and not flat and enough


def _marks(x: Array) -> Array:
    """A number for each row of x (n, d); those of equal rows are equal."""
    return np.asarray((x @ np.cos(np.arange(x.shape[1]))).astype(np.float32))


def fresh(q: Array, seen: set[float]) -> Array:
    """The indices, ascending, of the rows of q (n, D) that are not copies, here or of those seen before."""
    marks, first = np.unique(_marks(q), return_index=True)
    new = np.array([mark not in seen for mark in marks.tolist()], dtype=bool)
    seen.update(marks.tolist())
    return np.sort(first[new])


def has_copies(k: Array) -> bool:
    """Whether more than a tenth of the keys are copies; keys of 0 are no keys."""
    marks = _marks(k[k.any(1)])
    return not len(marks) or len(np.unique(marks)) < 0.9 * len(marks)


def varied(value: Array, v: Array, dtype: str, c: Units) -> Array:
    """(Dv,): which columns of out (n, Dv) are not rounded alike in all rows; v (Lk, Dv)."""
    spread = value.std(0)
    found = spread > 4 * half_ulp(np.abs(value).mean(0) + spread, dtype)
    if max(c.u_weights, FORMATS[dtype].u) == c.u:
        found &= np.abs(v.mean(0)) < v.std(0)
    return np.asarray(found)


def spread_out(x: Array, c: Units) -> bool:
    """Whether exponents x (n, Lk) of generic rows are not in clusters far narrower than a rounding of P."""
    x = x[(x < 0) & (x > -14)]
    x = x[:: max(1, len(x) // SAMPLE)]
    width = max(c.u_weights / 8, 2.0**-20)
    narrow, wide = (_pairs(np.floor(x / w)) for w in (width, 16 * width))
    return narrow < len(x) / 4 or wide >= CLUSTERED * narrow


def _pairs(bins: Array) -> int:
    """How many pairs of entries are equal."""
    counts = np.unique(bins, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2


def generic_rows(
    m: Array, spread: Array, effective: Array, kept: Array, lost: Array, dtype: str, c: Units
) -> Array:  # fmt: skip
    """Which rows are, by their largest score, spread, effective keys, sum p and what is lost, each (n, 1)."""
    wide = (spread >= max(32 * c.u_weights, 2.0**-5)) & (effective >= 16) & (kept >= 1 / 16)
    return np.asarray(wide & (np.abs(m) < 2.0**13) & (lost <= max(c.u_weights, FORMATS[dtype].u) / 16))


def judged(expected: Expected, at: Any, precision: Precision) -> Array:
    """Which elements of the rows at `at` of out are."""
    f = FORMATS[expected.dtype]
    floor = 4 * f.smallest_normal if precision.flush_subnormal else 64 * f.eta
    value, lo, hi, ignored, nonfinite = (
        x[at] for x in (expected.value, expected.lo, expected.hi, expected.ignored, expected.nonfinite)
    )
    return np.asarray(np.isfinite(lo) & np.isfinite(hi) & ~ignored & ~nonfinite & (np.abs(value) > floor))
