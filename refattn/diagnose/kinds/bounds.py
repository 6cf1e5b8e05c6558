"""Which keys rows see, and tiles of rows: the first and the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..model import Array, Model

__all__ = ["KEYS", "ROWS", "SAME", "Bounds", "hides"]

KEYS = (16, 32, 64, 128)
ROWS: dict[str, tuple[int, bool]] = {str(n): (n, False) for n in (1, 16, 32, 64, 128)}
ROWS |= {f"{n} packed": (n, True) for n in (16, 32, 64, 128)}
"""tiles of so many rows; `packed`: the rows of all heads of a group together, query by query"""


def _reach(case: Case, how: Any) -> tuple[int, bool]:
    """What tiles of rows come to: those of all rows there are are alike, and there may be nothing to pack."""
    rows, packed = how.rows
    group = max(1, case.H // max(1, case.Hkv)) if packed else 1
    return (rows, group > 1) if case.Lq * group > rows else (0, group > 1)


SAME = ("rows", _reach)


def hides(case: Case) -> bool:
    """Whether some of its mask bounds the tiles that are gone over."""
    return case.mask is not None and any(word in repr(case.mask) for word in ("Causal", "Window", "Prefix", "Chunked"))


class Bounds(Model):
    """First and last visible key of each row, and of each tile of rows."""

    rows: Any = (64, False)
    keys = 64

    def ends(self, seen: Array) -> tuple[Array, Array]:
        """The first visible key of each row, and one past its last; Lk and 0 where none is."""
        n = seen.shape[-1]
        some = seen.any(-1)
        return np.where(some, seen.argmax(-1), n), np.where(some, n - seen[..., ::-1].argmax(-1), 0)

    def of_tile(self, x: Any, how: Callable[[Any], Any]) -> Array:
        """(B, H, Lq): one row's bound, for all rows of its tile; `how` takes an array (..., rows of a tile)."""
        rows, packed = self.rows
        together = self.packed_rows(x) if packed else x
        parts = [np.broadcast_to(how(part)[..., None], part.shape) for part in cut(together, rows)]
        found = np.concatenate(parts, -1) if parts else together
        if not packed:
            return found
        return found.reshape(*found.shape[:2], x.shape[2], -1).swapaxes(2, 3).reshape(x.shape)

    def packed_rows(self, x: Array) -> Array:
        """(B, Hkv, Lq * group) of (B, H, Lq)."""
        group = max(1, x.shape[1] // max(1, self.given.Hkv))
        apart = x.reshape(x.shape[0], x.shape[1] // group, group, x.shape[2])
        return apart.swapaxes(2, 3).reshape(x.shape[0], -1, x.shape[2] * group)

    def down(self, x: Array) -> Array:
        return x // self.keys * self.keys

    def up(self, x: Array) -> Array:
        return -(-x // self.keys) * self.keys


def cut(x: Array, size: int) -> list[Array]:
    return [x[..., i : i + size] for i in range(0, x.shape[-1], size)]
