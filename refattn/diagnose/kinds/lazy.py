"""Hypotheses on lazy rescaling: where the maximum grows by little, what was summed is left relative to the old one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import LN2, Array, safe
from .bounds import ROWS, SAME
from .loops import PLAIN, SPLIT, State, Tiled, loops

__all__: list[str] = []

Lazy = Callable[[Any, Array, Array, Array, Array, Array, Array, Array], State]
"""(model, m, l, o, new m, total, product, where little is grown) -> state"""


def _d(m: Array, new: Array) -> Array:
    return np.asarray(np.exp(m - safe(new)))


def _left(m: Array, new: Array, little: Array) -> Array:
    return np.where(little, 1, _d(m, new))


def _grown(m: Array, new: Array, little: Array) -> Array:
    """What takes weights relative to the new maximum to the old one, where little is grown."""
    return np.where(little, np.exp(np.where(little, new - safe(m), 0)), 1)


LAZY: dict[str, Lazy] = {
    "all so far is left, and the new maximum kept": lambda x, m, z, o, n, a, b, s: (
        n, z * _left(m, n, s) + a, o * _left(m, n, s)[..., None] + b),
    "the output so far is left, and the new maximum kept": lambda x, m, z, o, n, a, b, s: (
        n, z * _d(m, n) + a, o * _left(m, n, s)[..., None] + b),
    "the row sum so far is left, and the new maximum kept": lambda x, m, z, o, n, a, b, s: (
        n, z * _left(m, n, s) + a, o * _d(m, n)[..., None] + b),
    "the old maximum is kept, the new weights go by the new one": lambda x, m, z, o, n, a, b, s: (
        np.where(s, m, n), z * _left(m, n, s) + a, o * _left(m, n, s)[..., None] + b),
    "the old maximum is kept, and all so far is rescaled all the same": lambda x, m, z, o, n, a, b, s: (
        np.where(s, m, n), z * _d(m, n) + a, o * _d(m, n)[..., None] + b),
    "the old maximum is kept, the new weights go by the new one in the sum alone":
        lambda x, m, z, o, n, a, b, s: (
            np.where(s, m, n), z * _left(m, n, s) + a,
            o * _left(m, n, s)[..., None] + b * _grown(m, n, s)[..., None]),
    "the old maximum is kept, the new weights go by the new one in the output alone":
        lambda x, m, z, o, n, a, b, s: (
            np.where(s, m, n), z * _left(m, n, s) + a * _grown(m, n, s), o * _left(m, n, s)[..., None] + b),
    "the new tile is left out": lambda x, m, z, o, n, a, b, s: (
        np.where(s, m, n), z * _left(m, n, s) + np.where(s, 0, a),
        o * _left(m, n, s)[..., None] + np.where(s[..., None], 0, b)),
}  # fmt: skip
LITTLE = {"1": 1.0, "2": 2.0, "4": 4.0, "8": 8.0, "4 in base 2": 4 * LN2, "8 in base 2": 8 * LN2}
LOOPS = loops(*PLAIN[1:], *(loop for loop in SPLIT if not loop.backwards))


def _several(case: Case, how: Any) -> bool:
    return bool(-(-case.Lk // how.loop.tile) > how.loop.splits)


class Lazily(Tiled):
    """Rows whose maximum grows by less than so much are treated apart."""

    how: Lazy
    by = 8.0
    more = False

    def little(self, old: Array, new: Array) -> Array:
        begun = ~np.isneginf(old)
        with np.errstate(invalid="ignore"):
            grown = np.where(begun, new - old, np.inf)
        return begun & ((grown >= self.by) if self.more else (grown < self.by) & (grown > 0))

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return self.how(self, *state, m, total, product, self.little(state[0], m))


@kind(_several, how=LAZY, by=LITTLE, loop=LOOPS)
class lazy_rescaling(Lazily):
    """From tile to tile of {loop}, where the maximum grows by less than {by}, {how}."""


@kind(_several, how={how: LAZY[how] for how in list(LAZY)[:3]}, by=LITTLE, loop=loops(*PLAIN[1:]))
class lazy_rescaling_inverted(Lazily):
    """From tile to tile of {loop}, where the maximum grows by {by} or more, {how}."""

    more = True


@kind(_several, by={"3": 3.0, "5": 5.0, "8": 8.0, "10": 10.0, "16": 16.0, "20": 20.0, "8 in base 2": 8 * LN2},
      loop=loops(*PLAIN[1:]),
      what={"left out": "zo", "left out of the output": "o", "left out of the sum": "z"})  # fmt: skip
class low_tile_skipped(Tiled):
    """From tile to tile of {loop}, one whose maximum is {by} or more below that of those before is {what}."""

    by, what = 8.0, "zo"

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        with np.errstate(invalid="ignore"):
            low = ~np.isneginf(state[0]) & (state[0] - self.own >= self.by)
        total = np.where(low, 0, total) if "z" in self.what else total
        product = np.where(low[..., None], 0, product) if "o" in self.what else product
        return super().next(state, m, shrink, total, product)


class Kept(Lazily):
    """Where the maximum grows by little, all stays relative to the old one."""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = state
        top = np.maximum(m, t[..., keys].max(-1, initial=-np.inf))
        new = np.where(self.little(m, top), m, top)
        total, product = self.part(t, keys, new)
        shrink = np.exp(m - safe(new))
        return new, z * shrink + total, o * shrink[..., None] + product


@kind(_several, by=LITTLE, loop=LOOPS)
class lazy_maximum_in_lse(Kept):
    """Where the maximum grows by less than {by} from tile to tile of {loop}, the sums stay; lse has the new maximum."""

    def log(self, m: Array, z: Array) -> Array:
        return super().log(np.where(z == 0, m, np.maximum(m, self.t.max(-1, initial=-np.inf))), z)


ROW: dict[str, Callable[[Array], Array]] = {
    "of the first of them": lambda x: x[..., 0], "of the last of them": lambda x: x[..., -1],
    "of all of them": lambda x: np.asarray(x.all(-1)),
}


@kind(
    lambda case, how: _several(case, how) and case.Lq * (case.group if how.rows[1] else 1) > 1,
    same=("rows", lambda case, how: SAME[1](case, how)), row=ROW,
    rows={words: rows for words, rows in ROWS.items() if rows[0] > 1}, loop=loops(*PLAIN[1:5]),
)  # fmt: skip
class rescaled_by_row(Lazily):
    """From tile to tile of {loop}, what is so far of {rows} rows is rescaled only where the maximum {row} grew."""

    row: Callable[[Array], Array]

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        grown = (m > state[0]) | np.isneginf(m)
        some = self.of_tile(grown, type(self).row) | np.isneginf(state[0])
        return super(Lazily, self).next(state, m, np.where(some, shrink, 1), total, product)
