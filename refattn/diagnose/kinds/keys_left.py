"""Hypotheses on dk and dv of keys that no query sees: memory stays as it was, or what another tile left."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..dense import ANYTHING
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

WHERE = {"keys that no query sees": 1, "entries without queries": 0} | {
    f"tiles of {n} keys that no query sees": n for n in (16, 32, 64, 128)}
OF = {"dk and dv": ("dk", "dv"), "dk": ("dk",), "dv": ("dv",)}


def _may(case: Case, how: Any) -> bool:
    if case.want.isdisjoint(how.of) or not case.Lk:
        return False
    if how.where == 0:
        return 0 in case.lengths[0]
    return case.mask is not None or case.bias is not None or 0 in case.lengths[0] or min(case.lengths[1]) < case.Lk


class Unseen(Model):
    """Which keys no query sees."""

    of: tuple[str, ...] = ("dk", "dv")
    where = 1

    def unseen(self) -> Array:
        """(B, Hkv, Lk)"""
        case = self.given
        real = np.arange(case.Lk) < np.array(case.lengths[1])[:, None, None]
        if self.where == 0:
            none = np.asarray(np.array(case.lengths[0])[:, None, None] == 0)
        else:
            seen = np.asarray(self.seen.reshape(case.B, max(case.Hkv, 1), -1, case.Lk).any(2))
            none = ~self.of_tiles(seen)
        return np.broadcast_to(real & none, (case.B, case.Hkv, case.Lk))

    def of_tiles(self, seen: Array) -> Array:
        n, size = seen.shape[2], self.where
        wide = np.pad(seen, ((0, 0), (0, 0), (0, -n % size)))
        tiles = wide.reshape(*wide.shape[:2], -1, size).any(3)
        return np.repeat(tiles, size, 2)[:, :, :n]


@kind(_may, "dk dv", of=OF, where=WHERE, left={"NaN": np.nan})
class keys_left(Unseen):
    """{of} of {where} stay {left}."""

    left = np.nan

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        none = self.unseen()[..., None]
        return y | {n: np.where(none, self.left, y[n]) for n in self.of if n in y}


@kind(_may, "dk dv", vague=True, of=OF, where=WHERE, left={"as memory was, whatever it held": ANYTHING})
class keys_left_as_they_were(keys_left):
    """{of} of {where} stay {left}."""


@kind(lambda case, how: _may(case, how) and case.Lk > how.where > 1, "dk dv", of=OF, where={
    w: n for w, n in WHERE.items() if n > 1}, by={"before": 1, "after": -1})
class keys_of_another_tile(Unseen):
    """{of} of {where} are those of the tile {by}: its sums are written once more."""

    by = 1

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        none, size, n = self.unseen()[..., None], self.where, self.given.Lk
        at = np.arange(n) - self.by * size
        there = ((at >= 0) & (at < n))[:, None]
        for name in (x for x in self.of if x in y):
            found, kept = y[name], none & there
            for _ in range(-(-n // size)):  # that of one that was itself skipped is what it left
                found = np.where(kept, found[:, :, np.clip(at, 0, n - 1)], found)
            y = y | {name: found}
        return y
