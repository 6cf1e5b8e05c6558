"""Hypotheses on the products of the backward, one of them alone: an operand is that of another tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model, product
from .gradients import SCORED

__all__: list[str] = []

OF: dict[str, tuple[str, int]] = {
    "keys of dq = ds k are": ("dq k", 2), "queries of dk = dsᵀ q are": ("dk q", 2),
    "rows of dout in dv = pᵀ dout are": ("dv dout", 2), "rows of dout in dp = dout vᵀ are": ("dp dout", 2),
    "rows of dout in dp = dout vᵀ and dv = pᵀ dout are": ("dp dout, dv dout", 2),
    "values of dp = dout vᵀ are": ("dp v", 2), "columns of ds in dq = ds k are": ("dq ds", 3),
    "rows of ds in dk = dsᵀ q are": ("dk ds", 2), "rows of weights in dv = pᵀ dout are": ("dv p", 2),
    "rows of weights in ds = p (dp - delta) are": ("ds p", 2), "rows of dp in ds = p (dp - delta) are": ("ds dp", 2),
    "columns of weights in ds = p (dp - delta) are": ("ds p", 3),
    "columns of dp in ds = p (dp - delta) are": ("ds dp", 3),
}  # fmt: skip
ROWS = frozenset({"dk q", "dv dout", "dp dout", "dp dout, dv dout", "dk ds", "dv p"})
SHOWS = {"dq": "dq", "dk": "dk", "dv": "dv", "dp": SCORED, "ds": SCORED}
Turn = Callable[[Array, int, int], Array]
"""(index, tile, how many) -> index of the one that is read"""
TURNS: dict[str, Turn] = {
    "tile before": lambda j, t, n: np.where(j < t, j, j - t),
    "tile after": lambda j, t, n: np.where(j + t < n, j + t, j), "first tile": lambda j, t, n: j % t,
}  # fmt: skip


def _several(case: Case, how: Any) -> bool:
    what, axis = how.of
    rows = what in ROWS or (what[:2] == "ds" and axis == 2)
    return (case.Lq if rows else case.Lk) > how.tile and not case.want.isdisjoint(SHOWS[what[:2]].split())


class stale_operand(Model):
    """The {of} those of the {turn}, tiles of {tile}."""

    of = ("dq k", 2)
    turn: Turn
    tile = 64

    def moved(self, x: Array, what: str) -> Array:
        if what not in self.of[0].split(", "):
            return x
        n = x.shape[axis := self.of[1]]
        return np.take(x, type(self).turn(np.arange(n), self.tile, n), axis)

    def dp_of(self, dout: Array) -> Array:
        return np.asarray(self.moved(dout, "dp dout") @ self.moved(self.v, "dp v").swapaxes(-1, -2))

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        return super().through_softmax(self.moved(p, "ds p"), self.moved(dp, "ds dp"), incoming)

    def dq_of(self, ds: Array) -> Array:
        return product(self.moved(ds, "dq ds"), self.moved(self.k, "dq k"), self.seen)

    def dk_of(self, ds: Array) -> Array:
        ds = self.moved(ds, "dk ds")
        return product(ds.swapaxes(-1, -2), self.moved(self.q, "dk q"), self.seen.swapaxes(-1, -2))

    def dv_of(self, p: Array, dout: Array) -> Array:
        return super().dv_of(self.moved(p, "dv p"), self.moved(dout, "dv dout"))


for words, of in OF.items():
    shows = SHOWS[of[0][:2]] + " dv" * (", dv" in of[0])
    kind(_several, shows, of={words: of}, turn=TURNS, tile=(8, 16, 32, 64, 128))(stale_operand)
