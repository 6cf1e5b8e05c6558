"""How an answer fits what was returned: how much of the error it explains, and whether all, within bound."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

__all__ = ["ALL", "FORWARD", "HALF", "NONE", "UNTOLD", "Match", "summed"]

HALF = 0.5
"""Of the squared error, or of the failing cases: what names a bug explains at least so much."""
BITS = 0.9
"""A loss of bits explains a case with this share: a rounding more or less goes the other way."""
ALL = 0.999
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
UNTOLD = Match(False, 0.0, math.inf)
"""of a case in which a hypothesis does not show"""


def summed(fits: Collection[Match], rounding: bool = False) -> Match:
    """Of several outputs."""
    error, left = sum(one.error for one in fits), sum(one.left for one in fits)
    found = Match(all(one.explains for one in fits), error, left, size=sum(one.size for one in fits),
                  close=all(one.explains or one.close for one in fits))  # fmt: skip
    changes = found.share >= (BITS if rounding else HALF)  # otherwise it changes little here
    return replace(found, explains=changes and (rounding or found.explains))
