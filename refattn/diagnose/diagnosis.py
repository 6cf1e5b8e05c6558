"""What came of a diagnosis, and how it is said."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .conditions import Condition
from .hypothesis import Hypothesis

__all__ = ["Diagnosis"]

MOST = 0.8
"""Of the failures: where so many are explained, nothing else is looked for."""
OTHERS = 3
"""So many are named that the cases cannot tell from the first."""


@dataclass(frozen=True)
class Diagnosis:
    """`found` explain all (the cases cannot tell them apart), or `likely` most of them, or `closest` some of it."""

    found: tuple[Hypothesis, ...] = ()
    likely: tuple[tuple[Hypothesis, int], ...] = ()
    """with how many of the failing cases"""
    closest: Hypothesis | None = None
    along: bool = False
    """the errors go along with those of the closest, a loss of bits, beside the kernel's own"""
    share: float = 0.0
    cases: int = 0
    """how many failing cases what is named first explains"""
    failing: int = 0
    looked: int = 0
    """how many of the failing cases were asked; the others are of another kind, too large, or too many"""
    against: int = 0
    """how many cases that passed speak against the likeliest"""
    left: int = 0
    """how many hypotheses were not asked of some case for want of time, nor of any other"""
    where: Condition | None = None
    """what all that fail have, and none of those that speak against it"""

    common: tuple[str, ...] = ()
    """what the failures have in common, where nothing is named"""

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that explain all."""
        return tuple(dict.fromkeys(h.name for h in self.found))

    @property
    def first(self) -> Hypothesis | None:
        """What is named first, if it explains some cases."""
        return next(iter((*self.found, *(h for h, _ in self.likely))), None)

    @property
    def contradicted(self) -> bool:
        """Whether so many cases that passed speak against the likeliest that it is said."""
        sure = self.where is not None and self.where.sure
        return bool(self.likely) and self.against > self.likely[0][1] / 8 and not sure

    @property
    def doubtful(self) -> bool:
        """Whether something else may explain more: it leaves many failures, or is contradicted."""
        return not self.found and (self.cases < MOST * self.failing or self.contradicted)

    def lines(self) -> list[str]:
        """What to say of it."""
        if self.found:
            first, *others = self.found
            some = f"{self.cases} of the {self.failing} failing cases"
            looked = some if self.cases < self.failing else "all failing cases"
            how = f"{self.share:.0%} of the squared error of {looked}" if first.rounding else f"{looked} within bound"
            lines = [f"your output is attention with this bug: {first}", f"it explains {how}{self._unseen()}"]
            lines += [f"the cases cannot tell it from: {h}" for h in others[:OTHERS]]
            return lines + (["nor from others"] if len(others) > OTHERS else [])
        if self.likely:
            lines = [f"{n} of {self.failing} failing cases look like this bug: {h}" for h, n in self.likely]
            sure = self.where is not None and self.where.sure
            lines[0] += f", in {self.where} alone" * sure + self._unseen()
            if self.contradicted:
                where = "" if self.where is None else f"; it may be in {self.where} alone"
                lines.append(f"but {self.against} cases that passed speak against it{where}")
            return lines
        left = f"; {self.left:,} hypotheses were not asked, for want of time" if self.left else ""
        if self.closest is not None:
            share = f"{math.floor(100 * self.share)}% of the squared error"
            some = f"{self.looked} of {self.failing} failing cases"
            like = "the errors go along with this bug" if self.along else "closest bug"
            return [f"{like}: {self.closest}", f"it explains {share} of {some}{left}", *self.common]
        return [f"no bug of the catalogue explains it{left}", *self.common]

    def _unseen(self) -> str:
        left = self.failing - self.looked
        return f" ({left} were not looked at)" if left > 0 and self.cases < self.failing else ""
