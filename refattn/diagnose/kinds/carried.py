"""Hypotheses on the state of the softmax that is not cleared: it goes on from one tile of rows to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model, safe
from ..packing import HEADS
from .bounds import ROWS
from .loops import State

__all__: list[str] = []

WHAT = {"The row sum": "z", "The output": "o", "The row sum and the output": "zo", "All of the state": "mzo"}
OVER = {"": 0, ", heads too": 1, ", heads and entries too": 2}
TILES = {words: ROWS[words] for words in (
    "128", "64 packed", "64", "32 packed", "32", "16 packed", "16", "16 packed head by head", "32 packed head by head",
    "64 packed head by head", "128 packed", "128 packed head by head",
)}  # fmt: skip
"""small ones in the middle, by which all are placed"""


def _tiles(case: Case, how: Any) -> bool:
    rows, packed = how.rows
    together = case.Lq * (case.group if packed else 1)
    return 0 < together and (together > rows or (how.over > 0 and case.H > 1) or (how.over > 1 and case.B > 1))


def _chains(case: Case, rows: int, packed: bool | str, over: int) -> Iterator[list[Array]]:
    """The tiles of rows that follow one another, each as places among all rows (B, H, Lq)."""
    of_entries, group = list[list[list[Array]]](), case.group if packed else 1
    for b, n in enumerate(case.lengths[0]):
        place = (b * case.H + np.arange(case.H)[:, None]) * case.Lq + np.arange(n)
        together = place.reshape(-1, group, n)
        flat = together if packed == HEADS else together.swapaxes(1, 2)
        of_entries.append([[x[i : i + rows] for i in range(0, group * n, rows)] for x in flat.reshape(-1, group * n)])
    if over == 2:
        yield [tile for heads in of_entries for tiles in heads for tile in tiles]
    for heads in of_entries if over < 2 else ():
        yield from heads if over == 0 else [[tile for tiles in heads for tile in tiles]]


def _same(case: Case, how: Any) -> Any:
    rows, packed = how.rows
    group = case.group if packed else 1
    return min(rows, case.Lq * group), packed if group > 1 else False


@kind(_tiles, same=("rows", _same), what=WHAT, rows=TILES, over=OVER,
      of={"its row in the tile before": False, "the last row of the tile before": True})  # fmt: skip
class rows_not_reset(Model):
    """{what} of the softmax is not cleared between tiles of {rows} rows{over}: it goes on from {of}."""

    what, over, of = "z", 0, False
    rows: tuple[int, bool | str] = (64, False)

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        flat = m.ravel().copy(), z.ravel().copy(), o.reshape(-1, o.shape[3]).copy()
        for chain in _chains(self.given, *self.rows, self.over):
            for before, own in zip(chain, chain[1:], strict=False):
                if len(before) and len(own):
                    self.add(flat, before, own)
        return flat[0].reshape(m.shape), flat[1].reshape(z.shape), flat[2].reshape(o.shape)

    def add(self, state: State, before: Array, own: Array) -> None:
        m, z, o = state
        old = np.full(len(own), before[-1]) if self.of else before[: len(own)]
        own = own[: len(old)]
        a = b = np.ones(len(own), m.dtype)
        if "m" in self.what:
            top = np.maximum(m[own], m[old])
            a, b = np.exp(m[own] - safe(top)), np.exp(m[old] - safe(top))
            m[own] = top
        seen = np.ones(len(own), bool) if "m" in self.what else z[own] > 0  # lse of the others is -inf all the same
        if "o" in self.what:
            o[own] = o[own] * a[:, None] + np.where(seen[:, None], o[old] * b[:, None], 0)
        if "z" in self.what:
            z[own] = z[own] * a + np.where(seen, z[old] * b, 0)


@kind(lambda case: case.B > 1, what=WHAT)
class entries_not_reset(Model):
    """{what} of the softmax is not cleared from entry to entry: a head's goes on from that of the entry before."""

    what = "z"

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        if "m" not in self.what:
            return m, np.cumsum(z, 0) if "z" in self.what else z, np.cumsum(o, 0) if "o" in self.what else o
        top = np.maximum.accumulate(m, 0)
        grown = np.exp(m[:, None] - safe(top)[None]) * np.tri(len(m))[..., None, None].swapaxes(0, 1)
        return top, (grown * z[:, None]).sum(0), (grown[..., None] * o[:, None]).sum(0)
