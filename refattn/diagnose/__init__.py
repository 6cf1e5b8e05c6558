"""Which bug would give just these answers: the catalogue of mutants, turned round.

Each semantic mutant is a function of the inputs.  It is evaluated in float64 on a problem that failed, and again in
the arithmetic that the implementation promised: what the two differ by, four times over, or the radius of the bound
if that is larger, is how far an honest kernel with this bug may be from it.  A mutant *explains* a case if every
output that was returned is within that distance.  It is named as exact only if it explains every failing case that
was kept and contradicts no case that passed, where it would have been noticed; otherwise the one that explains
most of the squared error is named as the closest, with its share, or none.

A mutant that depends on the size of tiles (a rescale that is missing, a tail) is tried with several.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..case import NAMES, Case
from ..judge import Evidence, Verdict
from ..localise import localise
from ..mutants import MUTANTS
from .suspects import HALF, Match, Suspect, match, suspects, would_be_noticed

__all__ = ["Diagnosis", "Suspects", "diagnose"]

Array = np.ndarray[Any, Any]
SCORES = 2**18
"""a case with more scores than this is not evaluated again"""
CLOSE = 0.9
MOST_LOCATED = 5
"""Of so many unexplained failures it is said where they are."""


@dataclass(frozen=True)
class Diagnosis:
    """`names` of mutants that explain all within bound (cases cannot tell them apart), or the closest and its share."""

    names: tuple[str, ...] = ()
    closest: str = ""
    share: float = 0.0
    cases: int = 0
    failing: int = 0

    def lines(self) -> list[str]:
        """What to say of it."""
        if self.names:
            first, *others = self.names
            some = f"{self.cases} of the {self.failing} failing cases"
            looked = some if self.cases < self.failing else "all failing cases"
            lines = [f"your output is attention with this bug: {_words(first)}", f"it explains {looked} within bound"]
            return lines + [f"the cases cannot tell it from: {_words(name)}" for name in others]
        if self.closest:
            return [
                f"closest bug: {_words(self.closest)}",
                f"it explains {self.share:.0%} of the squared error of {self.cases} cases, not all of it",
            ]
        return ["no bug of the catalogue explains it"]


def _words(name: str) -> str:
    return f"{MUTANTS[name].what.rstrip('.')} ({name})"


@dataclass
class Suspects:
    """Watches the verdicts of a run: says what a failure looks like, and in the end what all of them are.

    `seconds` is how long the evaluation of suspects may take in all.
    """

    seconds: float = 5.0
    kept: int = 6
    failures: list[Verdict] = field(default_factory=list)
    passed: list[Case] = field(default_factory=list)
    failing: int = 0
    recent: list[Suspect] = field(default_factory=list)
    spent: float = 0.0
    located: int = 0
    named: Counter[str] = field(default_factory=Counter)
    """how many failures look like each mutant"""

    def watch(self, verdict: Verdict) -> tuple[str, ...]:
        """What a failure looks like, in lines: a bug of the catalogue, or where it is; none if it is no failure."""
        if verdict.status == "passed" and _scores(verdict.case) <= SCORES // 4:
            self.passed.append(verdict.case)
        if verdict.status != "failed":
            return ()
        self.failing += 1
        if any(n.startswith(("undeclared", "within")) for n in verdict.notes) or not _can_be_evaluated(verdict):
            return ()  # a convention or a contract explains it
        if len(self.failures) < self.kept:
            self.failures.append(replace(verdict, evidence=_small(verdict.evidence)))
        begun = time.perf_counter()
        suspect = self._culprit(verdict, begun)
        self.spent += time.perf_counter() - begun
        if suspect is not None:
            self.named[suspect.mutant.name] += 1
            self.recent = [suspect, *(s for s in self.recent if s != suspect)]
            return (f"looks like (its output is within bound of yours): {_words(suspect.mutant.name)}",)
        if verdict.evidence is None or self.located >= MOST_LOCATED:
            return ()
        self.located += 1
        return tuple(localise(verdict.evidence, verdict.contract).lines())

    def _culprit(self, verdict: Verdict, begun: float) -> Suspect | None:
        everywhere = self.failing <= 3 and self.spent < self.seconds
        for suspect in self._order(verdict.case, everywhere):
            if match(suspect, verdict).within:
                return suspect
            if self.spent + time.perf_counter() - begun > self.seconds:
                break
        return None

    def _order(self, case: Case, everywhere: bool) -> Iterator[Suspect]:
        yield from (s for s in self.recent if s.mutant.separates(case))
        if everywhere:
            yield from (s for s in suspects(case) if s not in self.recent)

    def lines(self) -> tuple[str, ...]:
        """What explains the failures that were kept; nothing if none can be evaluated."""
        if not self.failures:
            return ()
        found = diagnose(self.failures, self.passed, self.failing, self.seconds)
        if found.names:
            told = max(found.cases, *(self.named[name] for name in found.names))
            return tuple(replace(found, cases=told).lines())
        likely = [(name, n) for name, n in self.named.most_common(2) if n >= HALF * self.failing]
        if likely:
            some = f"of {self.failing} failing cases look like this bug"
            return tuple(f"{n} {some}: {_words(name)}" for name, n in likely)
        return tuple(found.lines())


def diagnose(
    failures: Sequence[Verdict], passed: Iterable[Case] = (), failing: int | None = None, seconds: float = 30.0
) -> Diagnosis:
    """The bug that explains all failures, verdicts with their evidence; `passed` are cases that passed.

    `failing` is how many cases failed in all; `seconds` is when no further suspect is begun.
    """
    begun = time.perf_counter()
    usable = sorted((v for v in failures if _can_be_evaluated(v)), key=lambda v: _scores(v.case))
    total = len(failures) if failing is None else failing
    if not usable:
        return Diagnosis(failing=total)
    best: tuple[float, str, int] = (0.0, "", 0)
    exact: list[Suspect] = []
    for suspect in suspects(usable[0].case):
        if time.perf_counter() - begun > seconds:
            break
        matches = []
        for verdict in usable:
            if not suspect.mutant.separates(verdict.case):
                break
            matches.append(match(suspect, verdict))
            if not matches[-1].within and matches[-1].share < CLOSE:
                break
        if len(matches) == len(usable) and all(m.within for m in matches):
            exact.append(suspect)
        elif matches:
            error = sum(min(m.error, 1e12) for m in matches)
            left = sum(min(m.left, 1e12) for m in matches)
            share = Match(False, error, left).share
            best = max(best, (len(matches) * share, suspect.mutant.name, len(matches)))
    names = _uncontradicted(exact, passed, begun + seconds)
    if names:
        return Diagnosis(names, cases=len(usable), failing=total)
    score, name, cases = best
    if not name or score / cases < HALF:
        return Diagnosis(failing=total)
    return Diagnosis(closest=name, share=score / cases, cases=cases, failing=total)


def _uncontradicted(exact: Sequence[Suspect], passed: Iterable[Case], until: float) -> tuple[str, ...]:
    """The names of those that no passed case contradicts."""
    left = list(exact)
    cases = sorted(passed, key=_scores)[:200]
    for suspect in exact:
        telling = [case for case in cases if suspect.mutant.separates(case)][:6]
        for case in telling:
            if time.perf_counter() < until and would_be_noticed(suspect, case):
                left.remove(suspect)
                break
    return tuple(dict.fromkeys(s.mutant.name for s in left))


def _scores(case: Case) -> int:
    return case.B * case.H * case.Lq * case.Lk


def _can_be_evaluated(verdict: Verdict) -> bool:
    e = verdict.evidence
    wrong = any(not o.passed for o in verdict.outputs)  # not only of a wrong dtype or shape
    return e is not None and wrong and verdict.contract is not None and _scores(verdict.case) <= SCORES


def _small(evidence: Evidence | None) -> Evidence | None:
    """The evidence with the judged outputs alone."""
    if evidence is None:
        return None
    got: Mapping[str, Array] = {n: x for n, x in evidence.got.items() if n in NAMES and n in evidence.expected}
    return replace(evidence, got=got)
