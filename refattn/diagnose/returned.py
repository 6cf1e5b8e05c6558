"""What was returned of a case that failed, what was expected, and how another answer compares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..case import GRADIENTS
from ..dtypes import FORMATS, round_to
from ..judge import Verdict
from ..memory import take_answer
from ..precision import Precision
from ..truth import Expected
from .distances import grown, largest_of_row, roundings, step
from .match import ALL, FORWARD, NONE, Match, summed
from .model import LOG2E, Inputs, Model
from .worst import Worst

__all__ = ["Returned"]

Array = np.ndarray[Any, Any]


class Returned:
    """A failure: its outputs, dense and in float64, and which of their elements are right."""

    def __init__(self, verdict: Verdict) -> None:
        if verdict.evidence is None or verdict.contract is None:
            raise ValueError(f"{verdict.case.id}: a verdict without evidence cannot be explained")
        self.verdict, self.case = verdict, verdict.case
        self.contract: Precision = verdict.contract
        self.expected: Mapping[str, Expected] = verdict.evidence.expected
        self.failing = frozenset(o.name for o in verdict.outputs if not o.passed)
        self.got = {
            n: np.asarray(take_answer(self.case, n, np.asarray(x)), np.float64)
            for n, x in verdict.evidence.got.items()
            if n in self.expected
        }
        self._about: dict[str, tuple[Array, Array, Array]] = {}
        self._natural()

    def _natural(self) -> None:
        """An lse that is declared to be of base 2 is brought to base e, as hypotheses have it."""
        if "lse" not in self.got:
            return
        with np.errstate(all="ignore"):
            lse, e = Model(self.inputs).solve(frozenset({"lse"}))["lse"], self.expected["lse"]
            two = np.isclose(e.value, lse * LOG2E, rtol=1e-6, atol=1e-6) | ~np.isfinite(lse) | e.ignored
            if two.all() and not np.isclose(e.value, lse, rtol=1e-6, atol=1e-6).all():
                ends = {n: getattr(e, n) / LOG2E for n in ("value", "lo", "hi", "rigorous_lo", "rigorous_hi")}
                self.expected = {**self.expected, "lse": replace(e, **ends)}
                self.got["lse"] = self.got["lse"] / LOG2E

    @cached_property
    def inputs(self) -> Inputs:
        evidence = self.verdict.evidence
        if evidence is None:
            raise ValueError(f"{self.case.id} has no evidence")
        return Inputs(evidence.problem)

    @cached_property
    def excused(self) -> bool:
        """Whether a NaN may have come from a hidden input."""
        return not all(np.isfinite(self.inputs.arrays[n]).all() for n in "kv")

    @cached_property
    def right(self) -> dict[str, Array]:
        """Which elements are right."""
        found = {}
        for n, got in self.got.items():
            e = self.expected[n]
            if got.shape == e.value.shape:
                found[n] = (e.lo <= got) & (got <= e.hi) | e.ignored | (e.nonfinite & ~np.isfinite(got))
        return found

    @property
    def wrong(self) -> int:
        """How many elements are wrong, of the outputs that are."""
        return sum(int((~self.right[n]).sum()) for n in self.failing & set(self.right))

    @cached_property
    def worst(self) -> Worst:
        return Worst({n: self.got[n] for n in self.failing}, self.expected, self.excused)

    @cached_property
    def _excused_alone(self) -> bool:
        """Whether all that is wrong is NaN that may have come from a hidden input: only NaN explains it."""
        return self.excused and not self.worst

    def fit(
        self, exact: Mapping[str, Array], promised: Mapping[str, Array], names: Iterable[str], rounding: bool
    ) -> Match:  # fmt: skip
        """An answer in float64, and in the arithmetic promised; of a loss of bits both are that."""
        fits: dict[str, Match] = {}
        for name in names:
            expected = self.expected[name]
            if name not in exact or self.got[name].shape != expected.value.shape:
                if name in self.failing:
                    return NONE
                continue
            answer = exact[name] if not rounding else round_to(exact[name], expected.dtype).astype(np.float64)
            spreads = name in GRADIENTS and any(np.isnan(exact[n]).any() for n in FORWARD & set(exact))
            may_be_nan = self.excused or spreads or name not in self.failing
            fits[name] = self._fit_one(name, answer, promised[name], may_be_nan)
        if self._excused_alone and not any(
            (np.isnan(exact[n]) & np.isnan(self.got[n])).any() for n in self.failing if n in exact
        ):
            return NONE
        wrong = {name: one for name, one in fits.items() if name in self.failing}
        # of a loss of bits, what is right is as right as it was, up to roundings
        spoils = {name for name in fits if name not in wrong and (
            fits[name].left > 4 * max(fits[name].error, 1.0) if rounding else not fits[name].explains)}  # fmt: skip
        own = summed(wrong.values(), rounding)
        if not spoils:
            return own if rounding else summed(fits.values())
        found = NONE if rounding else replace(summed(fits.values()), close=own.close, size=own.size)
        return replace(found, own=own, spoils=frozenset(spoils))

    def _fit_one(self, name: str, exact: Array, promised: Array, may_be_nan: bool) -> Match:
        """One output: each element in units of its radius."""
        off, wrong, radius, judged = self.compared(name, exact, promised, may_be_nan)
        within = bool((off <= radius)[judged].all())
        with np.errstate(all="ignore"):
            sizes = [np.where(np.isnan(x), np.inf, x) for x in (wrong, off, np.abs(self.got[name]))]
            units = [np.minimum(x / radius, 1e6)[judged] for x in sizes]
        error, left, size = (float((u * u).sum()) for u in units)
        return Match(within, error, left, close=left <= (1 - ALL) * size, size=size)

    def compared(
        self, name: str, exact: Array, promised: Array, may_be_nan: bool
    ) -> tuple[Array, Array, Array, Array]:  # fmt: skip
        """How far off each element is from an answer and from the truth, how far it may be, and which ones count."""
        got, expected = self.got[name], self.expected[name]
        radius, wrong, free = self.about(name)
        with np.errstate(all="ignore"):
            radius = grown(exact, expected.value) * radius
            if promised is not exact:
                radius = np.maximum(radius, 4 * largest_of_row(np.abs(promised - exact)))
            size = np.abs(exact)
            radius = np.maximum(radius, roundings(self.contract) * largest_of_row(size))
            radius = np.maximum(radius, step(exact, expected.dtype))
            off = np.abs(got - exact)
            same = (got == exact) | (np.isnan(got) & np.isnan(exact))
            overflowed = np.isfinite(exact) & (size > FORMATS[self.contract.accumulate].max)
            same |= ~np.isfinite(got) & overflowed
            off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
            judged = ~free & ~(may_be_nan & np.isnan(got) & ~np.isnan(exact))
        return off, wrong, radius, judged

    def about(self, name: str) -> tuple[Array, Array, Array]:
        """Of an output: the radius of each row, how far off each element is, and which may be anything."""
        if name not in self._about:
            got, e = self.got[name], self.expected[name]
            with np.errstate(all="ignore"):
                radius = largest_of_row(np.maximum(e.hi - e.value, e.value - e.lo))
                wrong = np.abs(got - e.value)
            self._about[name] = radius, wrong, e.ignored | (e.nonfinite & ~np.isfinite(got))
        return self._about[name]
