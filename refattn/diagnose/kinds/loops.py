"""How a kernel goes over the keys, tile by tile: the state of the online softmax, and a model that keeps it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model import Array, safe
from .bounds import Bounds, hides

__all__ = ["LOOPS", "PLAIN", "SIZES", "SPLIT", "VISITS", "Loop", "State", "Tiled", "loops"]

State = tuple[Array, Array, Array]
SIZES = (8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Loop:
    """How a kernel goes over the keys: in tiles, from the first or the last, in splits, and which ones it visits.

    rows      0: every tile; otherwise those that a tile of so many rows sees by the mask, from its first to its last,
              rows of a group's heads `packed` into one tile or not
    even      split n begins at tile n * tiles // splits of all, not at n times as many of those that are visited as
              each has, rounded up
    """

    tile: int
    backwards: bool = False
    splits: int = 1
    rows: int = 0
    packed: bool = False
    even: bool = False

    def __str__(self) -> str:
        words = f"{self.tile} keys" + ", the last one first" * self.backwards
        words += f", in {self.splits}{' even' * self.even} splits" * (self.splits > 1)
        return words + (f", of those that {self.rows}{' packed' * self.packed} rows see" if self.rows else "")


def loops(*loops: Loop) -> dict[str, Loop]:
    return {str(loop): loop for loop in loops}


TILES = (16, 32, 64, 128)
PLAIN = [Loop(n) for n in SIZES] + [Loop(n, True) for n in TILES]
SPLIT = [Loop(n, back, s, even=even) for n in TILES for back, even in ((False, False), (True, False), (False, True))
         for s in (2, 3, 4)]  # fmt: skip
LOOPS = loops(*PLAIN, *SPLIT)
VISITS = loops(*PLAIN, *SPLIT, *(
    Loop(n, back, s, rows, packed) for n in TILES for back in (False, True) for s in (1, 4)
    for rows, packed in ((1, False), (16, False), (64, False), (64, True), (128, False), (128, True))
), *(Loop(n, False, s, rows, even=True) for n in TILES[:2] for s in (2, 3) for rows in (8, 16, 32)),
    *(Loop(n, back, 1, rows) for n in TILES for back in (False, True) for rows in (8, 32)))  # fmt: skip


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
            if not split:
                state = part
                continue
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
        at, many = np.arange(tiles), (high - low)[..., None]
        place = high[..., None] - 1 - at if loop.backwards else at - low[..., None]
        if loop.even:
            split = ((at + 1) * loop.splits - 1) // max(tiles, 1)
        else:
            split = place // np.maximum(-(-many // loop.splits), 1)
        return np.where((place >= 0) & (place < many), split, -1)
