"""Hypotheses on sums of gradients over tiles of which some are left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

class Held(Model):
    """Gradients of some pairs of query and key alone."""

    held: Array = np.ones((), bool)

    def of_pairs(self, held: Array) -> dict[str, Array]:
        self.held = held
        part = super().backward()
        self.held = np.ones((), bool)
        return part

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        return np.where(self.held, super().through_softmax(p, dp, incoming), 0)

    def dv_of(self, p: Array, dout: Array) -> Array:
        return super().dv_of(np.where(self.held, p, 0), dout)


SIZES = (4, 8, 16, 32, 64, 128)
PARTS = {"dq: the last tile of keys alone counts": ("dq", "k", -1),
    "dq: the first tile of keys alone counts": ("dq", "k", 0),
         "dk and dv: the last tile of queries alone counts": ("dkdv", "q", -1),
         "dk and dv: the first tile of queries alone counts": ("dkdv", "q", 0),
         "dk: the last tile of queries alone counts": ("dk", "q", -1),
         "dv: the last tile of queries alone counts": ("dv", "q", -1),
         "dk and dv: queries past the last whole tile are left out": ("dkdv", "q", None),
         "dq: keys past the last whole tile are left out": ("dq", "k", None),
         "dk and dv of keys past the last whole tile are 0": ("dkdv", "k", None),
         "dq of queries past the last whole tile is 0": ("dq", "q", None)}  # fmt: skip


def _parted(case: Case, how: Any) -> bool:
    n = case.Lk if how.part[1] == "k" else case.Lq
    return case.backward and (n > how.tile or (how.part[2] is None and n % how.tile != 0))


@kind(_parted, "dq dk dv", part=PARTS, tile=SIZES)
class part_of_sum(Held):
    """{part}, tiles of {tile}."""

    part: Any = ("dq", "k", -1)
    tile = 64

    def backward(self) -> dict[str, Array]:
        whole = super().backward()
        names, axis, which = self.part
        n = self.case.Lk if axis == "k" else self.case.Lq
        first = (n - 1) // self.tile * self.tile if which == -1 else 0
        last = n // self.tile * self.tile if which is None else self.tile if which == 0 else n
        held = (np.arange(n) >= first) & (np.arange(n) < last)
        at = held if axis == "k" else held[:, None]
        part = self.of_pairs(at)
        return whole | {n: part[n] for n in whole if n in ("dq", "dk", "dv") and n in names}



@kind(
    lambda case, how: not case.want.isdisjoint(("dk", "dv")) and case.mask is not None, "dk dv",
    rows=(16, 32, 64, 128), keys=(16, 32, 64, 128), how={"rounded up": 1, "without the offset lk - lq": 0},
)  # fmt: skip
class queries_begin_late(Held):
    """dk and dv of a tile of {keys} keys begin at the first tile of {rows} queries that sees it, {how}."""

    rows, keys, how = 64, 64, 1

    def backward(self) -> dict[str, Array]:
        whole = super().backward()
        Lq, Lk = self.seen.shape[2:]
        first = np.zeros((*self.seen.shape[:2], Lk), int)
        for j in range(0, Lk, self.keys):
            some = self.seen[..., j : j + self.keys].any(-1)
            at = np.where(some.any(-1), some.argmax(-1), Lq)
            at = -(-at // self.rows) * self.rows if self.how else np.full_like(at, j // self.rows * self.rows)
            first[..., j : j + self.keys] = at[..., None]
        part = self.of_pairs(np.arange(Lq)[:, None] >= first[:, :, None])
        return whole | {n: part[n] for n in ("dk", "dv")}
