"""Which regions something may hold in: all elements in one are as they would be if wrong, and all others right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .dense import Array, Inputs
from .regions import KEYS, REGIONS, Region

__all__ = ["fitting"]

COLUMNS = tuple(r for r in REGIONS if r.columns is not None)
OTHERS = tuple(r for r in REGIONS if r.columns is None)


def fitting(right: Mapping[str, Array], wrong: Mapping[str, Array], inputs: Inputs) -> Iterator[Region]:
    """The regions that fit: `right` are the elements that are, `wrong` those that are as if something were wrong."""
    for regions in (OTHERS, COLUMNS):
        fits, some = np.ones(len(regions), bool), np.zeros(len(regions), bool)
        for name, as_wrong in wrong.items():
            inside, known = _inside(regions, name, inputs)
            off, not_as_wrong = (_whole(~x, name, regions is COLUMNS) for x in (right[name], as_wrong))
            if inside.shape[1] == off.size:
                wrong_inside = inside @ off
                here = (inside @ not_as_wrong == 0) & (wrong_inside == off.sum())
                some |= known & (wrong_inside > 0)
            else:
                here = np.zeros(len(regions), bool)
            summed = [name in KEYS and r.rows is not None for r in regions]  # over rows: they may be anything
            fits &= np.where(known, here, np.array(summed) | (not off.any()))
        for at in np.flatnonzero(fits & some).tolist():
            yield regions[at]


def _whole(x: Array, name: str, columns: bool) -> Array:
    """Whether any element of a row, or of a column, is so: 1 or 0."""
    if columns:
        return np.asarray(x.reshape(-1, x.shape[-1]).any(0)).astype(np.float32)
    rows = np.asarray(x if name == "lse" or x.ndim < 4 else x.any(-1))
    return rows.ravel().astype(np.float32)


def _inside(regions: Sequence[Region], name: str, inputs: Inputs) -> tuple[Array, Array]:
    """(regions, rows or columns): 1 in them, else 0; and of which regions that can be said."""
    key = ("inside", name, regions is COLUMNS)
    if key not in inputs.made:
        found = [r.of(name, inputs) for r in regions]
        known = np.array([x is not None for x in found])
        size = max((x.size for x in found if x is not None), default=0)
        rows = [np.zeros(size) if x is None else np.broadcast_to(x, x.shape).ravel() for x in found]
        inputs.made[key] = np.array(rows, np.float32).reshape(len(regions), size), known
    table: tuple[Array, Array] = inputs.made[key]
    return table
