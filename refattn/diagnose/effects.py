"""What may be wrong for some pairs of a query and a key alone: hypotheses about a pair, with nothing to fit by."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..case import Case
from .dense import Array
from .hypothesis import Hypothesis, hypotheses
from .mixed import mixes
from .model import Model

__all__ = ["LEFT_OUT", "SEEN", "TWICE", "Effect", "effects"]

FEW = 40
"""members that a kind has at most: others have much to fit by themselves"""


@dataclass(frozen=True, eq=False)
class Effect:
    """`says` has a place for the pairs."""

    says: str
    made: type[Model]
    of: Hypothesis | None = None

    def separates(self, case: Case) -> bool:
        """Whether a case may show it."""
        return case.bias is not None if self is WITHOUT_BIAS else self.of is None or self.of.separates(case)


class left_out(Model):
    def visible(self) -> Array:
        return np.zeros_like(super().visible())


class counted_twice(Model):
    def hide(self, t: Array) -> Array:
        return super().hide(t) + self.dtype(math.log(2))


class seen(Model):
    def visible(self) -> Array:
        within = (np.arange(n) < np.array(of)[:, None]
                  for n, of in zip((self.given.Lq, self.given.Lk), self.given.lengths, strict=True))  # fmt: skip
        rows, keys = within
        return np.broadcast_to(rows[:, None, :, None] & keys[:, None, None], super().visible().shape)


LEFT_OUT = Effect("{} are left out", left_out)
TWICE = Effect("{} count twice", counted_twice)
SEEN = Effect("Hidden {} are seen", seen)


class without_bias(Model):
    def arrays(self) -> dict[str, Array]:
        return {n: x for n, x in super().arrays().items() if n != "bias"}


WITHOUT_BIAS = Effect("The bias is not applied, nor what it hides: for {}", without_bias)


@cache
def effects() -> tuple[Effect, ...]:
    """Of hypotheses of few parameters, none of which is a size of tiles."""
    kinds = Counter(h.made.__name__ for h in hypotheses() if h.made is not None)
    return (WITHOUT_BIAS, *(
        Effect(f"{h.what.rstrip('.')}: for {{}}", h.made, h) for h in hypotheses()
        if h.made is not None and not (h.vague or h.rounding or h.part or h.family)
        and kinds[h.made.__name__] <= FEW and mixes(h.made)
    ))  # fmt: skip
