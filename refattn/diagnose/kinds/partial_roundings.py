"""Hypotheses of too few bits in what splits leave for the merge: their outputs and their lse."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .cuts import BY_INDEX, SAME, chunks
from .loops import State
from .merges import Splits
from .roundings import TO, lowered, named

__all__: list[str] = []

OF = {"output": "o", "lse": "l", "output and lse": "ol",
      "output, before it is divided by the sum": "u"}  # fmt: skip


def _splits(case: Case, how: Any) -> bool:
    return bool(named(how.to, case)) and chunks(case, how)


@kind(_splits, rounding=True, same=SAME, of=OF, to=TO, cut=BY_INDEX)
class partial_rounded(Splits):
    """The {of} of each split of {cut} is rounded to {to} before the merge."""

    of, to = "o", ""

    def merged(self, m: Array, z: Array, o: Array) -> State:
        some = np.where(z == 0, 1, z)
        mean, lse = o / some[..., None], np.where(z == 0, -np.inf, m + np.log(some))
        mean = lowered(mean, self.to, self.given) if "o" in self.of else mean
        lse = lowered(lse, self.to, self.given) if "l" in self.of else lse
        if self.of == "u":
            mean = lowered(o, self.to, self.given) / some[..., None]
        top = lse.max(0)
        weight = np.exp(lse - np.where(np.isneginf(top), 0, top))
        return top, weight.sum(0), (mean * weight[..., None]).sum(0)
