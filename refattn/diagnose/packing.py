"""Rows of the heads of a group packed into tiles together: a kernel so reads each key once for all of them.

    2 heads of 3 rows     query by query         0.0 1.0 0.1 1.1 0.2 1.2   (head.row)
                          head by head           0.0 0.1 0.2 1.0 1.1 1.2
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..case import Case
from .dense import Array

__all__ = ["HEADS", "Packed", "cut", "of_tiles", "place"]

HEADS = "heads"
Packed = bool | str
"""False: each head has tiles of its own; True: packed query by query; HEADS: head by head, each of as many rows as the
entry has"""


def place(case: Case, packed: Packed) -> Array:
    """Of each row its place among those it is in tiles with, to broadcast to (B, H, Lq)."""
    row, head = np.arange(case.Lq), (np.arange(case.H) % case.group)[:, None]
    if not packed:
        return row
    return head * np.array(case.lengths[0])[:, None, None] + row if packed == HEADS else row * case.group + head


def cut(x: Array, size: int) -> list[Array]:
    """Tiles of so many along the last axis, the last of what is left."""
    return [x[..., at : at + size] for at in range(0, x.shape[-1], size)]


def of_tiles(
    x: Array, lengths: Sequence[int], group: int, rows: int, packed: Packed, how: Callable[[Any], Any]
) -> Array:  # fmt: skip
    """(B, H, Lq): of each row what `how` makes of x of its tile of so many rows, (..., rows of a tile).

    Rows past the own number of an entry, one of `lengths`, are in no tile, and stay as they are.
    """
    found, own = np.array(x), np.array(lengths)
    for n in set(own[own > 0].tolist()):
        some = found[own == n, :, :n]
        together = group if packed else 1
        apart = some.reshape(len(some), some.shape[1] // together, together, n)
        apart = apart if packed == HEADS else apart.swapaxes(2, 3)
        tiles = cut(apart.reshape(*apart.shape[:2], n * together), rows)
        told = np.concatenate([np.broadcast_to(how(t)[..., None], t.shape) for t in tiles], -1).reshape(apart.shape)
        found[own == n, :, :n] = (told if packed == HEADS else told.swapaxes(2, 3)).reshape(some.shape)
    return found
