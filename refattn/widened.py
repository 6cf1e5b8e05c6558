"""A large forward, whose rows are within narrow intervals but for some: only of those the wide ones are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from .dtypes import round_to
from .elements import ratios
from .truth import Expected

__all__ = ["rows_beyond", "widened"]

Array = np.ndarray[Any, Any]


def rows_beyond(answer: Mapping[str, Array], expected: Mapping[str, Expected]) -> Array:
    """The rows (of axis 2) that are out of narrow intervals, the furthest first; none where they are not all narrow."""
    beyond: Array = np.zeros(1)
    for name, e in expected.items():
        if not e.narrow or name not in answer or answer[name].shape != e.value.shape:
            return np.zeros(0, dtype=np.int64)
        got = round_to(np.asarray(answer[name], np.float64), e.dtype)
        free = e.ignored | e.nonfinite & ~np.isfinite(got)
        ratio = np.where(free, 0.0, ratios(got, e.value, e.lo, e.hi))
        beyond = np.maximum(beyond, ratio.max(axis=tuple(n for n in range(ratio.ndim) if n != 2), initial=0.0))
    out = np.flatnonzero(beyond > 1)
    return out[np.argsort(-beyond[out], kind="stable")]


def widened(narrow: Mapping[str, Expected], wide: Mapping[str, Expected], rows: Array) -> dict[str, Expected]:
    """Narrow intervals with the wide ones of these rows in their place: together they decide."""
    merged = {}
    for name, e in narrow.items():
        held = {f.name: getattr(e, f.name) for f in fields(e)}
        arrays: dict[str, Any] = {field: x.copy() for field, x in held.items() if isinstance(x, np.ndarray)}
        for field, x in arrays.items():
            x[:, :, rows] = getattr(wide[name], field)
        merged[name] = replace(e, **arrays, narrow=False)
    return merged
