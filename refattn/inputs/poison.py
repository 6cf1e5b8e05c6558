"""NaN and infinity put, in place, where they must not be seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case

__all__ = ["poison", "poison_pairs"]

Array = np.ndarray[Any, Any]


def poison(case: Case, logical: Mapping[str, Array]) -> None:
    """NaN and infinity, in place, in all that no visible pair depends on.

    Keys and values that no row of their group sees, q and dout of rows that see nothing (dlse too,
    unless a sink is there), bias where every consumer is masked.
    """
    mask = case.visibility.tile()
    seen = mask if "bias" not in logical else mask & ~np.isneginf(logical["bias"].astype(np.float64))
    group = case.H // case.Hkv if case.Hkv else 1
    keys = np.asarray(seen.reshape(case.B, case.Hkv, group * case.Lq, case.Lk).any(2))
    rows = np.asarray(seen.any(-1))
    for name, used in (("k", keys), ("v", keys), ("q", rows), ("dout", rows), ("dlse", rows)):
        if name in logical and (name != "dlse" or case.sinks is None):
            _spoil(logical[name], ~used, ("nan", "inf", "-inf"))
    if "bias" in logical:
        shape = case.bias_shape
        read = np.asarray(mask.any(axis=tuple(axis for axis in range(4) if shape[axis] == 1), keepdims=True))
        _spoil(logical["bias"], ~read, ("nan", "inf"))


def poison_pairs(case: Case, logical: Mapping[str, Array]) -> None:
    """One query row that is not finite, and one value (backward: one row of dout), per batch entry and key head.

    Each is chosen where part of the group's keys (rows) is hidden from it; where none is, nothing is
    poisoned, but for the value where nothing at all is hidden: it stays in its column.  A value of a
    backward case stays finite, since through dp it would reach all.
    """
    group = case.H // case.Hkv if case.Hkv else 1
    seen = case.visibility.tile().reshape(case.B, case.Hkv, group * case.Lq, case.Lk)
    for b, g in np.ndindex(case.B, case.Hkv):
        some_rows = seen[b, g].any(0) & (~seen[b, g].all(0) | seen.all())
        some_keys = seen[b, g].any(1) & ~seen[b, g].all(1)
        if some_rows.any() and case.Dv and not case.backward:
            logical["v"][b, g, _middle(some_rows), -1] = np.inf
        if some_keys.any():
            h, i = divmod(_middle(some_keys), case.Lq)
            for name in ("q", "dout"):
                if name in logical:
                    logical[name][b, g * group + h, i] = np.nan


def _middle(chosen: Array) -> int:
    found = np.flatnonzero(chosen)
    return int(found[found.size // 2])


def _spoil(x: Array, where: Array, kinds: tuple[str, ...]) -> None:
    """Fill x[where] with the kinds in turn (NaN for all in a dtype without infinities)."""
    bad = np.resize(np.array([float(kind) for kind in kinds]), int(where.sum())).astype(x.dtype)
    x[where] = bad.reshape((-1,) + (1,) * (x.ndim - where.ndim))
