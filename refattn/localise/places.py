"""Right numbers in wrong places: whether a head, entry, row or column is what another one should be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .values import Compared

__all__ = ["exchanged", "sources"]

Array = np.ndarray[Any, Any]

_LOOK = 12
"""elements by which pairs are told apart before all are compared"""
_ENOUGH = 24
"""failing indices after which it is given up, unless a fourth of them hold another's values"""
_LETTERS = {"entry": "b", "head": "h", "key head": "h", "row": "i", "key": "j", "column": "d"}


def sources(x: Compared) -> Iterator[str]:
    """Sentences on what the indices that fail hold instead of their own."""
    return (text for _, text in exchanged(x))


def exchanged(x: Compared) -> Iterator[tuple[str, str]]:
    """The axes along which indices that fail hold the values of others, each with a sentence on it.

    An index is said to hold another's values if all of them are within the other's bounds, if these tell it from
    every other index, and if that is so for all indices that fail wholly, of which there are two or more, or for one
    with eight or more elements.
    """
    shape = x.got.shape
    for axis, what in enumerate(x.axes):
        if shape[axis] < 2:
            continue
        g, low, high, there, bad = (
            np.moveaxis(np.broadcast_to(a, shape), axis, 0).reshape(shape[axis], -1)
            for a in (x.got, x.expected.lo, x.expected.hi, x.judged, x.failing)
        )
        pairs = _pairs(g, low, high, there, bad)
        if pairs and 2 * len(pairs) > np.count_nonzero(bad.any(1)):
            yield what, f"{x.name}{_rule(pairs, _LETTERS[what], shape[axis])}"


def _pairs(got: Array, lo: Array, hi: Array, judged: Array, failing: Array) -> dict[int, int]:
    """For each failing index the one whose bounds hold all that it has, if there is just one."""
    with np.errstate(invalid="ignore"):
        told = judged.all(0) & np.isfinite(lo).all(0) & np.isfinite(hi).all(0)
        told &= hi.max(0, initial=-np.inf) - lo.min(0, initial=np.inf) > 4 * (hi - lo).max(0, initial=0)
    columns = np.flatnonzero(told)
    if columns.size < 8:
        return {}
    look = columns[np.linspace(0, columns.size - 1, min(_LOOK, columns.size)).astype(int)]
    few_lo, few_hi, few = lo[:, look], hi[:, look], got[:, look]
    pairs: dict[int, int] = {}
    bad = np.flatnonzero(failing.any(1))
    for seen, i in enumerate(np.random.default_rng(0).permutation(bad).tolist()):
        if seen == _ENOUGH and len(pairs) < seen / 4:
            return {}
        near = np.flatnonzero(((few[i] >= few_lo) & (few[i] <= few_hi)).all(1))[:8].tolist()
        at = [j for j in near if ((got[i, columns] >= lo[j, columns]) & (got[i, columns] <= hi[j, columns])).all()]
        if len(at) == 1 and at[0] != i:
            pairs[i] = at[0]
    return dict(sorted(pairs.items()))


def _rule(pairs: dict[int, int], letter: str, n: int) -> str:
    """The pairs in a sentence."""
    at, held = np.array(list(pairs)), np.array(list(pairs.values()))
    if len(pairs) > 2:
        if (held == held[0]).all():
            return f"[{letter}]: {len(pairs)} of them are what [{letter}={held[0]}] should be"
        shifts = np.unique(held - at)
        if shifts.size == 1:
            return f"[{letter}] is what [{letter}{shifts[0]:+d}] should be, for {len(pairs)} of {n}"
        if (at + held == n - 1).all():
            return f"[{letter}] is what [{n - 1} - {letter}] should be: in reverse order"
    some = list(pairs.items())[:6]
    text = ", ".join(f"[{letter}={i}] is what [{letter}={j}] should be" for i, j in some)
    return text + (f", and so on for {len(pairs)} of {n}" if len(pairs) > len(some) else "")
