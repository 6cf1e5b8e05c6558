"""The pass rule: each element of one output against its interval.

An element passes if lo <= got <= hi, and its ratio, which is at most 1 exactly then, says how much of the way from the
true value to that end it used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .truth import Expected

__all__ = ["Output", "judged_output", "ratios"]

Array = np.ndarray[Any, Any]

_ABOVE_ONE = float(np.nextafter(1.0, 2.0))


@dataclass(frozen=True)
class Output:
    """How one output did: its worst element, and how many of those judged failed."""

    name: str
    passed: bool
    ratio: float
    rigorous_ratio: float
    failing: int
    elements: int
    index: tuple[int, ...] = ()
    got: float = 0.0
    value: float = 0.0
    lo: float = 0.0
    hi: float = 0.0


def ratios(got: Array, value: Array, lo: Array, hi: Array) -> Array:
    """The ratio of each element, <= 1 exactly where lo <= got <= hi; all arguments float64.

    (got - value) / (hi - value) above the value, (value - got) / (value - lo) below it, 0 where
    equal, 1 where got is an infinite end, infinite where the denominator is not positive or got
    is NaN.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        above = got > value
        used = np.where(above, got - value, value - got)
        whole = np.where(above, hi - value, value - lo)
        ratio = np.where((whole > 0) & ~np.isnan(got), used / whole, np.inf)
        ratio = np.where(np.isinf(got) & ((got == hi) | (got == lo)), 1.0, ratio)
        ratio = np.where(got == value, 0.0, ratio)
        inside = (lo <= got) & (got <= hi)
        # rounding of the differences, or a value that is itself outside, must not change the verdict
        return np.where(inside, np.fmin(ratio, 1.0), np.fmax(ratio, _ABOVE_ONE))


def judged_output(name: str, got: Array, expected: Expected) -> Output:
    """Judge the elements of one output that has the right shape."""
    free = expected.ignored | (expected.nonfinite & ~np.isfinite(got))
    ratio = np.where(free, 0.0, ratios(got, expected.value, expected.lo, expected.hi))
    rigorous = np.where(free, 0.0, ratios(got, expected.value, expected.rigorous_lo, expected.rigorous_hi))
    elements = int(ratio.size - np.count_nonzero(expected.ignored))
    if not elements:
        return Output(name, True, 0.0, 0.0, 0, 0)
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return Output(
        name,
        bool(ratio[worst] <= 1),
        float(ratio[worst]),
        float(rigorous.max()),
        int(np.count_nonzero(~(ratio <= 1))),
        elements,
        tuple(map(int, worst)),
        *(float(x[worst]) for x in (got, expected.value, expected.lo, expected.hi)),
    )
