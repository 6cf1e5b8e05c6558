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

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .case import NAMES, Case
from .dtypes import FORMATS
from .inputs import Problem, make
from .judge import Evidence, Verdict
from .localise import localise
from .memory import take_answer
from .mutants import MUTANTS, Mutant
from .precision import Precision, preset
from .streaming import Schedule
from .truth import Expected, truth

__all__ = ["Diagnosis", "Suspects", "diagnose"]

Array = np.ndarray[Any, Any]
TILES = (64, 128, 32, 16)
TILED = ("online", "tails", "merge", "precision")
"""families whose mutants depend on the size of tiles"""
SCORES = 2**18
"""a case with more scores than this is not evaluated again"""
CLEAR = 4.0
"""A passed case contradicts a mutant whose answer is so many radii off."""
CLOSE = 0.9
MOST_LOCATED = 5
"""Of so many unexplained failures it is said where they are."""
NEAR = 0.3
"""A mutant that explains less than this share is not evaluated in the promised arithmetic."""


@dataclass(frozen=True)
class Suspect:
    """A mutant with a size of tiles."""

    mutant: Mutant
    tile: int

    def answer(self, problem: Problem, contract: Precision | None, tile_of: Precision) -> dict[str, Array]:
        """What a kernel with this bug returns, dense: in float64, or in the arithmetic of a contract."""
        case, tile = problem.case, max(self.tile, tile_of.tile)
        schedule = Schedule(tile_q=64, tile_k=tile)
        if contract is None:
            contract = Precision(case.dtype, case.out_dtype, accumulate="float64", lse="float64")
        elif self.mutant.family not in TILED:
            schedule = Schedule(48, max(48, contract.tile), exp="exp2")
        with np.errstate(all="ignore"):
            found = replace(self.mutant.implementation, schedule=schedule, contract=contract)(case, problem.fresh())
        return {n: _dense(case, n, x) for n, x in found.items()}


@dataclass(frozen=True)
class Match:
    """How a suspect's answers fit those that were given: within bound, and the share of the error explained."""

    within: bool
    error: float
    left: float

    @property
    def share(self) -> float:
        return 0.0 if not self.error > 0 else max(0.0, 1 - self.left / self.error)


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
            self.recent = [suspect, *(s for s in self.recent if s != suspect)]
            return (f"looks like (its output is within bound of yours): {_words(suspect.mutant.name)}",)
        if verdict.evidence is None or self.located >= MOST_LOCATED:
            return ()
        self.located += 1
        return tuple(localise(verdict.evidence, verdict.contract).lines())

    def _culprit(self, verdict: Verdict, begun: float) -> Suspect | None:
        everywhere = self.failing <= 3 and self.spent < self.seconds
        for suspect in self._order(verdict.case, everywhere):
            if _match(suspect, verdict).within:
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
        return tuple(diagnose(self.failures, self.passed, self.failing, self.seconds).lines())


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
            matches.append(_match(suspect, verdict))
            if not matches[-1].within and matches[-1].share < CLOSE:
                break
        if len(matches) == len(usable) and all(m.within for m in matches):
            exact.append(suspect)
        elif matches:
            error = sum(min(m.error, 1e12) for m in matches)
            left = sum(min(m.left, 1e12) for m in matches)
            share = 0.0 if not error > 0 else max(0.0, 1 - left / error)
            best = max(best, (len(matches) * share, suspect.mutant.name, len(matches)))
    names = _uncontradicted(exact, passed, begun + seconds)
    if names:
        return Diagnosis(names, cases=len(usable), failing=total)
    score, name, cases = best
    if not name or score / cases < 0.5:
        return Diagnosis(failing=total)
    return Diagnosis(closest=name, share=score / cases, cases=cases, failing=total)


def suspects(case: Case) -> Iterator[Suspect]:
    """The mutants that a case can tell, those without tiles first."""
    semantic = [m for m in MUTANTS.values() if m.semantic and m.separates(case)]
    for mutant in semantic:
        yield Suspect(mutant, TILES[0])
    for mutant in semantic:
        if mutant.family in TILED:
            yield from (Suspect(mutant, tile) for tile in TILES[1:])


def _uncontradicted(exact: Sequence[Suspect], passed: Iterable[Case], until: float) -> tuple[str, ...]:
    """The names of those that no passed case contradicts."""
    left = list(exact)
    cases = sorted(passed, key=_scores)[:200]
    for suspect in exact:
        telling = [case for case in cases if suspect.mutant.separates(case)][:6]
        for case in telling:
            if time.perf_counter() < until and _would_be_noticed(suspect, case):
                left.remove(suspect)
                break
    return tuple(dict.fromkeys(s.mutant.name for s in left))


def _would_be_noticed(suspect: Suspect, case: Case) -> bool:
    """Whether a kernel with this bug is far outside of the bound."""
    contract = preset(case.dtype, case.out_dtype)
    problem = make(case)
    exact = suspect.answer(problem, None, contract)
    expected = truth(problem, contract)
    for name in (n for n in expected if n in exact):
        e = expected[name]
        with np.errstate(all="ignore"):
            radius = np.maximum(e.hi - e.value, e.value - e.lo)
            far = ~(np.abs(exact[name] - e.value) <= CLEAR * radius) & ~e.ignored & ~e.nonfinite
        if far.any():
            return True
    return False


def _match(suspect: Suspect, verdict: Verdict) -> Match:
    evidence, contract = verdict.evidence, verdict.contract
    if evidence is None or contract is None:
        raise ValueError(f"{verdict.case.id}: a verdict without evidence cannot be explained")
    try:
        exact = suspect.answer(evidence.problem, None, contract)
        found = _matched(verdict, evidence, contract, exact, exact)
        if found.within or found.share < NEAR:
            return found
        return _matched(
            verdict, evidence, contract, exact, suspect.answer(evidence.problem, contract, contract)
        )  # fmt: skip
    except Exception:  # the bug needs other inputs than these, as the angles of a rotation, which a dump has not
        return Match(False, 0.0, math.inf)


def _matched(
    verdict: Verdict, evidence: Evidence, contract: Precision, exact: Mapping[str, Array], promised: Mapping[str, Array]
) -> Match:  # fmt: skip
    within, error, left = True, 0.0, 0.0
    inputs = evidence.problem.logical
    excused = not all(np.isfinite(np.asarray(inputs[n], dtype=np.float64)).all() for n in "kv")
    for name, expected in evidence.expected.items():
        if name not in evidence.got or name not in exact:
            continue
        got = _dense(verdict.case, name, evidence.got[name])
        if got.shape != expected.value.shape:
            return Match(False, 0.0, math.inf)
        one = _fit(got, expected, exact[name], promised[name], contract, excused)
        within, error, left = within and one.within, error + one.error, left + one.left
    return Match(within, error, left)


def _fit(
    got: Array, expected: Expected, exact: Array, promised: Array, contract: Precision, excused: bool
) -> Match:  # fmt: skip
    """One output: each element in units of its radius; `excused`: a NaN may have come from a hidden input."""
    with np.errstate(all="ignore"):
        radius = np.maximum(expected.hi - expected.value, expected.value - expected.lo)
        radius = np.maximum(_largest_of_row(radius), 4 * _largest_of_row(np.abs(promised - exact)))
        radius = np.maximum(radius, _roundings(contract) * _largest_of_row(np.abs(exact)))
        radius = np.maximum(radius, _step(exact, expected.dtype))
        off, wrong = np.abs(got - exact), np.abs(got - expected.value)
        same = (got == exact) | (np.isnan(got) & np.isnan(exact))
        off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
        judged = ~expected.ignored & ~(excused & np.isnan(got))
        within = bool((off <= radius)[judged].all())
        units = [np.minimum(np.where(np.isnan(x), np.inf, x) / radius, 1e6)[judged] for x in (wrong, off)]
    return Match(within, *(float((u * u).sum()) for u in units))


def _largest_of_row(x: Array) -> Array:
    """The largest finite number of each row: a bug moves errors from one column to another."""
    x = np.where(np.isfinite(x), x, 0.0)
    return np.broadcast_to(x.max(-1, keepdims=True, initial=0.0), x.shape) if x.ndim else x


def _roundings(contract: Precision) -> float:
    """A few roundings of the accumulators, one of the weights: the least relative error that is granted a row."""
    weights = 0.0 if contract.weights is None else FORMATS[contract.weights].u
    return 16 * FORMATS[contract.accumulate].u + weights


def _step(x: Array, dtype: str) -> Array:
    """No less than the distance of neighbouring numbers of the format, at x."""
    f = FORMATS[dtype]
    return 2 * f.u * np.where(np.isfinite(x), np.abs(x), 0.0) + f.eta


def _dense(case: Case, name: str, x: Array) -> Array:
    return np.asarray(take_answer(case, name, np.asarray(x)), dtype=np.float64)


def _scores(case: Case) -> int:
    return case.B * case.H * case.Lq * case.Lk


def _can_be_evaluated(verdict: Verdict) -> bool:
    e = verdict.evidence
    return e is not None and verdict.contract is not None and bool(e.got) and _scores(verdict.case) <= SCORES


def _small(evidence: Evidence | None) -> Evidence | None:
    """The evidence with the judged outputs alone."""
    if evidence is None:
        return None
    got: Mapping[str, Array] = {n: x for n, x in evidence.got.items() if n in NAMES and n in evidence.expected}
    return replace(evidence, got=got)
