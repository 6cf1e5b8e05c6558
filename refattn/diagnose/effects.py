"""What may be wrong for some pairs of a query and a key alone: hypotheses about a pair, with nothing to fit by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ..case import Case
from .dense import Array
from .hypothesis import always, hypotheses
from .mixed import mixes
from .model import Model
from .of_keys import WRONG, hidden, unmasked

__all__ = ["LEFT_OUT", "SEEN", "TWICE", "WITHOUT_BIAS", "Effect", "effects"]

FEW = 40
"""members that a kind has at most: others have much to fit by themselves"""


@dataclass(frozen=True, eq=False)
class Effect:
    """`says` has a place for the pairs."""

    says: str
    made: type[Model]
    separates: Callable[[Case], bool] = always
    """whether a case may show it"""


class counted_twice(Model):
    def hide(self, t: Array) -> Array:
        return super().hide(t) + self.dtype(math.log(2))


LEFT_OUT = Effect("{} are left out", hidden)
TWICE = Effect("{} count twice", counted_twice)
SEEN = Effect("Hidden {} are seen", unmasked)


class without_bias(Model):
    def arrays(self) -> dict[str, Array]:
        return {n: x for n, x in super().arrays().items() if n != "bias"}


WITHOUT_BIAS = Effect("The bias is not applied, nor what it hides: for {}", without_bias, lambda c: c.bias is not None)


@cache
def effects() -> tuple[Effect, ...]:
    """What some keys have wrong, and hypotheses of few parameters, none of which is a size of tiles."""
    some = hypotheses()
    kinds = Counter(h.made.__name__ for h in some if h.made is not None)
    return (
        WITHOUT_BIAS,
        *(Effect(f"{what[0].upper()}{what[1:]}: for {{}}", made, separates)
          for what, (made, separates) in WRONG.items() if not what.startswith("they") and mixes(made)),
        *(Effect(f"{h.what.rstrip('.')}: for {{}}", h.made, h.separates) for h in some
          if h.made is not None and not (h.vague or h.rounding or h.part or h.family)
          and kinds[h.made.__name__] <= FEW and mixes(h.made)),
    )  # fmt: skip
