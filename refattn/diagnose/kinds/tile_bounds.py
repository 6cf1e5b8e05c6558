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
