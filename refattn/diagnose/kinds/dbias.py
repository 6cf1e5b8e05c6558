"""Hypotheses on dbias: sums over what the bias is broadcast over, and stores where it should be added."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from ..packing import place
from .bounds import KEYS, ROWS, SAME, Bounds

__all__: list[str] = []

WORDS = ("batch entries", "heads", "queries", "keys")
AXES = {" and ".join(WORDS[a] for a in axes): axes for n in (1, 2, 3) for axes in combinations(range(4), n)}


def _over(case: Case) -> tuple[int, ...]:
    """The axes that a bias is broadcast over."""
    sizes = case.B, case.H, case.Lq, case.Lk
    return tuple(a for a, (n, m) in enumerate(zip(case.bias_shape, sizes, strict=True)) if n == 1 < m)


def _reduces(case: Case, how: Any) -> bool:
    return "dbias" in case.want and bool(over := _over(case)) and set(how.axes) <= set(over)


def _first(y: Array, axes: tuple[int, ...]) -> Array:
    return y[tuple(slice(1 if a in axes else None) for a in range(4))]


def _last(y: Array, axes: tuple[int, ...]) -> Array:
    return y[tuple(slice(-1 if a in axes else None, None) for a in range(4))]


def _mean(y: Array, axes: tuple[int, ...]) -> Array:
    return y.mean(axes, keepdims=True)


@kind(_reduces, "dbias", axes={"all that the bias is broadcast over": ()},
      how={"the mean over": _mean, "that of the first of": _first,
           "summed over the last axis alone of": lambda y, axes: _first(y, axes[:-1])})  # fmt: skip
@kind(_reduces, "dbias", axes=AXES,
      how={"that of the first of": _first, "that of the last of": _last, "the mean over": _mean})  # fmt: skip
class dbias_over(Model):
    """dbias is {how} {axes}, not the sum."""

    axes: tuple[int, ...] = (0,)
    how: Callable[[Array, tuple[int, ...]], Array]

    def reduced(self, dt: Array) -> Array:
        return super().reduced(self.how(dt, self.axes or _over(self.given)))


Turn = Callable[[Array, Array, Array, Array, Array, Case], Array]
"""(b, h, i, j, own numbers of queries, case) -> when the part is come to that a pair is in"""


SIZES = (4, 8, 16, 32, 64, 128)
STORES: dict[str, Turn] = {
    "pair of query and key": lambda b, h, i, j, n, c: ((b * c.H + h) * c.Lq + i) * c.Lk + j,
    "pair of query and key, rows packed query by query": lambda b, h, i, j, n, c: (
        (b * c.Hkv + h // c.group) * c.Lq * c.group + i * c.group + h % c.group) * c.Lk + j,
    "row": lambda b, h, i, j, n, c: (b * c.H + h) * c.Lq + i,
    "head": lambda b, h, i, j, n, c: b * c.H + h,
    "group of heads": lambda b, h, i, j, n, c: b * c.Hkv + h // c.group,
    "entry": lambda b, h, i, j, n, c: b,
    "head, of all entries": lambda b, h, i, j, n, c: h,
    "key": lambda b, h, i, j, n, c: (b * c.H + h) * c.Lk + j,
} | {
    f"tile of {m} rows{words}": turn for m in SIZES for words, turn in {
        "": lambda b, h, i, j, n, c, m=m: (b * c.H + h) * c.Lq + i // m,
        " of all heads of a group": lambda b, h, i, j, n, c, m=m: (b * c.Hkv + h // c.group) * c.Lq + i // m,
        " of all heads": lambda b, h, i, j, n, c, m=m: b * c.Lq + i // m,
        " of all heads and entries": lambda b, h, i, j, n, c, m=m: i // m,
        ", packed head by head": lambda b, h, i, j, n, c, m=m: (
            (b * c.Hkv + h // c.group) * c.H * c.Lq + (h % c.group * n + i) // m),
        ", packed query by query": lambda b, h, i, j, n, c, m=m: (
            (b * c.Hkv + h // c.group) * c.H * c.Lq + (i * c.group + h % c.group) // m),
    }.items()
} | {
    f"tile of {m} keys{words}": turn for m in SIZES for words, turn in {
        "": lambda b, h, i, j, n, c, m=m: (b * c.H + h) * c.Lk + j // m,
        " of all heads of a group": lambda b, h, i, j, n, c, m=m: (b * c.Hkv + h // c.group) * c.Lk + j // m,
        " of all heads": lambda b, h, i, j, n, c, m=m: b * c.Lk + j // m,
        " of all heads and entries": lambda b, h, i, j, n, c, m=m: j // m,
    }.items()
}  # fmt: skip
WHERE = {"": None, "; where the bias has no queries": 2, "; where the bias has no keys": 3,
         "; where the bias has no heads": 1, "; where the bias has no entries": 0}  # fmt: skip


def _stores(case: Case, how: Any) -> bool:
    over = _over(case) if "dbias" in case.want else ()
    return bool(over) and (how.where is None or how.where in over)


@kind(_stores, "dbias", turn=STORES, left={"last": -1, "first": 0}, where=WHERE)
class dbias_stored(Model):
    """dbias: stored, not added, by each {turn} that the bias is broadcast over: the {left} one is left{where}."""

    turn: Turn
    left = -1
    where: int | None = None

    def reduced(self, dt: Array) -> Array:
        case, axes = self.given, _over(self.given)
        b, h, i, j = np.ogrid[tuple(slice(n) for n in dt.shape)]
        lq, lk = (np.array(n)[:, None, None, None] for n in case.lengths)
        at = np.broadcast_to(type(self).turn(b, h, i, j, lq, case), dt.shape)
        there = (i < lq) & (j < lk)
        end = np.where(there, at, -1 if self.left else at.max(initial=0) + 1)
        kept = end.max(axes, keepdims=True) if self.left else end.min(axes, keepdims=True)
        return super().reduced(np.where(end == kept, dt, 0))


ORDERS = {"rows by rows, and the keys of each": "rows", "keys by keys, and the rows of each": "keys"}


class dbias_stored_in_loop(Bounds):
    """dbias: stored, not added, by each {each}, in tiles of {rows} rows and {keys} keys{at_once}, {order}, these from
    {way}{where}."""

    each, order, way, at_once = 0, "rows", 1, False
    where: int | None = None

    def reduced(self, dt: Array) -> Array:
        axes, at = _over(self.given), self.turn(dt.shape)
        last = np.where(self.visited(), at, -1)
        return super().reduced(np.where(last == last.max(axes, keepdims=True), dt, 0))

    def visited(self) -> Array:
        """The pairs in tiles of which some is seen."""
        found = np.zeros_like(self.seen)
        seen = np.broadcast_to(self.seen.any(1, keepdims=True), self.seen.shape) if self.at_once else self.seen
        for j in range(0, found.shape[3], self.keys):
            some = self.of_tile(seen[..., j : j + self.keys].any(-1), lambda x: x.any(-1))
            found[..., j : j + self.keys] = some[..., None]
        return found

    def turn(self, shape: tuple[int, ...]) -> Array:
        """When a pair's turn is, or that of its tile."""
        case, (size, packed) = self.given, self.rows
        b, h, i, j = np.ogrid[tuple(slice(n) for n in shape)]
        head, one = h // case.group, h % case.group
        row, one = place(case, packed)[..., None], one * (not packed)
        head, one = (0 * h, 0 * h) if self.at_once else (head, one)
        tile, keys = row // size, j // self.keys
        keys = keys if self.way > 0 else keys.max(initial=0) - keys
        within = (row % size, j % self.keys) if not self.each else ()
        outer = (one, tile, keys) if self.order == "rows" else (keys, one, tile)
        at = np.zeros(shape, np.int64)
        for index in (b, head, *outer, *within):
            at = at * (int(index.max(initial=0)) + 1) + index
        return at


for at_once, where in (({"": False}, {"": None}), ({", of all heads at once": True}, dict(list(WHERE.items())[:3]))):
    kind(
        _stores, "dbias", same=SAME, each={"pair": 0, "tile": 1}, order=ORDERS,
        way={"first to last": 1, "last to first": -1}, at_once=at_once, where=where,
        rows={w: x for w, x in ROWS.items() if x[0] > 1 and ("" in at_once or not x[1])}, keys=sorted({8, *KEYS}),
    )(dbias_stored_in_loop)


@kind(
    lambda case: "dbias" in case.want, "dbias",
    how={
        "multiplied by the scale": lambda x, y: y * x.factor(),
        "divided by the scale": lambda x, y: y / x.factor() if x.factor() else y,
        "without delta": lambda x, y: y + x.of(x.p * x.delta()[..., None]),
        "without delta and dlse: that of p dp": lambda x, y: x.of(x.p * x.dp),
        "without dlse": lambda x, y: y - x.of(x.p * x.arriving()[..., None]),
        "that of weights": lambda x, y: x.of(x.p), "that of the gradients of weights, dp": lambda x, y: x.of(x.dp),
        "multiplied by the modifier's slope": lambda x, y: y if x.case.score_mod is None else x.of(
            x.dt * x.modifier_slope()),
        "written with rows and columns exchanged": lambda x, y: np.ascontiguousarray(y.swapaxes(2, 3)).reshape(y.shape),
        "that of the next head": lambda x, y: np.roll(y, -1, 1), "that of the next row": lambda x, y: np.roll(y, -1, 2),
        "that of head 0": lambda x, y: np.repeat(y[:, :1], y.shape[1], 1),
        "that of the head before": lambda x, y: np.roll(y, 1, 1),
        "that of the next entry": lambda x, y: np.roll(y, -1, 0),
        "that of the entry before": lambda x, y: np.roll(y, 1, 0),
        "that of entry 0": lambda x, y: np.repeat(y[:1], len(y), 0),
        "not set back to 0 from head to head": lambda x, y: np.cumsum(y, 1),
        "not set back to 0 from entry to entry": lambda x, y: np.cumsum(y, 0),
    },
)  # fmt: skip
class dbias(Model):
    """dbias is {how}."""

    how: Callable[[Any, Array], Array]

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        self.p, self.dp = p, dp
        return super().through_softmax(p, dp, incoming)

    def of(self, x: Array) -> Array:
        return super().reduced(np.where(self.seen, x, 0))

    def reduced(self, dt: Array) -> Array:
        self.dt = dt
        return self.how(self, super().reduced(dt))


WRITTEN: dict[str, Callable[[Array, Array, Case], tuple[Array, Array]]] = {
    "entry h and head b": lambda b, h, c: (h, b), "head h // group": lambda b, h, c: (b, h // c.group),
    "head h % Hkv": lambda b, h, c: (b, h % max(1, c.Hkv)),
    "the plane b H + h of so many, modulo their number": lambda b, h, c: (
        (b * c.H + h) % (c.bias_shape[0] * c.bias_shape[1]) // c.bias_shape[1],
        (b * c.H + h) % (c.bias_shape[0] * c.bias_shape[1]) % c.bias_shape[1]),
}  # fmt: skip


def _moves(case: Case, how: Any) -> bool:
    if "dbias" not in case.want:
        return False
    b, h = np.ogrid[: case.B, : case.H]
    places = [np.broadcast_to(x % n, (case.B, case.H))
              for x, n in zip((*how.to(b, h, case), b, h), case.bias_shape[:2] * 2, strict=True)]  # fmt: skip
    return any((x != y).any() for x, y in zip(places[:2], places[2:], strict=True))


@kind(_moves, "dbias", to=WRITTEN)
class dbias_written(Model):
    """dbias of entry b and head h is added to that of {to}."""

    to: Callable[[Array, Array, Case], tuple[Array, Array]]

    def reduced(self, dt: Array) -> Array:
        case = self.given
        sizes = case.bias_shape
        total = np.zeros((*sizes[:2], *dt.shape[2:]), dt.dtype)
        b, h = np.ogrid[: case.B, : case.H]
        b, h = type(self).to(b, h, case)
        np.add.at(total, (b % sizes[0], h % sizes[1]), dt)
        axes = tuple(a for a in (2, 3) if sizes[a] == 1)
        return total.sum(axes, keepdims=True)
