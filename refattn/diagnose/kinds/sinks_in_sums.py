"""Hypotheses on sinks that join the sum apart from the maximum, or in one split of the keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, safe
from .cuts import SAME, USUAL, chunks
from .maxima import Underflow, exp_of
from .splits import Local

__all__: list[str] = []


@kind(lambda case: case.sinks is not None, nan={"": False, ", and where it sees none, infinity and NaN": True},
      alone={"": False, ", and lse of a row without any is -inf": True})  # fmt: skip
class sink_not_in_maximum(Underflow):
    """The sink joins the sum and not the maximum: exp overflows where it is far above all keys of a row{nan}{alone}."""

    alone = False

    def join(self, m: Array, z: Array, o: Array) -> tuple[Array, Array, Array]:
        sink = self.x["sinks"][:, None]
        with np.errstate(all="ignore"):
            share = exp_of(sink - (m if self.nan else safe(m)), self.given)
        return m, z + share, o

    def log(self, m: Array, z: Array) -> Array:
        return np.where(np.isneginf(m) & self.alone, -np.inf, super().log(m, z))


def _splits(case: Case, how: Any) -> bool:
    return case.sinks is not None and chunks(case, how)


@kind(_splits, same=SAME, cut=USUAL, times={"joins twice": 2.0, "is forgotten": 0.0},
      of={"an entry sees nothing in": True, "a row sees nothing in": False},
      none={"": 1.0, ", and is forgotten where that is so in all": 0.0})  # fmt: skip
class sink_in_first_split(Local):
    """The sink {times} where {of} the first split of {cut}{none}."""

    times, of, none = 2.0, True, 1.0

    def sink(self, sinks: Array) -> Array | None:
        first = np.array([of[1] for of in self.ends()])[:, None, None, None]
        begun, some = self.sees(self.seen & (np.arange(self.given.Lk) < first)), self.sees(self.seen)
        times = np.where(begun, 1.0, np.where(some, self.times, self.times * self.none))
        with np.errstate(divide="ignore"):
            return np.asarray(sinks[:, None] + np.log(times))

    def sees(self, seen: Array) -> Array:
        """Whether any of a row's keys, or of its entry's, is seen."""
        return np.asarray(seen.any((1, 2, 3) if self.of else 3, keepdims=True))[..., 0]
