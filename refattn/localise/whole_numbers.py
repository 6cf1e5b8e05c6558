"""Whole numbers solved from linear equations with noise: 0 or 1, or how many times; or not known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["FITS", "TELLING", "TILES", "chosen", "whole"]

Array = np.ndarray[Any, Any]

NEAR, NOISE = 0.25, 0.1
"""A number is known if it is so near to a whole one, and noise moves it by less."""
ROUNDS = 4
FITS = 3.0
"""What is left of each equation, in units of its noise, may be so large."""
TELLING = 4.0
"""What alone would move an equation by so many times its noise is known, if any is."""
HARDLY = 0.1
"""What is no more is not there."""
TILES = (8, 16, 32, 64, 128)


def whole(equations: Array, wanted: Array, most: int) -> Array | None:
    """x (n,) of equations @ x = wanted, in units of noise: whole numbers up to `most`, NaN where that is not told.

    None if none fit.  Least squares; what comes so near to a whole number that noise cannot explain the rest is fixed,
    and the others are solved again.
    """
    x, known = np.full(equations.shape[1], np.nan), np.zeros(equations.shape[1], bool)
    if not (np.isfinite(equations).all() and np.isfinite(wanted).all()):
        return None
    for _ in range(ROUNDS):
        free = np.flatnonzero(~known)
        rest = wanted - equations[:, known] @ x[known]
        if not free.size:
            break
        inverse = np.linalg.pinv(equations[:, free], rcond=1e-10)
        some = inverse @ rest
        with np.errstate(over="ignore"):
            spread = np.sqrt((inverse * inverse).sum(1))
        resolved = (np.abs((inverse @ equations[:, free]).diagonal() - 1) < 0.05) & (spread < NOISE)
        if (np.abs(equations[:, free] @ some - rest) > FITS).any():
            return None
        near = resolved & (np.abs(some - np.rint(some)) < NEAR)
        if (resolved & ~near).any() or (near & ((np.rint(some) < 0) | (np.rint(some) > most))).any():
            return None
        if not near.any():
            break
        x[free[near]], known[free[near]] = np.rint(some[near]), True
    if not known.any() or (known.all() and (np.abs(wanted - equations @ x) > FITS).any()):
        return None
    return x


def chosen(columns: Array, wanted: Array) -> Array | None:
    """Which of the columns (m, n), in units of noise, add up to what is wanted: 1 or 0, NaN where that is not told.

    Where there are more of them than equations it is taken to be a run, or those of a tile to be chosen alike.
    """
    if not (np.isfinite(columns).all() and np.isfinite(wanted).all()):
        return None
    size = np.abs(columns).max(0, initial=0.0)
    told, there = size > TELLING, size > HARDLY
    if np.count_nonzero(there) < len(columns):
        return _some(columns, wanted, told, there)
    found = _run(columns, wanted)
    for labels in _tiles(told, len(columns)) if found is None else ():
        alike = np.zeros((len(columns), labels.max() + 1))
        np.add.at(alike.T, labels, columns.T)
        solved = whole(alike, wanted, 1)
        found = None if solved is None else solved[labels]
    return None if found is None else np.where(told, found, np.nan)


def _some(columns: Array, wanted: Array, told: Array, there: Array) -> Array | None:
    solved = whole(columns[:, there], wanted, 1) if told.any() else None
    if solved is None:
        return None
    x = np.full(columns.shape[1], np.nan)
    x[there] = solved
    return np.where(told, x, np.nan)


def _tiles(told: Array, equations: int) -> Iterator[Array]:
    """Which are chosen alike, in the smallest tiles that there are not too many of."""
    for n in TILES:
        labels = np.arange(told.size) // n
        if labels[-1] + 1 <= max(equations - 1, 1):
            yield labels
            return


def _run(columns: Array, wanted: Array) -> Array | None:
    """What all runs, of what is chosen or of what is not, agree in that add up to what is wanted."""
    n = columns.shape[1]
    sums = np.concatenate([np.zeros((len(columns), 1)), columns.cumsum(1)], 1)
    a, b = np.triu_indices(n + 1, 1)
    least, most, at = np.ones(n), np.zeros(n), np.arange(n)
    for outside in (False, True):
        fits = np.ones(a.size, bool)
        for row, total in zip(sums, wanted, strict=True):
            left = np.flatnonzero(fits)
            if not left.size:
                break
            made = row[b[left]] - row[a[left]]
            fits[left] = np.abs((row[-1] - made if outside else made) - total) <= FITS / 2
        for i in np.flatnonzero(fits).tolist():
            x = ((at >= a[i]) & (at < b[i])) != outside
            least, most = np.minimum(least, x), np.maximum(most, x)
    return np.where(least == most, least, np.nan) if (least <= most).any() and most.any() else None
