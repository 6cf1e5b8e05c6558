"""Hypotheses on tiles that are of another turn of the loop: buffers that are read too early or too late."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

OF = {"keys": ("k",), "values": ("v",), "keys and values": ("k", "v"), "the bias": ("bias",),
      "what dropout keeps": ("keep",)}  # fmt: skip
TURNS = {
    "before": (-1, "stays"), "after": (1, "stays"), "before, of 0 at the first": (-1, "zero"),
    "after, of 0 at the last": (1, "zero"), "two before": (-2, "stays"), "first of all": (None, "stays"),
    "before, around the end": (-1, "wraps"), "after, around the end": (1, "wraps"),
}  # fmt: skip


def _tiles(case: Case, how: Any) -> bool:
    there = {"bias": case.bias is not None and case.bias_shape[3] > 1, "keep": case.dropout is not None}
    return bool(case.Lk > how.tile) and all(there.get(n, True) for n in how.of)


@kind(_tiles, of=OF, turn={w: turn for w, turn in TURNS.items() if w != "first of all"}, tile=(16, 32, 64, 128))
class stale_tile(Model):
    """In each tile of {tile} keys {of} are those of the tile {turn}."""

    of: tuple[str, ...] = ("k",)
    turn: tuple[int | None, str] = (-1, "stays")
    tile = 64

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: self.of_another(x[n], 2 if n in "kv" else 3) for n in self.of if n in x}

    def which(self, at: Array, tiles: int) -> Array:
        """Of tiles, those it happens to."""
        return np.ones_like(at, bool)

    def of_another(self, x: Array, axis: int) -> Array:
        n, j = x.shape[axis], np.arange(x.shape[axis])
        by, end = self.turn
        tiles = -(-n // self.tile)
        own = j // self.tile
        at = np.where(self.which(own, tiles), 0 * j if by is None else own + by, own)
        beyond = (at < 0) | (at >= tiles)
        if end == "wraps":
            at = at % tiles
        place = np.clip(at, 0, tiles - 1) * self.tile + j % self.tile
        zero = (place >= n) | (beyond & (end == "zero"))  # a tile that is not whole was filled with 0
        y = np.take(x, np.minimum(place, n - 1), axis)
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        return np.where(zero.reshape(shape), np.zeros((), x.dtype), y)


ONCE: dict[str, Callable[[Array, int], Array]] = {
    "the last tile": lambda at, n: at == n - 1, "the second tile": lambda at, n: at == 1,
    "every other tile": lambda at, n: at % 2 == 1, "the third tile": lambda at, n: at == 2,
    "tiles past the second": lambda at, n: at >= 2,
}


@kind(_tiles, of=OF, once=ONCE, turn={w: TURNS[w] for w in ("before", "after", "two before", "first of all")},
      tile=(16, 32, 64, 128))  # fmt: skip
class stale_tile_once(stale_tile):
    """In {once} of {tile} keys alone {of} are those of the tile {turn}."""

    once: Callable[[Array, int], Array]

    def which(self, at: Array, tiles: int) -> Array:
        return np.broadcast_to(type(self).once(at, tiles), at.shape)


ROWS = {"queries": ("q",), "queries and dout": ("q", "dout"), "dout": ("dout",), "the bias": ("bias",),
        "what dropout keeps": ("keep",)}  # fmt: skip


def _rows(case: Case, how: Any) -> bool:
    there = {"bias": case.bias is not None and case.bias_shape[2] > 1, "keep": case.dropout is not None,
             "dout": case.backward}  # fmt: skip
    return bool(case.Lq > how.tile) and all(there.get(n, True) for n in how.of)


@kind(_rows, of=ROWS, turn={w: TURNS[w] for w in ("before", "after", "before, of 0 at the first")},
      tile=(16, 32, 64, 128))  # fmt: skip
class stale_rows(stale_tile):
    """In each tile of {tile} rows {of} are those of the tile {turn}."""

    def arrays(self) -> dict[str, Array]:
        x = Model.arrays(self)
        return x | {n: self.of_another(x[n], 2) for n in self.of if n in x}


@kind(lambda case, how: case.mask is not None and case.Lk > how.tile, by={"before": -1, "after": 1},
      tile=(16, 32, 64, 128))  # fmt: skip
class mask_of_another_tile(Model):
    """In each tile of {tile} keys the mask is that of the tile {by}."""

    by, tile = -1, 64

    def visible(self) -> Array:
        seen, n = super().visible(), self.given.Lk
        j = np.arange(n) + self.by * self.tile
        there = (np.arange(n) < np.array(self.case.lengths[1])[:, None])[:, None, None]
        return np.where((j >= 0) & (j < n), seen[..., np.clip(j, 0, n - 1)], False) & there


INSIDE = {"next one": 1, "one before": -1, "one at its end, in reverse": 0}


@kind(_tiles, of=OF, to=INSIDE, tile=(16, 32, 64, 128))
class turned_in_tile(Model):
    """In each tile of {tile} keys {of} of a key are those of the {to}, around the tile's end."""

    of: tuple[str, ...] = ("k",)
    to, tile = 1, 64

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: self.turned(x[n], 2 if n in "kv" else 3) for n in self.of if n in x}

    def turned(self, x: Array, axis: int) -> Array:
        n = x.shape[axis]
        place = np.arange(n) % self.tile
        other = self.tile - 1 - place if self.to == 0 else (place + self.to) % self.tile
        at = np.arange(n) - place + other
        y = np.take(x, np.minimum(at, n - 1), axis)
        beyond = (at >= n).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        return np.where(beyond, np.zeros((), x.dtype), y)
