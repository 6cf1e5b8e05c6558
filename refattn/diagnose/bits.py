"""Which loss of bits the errors go along with, where none is their exact size.

A kernel has errors of its own that its contract allows.  Beside them the error of a wrong rounding is not the one that
a hypothesis has in its arithmetic, but goes along with it: of all losses of bits the one that happened leaves least of
the squared error, and the errors are as large as it says (a matched filter; the size is the slope of the regression of
the errors on those of the hypothesis).  A kernel has several ways, as for many queries and for one: it need not be so
in all failures, and in those of another way it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..dtypes import round_to
from .effort import Effort
from .hypothesis import Hypothesis, hypotheses
from .order import richness, spread
from .trial import Trial

__all__ = ["Along", "along"]

Array = np.ndarray[Any, Any]
FIRST, ALL = 3, 12
"""All losses of bits are asked of so many failures, the best of so many."""
BEST = 60
LEAST = 0.4
"""Of the squared error of a failure: what goes along with less is not so."""
SLOPE = 0.6, 1.6
"""How large the errors may be for those of the hypothesis."""
SOME, SURE = 1 / 3, 3
"""Of the failures so many are so, and so many at least, if there are."""
PLAINER = 0.5
"""None is named if multiples of the results leave less than this part of what it leaves."""
TINY = 1e-300
LARGEST = 1e15
"""More radii than this an error counts for no more."""


@dataclass(frozen=True)
class Along:
    """`share` of the squared error goes along with `hypothesis`, on average of the `cases` in which it does."""

    hypothesis: Hypothesis
    share: float
    cases: int


class Errors:
    """Of a failure: the errors of what is wrong in units of the radius, and those that a hypothesis would make."""

    def __init__(self, trial: Trial, effort: Effort) -> None:
        self.trial, self.effort = trial, effort
        self.found: dict[str, tuple[Array, Array, Array]] = {}
        for name in sorted(trial.failing):
            e, got = trial.expected[name], trial.got[name]
            if got.shape != e.value.shape:
                continue
            radius, _, _ = trial.about(name)
            judged = np.isfinite(e.value) & ~e.ignored & (radius > 0)
            self.found[name] = radius, judged, self._units(got, e.value, radius, judged)
        self.size = float(sum((x * x).sum() for _, _, x in self.found.values()))

    def multiple(self) -> float:
        """The share of the squared error that is none beside a multiple of what is right, one for each output."""
        explained = 0.0
        for name, (radius, judged, errors) in self.found.items():
            x = self.trial.expected[name].value[judged] / radius[judged]
            explained += float(errors @ x) ** 2 / max(float(x @ x), TINY)
        return float(explained / self.size)

    @staticmethod
    def _units(answer: Array, value: Array, radius: Array, judged: Array) -> Array:
        with np.errstate(all="ignore"):
            x = ((answer - value) / radius)[judged]
        return np.clip(np.where(np.isnan(x), LARGEST, x), -LARGEST, LARGEST)

    def fit(self, h: Hypothesis) -> tuple[float, float]:
        """The share of the squared error that is none beside a hypothesis, and the slope."""
        if not (self.trial.failing <= h.shows and h.separates(self.trial.case)) or not self.size:
            return 0.0, 1.0
        self.effort.solved(self.trial.case.scores)
        try:
            with np.errstate(all="ignore"):
                answer = h.solve(self.trial.inputs, self.trial.contract, frozenset(self.found))
        except Exception:  # it needs other inputs than these
            return 0.0, 1.0
        left = own = both = 0.0
        for name, (radius, judged, errors) in self.found.items():
            e = self.trial.expected[name]
            if name not in answer or answer[name].shape != e.value.shape:
                return 0.0, 1.0
            with np.errstate(all="ignore"):
                x = self._units(round_to(answer[name], e.dtype).astype(np.float64), e.value, radius, judged)
            left += float(((errors - x) ** 2).sum())
            own, both = own + float(x @ x), both + float(errors @ x)
        return max(-1.0, 1 - left / self.size), both / own if own else 0.0


def along(trials: Sequence[Trial], effort: Effort, until: float) -> Along | None:
    """The loss of bits that the errors of these failures go along with.

    None if most are too large for one, or multiples of the results explain them far better.  A quarter of the work
    until then is for all of the failures.
    """
    first_until = until - (until - effort.seconds) / 4
    slight = [t for t in trials if t.worst.slight]
    if len(slight) < len(trials) / 2:
        return None
    some = [e for t in spread(slight, ALL) if (e := Errors(t, effort)).size]
    shares: dict[Hypothesis, float] = {}
    first = sorted(some, key=lambda e: e.trial.case.scores)[:FIRST]
    for h in _losses():
        if effort.seconds > first_until:
            break
        shares[h] = sum(max(0.0, errors.fit(h)[0]) for errors in first)
    best = set(sorted(shares, key=lambda h: -shares[h])[:BEST])
    so: dict[Hypothesis, dict[Errors, float]] = {}
    for h in (h for h in shares if h in best):  # the simplest first
        if effort.seconds > until:
            break
        fits = {errors: errors.fit(h) for errors in some}
        so[h] = {e: share for e, (share, slope) in fits.items() if share >= LEAST and SLOPE[0] <= slope <= SLOPE[1]}
    enough = max(SOME * len(some), min(SURE, len(some)))
    named = max((h for h in so if len(so[h]) >= enough), key=lambda h: round(sum(so[h].values()), 1), default=None)
    if named is None:
        return None
    share = float(np.mean(list(so[named].values())))
    if 1 - float(np.mean([errors.multiple() for errors in so[named]])) < PLAINER * (1 - share):
        return None
    return Along(named, share, len(so[named]))


@cache
def _losses() -> tuple[Hypothesis, ...]:
    """Of kinds with little to fit by first."""
    return tuple(sorted((h for h in hypotheses() if h.rounding), key=richness))
