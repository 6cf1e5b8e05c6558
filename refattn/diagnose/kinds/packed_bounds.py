"""Hypotheses on the key tiles that a tile of rows goes over, found by a row as if those of a group were packed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, hides
from .packed_rows import PLACES, Place
from .tile_bounds import MovedEnd

__all__: list[str] = []

NOT_PACKED = {words: place for words, place in PLACES.items() if "for the query" in words or "not packed" in words}


def _bounded(case: Case, how: Any) -> bool:
    return case.group > 1 and hides(case) and case.Lk > how.keys


@kind(_bounded, same=SAME, rows=ROWS, keys=(1, *KEYS), end={"first": 0, "last": -1}, place=NOT_PACKED)
class bound_of_packed_row(MovedEnd):
    """The {end} key tile of {keys} that {rows} queries go over is found by {place}; the mask is right."""

    place: Place

    def wrong(self) -> Array:
        case, G = self.case, self.given.group
        _, h, i = np.ogrid[: case.B, : case.H, : case.Lq]
        return np.asarray(type(self).place(h % G, i, G, np.array(case.lengths[0])[:, None, None], case.Lq)[1] - i)
