"""Hypotheses on the state that goes from tile to tile: how sum and output are rescaled, and not reset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...case import Case
from ...memory import take
from ..hypothesis import kind
from ..model import LOG2E, Array, safe
from .bounds import geometric, hides
from .loops import LOOPS, PLAIN, VISITS, Loop, State, Tiled, loops

__all__: list[str] = []


def _several(case: Case, how: Any) -> bool:
    loop = how.loop
    return bool(-(-case.Lk // loop.tile) > loop.splits)


@lru_cache(maxsize=256)
def _seen(case: Case) -> Array:
    """What is seen; all by rows that do not exist."""
    there = np.arange(case.Lq) < np.array(case.lengths[0])[:, None]
    return np.asarray(case.visibility.tile()) | ~there[:, None, :, None]


@lru_cache(maxsize=4096)
def _unseen(case: Case, tile: int) -> bool:
    """Whether some row sees nothing in some tile; of a bias that is not known."""
    seen = _seen(case)
    return case.bias is not None or not all(seen[..., j : j + tile].any(-1).all() for j in range(0, case.Lk, tile))


def _visited(case: Case, how: Any) -> bool:
    return case.Lk > 0 and (case.mask is not None or case.bias is not None) and _unseen(case, how.loop.tile)


def _goes_over(known: Callable[[Case], bool]) -> Any:
    """What a loop comes to: all tiles are gone over where no mask that is known bounds them."""
    return "loop", lambda case, how: how.loop if known(case) else replace(how.loop, rows=0, packed=False)


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


@kind(_several, how={how: step for how, step in STEPS.items() if "rescale" in how and "becomes" not in how}, loop=LOOPS)
class online(Steps):
    """From tile to tile of {loop}, {how} when the maximum grows."""


@kind(_several, how={how: step for how, step in STEPS.items() if "rescale" not in how or "becomes" in how}, loop=LOOPS)
class online_sums(Steps):
    """From tile to tile of {loop}, {how}."""


@kind(_visited, same=_goes_over(hides), how=EMPTY, loop=VISITS)
class online_empty(Steps):
    """From tile to tile of {loop}, {how}."""


@kind(_visited, same=_goes_over(hides), loop=VISITS, end={"-inf": False, "NaN": True})
class maximum_of_last_tile(Steps):
    """From tile to tile of {loop}, the maximum becomes that of the tile: {end} where a row sees nothing in the last."""

    end = False

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        own, back = self.own, _back(self.own, m)
        keep = _d(state[0], own)
        return own, state[1] * keep + total * back, state[2] * keep[..., None] + product * back[..., None]

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        lost = np.isneginf(m) & (z > 0) & type(self).end
        return m, np.where(lost, np.nan, z), np.where(lost[..., None], np.nan, o)


@kind(_visited, same=_goes_over(geometric), loop=VISITS)
class online_empty_nan_spreads(Steps):
    """From tile to tile of {loop}, one in which a row sees nothing makes NaN, which its lse takes to keys not seen."""

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return EMPTY["a tile in which a row sees nothing makes NaN"](self, *state, m, total, product)

    def turns(self, loop: Loop, tiles: int) -> Array:
        return super().turns(loop if geometric(self.case) else replace(loop, rows=0), tiles)

    def again(self) -> Array:
        loop, bad = self.loop or Loop(self.tile), np.isnan(self.l)[..., None]
        over = np.repeat(self.turns(loop, -(-self.case.Lk // loop.tile)) >= 0, loop.tile, -1)[..., : self.case.Lk]
        self.seen = self.seen | (bad & over)
        return np.where(bad & over, np.nan, super().again())


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


@kind(_several, how={how: STEPS[how] for how in MOST}, once=ONCE, loop=loops(*PLAIN[1:]))
class online_once(Steps):
    """From tile to tile of {loop}, {how} {once}."""

    once: Callable[[int, int], bool]

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        tiles = -(-self.case.Lk // (self.loop or Loop(self.tile)).tile)
        if type(self).once(self.at, tiles):
            return super().next(state, m, shrink, total, product)
        return Tiled.next(self, state, m, shrink, total, product)


def _descale(x: Any) -> Array:
    """The scale of the codes of values, of each head."""
    scale = take(x.given, x.inputs.handed())["v_scale"].astype(np.float64)
    return np.asarray(np.broadcast_to(scale, (*scale.shape[:1], x.given.Hkv, 1, 1))[:, x.v_heads()])


FACTORS: dict[str, tuple[Callable[[Case], bool], Callable[[Any], Any]]] = {
    "the scale of the codes of values": (
        lambda c: c.quant is not None and c.quant.granularity != "block" and "v" in c.quant.of, _descale),
    "dropout's 1 / (1 - p)": (lambda c: bool(c.dropout), lambda x: x.undropped()),
}


@kind(lambda case, how: how.of[0](case) and _several(case, how), of=FACTORS, loop=LOOPS)
class factor_each_tile(Tiled):
    """From tile to tile of {loop}, the output so far is multiplied by {of}, and not once at the end."""

    of = FACTORS["dropout's 1 / (1 - p)"]

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        return super().next((state[0], state[1], state[2] * self.of[1](self)), m, shrink, total, product)
