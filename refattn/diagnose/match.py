"""Whether what a hypothesis returns is what was returned."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ..case import GRADIENTS
from ..dtypes import FORMATS, round_to
from ..judge import Verdict
from ..memory import take_answer
from ..precision import Precision
from ..truth import Expected
from .alone import alone
from .dense import ANYTHING
from .distances import grown, largest_of_row, roundings, step
from .hypothesis import Hypothesis
from .model import LOG2E, Inputs, Model
from .regions import KEYS, REGIONS, ROWS, within
from .sight import rows_moved
from .worst import Worst

__all__ = ["FORWARD", "HALF", "Match", "Trial"]

Array = np.ndarray[Any, Any]
HALF = 0.5
"""Of the squared error, or of the failing cases: what names a bug explains at least so much."""
NEAR = 0.3
"""A hypothesis that explains less than this share is not evaluated in the promised arithmetic."""
BITS = 0.9
"""A loss of bits explains a case with this share: a rounding more or less goes the other way."""
ALL = 0.999
RIGHT = 0.1
"""Of memory that was never written, no more is right by accident."""
FORWARD = frozenset({"out", "lse", "scores", "capped", "biased", "weights"})


@dataclass(frozen=True)
class Match:
    """How a hypothesis fits: whether it explains the case, and the squared error before and after."""

    explains: bool
    error: float
    left: float
    forward: bool = False
    """it explains what the forward returns, whatever the gradients"""
    close: bool = True
    """what is left is little against what was returned too: an answer near 0 is not explained by others near 0"""
    own: Match | None = None
    """of the outputs that are wrong alone, where it would make others wrong that are right:"""
    spoils: frozenset[str] = frozenset()
    size: float = math.inf
    """the square of what was returned"""

    @property
    def apart(self) -> bool:
        """Whether it explains every output that is wrong, and not all that are right."""
        return self.own is not None and self.own.nearly and not self.nearly

    @property
    def nearly(self) -> bool:
        """All but a thousandth of the squared error, and of what was returned; or within bound."""
        return self.explains or (self.share >= ALL and self.close)

    @property
    def share(self) -> float:
        return 0.0 if not self.error > 0 else max(0.0, 1 - self.left / self.error)

    @property
    def told(self) -> float:
        """The share that is said of it: of the squared error, or of what was returned, if that is less."""
        least = min(self.error, self.size)
        return self.share if self.explains else max(0.0, 1 - self.left / least) if least > 0 else 0.0


NONE = Match(False, 0.0, math.inf)


def _sum(fits: Collection[Match], rounding: bool = False) -> Match:
    """Of several outputs."""
    error, left = sum(one.error for one in fits), sum(one.left for one in fits)
    found = Match(all(one.explains for one in fits), error, left, size=sum(one.size for one in fits),
                  close=all(one.explains or one.close for one in fits))  # fmt: skip
    changes = found.share >= (BITS if rounding else HALF)  # otherwise it changes little here
    return replace(found, explains=changes and (rounding or found.explains))


class Trial:
    """A failure, with what all hypotheses need of it."""

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
        self.results: dict[Any, Match] = {}
        self._known: dict[tuple[int, int], tuple[Array, Array, Array]] = {}
        self.partly: dict[Hypothesis, dict[str, Array]] = {}
        """of hypotheses that explain every row that is wrong: where they explain what was returned"""
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

    @property
    def gradients_alone(self) -> bool:
        """Whether nothing of the forward was returned."""
        return not FORWARD & set(self.got)

    @cached_property
    def excused(self) -> bool:
        """Whether a NaN may have come from a hidden input."""
        return not all(np.isfinite(self.inputs.arrays[n]).all() for n in "kv")

    def match(self, h: Hypothesis) -> Match:
        """How it explains this failure."""
        if h not in self.results and h.members:
            best = NONE
            for m in (m for m in h.members if m.separates(self.case)):
                best = max(best, self.match(m), key=lambda f: (f.nearly, f.share))
                if best.explains:
                    break
            self.results[h] = best
        if h not in self.results and h.whole is not None:
            self.results[h] = self._match_alone(h, h.whole)
        if h not in self.results and not (self.failing <= h.shows and h.separates(self.case)):
            self.results[h] = NONE
        if h not in self.results:
            key = None if h.same is None else h.same(self.case)
            found = self.results.get(key) if key is not None else None
            with np.errstate(all="ignore"):
                self.results[h] = self._match(h) if found is None else found
            if key is not None:
                self.results[key] = self.results[h]
        return self.results[h]

    def _match_alone(self, h: Hypothesis, whole: Hypothesis) -> Match:
        """How it does in some outputs alone, by how it does as a whole."""
        found = self.match(whole)
        if not self.failing <= h.shows or found.spoils & h.shows:
            return NONE
        return found if found.nearly or found.own is None else found.own

    def elsewhere(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """Those that are wrong in a part of the kernel alone, where that may explain what the whole does not."""
        if not self.failing & FORWARD:
            yield from (part for part in h.elsewhere if part.part == "backward")
        elif self.match(h).forward:
            yield from (part for part in h.elsewhere if part.part != "backward")

    def in_outputs(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """The same in the outputs that are wrong alone, where that explains what the whole does not."""
        if self.match(h).apart and not h.vague:
            yield alone(h, self.failing)

    def in_regions(self, h: Hypothesis, most: int) -> Iterator[Hypothesis]:
        """The same in a region alone, where that explains what the whole does not."""
        if h not in self.partly:
            return
        fit = (r for r in REGIONS if r.fits(self.right, self.partly[h], self.inputs))
        for region in islice(fit, most):
            held = within(h, region)
            if self.match(held).explains:
                yield held
                continue
            yield from self.in_outputs(held)
            if self.match(held).forward:
                yield from (p for part in h.elsewhere if self.match(p := within(part, region)).explains)

    @cached_property
    def right(self) -> dict[str, Array]:
        """Which elements are right."""
        found = {}
        for n, got in self.got.items():
            e = self.expected[n]
            if got.shape == e.value.shape:
                found[n] = (e.lo <= got) & (got <= e.hi) | e.ignored | (e.nonfinite & ~np.isfinite(got))
        return found

    def _note(self, h: Hypothesis, exact: Mapping[str, Array], names: Iterable[str]) -> None:
        """Keeps where it explains an answer, if every row that is not right is so explained."""
        found = {}
        for n in (n for n in names if n in (*ROWS, *KEYS) and n in exact and n in self.right):
            off, _, radius, judged = self._compared(self.got[n], self.expected[n], exact[n], exact[n], False)
            found[n] = (off <= radius) | ~judged
            if n in ROWS and not (found[n] | self.right[n]).all():
                return
        if any(not self.right[n].all() for n in found):
            self.partly[h] = found

    def _solved(self, h: Hypothesis, contract: Precision | None, names: frozenset[str]) -> Mapping[str, Array]:
        """The answer of a hypothesis; what it never wrote is what was returned, where nearly all is wrong, and not all.

        Memory that was never written is hardly ever right, and if nothing was written there is nothing to explain.
        """
        exact = h.solve(self.inputs, contract, names)
        if not h.vague:
            return exact
        found = {}
        for n, x in ((n, x) for n, x in exact.items() if n in self.right and x.shape == self.got[n].shape):
            free = x == ANYTHING
            if free.any() and (free.all() or self.right[n][free].mean() > RIGHT):
                return {}
            found[n] = np.where(free, self.got[n], x)
        return found

    def _match(self, h: Hypothesis) -> Match:
        names = frozenset(self.got)
        forward = names & FORWARD
        if forward and not self.failing & FORWARD and h.shows & FORWARD and h.part != "backward":
            return NONE  # what the forward gives is right
        first = forward if self.failing & FORWARD else names
        arithmetic = self.contract if h.rounding else None
        try:
            rows = rows_moved(h, self.inputs) if self.failing & FORWARD else None
            if rows is not None and self.worst.reached(rows) < HALF:
                return NONE
            exact = self._solved(h, arithmetic, first)
            nearer = self.worst.nearer(exact)
            if nearer < HALF:
                return NONE
            found = self._fit(h, exact, exact, first)
            if nearer == 1 and not found.explains and not h.rounding and not h.narrow:
                self._note(h, exact, first)
            if not found.explains and found.share < NEAR and (found.own is None or found.own.share < NEAR):
                return found
            promised = exact if h.rounding else self._solved(h, self.contract, first)
            found = self._fit(h, exact, promised, first)
            if first == names or not (found.explains or found.apart):
                return found
            exact = self._solved(h, arithmetic, names)
            promised = exact if h.rounding else self._solved(h, self.contract, names)
            return replace(self._fit(h, exact, promised, names), forward=True)
        except Exception:  # it needs other inputs than these, as the angles of a rotation, which a dump has not
            return NONE

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

    def _fit(
        self, h: Hypothesis, exact: Mapping[str, Array], promised: Mapping[str, Array], names: Iterable[str]
    ) -> Match:  # fmt: skip
        fits: dict[str, Match] = {}
        for name in names:
            expected, got = self.expected[name], self.got[name]
            if name not in exact or got.shape != expected.value.shape:
                if name in self.failing:
                    return NONE
                continue
            answer = exact[name] if not h.rounding else round_to(exact[name], expected.dtype).astype(np.float64)
            spreads = name in GRADIENTS and any(np.isnan(exact[n]).any() for n in FORWARD & set(exact))
            may_be_nan = self.excused or spreads or name not in self.failing
            fits[name] = self._fit_one(got, expected, answer, promised[name], may_be_nan)
        if self._excused_alone and not any(
            (np.isnan(exact[n]) & np.isnan(self.got[n])).any() for n in self.failing if n in exact
        ):
            return NONE
        wrong = {name: one for name, one in fits.items() if name in self.failing}
        # of a loss of bits, what is right is as right as it was, up to roundings
        spoils = {name for name in fits if name not in wrong and (
            fits[name].left > 4 * max(fits[name].error, 1.0) if h.rounding else not fits[name].explains)}  # fmt: skip
        own = _sum(wrong.values(), h.rounding)
        if not spoils:
            return own if h.rounding else _sum(fits.values())
        found = NONE if h.rounding else replace(_sum(fits.values()), close=own.close, size=own.size)
        return replace(found, own=own, spoils=frozenset(spoils))

    def _fit_one(
        self, got: Array, expected: Expected, exact: Array, promised: Array, may_be_nan: bool
    ) -> Match:  # fmt: skip
        """One output: each element in units of its radius."""
        off, wrong, radius, judged = self._compared(got, expected, exact, promised, may_be_nan)
        within = bool((off <= radius)[judged].all())
        with np.errstate(all="ignore"):
            sizes = [np.where(np.isnan(x), np.inf, x) for x in (wrong, off, np.abs(got))]
            units = [np.minimum(x / radius, 1e6)[judged] for x in sizes]
        error, left, size = (float((u * u).sum()) for u in units)
        return Match(within, error, left, close=left <= (1 - ALL) * size, size=size)

    def _compared(
        self, got: Array, expected: Expected, exact: Array, promised: Array, may_be_nan: bool
    ) -> tuple[Array, Array, Array, Array]:  # fmt: skip
        """How far off each element is from an answer and from the truth, how far it may be, and which ones count."""
        with np.errstate(all="ignore"):
            radius, wrong, free = self._about(got, expected)
            radius = grown(exact, expected.value) * radius
            if promised is not exact:
                radius = np.maximum(radius, 4 * largest_of_row(np.abs(promised - exact)))
            size = np.abs(exact)
            radius = np.maximum(radius, roundings(self.contract) * largest_of_row(size))
            radius = np.maximum(radius, step(exact, expected.dtype))
            off = np.abs(got - exact)
            same = (got == exact) | (np.isnan(got) & np.isnan(exact))
            same |= ~np.isfinite(got) & (size > FORMATS[self.contract.accumulate].max)
            off = np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))
            judged = ~free & ~(may_be_nan & np.isnan(got) & ~np.isnan(exact))
        return off, wrong, radius, judged

    def _about(self, got: Array, expected: Expected) -> tuple[Array, Array, Array]:
        """Of an output: the radius of each row, how far off each element is, and which may be anything."""
        key = id(got), id(expected)
        if key not in self._known:
            radius = largest_of_row(np.maximum(expected.hi - expected.value, expected.value - expected.lo))
            free = expected.ignored | (expected.nonfinite & ~np.isfinite(got))
            self._known[key] = radius, np.abs(got - expected.value), free
        return self._known[key]
