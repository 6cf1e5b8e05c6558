"""Hypotheses on the grid of a loop: it is that of another one, so that some rows, keys or heads are never come to.

A kernel is launched so many times: for each tile of queries where it makes out and lse, or dq; for each tile of keys
where it makes dk and dv.  What it does not come to stays as the memory was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from ..packing import HEADS, place

__all__: list[str] = []

Reached = Callable[[Case, Array, Array, int], Array]
"""(case, own numbers of queries, of keys (B, 1, 1), size of a tile) -> what is come to, to broadcast to (B, H, L)"""
TILES = (1, 4, 8, 16, 32, 64, 128)
LEFT = {"0": 0.0, "NaN": np.nan}


def _up(n: Array, tile: int) -> Array:
    return -(-n // tile)


def _tiles(axis: int, other: str) -> dict[str, Reached]:
    """The first tiles of each entry, of queries (axis 0) or keys (1), as many as these words say."""
    counts: dict[str, Callable[[Array, Array, int], Array]] = {
        f"there are of {other}": lambda own, others, t: _up(others, t),
        "there are whole ones": lambda own, others, t: own // t,
        "there are whole ones, but one at least": lambda own, others, t: np.maximum(own // t, 1),
        "the first entry has": lambda own, others, t: _up(own[0], t),
        "the shortest entry has": lambda own, others, t: _up(own.min(), t),
        "there are of twice the size": lambda own, others, t: _up(own, 2 * t),
        "there are of four times the size": lambda own, others, t: _up(own, 4 * t),
    }

    def reached(count: Callable[[Array, Array, int], Array]) -> Reached:
        def first(c: Case, lq: Array, lk: Array, t: int) -> Array:
            own, others = (lk, lq) if axis else (lq, lk)
            return np.arange((c.Lq, c.Lk)[axis]) < count(own, others, t) * t

        return first

    return {words: reached(count) for words, count in counts.items()}


OF_QUERIES = _tiles(0, "keys") | {
    "one head has, though those of a group are packed query by query":
        lambda c, lq, lk, t: place(c, True) < _up(lq, t) * t,
    "one head has, though those of a group are packed head by head":
        lambda c, lq, lk, t: place(c, HEADS) < _up(lq, t) * t,
}  # fmt: skip
OF_KEYS = _tiles(1, "queries")
ROWS = {"out and lse": ("out", "lse"), "dq": ("dq",), "dq and dbias": ("dq", "dbias")}
KEYS = {"dk and dv": ("dk", "dv"), "dk": ("dk",), "dv": ("dv",), "dk, dv and dbias": ("dk", "dv", "dbias")}


def _missed(case: Case, how: Any) -> Array:
    """(B, heads, L): what is there and not come to."""
    lq, lk = (np.array(n)[:, None, None] for n in case.lengths)
    keys = "dk" in how.of or "dv" in how.of
    L, own, heads = (case.Lk, lk, case.Hkv) if keys else (case.Lq, lq, case.H)
    missed = (np.arange(L) < own) & ~np.asarray(how.grid(case, lq, lk, how.tile))
    return np.broadcast_to(missed, (case.B, heads, L))


def _misses(case: Case, how: Any) -> bool:
    if case.B == 0 or case.H == 0 or how.of[0] not in case.want or ("dbias" in how.of and case.bias is None):
        return False
    return bool(_missed(case, how).any())


def _same(case: Case, how: Any) -> bytes:
    return _missed(case, how).tobytes()


class Grid(Model):
    """{of} of what is missed stay {left}, and add nothing to dbias."""

    of: tuple[str, ...] = ("dq",)
    grid: Reached
    tile, left = 1, 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        missed = _missed(self.given, type(self))
        return y | {n: np.where(missed if n == "lse" else missed[..., None], self.left, y[n])
                    for n in self.of if n in y and n != "dbias"}  # fmt: skip

    def reduced(self, dt: Array) -> Array:
        if "dbias" in self.of:
            missed = _missed(self.given, type(self))
            lost = missed[..., None] if "dq" in self.of else missed[:, self.heads()][:, :, None]
            dt = np.where(lost, 0, dt)
        return super().reduced(dt)


class grid_of_queries(Grid):
    """The grid of {of} has as many tiles of {tile} queries as {grid}: the others are never come to, and stay {left}."""


class grid_of_keys(Grid):
    """The grid of {of} has as many tiles of {tile} keys as {grid}: the others are never come to, and stay {left}."""


class grid_of_heads(Grid):
    """The grid of {of} has {grid}: the others are never come to, and stay {left}."""


BY_HEADS: dict[str, Reached] = {
    "as many heads as there are key heads": lambda c, lq, lk, t: np.arange(c.H)[:, None] < c.Hkv,
    "as many heads as a group has": lambda c, lq, lk, t: np.arange(c.H)[:, None] < c.group,
    "as many heads as there are entries": lambda c, lq, lk, t: np.arange(c.H)[:, None] < c.B,
    "as many entries as there are heads, and heads as entries": lambda c, lq, lk, t: (
        (np.arange(c.B)[:, None, None] < c.H) & (np.arange(c.H)[:, None] < c.B)),
}
BY_KEY_HEADS: dict[str, Reached] = {
    "as many key heads as a group has heads": lambda c, lq, lk, t: np.arange(c.Hkv)[:, None] < c.group,
    "as many key heads as there are entries": lambda c, lq, lk, t: np.arange(c.Hkv)[:, None] < c.B,
    "as many entries as there are key heads, and key heads as entries": lambda c, lq, lk, t: (
        (np.arange(c.B)[:, None, None] < c.Hkv) & (np.arange(c.Hkv)[:, None] < c.B)),
}
for made, tiles, heads, outputs in (
    (grid_of_queries, OF_QUERIES, BY_HEADS, ROWS), (grid_of_keys, OF_KEYS, BY_KEY_HEADS, KEYS),
):  # fmt: skip
    for words, of in outputs.items():
        shows = " ".join(of)
        kind(_misses, shows, same=("tile", _same), of={words: of}, grid=tiles, left=LEFT, tile=TILES)(made)
        kind(_misses, shows, of={words: of}, grid=heads, left=LEFT)(grid_of_heads)
