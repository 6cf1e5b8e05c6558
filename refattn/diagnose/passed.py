"""What speaks against a hypothesis: cases that passed, and in which a kernel like it would have failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from ..case import NAMES, Case
from ..inputs import make
from ..precision import preset
from ..truth import Expected, truth
from .dense import Array, Inputs
from .distances import largest_of_row
from .effort import Effort
from .hypothesis import Hypothesis
from .match import HALF
from .model import Model
from .order import spread
from .trial import Trial

__all__ = ["Witnesses", "inputs_of", "would_be_noticed"]

NOTICED = 5e-3
"""seconds to ask whether a case that passed speaks against one"""
CHECKED, PASSED = 40, 16
"""So many candidates are compared with so many of the cases that passed, which may speak against them."""
CLEAR = 4.0
"""A passed case contradicts a hypothesis whose answer is so many radii off."""


class Witnesses:
    """Cases that passed, and what they said of hypotheses; `passed` may grow meanwhile."""

    def __init__(self, passed: Sequence[Case], effort: Effort) -> None:
        self.passed, self.effort = passed, effort
        self.said: dict[Hypothesis, dict[Case, bool]] = {}

    def against(self, h: Hypothesis) -> list[Case]:
        """Those that speak against one, of those that were asked."""
        return [c for c, speaks in self.said.get(h, {}).items() if speaks]

    def asked(
        self, counts: Mapping[Hypothesis, int], most: int, sample: Sequence[Trial], until: float, more: float
    ) -> tuple[dict[Hypothesis, list[Case]], dict[Hypothesis, float]]:  # fmt: skip
        """Which of some cases contradict each of the best candidates, and how many of all may do so.

        `counts` says how many of the sample each explains, the best `most`; `more` seconds go to those that tie.
        """
        common = frozenset.intersection(*(t.case.features() for t in sample))
        nearest = sorted(self.passed, key=lambda c: (-len(common & c.features()), c.scores))
        best = [h for h in counts if counts[h] >= max(1, HALF * most)]
        best.sort(key=lambda h: (h not in self.said, h.vague, -counts[h], h.narrow))
        found = best[: sum(h in self.said for h in best) + CHECKED]
        for h in found:
            if self.effort.seconds > until:
                break  # what was not checked is not named
            self.said.setdefault(h, {})
            told = list(filter(h.separates, nearest))
            for case in told[: PASSED // 2] + spread(told[PASSED // 2 :], PASSED // 2):
                self._ask(h, case)
        checked = [h for h in found if h in self.said]
        until = min(until, self.effort.seconds + more)
        tied = [h for h in checked if not (h.vague or self.against(h)) and counts[h] == most]
        for case in nearest[::5] + nearest[1::3] if tied else ():  # what else tells
            for h in tied:
                if self.effort.seconds < until and h.separates(case):
                    self._ask(h, case)
        against = {h: self.against(h) for h in checked}
        about = {h: sum(map(h.separates, nearest)) for h in checked}
        return against, {h: len(against[h]) * about[h] / max(1, len(self.said[h])) for h in checked}

    def _ask(self, h: Hypothesis, case: Case) -> None:
        if case not in self.said[h]:
            self.effort.work += NOTICED
            self.said[h][case] = would_be_noticed(h, case)


def would_be_noticed(h: Hypothesis, case: Case) -> bool:
    """Whether a kernel like this is far outside of the bound, in a case that passed."""
    if h.members:
        return False  # some of them may be what is there
    inputs, contract = inputs_of(case), preset(case.dtype, case.out_dtype) if h.rounding else None
    names = frozenset(case.want) & frozenset(NAMES)
    try:
        with np.errstate(all="ignore"):
            exact, right = h.solve(inputs, contract, names), _right(case)
            if contract is None and not any(_differs(exact[n], right[n]) for n in names if n in exact and n in right):
                return False  # without asking how far off it may be
    except Exception:  # as in Trial.match
        return False
    expected = _expected(case)
    for name in (n for n in expected if n in exact):
        e = expected[name]
        with np.errstate(all="ignore"):
            radius = np.maximum(e.hi - e.value, e.value - e.lo)
            same = (exact[name] == e.value) | (np.abs(exact[name] - e.value) <= CLEAR * radius)
        if not (same | e.ignored | (e.nonfinite & ~np.isfinite(exact[name]))).all():
            return True
    return False


def _differs(x: Array, right: Array) -> bool:
    """By more than float64 rounds."""
    same = (x == right) | (np.isnan(x) & np.isnan(right)) | (np.abs(x - right) <= 1e-12 * largest_of_row(np.abs(right)))
    return not same.all()


@lru_cache(maxsize=512)
def inputs_of(case: Case) -> Inputs:
    return Inputs(make(case))


@lru_cache(maxsize=512)
def _right(case: Case) -> dict[str, Array]:
    return Model(inputs_of(case)).solve(frozenset(case.want))


@lru_cache(maxsize=128)
def _expected(case: Case) -> dict[str, Expected]:
    return truth(inputs_of(case).problem, preset(case.dtype, case.out_dtype))
