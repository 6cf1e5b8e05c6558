"""Where a kernel may begin or end among the keys of a row, in the sizes of a case: what deduced rules are made of.

An edge is an index of keys for each row: the number of keys, the first or the last key that the row sees or that its
tile sees, the diagonal, as they are, off by a few, or rounded to tiles.  Or an index of rows for each key, where the
two have changed places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..case import Case, Paged
from .dense import Array
from .packing import of_tiles

__all__ = ["EDGES", "EDGES_OF_KEYS", "Edge", "Shape", "shape_of"]

TILES = (2, 4, 8, 16, 32, 64, 128)
OFF = (*range(1, 9), 16, 32, 64, 128)
ROWS = {f"tile of {n}{' packed' * packed} rows": (n, packed) for packed, sizes in (
    (False, (8, 16, 32, 64, 128)), (True, (16, 32, 64))) for n in sizes}  # fmt: skip
PARTS = (2, 3, 4, 8)
NUMBERS = (*range(1, 65), 96, 128, 192, 256)


class Shape:
    """What edges go by: the mask of a case, (B, H, rows, keys), and what is read off it.

    Where they have changed places, keys are called rows and rows keys.
    """

    def __init__(self, case: Case, visible: Array, exchanged: bool = False) -> None:
        self.case, self.visible, self.exchanged = case, visible, exchanged
        self.lengths = case.lengths[::-1] if exchanged else case.lengths
        self.made: dict[Any, Array] = {}
        self.tiles: dict[tuple[int, int], Any] = {}

    @cached_property
    def by_key(self) -> Shape:
        """With rows and keys exchanged."""
        return Shape(self.case, self.visible.swapaxes(2, 3), True)

    @cached_property
    def keys(self) -> Array:
        return np.broadcast_to(np.array(self.lengths[1])[:, None, None], self.visible.shape[:3])

    @cached_property
    def queries(self) -> Array:
        return np.broadcast_to(np.array(self.lengths[0])[:, None, None], self.visible.shape[:3])

    @cached_property
    def row(self) -> Array:
        return np.broadcast_to(np.arange(self.visible.shape[2]), self.visible.shape[:3])

    @cached_property
    def first(self) -> Array:
        """The first key that a row sees; the number of keys if none."""
        return np.where(self.visible.any(-1), self.visible.argmax(-1), self.keys)

    @cached_property
    def stop(self) -> Array:
        """One past the last key that a row sees; 0 if it sees none."""
        return np.where(self.visible.any(-1), self.visible.shape[3] - self.visible[..., ::-1].argmax(-1), 0)

    def of_tile(self, x: Array, rows: int, packed: bool, which: int) -> Array:
        """Of each row what x (B, H, Lq) is of the first or the last row of its tile."""
        return of_tiles(x, self.lengths[0], self.case.group if packed else 1, rows, packed, lambda t: t[..., which])


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

    def at_least(self, shape: Shape) -> Array:
        """(B, H, Lq), no less than 0."""
        if (self, 0) not in shape.made:
            shape.made[self, 0] = np.maximum(self.of(shape), 0)
        return shape.made[self, 0]

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
    return x.case.storage.page_size if isinstance(x.case.storage, Paged) and not x.exchanged else 1


def _number(words: str, of: Callable[[Shape], int], cost: int = 1) -> Edge:
    """One for all rows of a case."""
    return Edge(words, lambda x: np.full_like(x.keys, of(x)), cost)


def _constant(n: int) -> Edge:
    return _number(str(n), lambda x: n, 0 if n in TILES else 1)


def _of_tile(words: str, rows: int, packed: bool, last: bool) -> Iterator[Edge]:
    which, at = ("last", -1) if last else ("first", 0)
    yield Edge(f"the end of what the {which} row of a {words} sees", lambda x: x.of_tile(x.stop, rows, packed, at))
    yield Edge(f"the first key that the {which} row of a {words} sees", lambda x: x.of_tile(x.first, rows, packed, at))


PLAIN = (
    Edge("the number of keys", lambda x: x.keys, 0),
    Edge("the end of what the row sees", lambda x: x.stop, 0),
    Edge("the first key that the row sees", lambda x: x.first, 0),
    _number("Lk", lambda x: x.visible.shape[3]),
    Edge("the row", lambda x: x.row),
    Edge("the row's key, the last of both at the same place", lambda x: x.row + x.keys - x.queries),
)
OTHERS = (
    Edge("the number of queries", lambda x: x.queries),
    _number("the number of keys of the first entry", lambda x: x.lengths[1][0]),
    _number("the number of keys of the shortest entry", lambda x: min(x.lengths[1])),
)
TILED = tuple(edge for words, (rows, packed) in ROWS.items() for last in (False, True)
              for edge in _of_tile(words, rows, packed, last))  # fmt: skip


def _part(i: int, parts: int, up: bool) -> Edge:
    if up:
        return Edge(f"{i} parts of keys / {parts}, rounded up", lambda x: np.minimum(-(-x.keys // parts) * i, x.keys))
    return Edge(f"{i} parts of keys // {parts}", lambda x: x.keys // parts * i)


def _tiles(x: Array, n: int) -> Array:
    return -(-x // n)


def _part_of_tiles(i: int, parts: int, n: int, up: bool) -> Edge:
    """Where the i-th part begins of the tiles of n keys, each of as many rounded up, or i / parts of all."""
    if up:
        words = f"{i} parts of the tiles of {n} / {parts}, rounded up"
        return Edge(words, lambda x: _tiles(_tiles(x.keys, n), parts) * i * n)
    return Edge(f"{i} of {parts} parts of the tiles of {n}", lambda x: i * _tiles(x.keys, n) // parts * n)


def _edges(plain: tuple[Edge, ...], others: tuple[Edge, ...]) -> tuple[Edge, ...]:
    return (
        _number("0", lambda x: 0, 0), *plain, *others,
        *(_constant(n) for n in NUMBERS),
        *(rounded for edge in (*plain, *others) for n in TILES for rounded in (edge.down(n), edge.up(n))),
        *(edge.plus(sign * n) for edge in plain for n in OFF for sign in (-1, 1)),
        *(edge.plus(sign) for edge in others for sign in (-1, 1)),
        *(edge.last_tile(n) for edge in plain for n in TILES[1:]),
    )  # fmt: skip


EDGES: tuple[Edge, ...] = (
    *_edges(PLAIN, (*OTHERS, *TILED)),
    *(rounded for edge in PLAIN for rounded in (edge.down(0), edge.up(0))),
    *(_part(i, parts, up) for parts in PARTS for i in range(1, parts) for up in (True, False)),
    *(_part(parts, parts, False) for parts in PARTS),
    *(edge.plus(-1).up(n) for edge in (*PLAIN[:2], *TILED[2::4]) for n in TILES),
    *(_part_of_tiles(i, parts, n, up) for parts in PARTS for i in range(1, parts) for n in (16, 32, 64, 128)
      for up in (True, False)),
)
"""the plainest first"""


def _exchanged(edge: Edge, words: str) -> Edge:
    return Edge(words, edge.at, edge.cost)


def _of_tile_of_keys(words: str, keys: int, last: bool) -> Iterator[Edge]:
    which, at = ("last", -1) if last else ("first", 0)
    end = f"the end of the rows that see the {which} key of a {words}"
    yield Edge(end, lambda x: x.of_tile(x.stop, keys, False, at))
    yield Edge(f"the first row that sees the {which} key of a {words}", lambda x: x.of_tile(x.first, keys, False, at))


EDGES_OF_KEYS: tuple[Edge, ...] = _edges(
    tuple(map(_exchanged, PLAIN, (
        "the number of queries", "the end of the rows that see the key", "the first row that sees the key", "Lq",
        "the key", "the key's row, the last of both at the same place",
    ))),
    (*map(_exchanged, OTHERS, (
        "the number of keys", "the number of queries of the first entry", "the number of queries of the shortest entry",
    )), *(edge for n in TILES[3:] for last in (False, True)
          for edge in _of_tile_of_keys(f"tile of {n} keys", n, last))),
)  # fmt: skip
"""of rows, for each key"""
