"""Hypotheses on dropout that is drawn tile by tile: a loop takes what is kept from another tile than it works on.

Where the number of a tile is what a generator starts from, loops of different sizes of tiles have to agree on it.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from .gradients import ALL

__all__: list[str] = []

Sizes = tuple[tuple[int, int], tuple[int, int]]
SIZES = (8, 16, 32, 64, 128)
NEAR = [(a, b) for a, b in product(SIZES, SIZES) if max(a, b) <= 2 * min(a, b)]
"""sizes of one loop and of another"""
ALL_OF_THEM = 2**30
"""of queries or keys, where a tile's number of these plays no part"""
OTHERS: dict[str, Sizes] = {
    f"{a} queries is taken for one of {c}": ((a, ALL_OF_THEM), (c, ALL_OF_THEM)) for a, c in product(SIZES, SIZES)
    if a != c
} | {
    f"{b} keys is taken for one of {d}": ((ALL_OF_THEM, b), (ALL_OF_THEM, d)) for b, d in product(SIZES, SIZES)
    if b != d
} | {
    f"{a} queries and {b} keys is taken for one of {c} and {d}": ((a, b), (c, d)) for (a, b), (c, d) in (
        *(((a, b), (b, a)) for a, b in product(SIZES, SIZES)),
        *(((a, b), (c, d)) for (a, c), (b, d) in product(NEAR, NEAR)),
    ) if a != c and b != d
}  # fmt: skip
WAYS = {
    "what is past the end is read from the first on": "around", "past the end of a tile nothing is kept": "cut",
    "counted along the keys, then the queries": "counted",
    "counted along the keys, then the queries, and past the end of a tile nothing is kept": "counted and cut",
}
EXCHANGED: dict[str, Sizes] = {f"{a} queries and {b} keys": ((a, b), (a, b)) for a, b in product(SIZES, SIZES)}


@lru_cache(maxsize=32)
def _read(Lq: int, Lk: int, sizes: Sizes, way: str) -> Array:
    """(2, Lq, Lk): which query and which key a pair has what is kept from; -1 if it is kept of none."""
    (a, b), (c, d) = sizes
    i, j = np.ogrid[:Lq, :Lk]
    i, j = i.astype(np.int32), j.astype(np.int32)
    row, column = i // a + 0 * j, j // b + 0 * i
    if "counted" in way:
        number = row * -(-Lk // b) + column
        row, column = number // -(-Lk // d), number % -(-Lk // d)
    if way == "exchanged":
        row, column = column, row
    if "cut" in way:
        i, j = row * c % Lq + i % a, column * d % Lk + j % b
        return np.where((i < Lq) & (j < Lk), np.stack([i, j]), -1)
    return np.stack([(row * c + i % a) % Lq, (column * d + j % b) % Lk])


def _moves(case: Case, how: Any) -> bool:
    if case.dropout is None or not case.Lq * case.Lk:
        return False
    read = _read(case.Lq, case.Lk, how.sizes, how.way)
    return bool((read < 0).any()) or case.dropout > 0 and not np.array_equal(read, np.indices(read.shape[1:]))


def _same(case: Case, how: Any) -> bytes:
    return _read(case.Lq, case.Lk, how.sizes, how.way).tobytes() if case.Lq * case.Lk else b""


class OfOther(Model):
    """Reads what is kept of another tile."""

    sizes: Sizes = (16, 8), (8, 16)
    way = "around"

    def of_other(self, keep: Array) -> Array:
        i, j = _read(self.given.Lq, self.given.Lk, self.sizes, self.way)
        return np.asarray(keep[:, :, i, j] & (i >= 0))


class kept_by_tile_in_backward(OfOther):
    """Dropout: in the backward a tile of {sizes}, by its number: {way}."""

    def backward(self) -> dict[str, Array]:
        true = self.keep
        self.keep = None if true is None else self.of_other(true)
        y, self.keep = super().backward(), true
        return y


class kept_by_tile(OfOther):
    """Dropout: a tile of {sizes}, by its number: {way}."""

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {"keep": self.of_other(x["keep"])}


def _backward(case: Case, how: Any) -> bool:
    return case.backward and _moves(case, how)


kind(_backward, ALL, same=("sizes", _same), way=WAYS, sizes=OTHERS)(kept_by_tile_in_backward)
kind(_moves, same=("sizes", _same), way=WAYS, sizes=OTHERS)(kept_by_tile)


@kind(_backward, ALL, same=("sizes", _same), sizes=EXCHANGED, way={"exchanged": "exchanged"})
class kept_by_exchanged_tile_in_backward(kept_by_tile_in_backward):
    """Dropout: in the backward a tile of {sizes} takes what is kept from that with its two numbers {way}."""
