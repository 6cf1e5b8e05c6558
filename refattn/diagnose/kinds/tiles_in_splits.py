"""Hypotheses on keys and tiles that are lost between splits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

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
