"""Decisions that may be taken at any time: looking early costs nothing.

An e-process is a nonnegative supermartingale that starts at 1 under the hypothesis that it is to
refute; by Ville's inequality it ever reaches 1/alpha with probability at most alpha.  So a run may
stop as soon as it knows, and its false-alarm rate stays alpha.

`Mean` tests that the mean of a stream is within a margin of a value.  Its wealth is a mixture of
bets, each kept as a logarithm:

- `Bounded(lo, hi)`: product of 1 + b (x - m), Waudby-Smith and Ramdas 2024, "Estimating means of
  bounded random variables by betting", section 4;
- `Variance(v)`: exp(sum phi(b (x - m)) - n b² v / 2), Wang and Ramdas 2023, "Catoni-style confidence
  sequences for heavy-tailed mean estimation", lemma 1: no moment beyond a known bound on the second.

Packages looked at: confseq (builds C++ and Boost on installation, calls itself unstable, last
released in 2023) and ville (0.1, 2026, new); neither is one to depend on for forty lines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np

from .moments import Moments

__all__ = ["ALPHA", "Bounded", "Decision", "Mean", "Variance", "Wager", "log_mean_exp", "whole"]

Array = np.ndarray[Any, Any]

ALPHA = 1e-9


class Decision(Enum):
    HOLDS = "holds"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


def whole(decisions: list[Decision]) -> Decision:
    """Refuted if any part is, undecided if any other part is; a claim without parts is undecided."""
    if Decision.REFUTED in decisions:
        return Decision.REFUTED
    return Decision.UNDECIDED if Decision.UNDECIDED in decisions or not decisions else Decision.HOLDS


def log_mean_exp(x: Array) -> float:
    """log(mean(exp(x))) without overflow."""
    peak = float(np.max(x))
    return peak + math.log(float(np.mean(np.exp(x - peak)))) if math.isfinite(peak) else peak


class Wager(Protocol):
    """What is known of the stream, and so which bets are fair."""

    def bets(self, m: float, scale: float, up: bool) -> Array:
        """Sizes of bets that the mean is above m (`up`), or below; `scale` is a likely deviation."""

    def log_growth(self, x: Array, m: float, bet: float) -> float:
        """Sum over the batch of the logarithm by which a bet multiplies its wealth."""


@dataclass(frozen=True)
class Bounded:
    """A stream within [lo, hi]."""

    lo: float
    hi: float

    def bets(self, m: float, scale: float, up: bool) -> Array:
        most = 0.9 / (m - self.lo if up else self.hi - m) if (m > self.lo if up else m < self.hi) else 1.0
        sizes = most * 0.5 ** np.arange(0, 14)
        return sizes if up else -sizes

    def log_growth(self, x: Array, m: float, bet: float) -> float:
        if x.size and not (self.lo <= x.min() and x.max() <= self.hi):
            raise ValueError(f"a value of {x.min()} to {x.max()} must lie in [{self.lo}, {self.hi}]")
        return float(np.log1p(bet * (x - m)).sum())


@dataclass(frozen=True)
class Variance:
    """A stream with a variance of at most `bound`, heavy tails and all.

    The bound is an assumption, also in a world where the claim fails: a rare large value can hide
    behind it.  For a stream that is bounded by its nature use `Bounded`, which assumes nothing.
    """

    bound: float

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise ValueError(f"bound={self.bound} must be > 0 and finite")

    def bets(self, m: float, scale: float, up: bool) -> Array:
        sizes = scale / self.bound * 2.0 ** np.arange(-2, 4)
        return sizes if up else -sizes

    def log_growth(self, x: Array, m: float, bet: float) -> float:
        y = bet * (x - m)
        influence = np.sign(y) * np.log1p(np.abs(y) + y * y / 2)
        return float(influence.sum()) - x.size * bet * bet * self.bound / 2


@dataclass
class Mean:
    """Whether the mean of a stream lies within `margin` of `value`: refuted, holds or undecided.

    Refuted when the wealth of bets against `value` itself reaches 1/alpha; holds when bets against
    both ends of the margin have.  Each is wrong with probability at most alpha, given what the wager
    knows of the stream (a mean between the two may be told either way, truly).

    >>> test = Mean(0.5, 0.05, Bounded(0, 1))
    >>> while test.decision is Decision.UNDECIDED: test.update(np.array([0.0, 1.0]))
    >>> test.decision
    <Decision.HOLDS: 'holds'>
    """

    value: float
    margin: float
    wager: Wager
    alpha: float = ALPHA
    moments: Moments = field(default_factory=Moments)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and 0 < self.margin < math.inf and 0 < self.alpha < 1):
            raise ValueError(
                f"value={self.value} must be finite, margin={self.margin} > 0 and finite, alpha={self.alpha} in (0, 1)"
            )
        low, high = self.value - self.margin, self.value + self.margin
        against = ((self.value, (True, False)), (low, (True,)), (high, (False,)))
        self._bets = [
            (m, np.concatenate([self.wager.bets(m, self.margin, up) for up in directions])) for m, directions in against
        ]
        self._wealth = [np.zeros(len(bets)) for _, bets in self._bets]
        self._best = [-math.inf] * 3

    def update(self, x: Any) -> None:
        x = np.asarray(x, dtype=np.float64).ravel()
        if not np.isfinite(x).all():
            raise ValueError(f"{np.count_nonzero(~np.isfinite(x))} of {x.size} samples are not finite")
        self.moments.update(x)
        for i, (m, bets) in enumerate(self._bets):
            self._wealth[i] += [self.wager.log_growth(x, m, float(bet)) for bet in bets]
            self._best[i] = max(self._best[i], log_mean_exp(self._wealth[i]))

    @property
    def log_e(self) -> tuple[float, float]:
        """Logarithms of the largest wealth against the value, and against the nearer end of the margin."""
        return self._best[0], min(self._best[1:])

    @property
    def decision(self) -> Decision:
        against, ends = self.log_e
        needed = -math.log(self.alpha)
        if against >= needed:
            return Decision.REFUTED
        return Decision.HOLDS if ends >= needed else Decision.UNDECIDED
