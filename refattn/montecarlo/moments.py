"""Independent streams of random numbers, and moments of a stream in O(1) memory."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Moments", "stream"]

Array = np.ndarray[Any, Any]


def stream(seed: int, name: str) -> np.random.Generator:
    """The generator of one named part of a run; parts with other names are independent of it."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(zlib.crc32(name.encode()),)))


@dataclass
class Moments:
    """Count, mean and central sums to the fourth power, merged batch by batch.

    Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample
    variances"; Pebay 2008, SAND2008-6212, for the third and fourth.

    >>> m = Moments(); m.update(np.array([1.0, 2.0])); m.update(np.array([6.0]))
    >>> m.mean, round(m.variance, 12)
    (3.0, 7.0)
    """

    count: int = 0
    mean: float = 0.0
    sum2: float = 0.0
    sum3: float = 0.0
    sum4: float = 0.0

    def update(self, x: Array) -> None:
        x = np.asarray(x, dtype=np.float64).ravel()
        if x.size:
            mean = float(x.mean())
            d = x - mean
            d2 = d * d
            self.merge(Moments(x.size, mean, float(d2.sum()), float((d2 * d).sum()), float((d2 * d2).sum())))

    def merge(self, other: Moments) -> None:
        a, b = self.count, other.count
        n = a + b
        if not b:
            return
        delta = other.mean - self.mean
        s2 = self.sum2 + other.sum2 + delta**2 * a * b / n
        s3 = self.sum3 + other.sum3 + delta**3 * a * b * (a - b) / n**2
        s3 += 3 * delta * (a * other.sum2 - b * self.sum2) / n
        s4 = self.sum4 + other.sum4 + delta**4 * a * b * (a * a - a * b + b * b) / n**3
        s4 += 6 * delta**2 * (a * a * other.sum2 + b * b * self.sum2) / n**2
        s4 += 4 * delta * (a * other.sum3 - b * self.sum3) / n
        self.count, self.mean = n, self.mean + delta * b / n
        self.sum2, self.sum3, self.sum4 = s2, s3, s4

    @property
    def variance(self) -> float:
        """The unbiased variance; NaN below two samples."""
        return self.sum2 / (self.count - 1) if self.count > 1 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return math.sqrt(self.variance / self.count) if self.count > 1 else math.nan

    @property
    def excess_kurtosis(self) -> float:
        return self.count * self.sum4 / self.sum2**2 - 3 if self.sum2 > 0 else math.nan

    def variance_interval(self, z: float) -> tuple[float, float]:
        """Variance +- z standard errors, which the kurtosis sets: sd = variance sqrt((k + 2) / n).

        The chi-square interval takes k = 0 for granted, which holds for the normal law alone.
        """
        half = z * self.variance * math.sqrt((self.excess_kurtosis + 2) / self.count)
        return self.variance - half, self.variance + half
