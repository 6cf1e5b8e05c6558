"""Keys whose scores agree: there the independence behind the sharp bound fails.

Rounding is a function: equal scores get equal errors, so that the errors of repeated keys, of a
sparse query or of few score levels add coherently.  Scores of a row are put in bins of the width
within which they round alike (a few units of the accumulator, or the unit of P where that is
rounded); errors are independent between bins and, to be safe, counted both as independent and as
coherent within one: with the weights w_j of the errors

    variance = sum_j w_j² c_j²  +  sum over bins of (sum_{j in bin} w_j c_j)²

The second sum is what this module computes, over bins that hold two keys or more, and at several
widths: two clusters in one bin may cancel there though they round apart.  For values that know
nothing of the score each width adds as much as the first sum; for values that depend on the score
level it is what decides.  An independent error of bins is at most sqrt(n) of their root sum of
squares, so that up to n = (LAMBDA²)/3 = 22 bins the sharp bound is a rigorous one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NoTies", "Ties"]

Array = np.ndarray[Any, Any]

CHUNK = 1 << 20  # elements of a temporary


class Ties:
    """Bins of the entries of `key` (rows, n) that are `active`, at each of `widths`, (rows, 1) each."""

    def __init__(self, key: Array, widths: tuple[Array, ...], active: Array) -> None:
        key = np.where(active, key, np.inf)
        self.shape = key.shape
        self.order = np.argsort(key, axis=1)
        ascending = np.take_along_axis(key, self.order, 1)
        self.levels = [_Bins(_with_previous(ascending, width), self.order) for width in widths]

    def others(self, key: Array, widths: tuple[Array, ...]) -> Ties:
        """Bins of other numbers, all of which are active."""
        return Ties(key, widths, np.ones(key.shape, dtype=bool))

    def alike(self, p: Array, unit: Array) -> Array:
        """sum over bins of n² - n, (rows, 1), of the n terms of p (rows, keys) within half a `unit` (rows, 1).

        `unit` is the unit roundoff times the sum.  Terms that differ by less round the same way when
        they are added to it, one after the other, so that their errors add coherently.  p grows with
        the key, so that the order is known; terms below a unit cost no more than themselves.
        """
        if not p.size:
            return np.zeros((self.shape[0], 1))
        terms = np.take_along_axis(p, self.order, 1)
        large = terms > unit
        with np.errstate(divide="ignore", invalid="ignore"):
            bins = np.floor(terms / (unit / 2))
        new = np.ones(self.shape, dtype=bool)
        new[:, 1:] = (bins[:, 1:] != bins[:, :-1]) | ~large[:, 1:]
        bin_of = (np.cumsum(new) - 1).reshape(self.shape)
        members = np.bincount(bin_of.ravel())[bin_of]
        return np.asarray(np.where(large, members - 1.0, 0.0).sum(1, keepdims=True))

    def sum_squares(self, w: Array, c: Array, center: Array | None = None) -> Array:
        """sum over bins of (sum_j w_j (c_j - center))²; w (rows, n), c (n, d), center (rows, d)."""
        total = np.zeros((c.shape[1], self.shape[0]))
        for bins in self.levels:
            bins.add_squares(total, w, c, center)
        return total.T

    def sum_squares_of(self, w: Array) -> Array:
        """sum over bins of (sum_j w_j)², (rows, 1)."""
        total = np.zeros(self.shape[0])
        for bins in self.levels:
            if len(bins.starts):
                sums = np.add.reduceat(w[bins.rows, bins.columns], bins.starts)
                total += np.bincount(bins.owners, sums * sums, minlength=self.shape[0])
        return total[:, None]


class NoTies:
    """In place of `Ties` where none are looked for: then sums over bins are 0."""

    def others(self, key: Array, widths: tuple[Array, ...]) -> NoTies:
        return self

    def alike(self, p: Array, unit: Array) -> Array:
        return np.zeros(())

    def sum_squares(self, w: Array, c: Array, center: Array | None = None) -> Array:
        return np.zeros(())

    def sum_squares_of(self, w: Array) -> Array:
        return np.zeros(())


def _with_previous(ascending: Array, width: Array) -> Array:
    """Whether an entry is in the same bin as the one before."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        bins = np.floor(ascending / np.maximum(width, 1e-300))
    same = np.zeros(ascending.shape, dtype=bool)
    same[:, 1:] = np.isfinite(bins[:, 1:]) & (bins[:, 1:] == bins[:, :-1])
    return same


class _Bins:
    """The bins of one width that hold two entries or more, all rows' in one list."""

    def __init__(self, with_previous: Array, order: Array) -> None:
        shared = with_previous.copy()
        shared[:, :-1] |= with_previous[:, 1:]
        self.rows, position = np.nonzero(shared)
        self.columns = order[self.rows, position]
        self.starts = np.flatnonzero(~with_previous[self.rows, position])
        self.owners = self.rows[self.starts]

    def add_squares(self, total: Array, w: Array, c: Array, center: Array | None) -> None:
        """Add to total (d, rows) the squares of the bins' sums."""
        by_column = np.ascontiguousarray(c.T)
        weights = w[self.rows, self.columns]
        ends = np.append(self.starts[1:], len(self.rows))
        step = max(1, CHUNK // max(1, c.shape[1]))
        first = 0
        while first < len(self.starts):  # whole bins, about `step` entries at a time
            last = max(first + 1, int(np.searchsorted(ends, self.starts[first] + step)))
            a, z = self.starts[first], ends[last - 1]
            starts, owners = self.starts[first:last] - a, self.owners[first:last]
            sums = np.add.reduceat(weights[a:z] * np.take(by_column, self.columns[a:z], axis=1), starts, axis=1)
            if center is not None:
                sums -= np.add.reduceat(weights[a:z], starts) * center[owners].T
            new = np.flatnonzero(np.diff(owners, prepend=-1))
            total[:, owners[new]] += np.add.reduceat(sums * sums, new, axis=1)
            first = last
