"""Hypotheses on splits that an entry has not: there are as many as the longest needs, and the merge reads them all."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .cuts import SAME, USUAL, ends
from .loops import State
from .merges import Splits, with_maxima

__all__: list[str] = []


def _unused(case: Case, how: Any) -> bool:
    return len({len(parts) for parts in ends(case, how.cut)}) > 1


@kind(_unused, same=SAME, cut=USUAL, lse={"0": 0.0, "1": 1.0, "NaN": np.nan})
class merge_of_unused(Splits):
    """The merge of splits of {cut} takes as many for all as the longest entry has: the unused have lse {lse}."""

    lse = 0.0

    def merged(self, m: Array, z: Array, o: Array) -> State:
        more = max(len(parts) - 1 for parts in ends(self.given, self.cut)) - len(m)
        if more <= 0:
            return with_maxima(m, z, o, m)

        def and_(x: Array, value: float) -> Array:
            return np.concatenate([x, np.full((more, *x.shape[1:]), value, x.dtype)])

        return with_maxima(and_(m, self.lse), and_(z, 1), and_(o, 0 * self.lse), and_(m, self.lse))
