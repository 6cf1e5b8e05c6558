"""Watches a run: which hypotheses explain its failures, one by one and all together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..case import GRADIENTS, Case
from ..judge import Verdict
from ..localise import localise
from .diagnosis import Diagnosis
from .evidence import SCORES, bare, can_be_evaluated, named, short
from .facts import facts
from .hypothesis import Hypothesis, hypotheses
from .match import HALF
from .search import SEARCHES, Search
from .trial import Trial

__all__ = ["KEPT", "SCORES", "Suspects"]

SEARCHED = 2**13
"""All hypotheses are asked of cases of no more scores, if there are any."""
MOST_LOCATED = 5
"""Of so many unexplained failures it is said where they are."""
KEPT, MOST_KEPT = 48, 300
"""So many large failures are kept, and so many in all."""


@dataclass
class Suspects:
    """Watches the verdicts of a run: says what a failure looks like, and in the end what all of them are.

    `seconds` of work go to what failures have in common; a quarter of it to them as they come, and half of
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
    known: Counter[str] = field(default_factory=Counter)
    """conventions and contracts that the judge named, and of how many failures"""
    noted: list[tuple[list[str], Trial]] = field(default_factory=list)
    """failures of which the judge named a convention or a contract"""
    excused: list[Trial] = field(default_factory=list)
    """failures that a convention explains, of which no hypotheses are searched"""
    located: int = 0

    @cached_property
    def search(self) -> Search:
        return Search(self.seconds, self.trials, self.passed)

    def watch(self, verdict: Verdict) -> tuple[str, ...]:
        """What a failure looks like, in lines: a bug of the catalogue, or where it is; none if it is no failure."""
        if verdict.status == "passed":
            (self.passed if verdict.case.scores <= SEARCHED else self.larger).append(verdict.case)
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
        trial = Trial(bare(verdict), self.search.effort)
        kept = self.excused if conventions else self.trials
        if len(kept) < (KEPT if verdict.case.scores > SEARCHED else MOST_KEPT):
            kept.append(trial)
            self.noted += [(told, trial)] if told else []
        if conventions:
            return ()  # a convention explains it
        with self.search.effort.counting():
            culprit = self._culprit(trial, searching=not known)
        if culprit is not None:
            return (f"looks like (its output is within bound of yours): {culprit}",)
        if known or verdict.evidence is None or self.located >= MOST_LOCATED:
            return ()
        self.located += 1
        return tuple(localise(verdict.evidence, verdict.contract).lines())

    def _culprit(self, trial: Trial, searching: bool) -> Hypothesis | None:
        """The likeliest candidate that explains a failure."""
        search = self.search
        if search.effort.seconds >= self.seconds / 4:
            return None
        for h in sorted(search.candidates, key=lambda h: -search.candidates[h])[:20]:
            if trial.match(h).explains:
                search.candidates[h] += 1
                return h
        if not searching or len(search.searched) >= SEARCHES or trial.case.scores > self.largest:
            return None
        found = search.search(trial, search.effort.seconds + self.seconds / 8)
        return found[0] if found else None

    def lines(self) -> tuple[str, ...]:
        """What explains the failures that were kept; nothing if none can be evaluated."""
        return tuple(self.findings()["lines"])

    def diagnosis(self) -> Diagnosis:
        """What is concluded of the failures that were kept; where nothing is, what they have in common."""
        if not self.trials:
            return Diagnosis(failing=self.failing)
        hypotheses()  # made once, on no account
        effort, passed = self.search.effort, self.passed + self.larger
        with effort.counting():
            found = self.search.diagnosis(self.excused, self.failing)
            if found.first is not None:
                return found
            told = facts(self.trials, passed, self.failing, effort, effort.seconds + self.seconds / 4)
        return replace(found, common=tuple(told))

    def findings(self) -> dict[str, Any]:
        """The lines, and plain data of which `merging.merged` makes one of several processes' findings."""
        self._search_accidents()
        found = self.diagnosis()
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
                 and not found.along  # which says more than a contract of other roundings does
                 and (first is None or note.startswith("undeclared"))]  # fmt: skip
        if ahead:
            found = replace(found, common=())  # the most of them are explained
        lines = [*ahead, *(found.lines() if self.trials else ()), *(x for x in told.values() if x not in ahead)]
        return {
            "lines": lines, "first": "" if first is None else str(first), "exact": bool(found.found),
            "cases": found.cases, "failing": self.failing, "notes": notes, "facts": list(found.common),
        }  # fmt: skip

    def _consistent(self, note: str, n: int) -> bool:
        """Whether a convention on empty rows is no accident: no case that passed has any."""
        if "empty_" not in note:
            return True
        gradients = "gradients alone" in note
        if gradients and n < HALF * self.failing:
            return False
        passed = (c for c in self.passed if (c.backward or not gradients) and ("lse" in c.want or "lse" not in note))
        return all(c.visibility.tile().any(-1).all() for c in passed)

    def _search_accidents(self) -> None:
        """What a convention explains that cases that passed do not have is searched after all."""
        for told, trial in self.noted:
            if trial in self.excused and not any(self._consistent(n, self.known[n]) for n in told):
                self.excused.remove(trial)
                self.trials.append(trial)
