"""Watches a run: which hypotheses explain its failures, one by one and all together."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..case import GRADIENTS, Case
from ..judge import Verdict
from ..localise import localise
from .alone import alone
from .bits import along
from .conclusion import closest, conclude
from .deduced import deduced
from .diagnosis import Diagnosis
from .evidence import SCORES, bare, can_be_evaluated, named, scores, short
from .facts import facts
from .hypothesis import Hypothesis, hypotheses, whole_family
from .match import FORWARD, HALF, Trial
from .order import by_plausibility, spread
from .passed import would_be_noticed

__all__ = ["SCORES", "Suspects"]

SEARCHED = 2**13
"""All hypotheses are asked of cases of no more scores, if there are any."""
MOST_LOCATED = 5
"""Of so many unexplained failures it is said where they are."""
KEPT, ASKED, SEARCHES = 48, 16, 3
"""So many large failures are kept, candidates asked of so many, and all hypotheses of so many."""
MOST_KEPT = 300
"""So many failures are kept in all."""
MOST = 0.8
"""Where something explains so much of the failures, nothing else is searched."""
NEARBY = 0.15
"""Where something is found, what is less plausible by so much is not asked any more."""
BEHIND = 2
"""So many cases fewer than the best a candidate may have explained."""
MOST_REGIONAL = 24
"""So many explanations that hold in a region alone are kept of a failure."""
MOST_APART = 12
"""Of so many candidates it is asked in which outputs they hold."""
MOST_ASKED = 80
"""So many candidates are asked of all."""
FAMILIES, MOST_MEMBERS = 3, 3
"""So many families are asked as a whole, each with so many ways to go over the keys."""
PASSED = 16
"""So many of the cases that passed may speak against a candidate."""


@dataclass
class Suspects:
    """Watches the verdicts of a run: says what a failure looks like, and in the end what all of them are.

    `seconds` of processor time go to what failures have in common; a quarter of it to them as they come, and half of
    that to each.
    """

    seconds: float = 6.0
    largest: int = SEARCHED
    """All hypotheses are asked of cases of no more scores."""
    trials: list[Trial] = field(default_factory=list)
    passed: list[Case] = field(default_factory=list)
    larger: list[Case] = field(default_factory=list)
    """those that passed and are too large to speak against anything"""
    failing: int = 0
    candidates: dict[Hypothesis, int] = field(default_factory=dict)
    """those that explain some failure, and how many"""
    near: dict[Hypothesis, float] = field(default_factory=dict)
    """the shares of error of those that explain some of one"""
    searched: set[str] = field(default_factory=set)
    """ids of the cases of which all hypotheses were asked"""
    asked: set[Hypothesis] = field(default_factory=set)
    """in a search that came to no end: the next one begins with others"""
    known: Counter[str] = field(default_factory=Counter)
    """conventions and contracts that the judge named, and of how many failures"""
    noted: list[tuple[list[str], Trial]] = field(default_factory=list)
    """failures of which the judge named a convention or a contract"""
    excused: list[Trial] = field(default_factory=list)
    """failures that a convention explains, of which no hypotheses are searched"""
    spent: float = 0.0
    located: int = 0

    def watch(self, verdict: Verdict) -> tuple[str, ...]:
        """What a failure looks like, in lines: a bug of the catalogue, or where it is; none if it is no failure."""
        if verdict.status == "passed":
            (self.passed if scores(verdict.case) <= SEARCHED else self.larger).append(verdict.case)
        if verdict.status != "failed":
            return ()
        self.failing += 1
        known = named(verdict)
        backward = all(o.passed or o.name in GRADIENTS for o in verdict.outputs)
        where = ", in gradients alone" if backward else ""
        self.known.update(told := [short(n, where) for n in known])
        if backward:  # which more often is a row that comes to nothing by an accident of its weights
            known = [n for n in known if "empty_rows" not in n]
        conventions = [n for n in known if n.startswith("undeclared") and "unless it reads" not in n]
        if not can_be_evaluated(verdict):
            return ()
        hypotheses()  # made once, on no account
        begun = time.thread_time()
        trial = Trial(bare(verdict))
        kept = self.excused if conventions else self.trials
        if len(kept) < (KEPT if scores(verdict.case) > SEARCHED else MOST_KEPT):
            kept.append(trial)
            self.noted += [(told, trial)] if told else []
        if conventions:
            return ()  # a convention explains it
        culprit = self._culprit(trial, searching=not known)
        self.spent += time.thread_time() - begun
        if culprit is not None:
            return (f"looks like (its output is within bound of yours): {culprit}",)
        if known or verdict.evidence is None or self.located >= MOST_LOCATED:
            return ()
        self.located += 1
        return tuple(localise(verdict.evidence, verdict.contract).lines())

    def _culprit(self, trial: Trial, searching: bool) -> Hypothesis | None:
        """The likeliest candidate that explains a failure."""
        if self.spent >= self.seconds / 4:
            return None
        for h in sorted(self.candidates, key=lambda h: -self.candidates[h])[:20]:
            if trial.match(h).explains:
                self.candidates[h] += 1
                return h
        if not searching or len(self.searched) >= SEARCHES or scores(trial.case) > self.largest:
            return None
        found = self._search(trial, time.thread_time() + self.seconds / 8)
        return found[0] if found else None

    def _search(self, trial: Trial, until: float, margin: float = NEARBY) -> list[Hypothesis]:
        """All that explain a failure, which are candidates from then on."""
        self.searched.add(trial.case.id)
        found: list[Hypothesis] = []
        failed = [t.case for t in self.trials] or [trial.case]
        every = by_plausibility(failed, self.passed, bool(trial.failing & FORWARD), trial.worst.slight)
        every.sort(key=lambda row: row[1] in self.asked)
        last, regional, asked = math.inf, 0, set[Hypothesis]()
        for at, (against, h) in enumerate(every):
            if against > last and h not in self.asked:
                break
            if at % 16 == 0 and time.thread_time() > until:  # asking for the time takes some
                self.asked |= asked
                break
            asked.add(h)
            m = trial.match(h)
            if m.nearly:
                found.append(h)
                if m.explains and not h.vague:
                    last = min(last, against + margin)
                continue
            if m.share >= HALF:
                self.near[h] = max(self.near.get(h, 0.0), m.share)
            if last < math.inf:
                continue  # something simpler explains it
            parts = [h, *trial.elsewhere(h)]
            found += [part for part in parts[1:] if trial.match(part).nearly]
            found += [x for part in parts for x in trial.in_outputs(part)]
            for part in parts if regional < MOST_REGIONAL and h.made is not None else ():
                held = list(trial.in_regions(part, MOST_REGIONAL))
                found, regional = found + held, regional + len(held)
        for h in found:
            self.candidates[h] = self.candidates.get(h, 0) + 1
        return [h for h in found if trial.match(h).explains]

    def lines(self) -> tuple[str, ...]:
        """What explains the failures that were kept; nothing if none can be evaluated."""
        return tuple(self.findings()["lines"])

    def findings(self) -> dict[str, Any]:
        """The lines, and plain data of which `merging.merged` makes one of several processes' findings."""
        found = self.diagnosis() if self.trials else Diagnosis()
        first = found.first
        also = Counter(n for told, t in self.noted if first is not None and t.match(first).nearly for n in told)
        known = sorted((row for row in self.known.items() if self._consistent(*row)), key=lambda row: -row[1])[:2]
        notes = {}
        for note, n in known:
            convention, most = note.startswith("undeclared"), n >= HALF * self.failing
            if found.cases >= n and (not convention or (not most and also[note] == n)):
                continue  # what explains it explains others too
            notes[note] = n
        told = {note: f"{n} of {self.failing} failing cases: {note}" for note, n in notes.items()}
        ahead = [told[note] for note, n in notes.items() if n >= HALF * self.failing and n > found.cases
                 and (first is None or note.startswith("undeclared"))]  # fmt: skip
        lines = [*ahead, *(found.lines() if self.trials else ()), *(x for x in told.values() if x not in ahead)]
        unknown = self.trials and first is None and not ahead
        common = facts(self.trials, self.passed + self.larger, self.failing, self.seconds / 4) if unknown else []
        lines += common
        return {
            "lines": lines, "first": "" if first is None else str(first), "exact": bool(found.found),
            "cases": found.cases, "failing": self.failing, "notes": notes, "facts": common,
        }  # fmt: skip

    def _consistent(self, note: str, n: int) -> bool:
        """Whether a convention on empty rows is not an accident: most that fail are so, or none that has any passed."""
        if "empty_rows" not in note or n >= HALF * self.failing:
            return True
        passed = [c for c in self.passed if c.backward or "gradients alone" not in note]
        return "gradients alone" not in note and all(c.visibility.tile().any(-1).all() for c in passed)

    def diagnosis(self) -> Diagnosis:
        """The candidates against a sample of the failures that were kept, and of the cases that passed."""
        begun = time.thread_time()
        until, searching = begun + self.seconds, begun + self.seconds / 2
        plain = [t for t in self.trials if not named(t.verdict)]  # what no contract explains tells more
        sample = spread(plain if len(plain) >= ASKED / 2 else self.trials, ASKED)
        by_size = sorted(sample, key=lambda t: (any(named(t.verdict)), scores(t.case)))
        counts = self._counted(by_size, until)
        for trial in by_size:
            best = _most(counts)
            if best >= MOST * len(sample) or len(self.searched) >= 2 * SEARCHES or time.thread_time() > searching:
                break
            unexplained = not any(trial.match(h).explains for h, n in counts.items() if n >= best and not h.vague)
            if trial.case.id not in self.searched and unexplained:
                self._search(trial, searching)
                counts = self._counted(by_size, until)
        against, broad = self._against(counts, sample, until)
        if time.thread_time() < searching and against and all(against.values()):  # there may be something else
            self._search(by_size[0], time.thread_time() + self.seconds / 4, margin=math.inf)
            counts = self._counted(by_size, until)
            against, broad = self._against(counts, sample, until)
        asked = [t for t in sample if t.case.id in self.searched] or sample[:1]
        found = conclude(
            counts, against, broad, sample, self.trials, self.excused, self.failing
        )
        if found is None and until > time.thread_time():
            rules = deduced(self.trials, time.thread_time() + self.seconds / 4)
            self.candidates |= {h: len(sample) for rule in rules for h in (rule, *rule.elsewhere)}
            until = time.thread_time() + self.seconds / 4
            counts = self._asked(sample, until)
            against, broad = self._against(counts, sample, until)
            found = conclude(counts, against, broad, sample, self.trials, self.excused, self.failing)
        if found:
            return found
        loss = along(self.trials, self.seconds / 2)
        near = closest((*self.candidates, *self.near), asked, self.failing)
        if loss is None or near.share >= loss.share:
            return near
        return Diagnosis(
            closest=loss.hypothesis, share=loss.share, looked=loss.cases, failing=self.failing, along=True
        )

    def _counted(self, sample: Sequence[Trial], until: float) -> dict[Hypothesis, int]:
        """How many of the sample each candidate explains, in a part of the kernel alone too, and each family."""
        counts = self._asked(sample, until)
        more = self._in_parts(counts, sample, until) | self._in_outputs(counts, sample, until)
        counts = self._asked(sample, until) if more else counts
        return self._with_families(counts, sample, until)

    def _in_parts(self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float) -> bool:
        """Whether the best candidates, in a part of the kernel alone, explain gradients that they do not as a whole."""
        new = []
        for h in sorted((h for h in counts if counts[h]), key=lambda h: -counts[h])[:12]:
            for trial in [t for t in sample if t.case.backward and not t.match(h).nearly][:4]:
                if time.thread_time() > until:
                    break
                new += [x for x in h.elsewhere if x not in self.candidates and trial.match(x).explains]
        self.candidates |= {h: len(sample) for h in new}
        return bool(new)

    def _in_outputs(self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float) -> bool:
        """Whether the best candidates explain more in some outputs alone, in those that most failures agree on."""
        best = sorted(counts, key=lambda h: -counts[h])
        new = []
        for whole in list(dict.fromkeys(h.whole or h for h in best if not (h.vague or h.members)))[:MOST_APART]:
            votes: Counter[str] = Counter()
            for trial in sample:
                if time.thread_time() > until:
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
        ranked = sorted((h for h in counts if h.family is not None and counts[h]), key=lambda h: -counts[h])
        for family in list(dict.fromkeys(h.family for h in ranked))[:FAMILIES]:
            whole, left = whole_family(family), list(sample)
            used: list[Hypothesis] = []
            while left and len(used) < MOST_MEMBERS and time.thread_time() < until:
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
        counts = dict.fromkeys(ranked[:MOST_ASKED], 0)
        alive = list(counts)
        for trial in sample:
            for h in alive:
                if time.thread_time() > until:
                    return counts
                counts[h] += trial.match(h).nearly
            best = _most(counts)
            alive = [h for h in alive if counts[h] >= best - BEHIND]
        return counts

    def _against(
        self, counts: Mapping[Hypothesis, int], sample: Sequence[Trial], until: float
    ) -> tuple[dict[Hypothesis, list[Case]], dict[Hypothesis, float]]:  # fmt: skip
        """Which of some cases that passed contradict each of the best candidates, and how many of all may do so."""
        common = frozenset.intersection(*(t.case.features() for t in sample))
        nearest = sorted(self.passed, key=lambda c: (-len(common & c.features()), scores(c)))
        best = sorted((h for h in counts if counts[h]), key=lambda h: (h.vague, -counts[h]))[:40]
        against, broad = {}, {}
        for h in (h for h in best if counts[h] >= HALF * _most(counts)):
            if time.thread_time() > until:
                break  # what was not checked is not named
            told = list(filter(h.separates, nearest))
            some = told[: PASSED // 2] + spread(told[PASSED // 2 :], PASSED // 2)
            against[h] = [c for c in some if would_be_noticed(h, c)]
            broad[h] = len(against[h]) * len(told) / max(1, len(some))
        most, until = _most(counts), min(until, time.thread_time() + self.seconds / 8)
        tied = [h for h in against if not (against[h] or h.vague) and counts[h] == most]
        for case in nearest[::5] + nearest[1::3] if len(tied) > 1 else ():  # what else tells these apart
            for h in tied:
                if time.thread_time() < until and h.separates(case) and would_be_noticed(h, case):
                    against[h].append(case)
                    broad[h] += 1
        return against, broad


def _most(counts: Mapping[Hypothesis, int]) -> int:
    """Of the failures, how many one explains that says why."""
    return max((n for h, n in counts.items() if not h.vague), default=0)
