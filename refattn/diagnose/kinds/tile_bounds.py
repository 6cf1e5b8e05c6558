"""Hypotheses on which tiles a kernel goes over: it skips some that a row sees, or leaves some unmasked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

ROWS = (1, 16, 32, 64, 128)
KEYS = (16, 32, 64, 128)
OTHERS = ("Prefix", "Chunked", "Dilated", "Global", "Documents", "Padding", "Tokens", "Tree", "Gathered", "Dense",
          "Block")
"""masks whose tiles are all gone over"""


def _hides(case: Case) -> bool:
    return case.mask is not None and any(word in repr(case.mask) for word in ("Causal", "Window", "Prefix", "Chunked"))


def _bounded(case: Case, how: Any) -> bool:
    return _hides(case) and case.Lk > 1


class Bounds(Model):
    """First and last visible key of each row, and of each tile of rows."""

    rows = 64
    keys = 64

    def ends(self, seen: Array) -> tuple[Array, Array]:
        """The first visible key of each row, and one past its last; Lk and 0 where none is."""
        n = seen.shape[-1]
        some = seen.any(-1)
        return np.where(some, seen.argmax(-1), n), np.where(some, n - seen[..., ::-1].argmax(-1), 0)

    def of_tile(self, x: Array, how: Any) -> Array:
        """One row's bound, for all rows of its tile: `how` takes an array (..., rows of a tile)."""
        parts = [np.broadcast_to(how(part)[..., None], part.shape) for part in _cut(x, self.rows)]
        return np.concatenate(parts, -1) if parts else x

    def down(self, x: Array) -> Array:
        return x // self.keys * self.keys

    def up(self, x: Array) -> Array:
        return -(-x // self.keys) * self.keys


def _cut(x: Array, size: int) -> list[Array]:
    return [x[..., i : i + size] for i in range(0, x.shape[-1], size)]


@kind(_bounded, rows=ROWS[1:], keys=KEYS)
class last_tile_by_first_row(Bounds):
    """A tile of {rows} queries goes over the key tiles of {keys} that its first row sees, not those of its last."""

    def visible(self) -> Array:
        seen = super().visible()
        last = self.up(self.of_tile(self.ends(seen)[1], lambda x: x[..., 0]))
        return seen & (np.arange(seen.shape[-1]) < last[..., None])


@kind(_bounded, rows=ROWS, keys=KEYS)
class last_tile_rounded_down(Bounds):
    """The number of key tiles of {keys} that {rows} queries go over is rounded down: the last, partial one is lost."""

    def visible(self) -> Array:
        seen = super().visible()
        last = self.down(self.of_tile(self.ends(seen)[1], lambda x: x.max(-1)))
        return seen & (np.arange(seen.shape[-1]) < last[..., None])


@kind(_bounded, rows=ROWS[1:], keys=KEYS)
class first_tile_by_last_row(Bounds):
    """A tile of {rows} queries begins at the key tile of {keys} that its last row sees first, not its first row."""

    def visible(self) -> Array:
        seen = super().visible()
        first = self.down(self.of_tile(self.ends(seen)[0], lambda x: x[..., -1]))
        return seen & (np.arange(seen.shape[-1]) >= first[..., None])


@kind(_bounded, rows=ROWS, keys=KEYS)
class first_tile_rounded_up(Bounds):
    """The first key tile of {keys} that {rows} queries go over is rounded up: the first, partial one is lost."""

    def visible(self) -> Array:
        seen = super().visible()
        first = self.up(self.of_tile(self.ends(seen)[0], lambda x: x.min(-1)))
        return seen & (np.arange(seen.shape[-1]) >= first[..., None])


@kind(_bounded, rows=ROWS[1:], keys=KEYS)
class diagonal_tile_unmasked(Bounds):
    """Key tiles of {keys} that the first of {rows} queries sees some of are not masked: they are taken for full."""

    def visible(self) -> Array:
        seen, real = super().visible(), self.exists()
        open_ = np.zeros_like(seen)
        for i in range(0, seen.shape[2], self.rows):
            for j in range(0, seen.shape[3], self.keys):
                tile = seen[:, :, i : i + self.rows, j : j + self.keys]
                open_[:, :, i : i + self.rows, j : j + self.keys] = tile[:, :, :1].any(-1, keepdims=True)
        return (seen | open_) & real

    def exists(self) -> Array:
        return np.asarray(replace(self.case.visibility, mask=None).tile())


@kind(_bounded, rows=ROWS[1:], keys=KEYS)
class mask_in_last_tile_alone(Bounds):
    """The mask is applied in the last key tile of {keys} of each {rows} queries, and not in those before it."""

    def visible(self) -> Array:
        seen = super().visible()
        last = self.of_tile(self.ends(seen)[1], lambda x: x.max(-1))
        begin = self.down(np.maximum(last - 1, 0))
        real = np.asarray(replace(self.case.visibility, mask=None).tile())
        return (seen | (np.arange(seen.shape[-1]) < begin[..., None])) & real


@kind(
    _bounded, rows=ROWS, keys=KEYS,
    edge={"last key": (False, True), "first key": (True, False), "first and last key": (True, True)},
)  # fmt: skip
class edge_not_masked(Bounds):
    """{rows} queries see whole tiles of {keys} keys: up to the {edge} the tile is not masked."""

    edge = (False, True)

    def visible(self) -> Array:
        seen = super().visible()
        first, last = self.ends(seen)
        some, j = (first < last)[..., None], np.arange(seen.shape[-1])
        low = self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None]
        high = self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None]
        before, after = (j >= low) & (j < first[..., None]), (j >= last[..., None]) & (j < high)
        real = np.asarray(replace(self.case.visibility, mask=None).tile())
        return seen | ((self.edge[0] & before | self.edge[1] & after) & some & real)


@kind(lambda case, how: case.Lk > how.keys, rows=ROWS, keys=KEYS, end={"first": 0, "last": -1})
class tile_lost(Bounds):
    """Of the key tiles of {keys} that {rows} queries see, the {end} one is left out."""

    end = 0

    def visible(self) -> Array:
        seen = super().visible()
        first, last = self.ends(seen)
        j = np.arange(seen.shape[-1])
        if self.end == 0:
            return seen & (j >= self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None] + self.keys)
        return seen & (j < self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None] - self.keys)


def _with_offset(case: Case, how: Any) -> bool:
    uneven = any(lq != lk for lq, lk in zip(*case.lengths, strict=True))
    return _hides(case) and uneven and "bottom_right" in repr(case.mask)


@kind(
    _with_offset, rows=ROWS, keys=KEYS, end={"first": 0, "last": -1},
    by={"leaves out the offset lk - lq": "none", "is that of the padded lengths": "padded", "is lq - lk": "negative"},
)  # fmt: skip
class bound_without_offset(Bounds):
    """The {end} key tile of {keys} that {rows} queries go over is found by a diagonal that {by}; the mask is right."""

    end, by = -1, "none"

    def visible(self) -> Array:
        seen, case = super().visible(), self.case
        lq, lk = (np.array(n)[:, None, None] for n in case.lengths)
        wrong = {"none": 0 * lk, "padded": 0 * lk + case.Lk - case.Lq, "negative": lq - lk}[self.by] - (lk - lq)
        first, last = self.ends(seen)
        some, j = first < last, np.arange(seen.shape[-1])
        if self.end == 0:
            first = np.where(some & (first > 0), first + wrong, first)
            return seen & (j >= self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None])
        last = np.where(some & (last < lk), last + wrong, last)
        return seen & (j < self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None])


@kind(
    lambda case: case.mask is not None or case.bias is not None, rows=(16, 64, 128, 1), keys=KEYS,
    backwards={"first": False, "last": True},
    splits=(1, 2, 4, 8),
)  # fmt: skip
class first_tile_empty_is_nan(Bounds):
    """A row that sees nothing in the tile it begins with is NaN: the {backwards} of {keys} keys that its {rows} queries
    see, in each of {splits} splits.
    """

    backwards, splits = False, 1

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, z, o = super().attend(t)
        nan = self.begins_empty(m.shape)
        return m, np.where(nan, np.nan, z), np.where(nan[..., None], np.nan, o)

    def begins_empty(self, shape: tuple[int, ...]) -> Array:
        """Rows that see nothing in the tile that they, or one of their splits, begin with."""
        n = np.array(self.case.lengths[1])[:, None, None]
        first, last = np.zeros(shape, int), np.broadcast_to(n, shape)
        if _hides(self.case) and not any(word in repr(self.case.mask) for word in OTHERS):
            seen = np.asarray(self.case.visibility.tile())
            first, last = self.ends(seen)
            first, last = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
        low, high = first // self.keys, -(-last // self.keys)
        each = np.maximum(-(-(high - low) // self.splits), 1)
        nan, within = np.zeros(shape, bool), np.add.reduceat(self.seen, self.tile_starts(), axis=-1)
        for s in range(self.splits):
            at = high - 1 - s * each if self.backwards else low + s * each
            some = (at >= low) & (at < high)
            mine = np.take_along_axis(within, np.clip(at, 0, within.shape[-1] - 1)[..., None], -1)[..., 0]
            nan |= some & (mine == 0)
        return nan

    def tile_starts(self) -> Array:
        return np.arange(0, self.seen.shape[-1], self.keys)


@kind(lambda case: case.mask is not None, rows=ROWS[1:], keys=KEYS, row={"first": 0, "last": -1})
class tile_skipped_by_row(Bounds):
    """A tile of {keys} keys is skipped for {rows} queries where the {row} of them sees none of it."""

    row = 0

    def visible(self) -> Array:
        seen = np.array(super().visible())
        for i in range(0, seen.shape[2], self.rows):
            for j in range(0, seen.shape[3], self.keys):
                tile = seen[:, :, i : i + self.rows, j : j + self.keys]
                tile &= np.asarray(tile[:, :, self.row].any(-1))[..., None, None]
        return seen
