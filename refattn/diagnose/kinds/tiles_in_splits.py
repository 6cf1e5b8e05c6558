"""Hypotheses on splits of the keys that are made of tiles: what is lost between them, and from tile to tile in one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model, safe
from .online import BACK, State, Steps

__all__: list[str] = []


@kind(lambda case, how: case.Lk % how.splits != 0 and case.Lk > how.splits, splits=(2, 3, 4, 8))
class keys_past_splits(Model):
    """The keys are cut into {splits} splits of Lk // {splits}, rounded down: those past the last are left out."""

    splits = 2

    def visible(self) -> Array:
        seen = np.array(super().visible())
        n = seen.shape[-1]
        seen[..., n // self.splits * self.splits :] = False
        return seen


def _left_over(case: Case, how: Any) -> bool:
    return any((tiles := -(-n // how.tile)) > how.splits and tiles % how.splits for n in case.lengths[1])


@kind(_left_over, tile=(16, 32, 64, 128), splits=(2, 3, 4, 8), end={"last": False, "first": True})
class tiles_past_splits(Model):
    """Each of {splits} splits has as many tiles of {tile} keys, rounded down: the {end} ones are left out."""

    tile, splits, end = 64, 2, False

    def visible(self) -> Array:
        seen = np.array(super().visible())
        for b, n in enumerate(self.case.lengths[1]):
            tiles = -(-n // self.tile)
            some = tiles // self.splits * self.splits * self.tile
            if some and self.end:
                seen[b, ..., : tiles * self.tile - some] = False
            elif some:
                seen[b, ..., some:] = False
        return seen


def _in_splits(case: Case, how: Any) -> bool:
    return bool(-(-case.Lk // how.tile) > how.splits)


@kind(
    _in_splits, how={how: BACK[how] for how in list(BACK)[:4]}, tile=(16, 32, 64, 128), splits=(2, 4, 8),
    backwards={"first": False, "last": True},
)  # fmt: skip
class online_in_splits(Steps):
    """In each of {splits} splits, from tile to tile of {tile} keys, the {backwards} one first, {how}."""

    splits = 2

    def attend(self, t: Array) -> State:
        """An entry's tiles are split by its own length."""
        lens = np.array(self.case.lengths[1])
        m, z, o = self.start(t)
        for n in set(lens.tolist()):
            at = lens == n
            for x, part in zip((m, z, o), self.of_length(t, n), strict=True):
                x[at] = part[at]
        return m, z, o

    def of_length(self, t: Array, n: int) -> State:
        tiles = [keys for keys in self.tiles() if keys.start < n]
        each = max(-(-len(tiles) // self.splits), 1)
        state = self.start(t)
        for first in range(0, len(tiles), each):
            part = self.start(t)
            for keys in tiles[first : first + each]:
                part = self.step(part, t, keys)
            m = np.maximum(state[0], part[0])
            a, b = np.exp(state[0] - safe(m)), np.exp(part[0] - safe(m))
            state = m, state[1] * a + part[1] * b, state[2] * a[..., None] + part[2] * b[..., None]
        return state
