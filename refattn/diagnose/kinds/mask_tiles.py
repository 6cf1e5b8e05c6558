"""Hypotheses on masks that are asked once for a tile, and on masks made as arrays that are read elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from ..packing import cut
from .bounds import KEYS, ROWS, Bounds

__all__: list[str] = []

TILES = {
    f"{words} rows and {k} keys": (rows, k)
    for words, rows in ROWS.items() for k in (1, *KEYS) if (rows[0], k) != (1, 1)
}  # fmt: skip
ASKED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "its first row and key": (lambda x: x[..., 0], lambda x: x[..., 0]),
    "its last row and key": (lambda x: x[..., -1], lambda x: x[..., -1]),
    "its first row and last key": (lambda x: x[..., 0], lambda x: x[..., -1]),
    "any of its pairs": (lambda x: x.any(-1), lambda x: x.any(-1)),
    "all of its pairs": (lambda x: x.all(-1), lambda x: x.all(-1)),
}


def _masked(case: Case) -> bool:
    return case.mask is not None


def _reach(case: Case, how: Any) -> tuple[Any, ...]:
    (rows, packed), keys = how.tiles
    group = case.group if packed else 1
    return (min(rows, case.Lq * group), packed if group > 1 else False, min(keys, case.Lk))


@kind(_masked, same=("tiles", _reach), tiles=TILES, asked=ASKED)
class mask_of_tile(Bounds):
    """The mask is asked once for a tile of {tiles}: for {asked}."""

    tiles: Any = ((64, False), 64)
    asked = ASKED["any of its pairs"]

    def visible(self) -> Array:
        case = self.case
        real = np.asarray(replace(case.visibility, mask=None).tile())
        seen = super().visible()
        self.rows, keys = self.tiles
        over_rows, over_keys = self.asked
        parts = []
        for part in cut(seen, keys):
            told = self.of_tile(over_keys(part), over_rows)[..., None]
            parts.append(np.broadcast_to(told, part.shape))
        return np.concatenate(parts, -1) & real


READ: dict[str, Callable[[Array], Array]] = {
    "of entry 0": lambda x: np.repeat(x[:1], len(x), 0),
    "of the last entry": lambda x: np.repeat(x[-1:], len(x), 0),
    "of the next entry": lambda x: np.roll(x, -1, 0),
    "of head 0": lambda x: np.repeat(x[:, :1], x.shape[1], 1),
    "of the next head": lambda x: np.roll(x, -1, 1),
    "of the first row": lambda x: np.repeat(x[:, :, :1], x.shape[2], 2),
    "of the last row": lambda x: np.repeat(x[:, :, -1:], x.shape[2], 2),
    "of the next row": lambda x: np.roll(x, -1, 2),
    "of the row before": lambda x: np.roll(x, 1, 2),
    "of the next key": lambda x: np.roll(x, -1, 3),
    "of the key before": lambda x: np.roll(x, 1, 3),
    "of rows in reverse": lambda x: x[:, :, ::-1],
    "of keys in reverse": lambda x: x[..., ::-1],
    "with entry and head exchanged in memory": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).reshape(x.shape),
    "with query and key exchanged in memory": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).reshape(x.shape),
    "with head and query exchanged in memory": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape),
    "in the order (entry, query, head, key)": lambda x: x.reshape(
        x.shape[0], x.shape[2], x.shape[1], x.shape[3]).swapaxes(1, 2),
    "in the order (head, entry, query, key)": lambda x: x.reshape(
        x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1),
    "in the order (entry, head, key, query)": lambda x: x.reshape(
        *x.shape[:2], x.shape[3], x.shape[2]).swapaxes(2, 3),
}  # fmt: skip


@kind(_masked, how=READ)
class mask_array_read(Model):
    """The mask, made as an array with its lengths, is read {how}, within each entry's own lengths."""

    how: Callable[[Array], Array]

    def visible(self) -> Array:
        real = np.asarray(replace(self.case.visibility, mask=None).tile())
        return self.how(np.array(super().visible())) & real


@kind(lambda case: case.k_lens is not None, how={
    "at the end of Lk, and not at its beginning": lambda j, n, most: j >= most - n,
    "at the end of Lk, one fewer": lambda j, n, most: j > most - n,
    "past its length: those within it are hidden": lambda j, n, most: j >= n,
})  # fmt: skip
class keys_from_end(Model):
    """The keys of an entry are taken to lie {how}."""

    how: Callable[[Array, Array, int], Array]

    def visible(self) -> Array:
        case = self.case
        n, j = np.array(case.lengths[1])[:, None, None, None], np.arange(case.Lk)
        free = np.asarray(replace(case.visibility, mask=None, k_lens=None).tile())
        masked = np.asarray(replace(case.visibility, k_lens=None).tile()) if case.mask is not None else free
        return masked & self.how(j, n, case.Lk)
