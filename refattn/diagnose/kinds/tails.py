"""Hypotheses on what fills up the last, partial tile of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, safe
from .loops import SIZES, State, Tiled

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
