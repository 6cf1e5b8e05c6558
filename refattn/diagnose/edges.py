"""Where a kernel may begin or end among the keys of a row, in the sizes of a case: what deduced rules are made of.

An edge is an index of keys for each row: the number of keys, the first or the last key that the row sees or that its
tile sees, the diagonal, as they are, off by a few, or rounded to tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..case import Case, Paged
from .dense import Array

__all__ = ["EDGES", "Edge", "Shape", "shape_of"]

TILES = (2, 4, 8, 16, 32, 64, 128)
OFF = (*range(1, 9), 16, 32, 64, 128)
ROWS = {"tile of 16 rows": (16, False), "tile of 32 rows": (32, False), "tile of 64 rows": (64, False),
        "tile of 128 rows": (128, False), "tile of 16 packed rows": (16, True), "tile of 32 packed rows": (32, True),
        "tile of 64 packed rows": (64, True)}  # fmt: skip
PARTS = (2, 3, 4, 8)
NUMBERS = (*range(1, 65), 96, 128, 192, 256)


class Shape:
    """What edges go by: the mask of a case, and what is read off it."""

    def __init__(self, case: Case, visible: Array) -> None:
        self.case, self.visible = case, visible
        self.made: dict[Any, Array] = {}

    @cached_property
    def keys(self) -> Array:
        return np.broadcast_to(np.array(self.case.lengths[1])[:, None, None], self.visible.shape[:3])

    @cached_property
    def queries(self) -> Array:
        return np.broadcast_to(np.array(self.case.lengths[0])[:, None, None], self.visible.shape[:3])

    @cached_property
    def row(self) -> Array:
        return np.broadcast_to(np.arange(self.case.Lq), self.visible.shape[:3])

    @cached_property
    def first(self) -> Array:
        """The first key that a row sees; the number of keys if none."""
        return np.where(self.visible.any(-1), self.visible.argmax(-1), self.keys)

    @cached_property
    def stop(self) -> Array:
        """One past the last key that a row sees; 0 if it sees none."""
        return np.where(self.visible.any(-1), self.case.Lk - self.visible[..., ::-1].argmax(-1), 0)

    def of_tile(self, x: Array, rows: int, packed: bool, which: int) -> Array:
        """Of each row what x (B, H, Lq) is of the first or the last row of its tile."""
        B, H, Lq = x.shape
        g = self.case.group if packed else 1
        y = x.reshape(B, H // g, g, Lq).swapaxes(2, 3).reshape(B, H // g, Lq * g)
        at = np.arange(Lq * g) // rows * rows
        chosen = y[..., at if which == 0 else np.minimum(at + rows, Lq * g) - 1]
        return chosen.reshape(B, H // g, Lq, g).swapaxes(2, 3).reshape(B, H, Lq)


@lru_cache(maxsize=256)
def shape_of(case: Case) -> Shape:
    """Of a case without what a bias hides."""
    return Shape(case, np.asarray(case.visibility.tile()))


@dataclass(frozen=True, eq=False)
class Edge:
    """`words` name a key, the first that is on the far side of the edge; `cost` is how far from plain that is."""

    words: str
    at: Callable[[Shape], Array]
    cost: int = 1

    def of(self, shape: Shape) -> Array:
        """(B, H, Lq)."""
        if self not in shape.made:
            shape.made[self] = np.broadcast_to(self.at(shape), shape.visible.shape[:3])
        return shape.made[self]

    def plus(self, n: int) -> Edge:
        return Edge(f"{self.words} {'+' if n > 0 else '-'} {abs(n)}", lambda x: self.of(x) + n)

    def down(self, n: int) -> Edge:
        return Edge(f"{self.words}, rounded down to {n or 'a page'}", lambda x: _down(self.of(x), n or _page(x)))

    def up(self, n: int) -> Edge:
        return Edge(f"{self.words}, rounded up to {n or 'a page'}", lambda x: -_down(-self.of(x), n or _page(x)))

    def last_tile(self, n: int) -> Edge:
        return Edge(f"the last tile of {n} before {self.words}", lambda x: _down(self.of(x) - 1, n))


def _down(x: Array, n: int) -> Array:
    return x // n * n


def _page(x: Shape) -> int:
    return x.case.storage.page_size if isinstance(x.case.storage, Paged) else 1


def _number(words: str, of: Callable[[Case], int], cost: int = 1) -> Edge:
    """One for all rows of a case."""
    return Edge(words, lambda x: np.full_like(x.keys, of(x.case)), cost)


def _constant(n: int) -> Edge:
    return _number(str(n), lambda c: n, 0 if n in TILES else 1)


def _of_tile(words: str, rows: int, packed: bool, last: bool) -> Iterator[Edge]:
    which, at = ("last", -1) if last else ("first", 0)
    yield Edge(f"the end of what the {which} row of a {words} sees", lambda x: x.of_tile(x.stop, rows, packed, at))
    yield Edge(f"the first key that the {which} row of a {words} sees", lambda x: x.of_tile(x.first, rows, packed, at))


PLAIN = (
    Edge("the number of keys", lambda x: x.keys, 0),
    Edge("the end of what the row sees", lambda x: x.stop, 0),
    Edge("the first key that the row sees", lambda x: x.first, 0),
    _number("Lk", lambda c: c.Lk),
    Edge("the row", lambda x: x.row),
    Edge("the row's key, the last of both at the same place", lambda x: x.row + x.keys - x.queries),
)
OTHERS = (
    Edge("the number of queries", lambda x: x.queries),
    _number("the number of keys of the first entry", lambda c: c.lengths[1][0]),
    _number("the number of keys of the shortest entry", lambda c: min(c.lengths[1])),
    *(edge for words, (rows, packed) in ROWS.items() for last in (False, True)
      for edge in _of_tile(words, rows, packed, last)),
)  # fmt: skip


def _part(i: int, parts: int, up: bool) -> Edge:
    if up:
        return Edge(f"{i} parts of keys / {parts}, rounded up", lambda x: np.minimum(-(-x.keys // parts) * i, x.keys))
    return Edge(f"{i} parts of keys // {parts}", lambda x: x.keys // parts * i)


EDGES: tuple[Edge, ...] = (
    _number("0", lambda c: 0, 0), *PLAIN, *OTHERS,
    *(_constant(n) for n in NUMBERS),
    *(rounded for edge in (*PLAIN, *OTHERS) for n in TILES for rounded in (edge.down(n), edge.up(n))),
    *(edge.plus(sign * n) for edge in PLAIN for n in OFF for sign in (-1, 1)),
    *(rounded for edge in PLAIN for rounded in (edge.down(0), edge.up(0))),
    *(edge.last_tile(n) for edge in PLAIN for n in TILES[1:]),
    *(_part(i, parts, up) for parts in PARTS for i in range(1, parts) for up in (True, False)),
    *(_part(parts, parts, False) for parts in PARTS),
)  # fmt: skip
"""the plainest first"""
