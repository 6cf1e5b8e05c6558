"""`Suspicion`: one statistic beyond its limit, and the limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["RATE", "Found", "Suspicion", "limit_of"]

RATE = 1e-9
"""the largest probability that a statistic exceeds its limit on the answer of an honest kernel to one problem"""


@dataclass(frozen=True)
class Suspicion:
    """A statistic of one output that exceeds its limit; `text` says in words what that looks like."""

    name: str
    output: str
    statistic: float
    limit: float
    text: str


class Found(NamedTuple):
    """A suspicion, and how much of sum z² its cause would explain."""

    explained: float
    suspicion: Suspicion


def limit_of(tests: int) -> float:
    """L such that `tests` values of T exceed it with probability RATE: 2 tests exp(-L² / 2) = RATE.

    >>> round(limit_of(1), 2), round(limit_of(4096), 2)
    (6.54, 7.71)
    """
    return math.sqrt(2 * math.log(2 * max(tests, 1) / RATE))
