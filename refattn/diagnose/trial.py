"""Which hypotheses explain a failure: each is asked once, as a whole, in a part of the kernel, in some outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from ..judge import Verdict
from ..precision import Precision
from .alone import alone
from .dense import ANYTHING, Array
from .effort import Effort
from .fitting import fitting
from .hypothesis import Hypothesis
from .match import FORWARD, HALF, NONE, UNTOLD, Match
from .regions import KEYS, ROWS, within
from .returned import Returned
from .sight import rows_moved

__all__ = ["Trial"]

NEAR = 0.3
"""A hypothesis that explains less than this share is not evaluated in the promised arithmetic."""
CACHES = frozenset({"k_cache", "v_cache"})
"""What is written into them may be wrong alone."""
RIGHT = 0.1
"""Of memory that was never written, no more is right by accident."""


class Trial(Returned):
    """A failure, with what came of the hypotheses that were asked of it; `effort` is told of each."""

    def __init__(self, verdict: Verdict, effort: Effort | None = None) -> None:
        super().__init__(verdict)
        self.effort = effort or Effort()
        self.results: dict[Any, Match] = {}
        self.partly: dict[Hypothesis, dict[str, Array]] = {}
        """of hypotheses that explain every row that is wrong: where they explain what was returned"""

    def match(self, h: Hypothesis) -> Match:
        """How it explains this failure."""
        if h not in self.results:
            self.results[h] = self._asked(h)
        return self.results[h]

    def _asked(self, h: Hypothesis) -> Match:
        if h.members:
            return self._of_family(h)
        if h.whole is not None:
            return self._of_outputs(h, h.whole)
        self.effort.asked()
        if not (self.failing <= h.shows and h.separates(self.case)):
            return UNTOLD
        key = h if h.same is None else h.same(self.case)
        if key is None or key not in self.results:
            with np.errstate(all="ignore"):
                self.results[h if key is None else key] = self._match(h)
        return self.results[h if key is None else key]

    def _of_family(self, h: Hypothesis) -> Match:
        """The best of its members."""
        best = NONE
        for m in (m for m in h.members if m.separates(self.case)):
            best = max(best, self.match(m), key=lambda f: (f.nearly, f.share))
            if best.explains:
                break
        return best

    def _of_outputs(self, h: Hypothesis, whole: Hypothesis) -> Match:
        """How it does in some outputs alone, by how it does as a whole."""
        found = self.match(whole)
        if not self.failing <= h.shows or found.spoils & h.shows:
            return NONE
        return found if found.nearly or found.own is None else found.own

    def elsewhere(self, h: Hypothesis) -> Iterator[Hypothesis]:
        """Those that are wrong in a part of the kernel alone, where that may explain what the whole does not."""
        if not FORWARD & set(self.got):  # what was made of the forward is not seen
            yield from h.elsewhere
        elif not self.failing & FORWARD:
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
        for region in islice(fitting(self.right, self.partly[h], self.inputs), most):
            held = within(h, region)
            if self.match(held).explains:
                yield held
                continue
            yield from self.in_outputs(held)
            if self.match(held).forward:
                yield from (p for part in h.elsewhere if self.match(p := within(part, region)).explains)

    def _note(self, h: Hypothesis, exact: Mapping[str, Array], names: Iterable[str]) -> None:
        """Keeps where it explains an answer, if every row that is not right is so explained."""
        found = {}
        for n in (n for n in names if n in (*ROWS, *KEYS) and n in exact and n in self.right):
            off, _, radius, judged = self.compared(n, exact[n], exact[n], False)
            found[n] = (off <= radius) | ~judged
            if n in ROWS and not (found[n] | self.right[n]).all():
                return
        if any(not self.right[n].all() for n in found):
            self.partly[h] = found

    def _solved(self, h: Hypothesis, contract: Precision | None, names: frozenset[str]) -> Mapping[str, Array]:
        """The answer of a hypothesis; what it never wrote is what was returned, where nearly all is wrong, and not all.

        Memory that was never written is hardly ever right, and if nothing was written there is nothing to explain.
        """
        self.effort.solved(self.case.scores)
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
        if forward and not self.failing & (FORWARD | CACHES) and h.shows & FORWARD and h.part != "backward":
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
            found = self.fit(exact, exact, first, h.rounding)
            if nearer == 1 and not found.explains and not h.rounding and not h.narrow:
                self._note(h, exact, first)
            if not found.explains and found.share < NEAR and (found.own is None or found.own.share < NEAR):
                return found
            promised = exact if h.rounding else self._solved(h, self.contract, first)
            found = self.fit(exact, promised, first, h.rounding)
            if first == names or not (found.explains or found.apart):
                return found
            exact = self._solved(h, arithmetic, names)
            promised = exact if h.rounding else self._solved(h, self.contract, names)
            return replace(self.fit(exact, promised, names, h.rounding), forward=True)
        except Exception:  # it needs other inputs than these, as the angles of a rotation, which a dump has not
            return NONE

