"""Hypotheses on ends: the last, partial tile of keys, and keys or tiles that are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model, safe
from .online import SIZES, State, Tiled, _many

__all__: list[str] = []

def _tail(case: Case, how: Any) -> bool:
    return bool(case.Lk % how.tile)


class Tail(Tiled):
    """Only what becomes of the last, partial tile differs."""

    def attend(self, t: Array) -> State:
        n = self.case.Lk // self.tile * self.tile
        m = t.max(-1, initial=-np.inf)
        return self.with_tail(m, t, slice(0, n), slice(n, None))

    def with_tail(self, m: Array, t: Array, whole: slice, tail: slice) -> State:
        raise NotImplementedError

    def both(self, m: Array, t: Array, whole: slice, tail: slice, times: tuple[float, float]) -> State:
        (a, x), (b, y) = self.part(t, whole, m), self.part(t, tail, m)
        return m, a + times[0] * b, x + times[1] * y


@kind(
    _tail, tile=SIZES,
    what={"are left out": (0.0, 0.0), "are counted twice": (2.0, 2.0), "are left out of the sum": (0.0, 1.0),
          "are left out of the output": (1.0, 0.0)},
)  # fmt: skip
class tail(Tail):
    """Keys past the last whole tile of {tile} {what}."""

    what = (1.0, 1.0)

    def with_tail(self, m: Array, t: Array, whole: slice, tail: slice) -> State:
        if self.what == (0.0, 0.0):
            m = t[..., whole].max(-1, initial=-np.inf)
            return (m, *self.part(t, whole, m))
        return self.both(m, t, whole, tail, self.what)


@kind(_tail, tile=SIZES, score={"0": 0.0}, where={"rows that see some key of the tile": 1, "all rows": 0})
class tail_filled(Tail):
    """The last tile of {tile} is filled up with keys of score {score} and value 0, which count in {where}."""

    score, where = 0.0, 0

    def with_tail(self, m: Array, t: Array, whole: slice, tail: slice) -> State:
        extra = -self.case.Lk % self.tile
        counts = np.ones_like(m, bool) if not self.where else self.seen[..., tail].any(-1)
        m = np.where(counts, np.maximum(m, self.score), m)
        _, total, product = self.both(m, t, whole, tail, (1.0, 1.0))
        return m, total + np.where(counts, extra * np.exp(self.score - safe(m)), 0), product


@kind(_tail, tile=SIZES)
class tail_repeats_last_key(Tail):
    """The last tile of {tile} is filled up with the last key, which counts so many times more."""

    def with_tail(self, m: Array, t: Array, whole: slice, tail: slice) -> State:
        p = np.exp(t - safe(m)[..., None])
        p[..., -1] *= 1 + -self.case.Lk % self.tile
        return m, p.sum(-1), self.weighed(p)


@kind(_tail, tile=SIZES)
class tail_filled_in_sum(Tail):
    """The last tile of {tile} is filled up with scores of 0, which count in the sum and not in the maximum."""

    def with_tail(self, m: Array, t: Array, whole: slice, tail: slice) -> State:
        extra = -self.case.Lk % self.tile
        _, total, product = self.both(m, t, whole, tail, (1.0, 1.0))
        return m, total + extra * np.exp(-safe(m)), product


@kind(lambda case, how: case.Lk > how.tile and case.Lk % how.tile != 0, tile=SIZES)
class tail_begins_early(Tail):
    """The last tile of {tile} keys begins early, to be whole: keys of the tile before count twice."""

    def with_tail(self, m: Array, t: Array, whole: slice, tail: slice) -> State:
        p = np.exp(t - safe(m)[..., None])
        p[..., self.case.Lk - self.tile : self.case.Lk // self.tile * self.tile] *= 2
        return m, p.sum(-1), self.weighed(p)


@kind(
    lambda case: case.Lk > 1,
    what={
        "the last key is left out": lambda n: slice(0, n - 1),
        "the first key is left out": lambda n: slice(1, n),
        "the first half of the keys alone is seen": lambda n: slice(0, n // 2),
        "every other key is left out": lambda n: slice(0, n, 2),
        "the first key alone is seen": lambda n: slice(0, 1),
        "the last key alone is seen": lambda n: slice(n - 1, n),
    },
)
class keys_gone_over(Model):
    """Of all keys of an entry, {what}."""

    what: Callable[[int], slice]

    def visible(self) -> Array:
        seen = super().visible()
        held = np.zeros_like(seen)
        for b, n in enumerate(self.case.lengths[1]):
            at = self.what(n)
            held[b, ..., at] = seen[b, ..., at]
        return held


@kind(_many, tile=SIZES, what={"the first": 0, "the second": 1, "the last whole": -1})
class tile_left_out(Tiled):
    """{what} tile of {tile} keys is left out."""

    what = 0

    def visible(self) -> Array:
        seen = np.array(super().visible())
        whole = seen.shape[-1] // self.tile
        at = (whole - 1 if self.what < 0 else self.what) * self.tile
        seen[..., at : at + self.tile] = False
        return seen


@kind(_many, tile=SIZES, what={"the first": 0, "the last": -1})
class key_of_tile_left_out(Tiled):
    """{what} key of each tile of {tile} is left out."""

    what = 0

    def visible(self) -> Array:
        seen = np.array(super().visible())
        first = 0 if self.what == 0 else self.tile - 1
        seen[..., first :: self.tile] = False
        return seen


@kind(_many, tile=SIZES)
class first_tile_alone(Tiled):
    """The first tile of {tile} keys alone is gone over."""

    def visible(self) -> Array:
        seen = np.array(super().visible())
        seen[..., self.tile :] = False
        return seen
