"""A mutant as a hypothesis: what a kernel with this bug would return, and whether that is what was returned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS
from ..inputs import Problem, make
from ..judge import Evidence, Verdict
from ..memory import take_answer
from ..mutants import MUTANTS, Mutant
from ..precision import Precision, preset
from ..streaming import Schedule
from ..truth import Expected, truth

__all__ = ["HALF", "Match", "Suspect", "match", "suspects", "would_be_noticed"]

Array = np.ndarray[Any, Any]
TILES = (64, 128, 32, 16)
TILED = ("online", "tails", "merge", "precision")
"""families whose mutants depend on the size of tiles"""
CLEAR = 4.0
"""A passed case contradicts a mutant whose answer is so many radii off."""
HALF = 0.5
"""Of the squared error, or of the failing cases: what names a bug explains at least so much."""
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


def suspects(case: Case) -> Iterator[Suspect]:
    """The mutants that a case can tell, those without tiles first."""
    semantic = [m for m in MUTANTS.values() if m.semantic and m.separates(case)]
    for mutant in semantic:
        yield Suspect(mutant, TILES[0])
    for mutant in semantic:
        if mutant.family in TILED:
            yield from (Suspect(mutant, tile) for tile in TILES[1:])


def would_be_noticed(suspect: Suspect, case: Case) -> bool:
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


def match(suspect: Suspect, verdict: Verdict) -> Match:
    """How a suspect explains a failure; the promised arithmetic is asked only of one that float64 brings near."""
    evidence, contract = verdict.evidence, verdict.contract
    if evidence is None or contract is None:
        raise ValueError(f"{verdict.case.id}: a verdict without evidence cannot be explained")
    try:
        exact = suspect.answer(evidence.problem, None, contract)
        found = _matched(verdict, evidence, contract, exact, exact)
        if found.within or found.share < NEAR:
            return found
        promised = suspect.answer(evidence.problem, contract, contract)
        return _matched(verdict, evidence, contract, exact, promised)
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
    found = Match(within, error, left)
    return found if found.share >= HALF else Match(False, error, left)  # on this case it changes little, or nothing


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
