"""How often each key takes part in a row, solved from what the row returned: 0, 1, 2 times, or not known.

With e_j, r_j, v_j of `refattn.key_changes`, a key that counts a_j times gives out and, of its sum, Z, which lse tells,

    sum_j a_j e_j (r_j v_j - out) = sink out,    sum_j a_j e_j = Z - sink,

linear in a, of which the a are whole numbers: one equation a column, and one for lse, in units of what each number may
be off by.  Where there are more keys than equations one run of them is taken to be off, wherever it begins and ends; or
those of a tile are taken to count alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .key_changes import Rows
from .whole_numbers import FITS, TELLING, TILES, whole

__all__ = ["times_of_keys"]

Array = np.ndarray[Any, Any]

MOST = 2
"""times that a key may count"""
MOST_ROWS = 4
"""rows of a head that have more keys than equations: so many are solved"""


def times_of_keys(rows: Rows, sums: Array | None, right: Array) -> Array:
    """(rows, keys): how often each counts; NaN where that is not known.

    sums (rows,) is exp(lse - lse of the truth) of the answer, or None; right (rows,) says which rows are.
    """
    found = np.full(rows.e.shape, np.nan)
    few = rows.e.shape[1] > rows.out.shape[1]  # which takes longer
    wrong = np.flatnonzero(~right)
    chosen = set(wrong[:: -(-wrong.size // MOST_ROWS)] if few and wrong.size else wrong)
    for i in (i for i in range(len(rows.rows)) if right[i] or i in chosen):
        row = rows.at([i])
        total = float(sums[i]) if sums is not None and np.isfinite(sums[i]) else None
        found[i] = _of_right(row) if right[i] else _of_wrong(row, total)
    return found


def _of_right(row: Rows) -> Array:
    """The mask, of keys one of which alone would be noticed."""
    n = row.out.shape[1]
    e, rv = row.e[0], row.weighted()[:, 1 : 1 + n]
    moved = np.abs(rv - e[:, None] * row.out[0])
    at_once = moved / np.maximum(np.where(row.visible[0], np.abs(1 - e), 1 + e), 1e-9)[:, None]
    known = (at_once > TELLING * row.half[0]).any(1)
    return np.where(known, row.visible[0].astype(np.float64), np.nan)


def _of_wrong(row: Rows, total: float | None) -> Array:
    """What the equations say; of keys that the row sees first, then of all that exist."""
    keys, visible = np.arange(row.e.shape[1]), row.visible[0]
    if not row.got[0].any() and (total is None or total < 1e-6) and visible.any():
        return np.where(visible, 0.0, np.nan)
    found: Array | None
    for those in (visible, keys < row.end):
        found = _of_a_run(row, total) if np.count_nonzero(those) >= row.got.shape[1] else None
        for labels in _groupings(keys, those, row.got.shape[1]) if found is None else ():
            found = _solved(row, total, labels) if found is None else found
        if found is not None:
            return found
    return np.full(row.e.shape[1], np.nan)


def _noise(row: Rows) -> Array:
    """(Dv,): what each number of a row may be off by."""
    return np.maximum(row.half[0], row.slack[0, 0] * np.maximum(row.size[0], np.abs(row.got[0])))


def _of_a_run(row: Rows, total: float | None) -> Array | None:
    """Where one run of keys counts otherwise: what all runs agree in that explain the row."""
    n, keys, visible = row.got.shape[1], np.arange(row.e.shape[1]), row.visible[0]
    weighted, noise = row.weighted()[:, : 1 + n], FITS / 2 * _noise(row)
    least, most = np.full(keys.size, np.inf), np.full(keys.size, -np.inf)
    a, b = np.triu_indices(keys.size + 1, 1)
    for how, those in ((0.0, visible), (2.0, visible), (1.0, ~visible & (keys < row.end))):
        sign = -1.0 if how == 0 else 1.0
        sums = np.concatenate([np.zeros((1, 1 + n)), np.where(those[:, None], weighted, 0.0).cumsum(0)])
        whole = 1 + sign * (sums[b, 0] - sums[a, 0])
        fits = whole > 1e-9
        if total is not None:
            fits &= np.abs(whole - total) <= max(8 * float(row.slack[0, 0]), 1e-6) * max(total, 1e-3)
        for d in range(n):
            at = np.flatnonzero(fits)
            if not at.size:
                break
            made = (row.out[0, d] + sign * (sums[b[at], 1 + d] - sums[a[at], 1 + d])) / whole[at]
            fits[at] = np.abs(made - row.got[0, d]) <= noise[d] * np.maximum(1.0, 1 / whole[at])
        for i in np.flatnonzero(fits).tolist():
            times = np.where(those & (keys >= a[i]) & (keys < b[i]), how, visible)
            least, most = np.minimum(least, times), np.maximum(most, times)
    return np.where(least == most, least, np.nan) if np.isfinite(least).any() else None


def _groupings(keys: Array, those: Array, equations: int) -> Iterator[Array]:
    """Which keys count alike: each for itself, or those of a tile; -1 of those that do not count."""
    for n in (1, *TILES):
        labels = np.unique(keys[those] // n, return_inverse=True)[1]
        if labels.size and labels.max() + 1 <= max(equations - 1, 1):
            found = np.full(keys.size, -1)
            found[those] = labels
            yield found
            if n > 1:
                return


def _solved(row: Rows, total: float | None, labels: Array) -> Array | None:
    """Times that explain the row; NaN where they are not told; None if no times do."""
    n, got, sink = row.got.shape[1], row.got[0], float(row.sink[0, 0])
    weighted = np.zeros((labels.max() + 1, 1 + n))
    np.add.at(weighted, labels[labels >= 0], row.weighted()[labels >= 0, : 1 + n])
    e, moved = weighted[:, 0], weighted[:, 1:] - weighted[:, :1] * got
    if total == 0:
        return None  # no weight is left to tell keys by
    size = 1.0 if total is None else total
    noise = _noise(row) * max(size, 1e-3)
    with np.errstate(all="ignore"):
        equations, wanted = moved.T / noise[:, None], sink * got / noise
    if total is not None:
        off = max(4 * float(row.slack[0, 0]) * size, 1e-6 * size)
        equations, wanted = np.vstack([equations, e / off]), np.append(wanted, (size - sink) / off)
    elif sink < 1e-3:
        equations, wanted = np.vstack([equations, np.zeros(len(e))]), np.append(wanted, 0.0)
        equations[-1, int(e.argmax())], wanted[-1] = 1e3, 1e3  # the heaviest counts once
    times = whole(equations, wanted, MOST)
    if times is None:
        return None
    found = np.append(times, np.nan)[labels]
    found[labels < 0] = 0.0
    if labels.max() + 1 < np.count_nonzero(labels >= 0):  # of a tile those are known that alone would tell
        alone = np.abs(row.weighted()[:, 1 : 1 + n] - row.e[0][:, None] * got) / noise
        found[(labels >= 0) & ~(alone > TELLING).any(1)] = np.nan
    return np.asarray(found)
