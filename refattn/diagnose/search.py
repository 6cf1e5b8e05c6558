"""The search for what explains failures: all hypotheses are asked of one, of the others those that explained one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from ..case import Case
from .alone import alone
from .bits import along
from .conclusion import SEVERAL, closest, conclude
from .deduced import deduced
from .diagnosis import Diagnosis
from .effort import Effort
from .evidence import named
from .fractions import by_fraction
from .hypothesis import Hypothesis, whole_family
from .match import FORWARD, HALF, UNTOLD
from .order import by_plausibility, richness, spread
from .passed import Witnesses
from .trial import Trial

__all__ = ["SEARCHES", "Search"]

ASKED, SEARCHES = 16, 3
"""Candidates are asked of so many failures, and all hypotheses of so many."""
FIRST = 64
"""The most plausible rows are asked of each failure, others of one after the other."""
FEW, MOST = 5, 0.8
"""Where something explains so much of the failures, or of a few of them, nothing else is searched."""
NEARBY = 0.15
"""Where something is found, what is less plausible by so much is not asked any more."""
BEHIND = 2
"""So many cases fewer than the best a candidate may have explained."""
FITTED = 10**6
"""What was deduced is asked first."""
MANY = 200
"""Where so many explain a failure no more are looked for that do so in a part alone."""
MOST_REGIONAL = 24
"""So many explanations that hold in a region alone are kept of a failure."""
MOST_APART = 12
"""Of so many candidates it is asked in which outputs they hold."""
MOST_ASKED, AT_FIRST = 80, 240
"""So many candidates are asked of all, and so many of the first that one of them explains."""
IN_PARTS, MANY_IN_PARTS, MOST_LEFT = 12, 240, 4
"""So many in each part of the kernel, of so many failures that they leave; more in the forward alone, of one."""
FAMILIES, MOST_MEMBERS = 5, 3
"""So many families are asked as a whole, each with so many ways to go over the keys."""


@dataclass
class Search:
    """What explains failures: `seconds` of work go to all of them together, half of it to those one by one."""

    seconds: float
    trials: list[Trial]
    passed: list[Case]
    effort: Effort = field(default_factory=Effort)
    candidates: dict[Hypothesis, int] = field(default_factory=dict)
    """those that explain some failure, and how many"""
    near: dict[Hypothesis, float] = field(default_factory=dict)
    """the shares of error of those that explain some of one"""
    searched: set[str] = field(default_factory=set)
    """ids of the cases of which all hypotheses were asked"""
    asked: set[Hypothesis] = field(default_factory=set)
    """of a case in which they may show: the next search begins with others"""
    witnesses: Witnesses = field(init=False)
    left: set[Hypothesis] = field(default_factory=set)
    """not asked of a case for want of time"""

    def __post_init__(self) -> None:
        self.witnesses = Witnesses(self.passed, self.effort)

    def diagnosis(self, excused: Sequence[Trial], failing: int) -> Diagnosis:
        """The candidates against a sample of the failures that were kept, and of the cases that passed."""
        begun = self.effort.seconds
        until, searching = begun + self.seconds, begun + self.seconds / 2
        plain = [t for t in self.trials if not named(t.verdict)]  # what no contract explains tells more
        sample = spread(plain if len(plain) >= ASKED / 2 else self.trials, ASKED)
        by_size = sorted(sample, key=lambda t: (any(named(t.verdict)), not FORWARD & set(t.got), t.case.scores))
        counts = self._counted(by_size, until)
        for trial in by_size:
            best = _most(counts)
            if best >= MOST * len(sample) or len(self.searched) >= 2 * SEARCHES or self.effort.seconds > searching:
                break
            unexplained = not any(trial.match(h).explains for h, n in counts.items() if n >= best and not h.vague)
            if trial.case.id not in self.searched and unexplained:
                self.search(trial, searching)
                counts = self._counted(by_size, until)
        against, broad = self.witnesses.asked(counts, _most(counts), sample, until, self.seconds / 8)
        top = [h for h in against if counts[h] == _most(counts)]
        if self.effort.seconds < searching and top and all(against[h] for h in top):  # there may be something else
            self.search(by_size[0], self.effort.seconds + self.seconds / 4, margin=math.inf)
            counts = self._counted(by_size, until)
            against, broad = self.witnesses.asked(counts, _most(counts), sample, until, self.seconds / 8)
        asked = [t for t in sample if t.case.id in self.searched] or sample[:1]
        found = conclude(counts, against, broad, sample, self.trials, excused, failing)
        for more in (self._of_rest, self._deduced, self._longer):
            if more(by_size, found):
                counts = self._counted(sample, until := self.effort.seconds + self.seconds / 4)
                against, broad = self.witnesses.asked(counts, _most(counts), sample, until, self.seconds / 8)
                found = conclude(counts, against, broad, sample, self.trials, excused, failing) or found
        if found:
            return found
        near = closest((*self.candidates, *self.near), asked, failing, len(self.left - self.asked))
        losses = [of(self.trials, self.effort, self.effort.seconds + self.seconds) for of in (along, by_fraction)]
        loss = max((x for x in losses if x is not None), key=lambda x: x.share, default=None)
        if loss is None or near.share >= loss.share:
            return near
        return replace(near, closest=loss.hypothesis, share=loss.share, looked=loss.cases, along=True)

    def _of_rest(self, by_size: Sequence[Trial], found: Diagnosis | None) -> bool:
        """What explains the smallest failure that what is named for most leaves."""
        if found is None or found.first is None or found.found:
            return False
        first, before = found.first, set(self.candidates)
        left = [t for t in self.trials if not (t.match(first).nearly or t.case.id in self.searched or named(t.verdict))]
        if left:
            self.search(min(left, key=lambda t: t.case.scores), self.effort.seconds + self.seconds / 4)
        return self.candidates.keys() != before

    def _deduced(self, by_size: Sequence[Trial], found: Diagnosis | None) -> bool:
        """Rules that the failures themselves tell."""
        if found is not None and not found.doubtful:
            return False
        rules = deduced(self.trials, self.passed, self.effort, self.effort.seconds + self.seconds / 2)
        self.candidates |= {h: FITTED for h in rules}
        return bool(rules)

    def _longer(self, by_size: Sequence[Trial], found: Diagnosis | None) -> bool:
        """All that was not asked of the smallest failure; what was fitted to one or two is an accident."""
        first = None if found is None else found.first
        accident = found is not None and first is not None and first.narrow and found.cases < SEVERAL
        if found is not None and not (found.doubtful or accident):
            return False
        before, more = set(self.candidates), self.seconds * (2 if found is None or found.doubtful else 0.5)
        self.search(by_size[0], self.effort.seconds + more, margin=math.inf)
        return self.candidates.keys() != before

    def search(self, trial: Trial, until: float, margin: float = NEARBY) -> list[Hypothesis]:
        """All that explain a failure, which are candidates from then on."""
        self.searched.add(trial.case.id)
        failed = [t.case for t in self.trials] or [trial.case]
        forward = bool(trial.failing & FORWARD) or not FORWARD & set(trial.got)  # or nothing is known of it
        every = by_plausibility(failed, self.passed, forward, trial.worst.slight)
        before, found, last = frozenset(self.asked), list[Hypothesis](), math.inf
        for again, (place, (against, row)) in product((False, True), enumerate(every)):
            if against > last and not again:
                break
            if self.effort.seconds > until:
                self.left.update(row)
                continue
            if not any(h.separates(trial.case) for h in (row[0], row[len(row) // 2], row[-1])):
                self.effort.asked()
                continue
            for h in (h for h in row if (h in before and place >= FIRST) is again):
                some = self._explaining(trial, h, simpler=last < math.inf or len(found) > MANY)
                if some[:1] == [h] and not h.vague and trial.match(h).explains and self._usual(h):
                    last = min(last, against + margin)
                found += some
        for h in found:
            self.candidates[h] = self.candidates.get(h, 0) + 1
        return [h for h in found if trial.match(h).explains]

    def _usual(self, h: Hypothesis) -> bool:
        """Whether it explains most of a few failures: otherwise others may explain more."""
        some = spread(self.trials, FEW)
        return sum(t.match(h).nearly for t in some) >= MOST * len(some)

    def _explaining(self, trial: Trial, h: Hypothesis, simpler: bool) -> list[Hypothesis]:
        """A hypothesis, if it explains a failure, or where it does so in a part, if nothing `simpler` explains it."""
        m = trial.match(h)
        if m is not UNTOLD:
            self.asked.add(h)
        if m.nearly:
            return [h]
        if m.share >= HALF:
            self.near[h] = max(self.near.get(h, 0.0), m.share)
        if simpler or m is UNTOLD:
            return []
        parts = [h, *trial.elsewhere(h)]
        found = [part for part in parts[1:] if trial.match(part).nearly]
        found += [x for part in parts for x in trial.in_outputs(part)]
        for part in parts if h.made is not None else ():
            found += trial.in_regions(part, MOST_REGIONAL)
        return found

    def _counted(self, sample: Sequence[Trial], until: float) -> dict[Hypothesis, int]:
        """How many of the sample each candidate explains, in a part of the kernel alone too, and each family."""
        counts = self._asked(sample, until)
        more = self._in_parts(counts, sample, until) | self._in_outputs(counts, sample, until)
        counts = self._asked(sample, until) if more else counts
        return self._with_families(counts, sample, until)

    def _in_parts(self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float) -> bool:
        """Whether the best candidates, in a part of the kernel alone, explain gradients that they do not as a whole."""
        new = []
        for at, h in enumerate(sorted((h for h in counts if counts[h]), key=lambda h: -counts[h])[:MANY_IN_PARTS]):
            left = [t for t in sample if t.case.backward and not t.match(h).nearly]
            for trial in left[: MOST_LEFT if at < IN_PARTS else 1]:
                if self.effort.seconds > until:
                    break
                parts = h.elsewhere if at < IN_PARTS else h.elsewhere[:1]
                new += [x for x in parts if x not in self.candidates and trial.match(x).explains]
        self.candidates |= {h: len(sample) for h in new}
        return bool(new)

    def _in_outputs(self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float) -> bool:
        """Whether the best candidates explain more in some outputs alone, in those that most failures agree on."""
        best = sorted(counts, key=lambda h: -counts[h])
        new = []
        for whole in list(dict.fromkeys(h.whole or h for h in best if not (h.vague or h.members)))[:MOST_APART]:
            votes: Counter[str] = Counter()
            for trial in sample:
                if self.effort.seconds > until:
                    break
                found = trial.match(whole)
                if found.nearly or found.apart:
                    votes.update(trial.failing)
                    votes.subtract(found.spoils)
            names = frozenset(n for n, k in votes.items() if k > 0)
            if any(k < 0 for k in votes.values()) and names:
                new.append(alone(whole, names))
        new = [h for h in new if h not in self.candidates]
        self.candidates |= {h: len(sample) for h in new}
        return bool(new)

    def _with_families(
        self, counts: dict[Hypothesis, int], sample: Sequence[Trial], until: float
    ) -> dict[Hypothesis, int]:  # fmt: skip
        """With the best families as a whole, where none explains all: tiles and splits may differ from case to case."""
        best = _most(counts)
        if best == len(sample):
            return counts
        ranked = [h for h in counts if h.family is not None and counts[h]]
        ranked.sort(key=lambda h: (-counts[h], richness(h)))
        for family in list(dict.fromkeys(h.family for h in ranked))[:FAMILIES]:
            whole, left = whole_family(family), list(sample)
            used: list[Hypothesis] = []
            while left and len(used) < MOST_MEMBERS and self.effort.seconds < until:
                alike = [h for h in whole.members if h.separates(left[0].case) and left[0].match(h).nearly]
                if not alike:
                    left = left[1:]
                    continue
                used.append(max(alike, key=lambda h: sum(t.match(h).nearly for t in left)))
                left = [t for t in left if not t.match(used[-1]).nearly]
            some = replace(whole, members=tuple(used))
            n = sum(t.match(some).nearly for t in sample)
            if n > best:
                counts = counts | {some: n}
        return counts

    def _asked(self, sample: Sequence[Trial], until: float) -> dict[Hypothesis, int]:
        """How many of the sample each candidate explains; one that falls behind is not asked further."""
        ranked = sorted(self.candidates, key=lambda h: (h.vague, -self.candidates[h], h.narrow))
        against = [h for h in ranked if self.witnesses.against(h)]
        others = [h for h in ranked if not self.witnesses.against(h)]
        counts = dict.fromkeys((*others[:AT_FIRST], *against[: MOST_ASKED // 4]), 0)
        alive, told = list(counts), False
        for trial in sample:
            for h in alive:
                if self.effort.seconds > until:
                    return counts
                counts[h] += trial.match(h).nearly
                self.candidates[h] = max(self.candidates[h], counts[h])  # so that later ones do not crowd it out
            best = _most(counts)
            alive = [h for h in alive if counts[h] >= best - BEHIND]
            if told and len(alive) > MOST_ASKED:
                alive = sorted(alive, key=lambda h: -counts[h])[:MOST_ASKED]
            told |= best > 0
        return counts


def _most(counts: Mapping[Hypothesis, int]) -> int:
    """Of the failures, how many one explains that says why."""
    return max((n for h, n in counts.items() if not h.vague), default=0)
