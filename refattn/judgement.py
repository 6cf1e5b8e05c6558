"""A question, a problem with an answer to it, and the judgement: a verdict with its statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from .case import Case
from .diagnose import Suspects
from .dtypes import round_to
from .elements import judged_output
from .inputs import Problem
from .judge import Verdict, judge, ratios
from .memory import take_answer
from .precision import Conventions, Precision
from .sampling import Coverage, inseparable, part, sample
from .storage import Dense
from .truth import Expected, quick_truth, truth
from .widened import rows_beyond, widened

__all__ = ["Judgement", "Question", "Unjudgeable", "looks_like"]

Array = np.ndarray[Any, Any]

_FOUR = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")
_SEARCHED = 1 << 16
"""scores of a problem of which every hypothesis is asked"""
_QUICK = 1 << 26
"""scores from which a forward is judged by narrower intervals first, at a fourth of the cost"""
_LONG = 1 << 30
"""scores from which judging takes minutes"""
_FURTHEST = 64
"""rows that are judged by the wide intervals, where a large problem is out of the narrow ones"""
_LARGEST = 1 << 28
"""numbers of a bias or keep from which float64 copies of them would not fit"""


class Unjudgeable(ValueError):
    """Arrays of which nothing can be said."""


@dataclass(frozen=True)
class Judgement(Verdict):
    """A verdict, with what a single worst element does not tell.

    `rms` is the root mean square of the ratios of each output; `unjudged` counts the elements that pass
    whatever they are (not finite, with cause; or of an endless interval); `coverage` says which rows
    were judged, None = all.
    """

    rms: Mapping[str, float] = field(default_factory=dict)
    unjudged: Mapping[str, int] = field(default_factory=dict)
    coverage: Coverage | None = None


@dataclass(frozen=True)
class Question:
    """A problem, an answer to it, and what the answer is judged by."""

    problem: Problem
    answer: Mapping[str, Array]
    precision: Precision
    conventions: Conventions = Conventions()
    coverage: Coverage | None = None

    def sampled(self, rows: int | None, seed: int = 0) -> Question:
        if rows is None:
            return self
        problem, answer, coverage = sample(self.problem, self.answer, rows, seed)
        return replace(self, problem=problem, answer=answer, coverage=coverage)

    @property
    def takes_long(self) -> bool:
        case = self.problem.case
        return case.scores >= _LONG

    def judged(self, diagnose: bool = True) -> Judgement:
        """The verdict; `Unjudgeable` if no element can be judged.

        With `diagnose`, notes of a failure say what it looks like, which takes up to some seconds.
        """
        problem, answer, case = self.problem, dict(self.answer), self.problem.case
        _not_too_large(problem)
        keep = answer.get("keep")  # drawn by the implementation itself
        if keep is not None and keep.dtype == np.bool_ and keep.shape == (case.B, case.H, case.Lq, case.Lk):
            problem = replace(problem, logical={**problem.logical, "keep": keep})
        large = case.scores >= _QUICK
        expected = quick_truth(problem, self.precision) if large else truth(problem, self.precision)
        if large and self.coverage is None and not inseparable(case):
            rows, asked = rows_beyond(answer, expected), replace(self, problem=problem)
            if rows.size and (found := asked._of(rows[:_FURTHEST], rows.size).judged(diagnose)).status == "failed":
                return found
            if rows.size:
                wide = truth(asked._of(rows, rows.size).problem, self.precision)
                expected = widened(expected, wide, np.sort(rows))
        names = frozenset(answer) & case.want
        verdict = judge(problem, answer, self.precision, self.conventions, outputs=names, expected=expected)
        if verdict.evidence is not None:
            expected = dict(verdict.evidence.expected)
        elif verdict.status == "acceptable":
            expected = truth(problem, self.precision, Conventions(**self.conventions.declared()))
        rms, unjudged = {}, {}
        for o in verdict.outputs:
            rms[o.name], unjudged[o.name] = _statistics(o.name, answer[o.name], expected[o.name], case)
        total = sum(o.elements for o in verdict.outputs)
        if verdict.status != "failed" and total <= sum(unjudged.values()):
            raise Unjudgeable(
                f"none of the {total} elements can be judged: there are none, or what they come from is not finite or "
                f"too large; {_not_finite(problem) or 'pass arrays of moderate numbers'}"
            )
        outputs = verdict.outputs
        if self.coverage is not None:
            at = self.coverage.rows
            outputs = tuple(
                replace(o, index=(*o.index[:2], at[o.index[2]], *o.index[3:])) if o.index else o for o in outputs
            )
        known = {f.name: getattr(verdict, f.name) for f in fields(Verdict)} | {"outputs": outputs}
        known["notes"] = (*verdict.notes, *self._explained(verdict, diagnose), *_notes(problem, verdict, unjudged))
        return Judgement(**known, rms=rms, unjudged=unjudged, coverage=self.coverage)

    def _explained(self, verdict: Verdict, diagnose: bool) -> tuple[str, ...]:
        if verdict.status == "failed" and self.coverage is None and self._right_if_turned():
            return ("within bound with heads and positions exchanged: the arrays have another order; see layout",)
        return looks_like(verdict) if diagnose else ()

    def _right_if_turned(self) -> bool:
        """Whether all is within bound if what was taken for heads is positions, and positions heads."""
        case = self.problem.case
        if not isinstance(case.storage, Dense) or not {*self.problem.logical, *self.answer} <= {*_FOUR}:
            return False
        try:
            other = replace(case, H=case.Lq, Hkv=case.Lk, Lq=case.H, Lk=case.Hkv)
        except ValueError:
            return False
        if other.scores >= _QUICK:
            return False
        turned = Problem(other, {name: x.swapaxes(1, 2) for name, x in self.problem.logical.items()})
        got = {name: np.asarray(x.swapaxes(1, 2), np.float64) for name, x in self.answer.items()}
        expected = truth(turned, self.precision)
        return all(judged_output(name, got[name], e).passed for name, e in expected.items() if name in got)

    def _of(self, rows: Array, beyond: int) -> Question:
        """The question of these rows alone, of so many that are out of narrow intervals."""
        rows = np.sort(rows)
        problem, answer = part(self.problem, self.answer, rows)
        covered = Coverage(tuple(rows.tolist()), 0, self.problem.case.Lq, (), beyond)
        return replace(self, problem=problem, answer=answer, coverage=covered)


def looks_like(verdict: Verdict) -> tuple[str, ...]:
    """Which bug a failure looks like, or where it is, in lines; there is but this one, so that the search may take a
    while: at most 8 seconds of processor time."""
    return Suspects(seconds=64.0, largest=_SEARCHED).watch(verdict)


def _not_too_large(problem: Problem) -> None:
    for name in ("bias", "keep"):
        size = problem.logical[name].size if name in problem.logical else 0
        if size > _LARGEST:
            raise Unjudgeable(f"{name} of {size:,} numbers must have at most {_LARGEST:,} at once; pass rows")


def _statistics(name: str, x: Array, expected: Expected, case: Case) -> tuple[float, int]:
    """The root mean square of the ratios, and how many elements pass whatever they are."""
    got = round_to(np.asarray(take_answer(case, name, x), dtype=np.float64), expected.dtype)
    free = expected.nonfinite & ~np.isfinite(got)
    ratio = ratios(got, expected.value, expected.lo, expected.hi)[~(free | expected.ignored)]
    endless = np.isinf(expected.lo) & np.isinf(expected.hi) & (expected.lo != expected.hi)
    count = int(np.count_nonzero((free | endless) & ~expected.ignored))
    with np.errstate(over="ignore"):
        return (math.sqrt(float(np.mean(ratio * ratio))) if ratio.size else 0.0), count


def _not_finite(problem: Problem) -> str:
    counts = {n: int(np.count_nonzero(~np.isfinite(np.asarray(a, np.float64)))) for n, a in problem.logical.items()
              if n not in ("keep", "bias")}  # fmt: skip
    return ", ".join(f"{n} has {count:,} numbers that are not finite" for n, count in counts.items() if count)


def _notes(problem: Problem, verdict: Verdict, unjudged: Mapping[str, int]) -> list[str]:
    notes = [text for text in [_not_finite(problem)] if text and any(unjudged.values())]
    notes += [
        f"{n} of {name} pass whatever they are: their inputs are not finite, or too large for a bound"
        for name, n in unjudged.items() if n
    ]  # fmt: skip
    if verdict.status == "failed" and verdict.case.dtype in ("float32", "float64"):
        wide = [np.asarray(problem.logical[n], np.float64) for n in "qkv"]
        for narrow in ("bfloat16", "float16", "float32"):
            fits = all(np.array_equal(round_to(x, narrow), x, equal_nan=True) for x in wide)
            if fits and any(x.any() for x in wide) and narrow != verdict.case.dtype:
                notes.append(f"q, k and v are exact in {narrow}; if it was computed in that, say so: dtype={narrow}")
                break
    return notes
