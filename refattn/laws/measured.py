"""Answers with their radii, and the comparison of two of them.

A radius is how far an element of an honest answer may be from the exact value: the larger side of its
derived interval, rounding of the output included.  If b should be f(a), f linear with the matrix F,
then |b - f(a)| <= r_b + |F| r_a for honest answers, whatever the exact values are: no oracle's value
enters a comparison.  Sums that evaluate a law are in float64 and add n u sum |terms|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..judge import Output, ratios
from ..precision import Precision
from ..tolerance import half_ulp
from ..truth import Expected

__all__ = ["Measured", "compare", "exact"]

Array = np.ndarray[Any, Any]
U = 2.0**-53


@dataclass(frozen=True)
class Measured:
    """x with the radius that decides, the rigorous one, and what is not judged; arrays of one shape."""

    x: Array
    radius: Array
    rigorous: Array
    free: Array

    @classmethod
    def of(cls, got: Array, expected: Expected, precision: Precision) -> Measured:
        """An output of an answer.  Where the value is not finite the radius is 0.

        The interval [RN(o - t), RN(o + t)] is about the truth's value o, and t counts the error of o itself:
        2^-27 of t, and half of it where the implementation works in float64 as the truth does.  It is added,
        since two problems have two o.  As o + t <= hi + h, with h half a unit of hi, t <= hi - o + h.
        """
        x = np.asarray(got, dtype=np.float64)
        value = np.where(np.isfinite(expected.value), expected.value, 0.0)
        share = 0.5 if precision.accumulate == "float64" else 2.0**-27
        radii = []
        for lo, hi in ((expected.lo, expected.hi), (expected.rigorous_lo, expected.rigorous_hi)):
            with np.errstate(invalid="ignore"):
                r = np.maximum(hi - expected.value, expected.value - lo)
            own = share * (r + half_ulp(np.abs(value) + np.where(np.isfinite(r), r, 0.0), expected.dtype))
            radii.append(np.nan_to_num(r + own, nan=0.0, posinf=np.inf))
        free = expected.ignored | (expected.nonfinite & ~np.isfinite(x))
        return cls(x, radii[0], radii[1], free)

    def each(self, f: Callable[[Array], Array]) -> Measured:
        """`f`, which moves elements, of all four arrays."""
        return Measured(f(self.x), f(self.radius), f(self.rigorous), f(self.free))

    def __getitem__(self, index: Any) -> Measured:
        return self.each(lambda a: a[index])

    def times(self, factor: Any) -> Measured:
        """Times an exact array."""
        with np.errstate(invalid="ignore"):  # 0 * inf
            size = np.abs(factor)
            radius, rigorous = (np.nan_to_num(r * size, nan=0.0, posinf=np.inf) for r in (self.radius, self.rigorous))
            x = self.x * factor
        rounded = U * np.where(np.isfinite(x), np.abs(x), 0.0)
        return Measured(x, radius + rounded, rigorous + rounded, self.free | np.zeros(np.shape(factor), dtype=bool))

    def plus(self, exactly: Any) -> Measured:
        """Plus an exact array."""
        x = self.x + exactly
        rounded = U * np.where(np.isfinite(x), np.abs(x), 0.0)
        return Measured(x, self.radius + rounded, self.rigorous + rounded, self.free)

    def __add__(self, other: Measured) -> Measured:
        total = self.plus(other.x)
        return Measured(
            total.x, total.radius + other.radius, total.rigorous + other.rigorous, self.free | other.free
        )  # fmt: skip

    def sum(self, axis: int | tuple[int, ...]) -> Measured:
        """The sum along axes; free where a term is."""
        x, radius, rigorous = (np.where(self.free, 0.0, a) for a in (self.x, self.radius, self.rigorous))
        total = x.sum(axis)
        rounded = U * (x.size / max(total.size, 1)) * np.abs(x).sum(axis)
        free = np.asarray(self.free.any(axis))
        return Measured(total, radius.sum(axis) + rounded, rigorous.sum(axis) + rounded, free)

    def onto(self, exactly: Array) -> Measured:
        """exactlyᵀ @ self, over the last but one axis; free where a term is."""
        x, radius, rigorous = (np.where(self.free, 0.0, a) for a in (self.x, self.radius, self.rigorous))
        across = exactly.swapaxes(-1, -2)
        size = np.abs(across)
        total = across @ x
        rounded = U * (x.shape[-2] + 2) * (size @ np.abs(x))
        free = np.broadcast_to(self.free.any(-2, keepdims=True), total.shape)
        return Measured(total, size @ radius + rounded, size @ rigorous + rounded, free)


def exact(x: Array) -> Measured:
    """What is known exactly."""
    return Measured(x, np.zeros(x.shape), np.zeros(x.shape), np.zeros(x.shape, dtype=bool))


def compare(name: str, got: Measured, image: Measured, *, bitwise: Any = False) -> Output:
    """`got`, which should be `image`: within the sum of their radii, and equal where `bitwise`."""
    free = np.broadcast_to(got.free | image.free, got.x.shape)
    value = np.broadcast_to(image.x, got.x.shape)
    sharp, rigorous = (
        _ends(value, np.where(bitwise, 0.0, _sum(value, a, b)))
        for a, b in ((got.radius, image.radius), (got.rigorous, image.rigorous))
    )
    ratio, beyond = (np.where(free, 0.0, ratios(got.x, value, *ends)) for ends in (sharp, rigorous))
    elements = int(free.size - np.count_nonzero(free))
    if not elements:
        return Output(name, True, 0.0, 0.0, 0, 0)
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return Output(
        name, bool(ratio[worst] <= 1), float(ratio[worst]), float(beyond.max()),
        int(np.count_nonzero(~(ratio <= 1))), elements, tuple(map(int, worst)),
        *(float(x[worst]) for x in (got.x, value, *sharp)),
    )  # fmt: skip


def _sum(value: Array, a: Array, b: Array) -> Array:
    """a + b, and what the comparison itself rounds: a few operations on either."""
    return (a + b) * (1 + 16 * U) + 4 * U * np.where(np.isfinite(value), np.abs(value), 0.0)


def _ends(value: Array, radius: Array) -> tuple[Array, Array]:
    with np.errstate(invalid="ignore"):
        return value - radius, value + radius
