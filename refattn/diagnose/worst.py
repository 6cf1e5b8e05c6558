"""The worst elements of a failure: an answer that does not bring these nearer explains nothing, and is soon told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..truth import Expected
from .distances import capped, largest_of_row

__all__ = ["Worst"]

Array = np.ndarray[Any, Any]
MOST = 32
"""so many of each output"""
NEARER = 0.7
"""So much of an error may be left of one that comes clearly nearer: half of the squared error."""
SLIGHT = 2.0**-5
"""An error of a row, relative to its largest number, that a loss of bits may come to."""


class Worst:
    """Of each failing output the places of its worst elements, what was returned there, and how far off it is.

    `nan` says whether a NaN may have come from a hidden input, and counts for nothing.
    """

    def __init__(self, got: Mapping[str, Array], expected: Mapping[str, Expected], nan: bool) -> None:
        self.found: dict[str, tuple[tuple[int, ...], Array, Array, Array]] = {}
        self.slight = True
        """whether all that is wrong is off by less than the largest number of its row is in a few bits"""
        for name, x in got.items():
            e = expected[name]
            free = e.ignored | (e.nonfinite & ~np.isfinite(x)) | (nan & np.isnan(x))
            with np.errstate(all="ignore"):
                wrong = np.where(x == e.value, 0, np.abs(x - e.value))  # 0 of -inf too
                units = np.where(free, -1, np.where(np.isfinite(wrong), wrong / (e.hi - e.lo), np.inf)).ravel()
                size = largest_of_row(np.abs(e.value)) if name != "lse" else 1.0
                self.slight &= bool(((wrong <= SLIGHT * size) | free | ((e.lo <= x) & (x <= e.hi))).all())
            at = np.argsort(units)[-MOST:]
            at = at[units[at] > 0.5]  # outside of the bound
            self.found[name] = x.shape, at, x.ravel()[at], capped(wrong.ravel()[at])

    def __bool__(self) -> bool:
        return any(at.size for _, at, _, _ in self.found.values())

    def nearer(self, exact: Mapping[str, Array]) -> float:
        """The share of them that an answer brings clearly nearer, of the output that fares worst."""
        least = 1.0
        for name, (shape, at, got, wrong) in self.found.items():
            if name not in exact or not at.size:
                continue
            if exact[name].shape != shape:
                return 0.0
            answer = exact[name].ravel()[at]
            with np.errstate(all="ignore"):
                both = ~np.isfinite(answer) & ~np.isfinite(got)
                off = np.where((answer == got) | both, 0, capped(np.abs(answer - got)))
            least = min(least, float((off <= NEARER * wrong).mean()))
        return least

    def reached(self, rows: Array) -> float:
        """The most that `nearer` comes to for an answer that is right but in these rows (B, H, Lq)."""
        least = 1.0
        for name, (shape, at, _, _) in self.found.items():
            if name in ("out", "lse") and at.size and shape[:3] == rows.shape:
                least = min(least, float(rows.ravel()[at // (shape[3] if name == "out" else 1)].mean()))
        return least
