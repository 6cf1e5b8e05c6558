"""Hypotheses on tiles that both edges of a window cut: two loops, one for each edge, go over them, or none does."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ...masks import Window
from ...visibility import And, Or
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, Bounds

__all__: list[str] = []


def _windows(mask: Any) -> list[Window]:
    """Those of a mask that have two edges."""
    if isinstance(mask, (And, Or)):
        return _windows(mask.left) + _windows(mask.right)
    return [mask] if isinstance(mask, Window) and mask.left is not None and mask.right is not None else []


def _cut_twice(case: Case) -> bool:
    return bool(_windows(case.mask))


@kind(_cut_twice, same=SAME, how={"twice": np.log(2), "never": -np.inf}, rows=ROWS, keys=KEYS,
      which={"that both edges of a window cut": True, "in which a window begins and ends": False})  # fmt: skip
class both_edges(Bounds):
    """Tiles of {rows} rows and {keys} keys {which} are gone over {how}."""

    how = 0.0
    which = True

    def hide(self, t: Array) -> Array:
        t = super().hide(t)
        first, last = self.ends(self.reach())
        at = np.arange(self.case.Lk) // self.keys * self.keys  # where the tile of a key begins
        outer, inner = (np.min, np.max) if not self.which else (np.max, np.min)
        begin, end = self.of_tile(first, lambda x: outer(x, -1)), self.of_tile(last, lambda x: inner(x, -1))
        left = at < begin[..., None] if self.which else at <= begin[..., None]
        right = np.minimum(at + self.keys, self.case.Lk) > end[..., None] - (not self.which)
        both = left & right & self.seen
        self.seen = self.seen & ~both if np.isneginf(self.how) else self.seen
        return np.where(both, t + self.how, t)
