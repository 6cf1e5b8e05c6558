"""Hypotheses on the state that goes from tile to tile: maximum, sum and output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import always, kind
from ..model import LOG2E, Array, Model, safe
from .bounds import Bounds, hides

__all__: list[str] = []

State = tuple[Array, Array, Array]
SIZES = (4, 8, 16, 32, 48, 64, 128, 256)


@dataclass(frozen=True)
class Loop:
    """How a kernel goes over the keys: in tiles, from the first or the last, in splits, and which ones it visits.

    rows      0: every tile; otherwise those that a tile of so many rows sees by the mask, from its first to its last,
              rows of a group's heads `packed` into one tile or not
    """

    tile: int
    backwards: bool = False
    splits: int = 1
    rows: int = 0
    packed: bool = False

    def __str__(self) -> str:
        words = f"{self.tile} keys" + ", the last one first" * self.backwards
        words += f", in {self.splits} splits" * (self.splits > 1)
        together = ", packed from a group's heads" * self.packed
        return words + (f", of those that {self.rows} rows{together}, see" if self.rows else "")


def loops(*loops: Loop) -> dict[str, Loop]:
    return {str(loop): loop for loop in loops}


TILES = (16, 32, 64, 128)
PLAIN = [Loop(n) for n in SIZES] + [Loop(n, True) for n in TILES]
SPLIT = [Loop(n, back, s) for n in TILES for back in (False, True) for s in (2, 4, 8)]
LOOPS = loops(*PLAIN, *SPLIT)
VISITS = loops(*PLAIN, *SPLIT, *(
    Loop(n, back, s, rows, packed) for n in TILES for back in (False, True) for s in (1, 4)
    for rows, packed in ((1, False), (16, False), (64, False), (64, True), (128, False), (128, True))
))  # fmt: skip


class Tiled(Bounds):
    """The softmax tile by tile."""

    tile = 64
    backwards = False
    loop: Loop | None = None

    def start(self, t: Array) -> State:
        rows = t.shape[:3]
        return np.full(rows, -np.inf, t.dtype), np.zeros(rows, t.dtype), np.zeros((*rows, self.v.shape[3]), t.dtype)

    def part(self, t: Array, keys: slice, m: Array) -> tuple[Array, Array]:
        """Sum and product of a tile, relative to m."""
        p = self.exp(t[..., keys] - safe(m)[..., None])
        return p.sum(-1), self.weighed(p, keys)

    def exp(self, x: Array) -> Array:
        """exp, which underflows and overflows as in the accumulators."""
        if self.given.dtype == "float64":
            return np.exp(x)
        return np.where(np.abs(x) < 80, np.exp(x), np.exp(x.astype(np.float32)))

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = state
        self.own = t[..., keys].max(-1, initial=-np.inf)
        new = np.maximum(m, self.own)
        total, product = self.part(t, keys, new)
        shrink = np.exp(m - safe(new))
        return self.next(state, new, shrink, total, product)

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return m, state[1] * shrink + total, state[2] * shrink[..., None] + product

    def attend(self, t: Array) -> State:
        loop = self.loop or Loop(self.tile, self.backwards)
        order = [slice(j, min(j + loop.tile, self.case.Lk)) for j in range(0, self.case.Lk, loop.tile)]
        tiles = list(enumerate(order))[:: -1 if loop.backwards else 1]
        turn = self.turns(loop, len(order)) if loop.splits > 1 or loop.rows else None
        state = self.start(t)
        for split in range(loop.splits):
            part = self.start(t)
            for self.at, (n, keys) in enumerate(tiles):
                if turn is None:
                    part = self.step(part, t, keys)
                elif (on := turn[..., n] == split).any():
                    new = self.step(part, t, keys)
                    part = tuple(np.where(on if x.ndim == 3 else on[..., None], x, y)
                                 for x, y in zip(new, part, strict=True))  # type: ignore[assignment]  # fmt: skip
            m = np.maximum(state[0], part[0])
            a, b = np.exp(state[0] - safe(m)), np.exp(part[0] - safe(m))
            state = m, state[1] * a + part[1] * b, state[2] * a[..., None] + part[2] * b[..., None]
        return state

    def turns(self, loop: Loop, tiles: int) -> Array:
        """(B, H, Lq, tiles): the split in which a tile falls for a row; -1 if it is not visited."""
        shape = self.seen.shape[:3]
        n = np.broadcast_to(np.array(self.case.lengths[1])[:, None, None], shape)
        first, last = np.zeros(shape, int), n
        self.rows, self.keys = (max(loop.rows, 1), loop.packed), loop.tile
        if loop.rows and hides(self.case):
            first, last = self.ends(np.asarray(self.case.visibility.tile()))
            first, last = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
        low, high = first // loop.tile, -(-last // loop.tile)
        each = np.maximum(-(-(high - low) // loop.splits), 1)[..., None]
        at = np.arange(tiles)
        place = high[..., None] - 1 - at if loop.backwards else at - low[..., None]
        return np.where((place >= 0) & (place < (high - low)[..., None]), place // each, -1)


def _many(case: Case, how: Any) -> bool:
    return bool(case.Lk > how.tile)


def _several(case: Case, how: Any) -> bool:
    loop = how.loop
    return bool(-(-case.Lk // loop.tile) > loop.splits)


def _visited(case: Case, how: Any) -> bool:
    rows = how.loop.rows
    return case.Lk > 0 and (rows == 0 or hides(case)) and (case.mask is not None or case.bias is not None)


Next = Callable[[Any, Array, Array, Array, Array, Array, Array], State]
"""(model, m, l, o, new m, total, product) -> state"""
STEPS: dict[str, Next] = {
    "the output so far is not rescaled": lambda x, m, z, o, n, a, b: (n, z * _d(m, n) + a, o + b),
    "the row sum so far is not rescaled": lambda x, m, z, o, n, a, b: (n, z + a, o * _d(m, n)[..., None] + b),
    "nothing is rescaled": lambda x, m, z, o, n, a, b: (n, z + a, o + b),
    "the output so far is rescaled twice":
        lambda x, m, z, o, n, a, b: (n, z * _d(m, n) + a, o * _d(m, n)[..., None] ** 2 + b),
    "the row sum so far is rescaled twice":
        lambda x, m, z, o, n, a, b: (n, z * _d(m, n) ** 2 + a, o * _d(m, n)[..., None] + b),
    "all so far is rescaled the wrong way, by exp(m_new - m_old)": lambda x, m, z, o, n, a, b: (
        n, z * _back(m, n) + a, o * _back(m, n)[..., None] + b),
    "the output so far is rescaled the wrong way": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a, o * _back(m, n)[..., None] + b),
    "the new tile is rescaled too":
        lambda x, m, z, o, n, a, b: (n, (z + a) * _first(m, n), (o + b) * _first(m, n)[..., None]),
    "the product of the new tile is rescaled too": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a, (o + b) * _first(m, n)[..., None]),
    "rescaling is by powers of 2, of natural maxima": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) ** np.log(2) + a, o * _d(m, n)[..., None] ** np.log(2) + b),
    "the output so far is rescaled by powers of 2, of natural maxima": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a, o * _d(m, n)[..., None] ** np.log(2) + b),
    "the row sum so far is rescaled by powers of 2, of natural maxima": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) ** np.log(2) + a, o * _d(m, n)[..., None] + b),
    "rescaling is by powers of e, of maxima in base 2": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) ** LOG2E + a, o * _d(m, n)[..., None] ** LOG2E + b),
    "the output so far is rescaled by powers of e, of maxima in base 2": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a, o * _d(m, n)[..., None] ** LOG2E + b),
    "the row sum so far is rescaled by powers of e, of maxima in base 2": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) ** LOG2E + a, o * _d(m, n)[..., None] + b),
    "the row sum is that of the last tile": lambda x, m, z, o, n, a, b: (n, a, o * _d(m, n)[..., None] + b),
    "the output is that of the last tile": lambda x, m, z, o, n, a, b: (n, z * _d(m, n) + a, b),
    "all is that of the last tile": lambda x, m, z, o, n, a, b: (n, a, b),
    "the row sum so far is rescaled the wrong way": lambda x, m, z, o, n, a, b: (
        n, z * _back(m, n) + a, o * _d(m, n)[..., None] + b),
    "all so far is rescaled twice":
        lambda x, m, z, o, n, a, b: (n, z * _d(m, n) ** 2 + a, o * _d(m, n)[..., None] ** 2 + b),
    "the new weights are relative to the maximum before": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a * _back(m, n), o * _d(m, n)[..., None] + b * _back(m, n)[..., None]),
    "the new weights are relative to the maximum of their tile": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a * _back(x.own, n), o * _d(m, n)[..., None] + b * _back(x.own, n)[..., None]),
    "the new weights are relative to the maximum of their tile in the sum alone": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a * _back(x.own, n), o * _d(m, n)[..., None] + b),
    "the new weights are relative to the maximum of their tile in the output alone": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a, o * _d(m, n)[..., None] + b * _back(x.own, n)[..., None]),
    "the maximum becomes that of the tile alone, and nothing is rescaled where it falls": lambda x, m, z, o, n, a, b: (
        x.own, z * np.minimum(_d(m, x.own), 1) + a * _back(x.own, n),
        o * np.minimum(_d(m, x.own), 1)[..., None] + b * _back(x.own, n)[..., None]),
    "the maximum becomes that of the tile alone, and nothing is rescaled": lambda x, m, z, o, n, a, b: (
        x.own, z + a * _back(x.own, n), o + b * _back(x.own, n)[..., None]),
    "the maximum becomes that of the tile alone, and what was before is rescaled as if it grew":
        lambda x, m, z, o, n, a, b: (x.own, z * _d(m, n) + a * _back(x.own, n),
                                     o * _d(m, n)[..., None] + b * _back(x.own, n)[..., None]),
    "the row sum counts keys": lambda x, m, z, o, n, a, b: (n, z * _d(m, n) + (a > 0), o * _d(m, n)[..., None] + b),
    "the output of a tile is added twice": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + a, o * _d(m, n)[..., None] + 2 * b),
    "the sum of a tile is added twice": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + 2 * a, o * _d(m, n)[..., None] + b),
}  # fmt: skip
EMPTY: dict[str, Next] = {
    "the maximum is 0, and stays, after a tile in which a row sees nothing":
        lambda x, m, z, o, n, a, b: (safe(n), z * _d(m, n) + a, o * _d(m, n)[..., None] + b),
    "a tile in which a row sees nothing makes NaN": lambda x, m, z, o, n, a, b: (
        n, _or_nan(n, z * _d(m, n) + a), _or_nan(n, o * _d(m, n)[..., None] + b)),
    "a tile in which a row sees nothing forgets those before it": lambda x, m, z, o, n, a, b: (
        np.where(a > 0, n, -np.inf), np.where(a > 0, z * _d(m, n) + a, 0),
        np.where((a > 0)[..., None], o * _d(m, n)[..., None] + b, 0)),
    "rows stop at the first tile in which they see nothing": lambda x, m, z, o, n, a, b: (
        n, z * _d(m, n) + np.where((z > 0) | (m == -np.inf), a, 0), o * _d(m, n)[..., None] + b),
}  # fmt: skip


def _d(m: Array, new: Array) -> Array:
    return np.asarray(np.exp(m - safe(new)))


def _back(m: Array, new: Array) -> Array:
    return np.where(np.isneginf(m), 0, np.exp(safe(new) - safe(m)))


def _first(m: Array, new: Array) -> Array:
    """The factor, and 1 at the first tile."""
    return np.where(np.isneginf(m), 1, _d(m, new))


def _or_nan(m: Array, x: Array) -> Array:
    none = np.isneginf(m)
    return np.where(none[..., None] if x.ndim > m.ndim else none, np.nan, x)


class Steps(Tiled):
    how: Next

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return self.how(self, *state, m, total, product)


@kind(_several, how=STEPS, loop=LOOPS)
class online(Steps):
    """From tile to tile, {loop}, {how} when the maximum grows."""


@kind(_visited, how=EMPTY, loop=VISITS)
class online_empty(Steps):
    """From tile to tile, {loop}, {how}."""


ONCE: dict[str, Callable[[int, int], bool]] = {
    "at the last tile alone": lambda at, n: at == n - 1,
    "at the second tile alone": lambda at, n: at == 1,
    "at every other tile": lambda at, n: at % 2 == 1,
    "at every tile but the last": lambda at, n: at < n - 1,
    "from the third tile on": lambda at, n: at > 1,
}
MOST = ("the output so far is not rescaled", "the row sum so far is not rescaled", "nothing is rescaled",
        "the output so far is rescaled twice", "all so far is rescaled twice",
        "the output of a tile is added twice", "the sum of a tile is added twice")  # fmt: skip


@kind(_several, how={how: STEPS[how] for how in MOST}, once=ONCE, loop=loops(*PLAIN[2:]))
class online_once(Steps):
    """From tile to tile, {loop}, {how} {once}."""

    once: Callable[[int, int], bool]

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        tiles = -(-self.case.Lk // (self.loop or Loop(self.tile)).tile)
        if type(self).once(self.at, tiles):
            return super().next(state, m, shrink, total, product)
        return Tiled.next(self, state, m, shrink, total, product)


@kind(_many, tile=SIZES)
class maximum_of_last_tile(Tiled):
    """The maximum is that of the last tile of {tile} keys, and not of all so far."""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = state
        new = t[..., keys].max(-1, initial=-np.inf)
        total, product = self.part(t, keys, new)
        shrink = np.where(np.isneginf(m), 0, np.exp(safe(m) - safe(new)))
        return new, z * shrink + total, o * shrink[..., None] + product


@kind(_many, tile=SIZES)
class maximum_of_first_tile(Tiled):
    """The maximum of the first tile of {tile} keys is kept for all: exp overflows where later ones are larger."""

    def attend(self, t: Array) -> State:
        with np.errstate(all="ignore"):
            m = t[..., : self.tile].max(-1, initial=-np.inf).astype(np.float32)
            p = np.exp((t - safe(m)[..., None]).astype(np.float32)).astype(t.dtype)
            return m.astype(t.dtype), p.sum(-1), self.weighed(p)


@kind(
    always,
    value={"0": 0.0, "-1e4": -1e4, "-1e5": -1e5, "-1e9": -1e9, "-1e30": -1e30, "-65504": -65504.0, "-100": -100.0,
        "-10": -10.0,
           "-1": -1.0, "-1e3": -1e3, "-1e2": -1e2, "-1e6": -1e6, "the smallest positive float32": 1.17549435e-38},
)  # fmt: skip
class maximum_starts_at(Model):
    """The running maximum starts at {value}, so that exp underflows where all logits are far below."""

    value = 0.0

    def attend(self, t: Array) -> State:
        m = np.maximum(t.max(-1, initial=-np.inf), self.value)
        p = np.exp((t - m[..., None]).astype(np.float32)).astype(t.dtype)
        return m, p.sum(-1), self.weighed(p)


@kind(always)
class maximum_not_subtracted(Model):
    """exp is taken of the logits as they are: it overflows."""

    def attend(self, t: Array) -> State:
        p = np.exp(t.astype(np.float32)).astype(t.dtype)
        return np.where(self.seen.any(-1), 0.0, -np.inf), p.sum(-1), self.weighed(p)


@kind(always, at=(10.0, 20.0, 30.0, 50.0, 60.0, 80.0, 88.0, 100.0))
class logits_clipped(Model):
    """Logits are clipped at +-{at}."""

    at = 50.0

    def logits(self, s: Array) -> Array:
        t = super().logits(s)
        return np.where(np.isfinite(t), np.clip(t, -self.at, self.at), t)


@kind(always)
class maximum_of_magnitudes(Model):
    """The maximum is that of the absolute values of logits."""

    def attend(self, t: Array) -> State:
        m = np.where(np.isfinite(t), np.abs(t), -np.inf).max(-1, initial=-np.inf)
        p = np.exp((t - safe(m)[..., None]).astype(np.float32)).astype(t.dtype)
        return m, p.sum(-1), self.weighed(p)


class Base(Model):
    """exp(r x) for exp(x), wherever it is."""

    def ratio(self) -> float:
        raise NotImplementedError

    def hide(self, t: Array) -> Array:
        return super().hide(t) * self.dtype(self.ratio())

    def sink(self, sinks: Array) -> Array | None:
        return (sinks * self.dtype(self.ratio()))[:, None]

    def log(self, m: Array, z: Array) -> Array:
        return super().log(m / self.dtype(self.ratio()), z)


@kind(always, base={"2: log2(e) is forgotten": 2.0, "10": 10.0,
    "e**log2(e): log2(e) is applied twice": float(np.exp(LOG2E))})
class base_of_exp(Base):
    """The base of the exponential is {base}."""

    base = 2.0

    def ratio(self) -> float:
        return float(np.log(self.base))


@kind(lambda case: case.B * case.H > 1, over={"head to head": 1, "entry to entry": 0, "head to head, and entry": 2})
class state_not_reset(Model):
    """The state of the online softmax, all of it, is not reset: it goes on from {over}."""

    over = 1

    def attend(self, t: Array) -> State:
        m, z, o = (np.array(x) for x in super().attend(t))
        B, H = m.shape[:2]
        for b, h in np.ndindex(B, H):
            before = {0: (b - 1, h), 1: (b, h - 1), 2: divmod(b * H + h - 1, H)}[self.over]
            if min(before) < 0:
                continue
            top = np.maximum(m[before], m[b, h])
            old, own = np.exp(m[before] - safe(top)), np.exp(m[b, h] - safe(top))
            z[b, h] = z[b, h] * own + z[before] * old
            o[b, h] = o[b, h] * own[:, None] + o[before] * old[:, None]
            m[b, h] = top
        return m, z, o


@kind(
    lambda case: case.B * case.H > 1, over={"head to head": 1, "entry to entry": 0},
    what={"The row sum": "z", "The output": "o", "The row sum and the output": "zo"},
)  # fmt: skip
class sums_not_reset(Model):
    """{what} of the online softmax is not reset: what was there is added, as it is, from {over}."""

    what, over = "z", 1

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        z = np.cumsum(z, self.over) if "z" in self.what else z
        return m, z, np.cumsum(o, self.over) if "o" in self.what else o
