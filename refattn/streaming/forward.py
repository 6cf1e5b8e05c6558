"""The forward of one head: for each tile of rows, the key tiles go by and update the state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from .. import online
from ..online import State
from .arguments import Arguments, stretched
from .rules import Logits, Rules, Schedule

__all__ = ["Head", "Rows", "Tile", "forward", "key_tiles", "tiles"]

Array = np.ndarray[Any, Any]


class Tile(NamedTuple):
    """Scores of some rows and keys; visible and kept are None where all is."""

    logits: Logits
    visible: Array | None
    kept: Array | None


class Head:
    """One (b, h) of the arguments, in the accumulators' dtype."""

    def __init__(self, x: Arguments, rules: Rules, b: int, h: int) -> None:
        self.x, self.rules, self.b, self.h = x, rules, b, h
        self.key_head = rules.key_head(h, x.H, x.Hkv)
        self.q, self.k, self.v = x.head(x.q, b, h), x.head(x.k, b, self.key_head), x.head(x.v, b, self.key_head)
        self.scale = rules.default_scale(x.D) if x.scale is None else x.scale
        self.sink = None if x.sinks is None else rules.sink(x.sinks, h)

    def logits(self, rows: slice, keys: slice) -> Tile | None:
        """A tile; None if all of it is hidden."""
        x, b, h = self.x, self.b, self.h
        visible, bias = x.tile(b, h, rows, keys)
        if visible is not None and not visible.any():
            return None
        s = self.rules.products(self.q[rows], self.k[keys], self.scale)
        t = self.rules.logits(s, x.softcap, bias, visible, self._modifier(rows, keys))
        if t.before is not None:  # score_mod may hide with -inf
            gone = np.isneginf(t.t) & np.isfinite(t.before)
            visible = ~gone if visible is None else visible & ~gone
        return Tile(t, visible, x.kept(b, h, rows, keys))

    def unhidden(self, rows: slice, keys: slice) -> tuple[Array, Array]:
        """The scores of a tile, and the same after softcap and score_mod."""
        s = self.rules.products(self.q[rows], self.k[keys], self.scale)
        return s, self.rules.logits(np.array(s), self.x.softcap, None, None, self._modifier(rows, keys)).t

    def _modifier(self, rows: slice, keys: slice) -> Any:
        return None if self.x.score_mod is None else partial(self._modify, self._place(rows, keys))

    def _place(self, rows: slice, keys: slice) -> tuple[Any, ...]:
        return self.rules.place(*self.x.place(self.b, self.h, rows, keys))

    def _modify(self, place: tuple[Any, ...], s: Array) -> Array:
        modified = np.asarray(self.x.score_mod(s, *place))
        return np.array(stretched(modified, "score_mod", s.shape, "(rows, keys)"), s.dtype)

    def slope_of_mod(self, before: Array, rows: slice, keys: slice) -> Array:
        slope = np.asarray(self.x.score_mod.slope(before, *self._place(rows, keys)), before.dtype)
        return stretched(slope, "score_mod.slope", before.shape, "(rows, keys)")


@dataclass
class Rows:
    """The answer for the rows of a head, and what the backward needs: p = exp(t - shift) * factor."""

    out: Array
    lse: Array
    shift: Array
    factor: Array
    seen: Array
    """whether the row sees any key"""


def tiles(n: int, size: int) -> list[slice]:
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def key_tiles(n: int, schedule: Schedule, size: int = 0) -> list[slice]:
    """The key tiles, of `size` or else the schedule's, in its order."""
    every = tiles(n, size or schedule.tile_k)
    if schedule.order == "reverse":
        every.reverse()
    elif schedule.order == "random":
        every = [every[i] for i in np.random.default_rng(schedule.seed).permutation(len(every))]
    return every


def forward(head: Head) -> Rows:
    """Every row of the head, unrounded: the caller stores."""
    rules, x = head.rules, head.x
    lse, shift, factor = np.zeros((3, x.Lq), x.dtype)
    done = Rows(np.zeros((x.Lq, x.Dv), x.dtype), lse, shift, factor, np.zeros(x.Lq, bool))
    for rows in tiles(x.Lq, rules.schedule.tile_q):
        state, seen = _go_over_keys(head, rows)
        if head.sink is not None:
            state = online.join_sink(state, head.sink, rules.exp)
        # every visible score is -inf: only an input that is not finite, or an overflow, does that
        state.l[seen & np.isneginf(state.m)] = np.nan
        out, done.lse[rows] = rules.finish(state)
        done.out[rows] = _weigh_again(head, rows, state) if rules.precision.weights_normalised else out
        if x.dropout is not None:
            done.out[rows] *= rules.undropped(x.dropout)
        done.seen[rows] = seen
        if x.dtype == np.float64:  # exact where scores are huge: there lse has no digits left for log l
            done.shift[rows] = online.shift_of(state.m)
            done.factor[rows] = 1 / np.where(state.l == 0, 1, state.l)
        else:
            done.shift[rows], done.factor[rows] = online.shift_of(done.lse[rows]), 1
    return done


def _go_over_keys(head: Head, rows: slice) -> tuple[State, Array]:
    rules, x = head.rules, head.x
    n = rows.stop - rows.start
    normalised = rules.precision.weights_normalised
    seen = np.zeros(n, bool)
    states = []
    for part in _parts(key_tiles(x.Lk, rules.schedule), rules.schedule.splits):
        state = rules.start(n, 0 if normalised else x.Dv)
        for keys in part:
            tile = head.logits(rows, keys)
            if tile is not None:
                (t, *_), visible, kept = tile
                seen |= True if visible is None else visible.any(1)
                state = rules.update(state, t, head.v[keys, :0] if normalised else head.v[keys], visible, kept)
        states.append(state)
    return reduce(rules.merge, states), seen


def _parts(every: list[slice], splits: int) -> Iterator[list[slice]]:
    for i in range(splits):
        yield every[i * len(every) // splits : (i + 1) * len(every) // splits]


def _weigh_again(head: Head, rows: slice, state: State) -> Array:
    """The eager way: weights are normalised, then rounded, then meet the values."""
    rules, x = head.rules, head.x
    out = np.zeros((rows.stop - rows.start, x.Dv), x.dtype)
    shift = online.shift_of(state.m)[:, None]
    total = np.where(state.l == 0, 1, state.l)[:, None].astype(x.dtype)
    for keys in key_tiles(x.Lk, rules.schedule):
        tile = head.logits(rows, keys)
        if tile is not None:
            (t, *_), visible, kept = tile
            p = rules.exp(t, shift) / total
            if visible is not None:
                p = np.where(visible, p, 0)
            rounded = rules.round(p, rules.precision.weights)
            out += rules.selected(rules.drop(rounded, kept), head.v[keys], visible)
    return out
