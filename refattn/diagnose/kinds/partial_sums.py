"""Hypotheses on sums of gradients over tiles: some are left out or counted twice, stored where they are to be added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...streaming.prepare import turned_back
from ..hypothesis import kind
from ..model import Array, Model
from .bounds import KEYS, ROWS, SAME, Bounds

__all__ = ["STORED", "Added", "Held"]


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


class Kept(Model):
    """A right one that keeps what dq, dk and dv are sums of."""

    def dq_of(self, ds: Array) -> Array:
        self.ds = ds
        return super().dq_of(ds)

    def dv_of(self, p: Array, dout: Array) -> Array:
        self.p = p
        return super().dv_of(p, dout)

    def of_pairs(self, held: Array) -> dict[str, Array]:
        """What some pairs of query and key add to dq, dk and dv."""
        ds, p = np.where(held, self.ds, 0), np.where(held, self.p, 0)
        part = {"dq": Model.dq_of(self, ds) * self.dtype(self.q_factor()),
                "dk": self.group(self.dk_of(ds) * self.dtype(self.k_factor())),
                "dv": self.group(Model.dv_of(self, p, self.x["dout"]))}  # fmt: skip
        stored = self.inputs.problem.stored
        return part if self.case.rotary is None else turned_back(self.given, part, stored, self.rules())


class Added(Model):
    """How dq, dk and dv are added up is wrong, and nothing else: what they are sums of is made once for all."""

    right: Kept
    whole: dict[str, Array]

    def solve(self, want: frozenset[str]) -> dict[str, Array]:
        key = "added", self.contract
        if key not in self.inputs.made:
            right = Kept(self.inputs, self.contract)
            self.inputs.made[key] = right, right.solve(self.given.want)
        self.right, self.whole = self.inputs.made[key]
        self.seen, self.case = self.right.seen, self.right.case
        with np.errstate(all="ignore"):
            y = self.whole | self.sums()
        return {n: np.asarray(x, np.float64) for n, x in y.items() if n in want}

    def of_pairs(self, held: Array) -> dict[str, Array]:
        return self.right.of_pairs(held)

    def sums(self) -> dict[str, Array]:
        """Those that are wrong."""
        return {}


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


class part_of_sum(Added):
    """{part}, tiles of {tile}."""

    part: Any = ("dq", "k", -1)
    tile = 64

    def sums(self) -> dict[str, Array]:
        names, axis, which = self.part
        n = self.case.Lk if axis == "k" else self.case.Lq
        first = (n - 1) // self.tile * self.tile if which == -1 else 0
        last = n // self.tile * self.tile if which is None else self.tile if which == 0 else n
        held = (np.arange(n) >= first) & (np.arange(n) < last)
        at = held if axis == "k" else held[:, None]
        part = self.of_pairs(at)
        return {n: part[n] for n in ("dq", "dk", "dv") if n in names}


for words, part in PARTS.items():
    kind(_parted, {"dkdv": "dk dv"}.get(part[0], part[0]), part={words: part}, tile=SIZES)(part_of_sum)

SUMS = {"dq: of keys": (("dq",), 3), "dk and dv: of queries": (("dk", "dv"), 2), "dk: of queries": (("dk",), 2),
        "dv: of queries": (("dv",), 2)}  # fmt: skip
WHICH: dict[str, Callable[[Array, int], Array]] = {
    "the first tile": lambda at, n: at == 0, "the last tile": lambda at, n: at == n - 1,
    "the second tile": lambda at, n: at == 1, "every other tile": lambda at, n: at % 2 == 1,
    "all but every third tile": lambda at, n: at % 3 != 0, "all but every fourth tile": lambda at, n: at % 4 != 0,
}


def _summed(case: Case, how: Any) -> bool:
    return not case.want.isdisjoint(how.of[0]) and (case.Lk if how.of[1] == 3 else case.Lq) > how.tile


class tile_of_sum(Added):
    """In {of}, {which} of {tile} is {times}."""

    of: Any = (("dq",), 3)
    which: Callable[[Array, int], Array]
    tile, times = 64, 0

    def sums(self) -> dict[str, Array]:
        names, axis = self.of
        n = self.seen.shape[axis]
        held = type(self).which(np.arange(n) // self.tile, -(-n // self.tile))
        part = self.of_pairs(held if axis == 3 else held[:, None])
        return {n: self.whole[n] + (self.times - 1) * part[n] for n in names if n in self.whole}


for words, of in SUMS.items():
    kind(_summed, " ".join(of[0]), of={words: of}, which=WHICH, tile=SIZES, times={"left out": 0, "counted twice": 2})(
        tile_of_sum)

STORED = {"dq": ("dq",), "dk and dv": ("dk", "dv"), "dk": ("dk",), "dv": ("dv",)}


def _added(case: Case, how: Any) -> bool:
    group, (rows, packed) = case.group, how.rows
    parts = case.Lk > how.keys if "dq" in how.of else case.Lq * group > (rows if packed else min(rows, case.Lq))
    return parts and not case.want.isdisjoint(how.of)


class stored_not_added(Added, Bounds):
    """{of}: stored, not added, by each tile of {rows} rows and {keys} keys that sees some: the {left} one is left."""

    of: tuple[str, ...] = ("dq",)
    left = -1

    def sums(self) -> dict[str, Array]:
        seen = self.seen
        visited = np.zeros_like(seen)
        for j in range(0, seen.shape[3], self.keys):
            some = self.of_tile(seen[..., j : j + self.keys].any(-1), lambda x: x.any(-1))
            visited[..., j : j + self.keys] = some[..., None]
        turn = self.turn(visited)
        last = np.where(visited, turn, -1 if self.left else turn.max(initial=0) + 1)
        group = self.given.group
        if "dq" in self.of:
            kept = last.max(3, keepdims=True) if self.left else last.min(3, keepdims=True)
        else:
            apart = last.reshape(last.shape[0], -1, group, *last.shape[2:])
            kept = apart.max((2, 3), keepdims=True) if self.left else apart.min((2, 3), keepdims=True)
            kept = np.broadcast_to(kept, (*apart.shape[:3], 1, apart.shape[4])).reshape(*last.shape[:2], 1, -1)
        part = self.of_pairs(last == kept)
        return {n: part[n] for n in self.of}

    def turn(self, visited: Array) -> Array:
        """When a pair's tile is come to, for its key (dk and dv), or for its row (dq)."""
        if "dq" in self.of:
            return np.broadcast_to(np.arange(visited.shape[3]) // self.keys, visited.shape)
        case, group = self.given, self.given.group
        b, h, i, _ = np.ogrid[tuple(slice(n) for n in visited.shape)]
        size, packed = self.rows
        if not packed:
            at = h % group * -(-case.Lq // size) + i // size
        elif packed is True:
            at = (i * group + h % group) // size
        else:
            at = (h % group * np.array(case.lengths[0])[:, None, None, None] + i) // size
        return np.broadcast_to(at + 0 * b, visited.shape)


for words, names in STORED.items():
    kind(_added, " ".join(names), same=SAME, of={words: names}, rows=ROWS, keys=KEYS, left={"last": -1, "first": 0})(
        stored_not_added)

OVER: dict[str, tuple[int, bool]] = {f"tiles of {n} rows": (n, False) for n in (16, 32, 64, 128)}
OVER |= {f"tiles of {n} rows, heads and entries": (n, True) for n in (16, 32, 64, 128)}
OVER |= {"heads": (-1, False), "entries": (-2, False), "heads and entries": (-3, True)}


def _sums(case: Case, how: Any) -> bool:
    heads, rows = (case.H, case.Lq) if "dq" in how.of else (case.Hkv, case.Lk)
    size, all_ = how.over
    n = case.B if size == -2 else heads * case.B ** (size == -3)
    return not case.want.isdisjoint(how.of) and (n > 1 if size < 0 else rows > size)


class gradient_not_reset(Model):
    """The sum of {of} is not set back to 0: it goes on over {over}."""

    of: tuple[str, ...] = ("dk", "dv")
    over = 64, False

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: self.going_on(y[n]) for n in self.of if n in y}

    def going_on(self, x: Array) -> Array:
        size, all_ = self.over
        if size in (-1, -2):
            return np.cumsum(x, 1 if size == -1 else 0)
        n = x.shape[2]
        size = n if size < 0 else size
        wide = np.pad(x, ((0, 0), (0, 0), (0, -n % size), (0, 0)))
        tiles = wide.reshape(*((-1,) if all_ else (*x.shape[:2], -1)), size, x.shape[3])
        return np.cumsum(tiles, tiles.ndim - 3).reshape(wide.shape)[:, :, :n]


for words, names in STORED.items():
    kind(_sums, " ".join(names), of={words: names}, over=OVER)(gradient_not_reset)

@kind(
    lambda case, how: not case.want.isdisjoint(("dk", "dv")) and case.mask is not None, "dk dv",
    rows=(16, 32, 64, 128), keys=(16, 32, 64, 128), how={"rounded up": 1, "without the offset lk - lq": 0},
)  # fmt: skip
class queries_begin_late(Added):
    """dk and dv of a tile of {keys} keys begin at the first tile of {rows} queries that sees it, {how}."""

    rows, keys, how = 64, 64, 1

    def sums(self) -> dict[str, Array]:
        Lq, Lk = self.seen.shape[2:]
        first = np.zeros((*self.seen.shape[:2], Lk), int)
        for j in range(0, Lk, self.keys):
            some = self.seen[..., j : j + self.keys].any(-1)
            at = np.where(some.any(-1), some.argmax(-1), Lq)
            at = -(-at // self.rows) * self.rows if self.how else np.full_like(at, j // self.rows * self.rows)
            first[..., j : j + self.keys] = at[..., None]
        part = self.of_pairs(np.arange(Lq)[:, None] >= first[:, :, None])
        return {n: part[n] for n in ("dk", "dv")}
