"""Which keys rows see, and tiles of rows: the first and the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ...masks import Window
from ...mutants import rewritten
from ..model import Array, Model
from ..packing import HEADS, Packed, of_tiles

__all__ = ["KEYS", "READ", "ROWS", "SAME", "Bounds", "bounded", "geometric", "hides"]

KEYS = (16, 32, 64, 128)
BOUNDING = ("Causal", "Window", "Prefix", "Chunked")
"""masks that bound the tiles that are gone over"""
READ = ("Chunked", "Dilated", "Global", "Tree", "Gathered", "Block", "Dense", "Not(", "~")
"""masks that many kernels read from memory, or go over all keys by"""
ROWS: dict[str, tuple[int, Packed]] = {str(n): (n, False) for n in (1, 8, 16, 32, 64, 128)}
ROWS |= {f"{n} packed": (n, True) for n in (16, 32, 64, 128)}
ROWS |= {f"{n} packed head by head": (n, HEADS) for n in (16, 32, 64, 128)}
"""tiles of so many rows; `packed`: the rows of all heads of a group together, query by query or head by head"""


def _reach(case: Case, how: Any) -> tuple[int, Packed]:
    """What tiles of rows come to: those of all rows there are are alike, and there may be nothing to pack."""
    rows, packed = how.rows
    group = case.group if packed else 1
    return (rows, packed if group > 1 else False) if case.Lq * group > rows else (0, group > 1)


SAME = ("rows", _reach)


def hides(case: Case) -> bool:
    """Whether some of its mask bounds the tiles that are gone over."""
    return case.mask is not None and any(word in repr(case.mask) for word in BOUNDING)


def geometric(case: Case) -> bool:
    """Whether all of its mask is geometry that most kernels know, and bounds tiles."""
    return hides(case) and not any(word in repr(case.mask) for word in READ)


def bounded(case: Case) -> Array:
    """What is seen by the parts of its mask that bound tiles, as if others hid nothing."""
    if "Not(" in repr(case.mask):
        return np.asarray(case.visibility.tile())
    mask = rewritten(case.mask, lambda m: m if type(m).__name__ in BOUNDING else Window(None, None, "top_left"))
    return np.asarray(replace(case.visibility, mask=mask).tile())


class Bounds(Model):
    """First and last visible key of each row, and of each tile of rows."""

    rows: Any = (64, False)
    keys = 64

    def reach(self) -> Array:
        """What is seen by the parts of the mask that bound tiles."""
        if self.case is not self.inputs.case:
            return bounded(self.case)
        if "reach" not in self.inputs.made:
            self.inputs.made["reach"] = bounded(self.case)
        found: Array = self.inputs.made["reach"]
        return found

    def ends(self, seen: Array) -> tuple[Array, Array]:
        """The first visible key of each row, and one past its last; Lk and 0 where none is."""
        n = seen.shape[-1]
        some = seen.any(-1)
        return np.where(some, seen.argmax(-1), n), np.where(some, n - seen[..., ::-1].argmax(-1), 0)

    def of_tile(self, x: Any, how: Callable[[Any], Any]) -> Array:
        """(B, H, Lq): one row's bound, for all rows of its tile; `how` takes an array (..., rows of a tile)."""
        rows, packed = self.rows
        return of_tiles(x, self.given.lengths[0], self.given.group, rows, packed, how)

    def down(self, x: Array) -> Array:
        return x // self.keys * self.keys

    def up(self, x: Array) -> Array:
        return -(-x // self.keys) * self.keys
