"""Hypotheses on the key tiles that a tile of rows goes over, found by a row as if those of a group were packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, Bounds, hides
from .packed_rows import PLACES, Place
from .tile_bounds import right_side

__all__: list[str] = []

NOT_PACKED = {words: place for words, place in PLACES.items() if "for the query" in words or "not packed" in words}


def _bounded(case: Case, how: Any) -> bool:
    return case.group > 1 and hides(case) and case.Lk > how.keys


@kind(_bounded, same=SAME, rows=ROWS, keys=(1, *KEYS), end={"first": 0, "last": -1}, place=NOT_PACKED)
class bound_of_packed_row(Bounds):
    """The {end} key tile of {keys} that {rows} queries go over is found by {place}; the mask is right."""

    end = -1
    place: Place

    def visible(self) -> Array:
        seen, case, G = super().visible(), self.case, self.given.group
        lq, lk = (np.array(n)[:, None, None] for n in case.lengths)
        _, h, i = np.ogrid[: case.B, : case.H, : case.Lq]
        wrong = type(self).place(h % G, i, G, lq, case.Lq)[1] - i
        first, last = self.ends(self.reach())
        some, j = first < last, np.arange(seen.shape[-1])
        if self.end == 0:
            first = np.where(some & (first > 0), first + wrong, first)
            return seen & (j >= self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None])
        bounded = (last < lk) | (right_side(case.mask) is not None)
        last = np.where(some & bounded, last + wrong, last)
        return seen & (j < self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None])
