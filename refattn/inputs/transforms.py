"""What is done to q, k and v before attention: the exact result in `logical`, what is handed over in the answer.

Both functions replace arrays of `logical` in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Cache, Case
from ..quantise import dequantise, quantise
from ..rotary import rotate, tables

__all__ = ["cached", "query_positions", "quantised", "rotated", "tables_of"]

Array = np.ndarray[Any, Any]


def query_positions(case: Case) -> Array:
    """i + lk - lq, (B, 1, Lq); those of queries that do not exist are 0."""
    lq, lk = (np.array(lens, dtype=np.int64)[:, None, None] for lens in case.lengths)
    i = np.arange(case.Lq)
    return np.where(i < lq, i + lk - lq, 0)


def rotated(case: Case, logical: dict[str, Array]) -> dict[str, Array]:
    """q and k as they were, and the tables cos and sin (Lk, dim / 2) in float32, whose values are taken as exact.

    Keys that lie in a cache were rotated, and rounded, when they were put there.
    """
    if case.rotary is None:
        return {}
    cos, sin = (x.astype(np.float32) for x in tables_of(case))
    stored = {"q": logical["q"], "k": logical["k"], "cos": cos, "sin": sin}
    if not case.Lk:
        return stored  # and no query has a position
    exact = {name: x.astype(np.float64) for name, x in stored.items()}
    at = query_positions(case)
    logical["q"] = rotate(exact["q"], exact["cos"][at], exact["sin"][at], case.rotary.interleaved)
    turned = rotate(exact["k"], exact["cos"], exact["sin"], case.rotary.interleaved)
    logical["k"] = np.where(cached(case), exact["k"], turned)
    return stored


def tables_of(case: Case) -> tuple[Array, Array]:
    """cos and sin (Lk, dim / 2) of the keys' positions: numbers of float32, in float64."""
    if case.rotary is None:
        raise ValueError(f"{case.id} has no rotary")
    cos, sin = tables(np.arange(case.Lk), case.rotary.dim, case.rotary.base)
    return cos.astype(np.float32).astype(np.float64), sin.astype(np.float32).astype(np.float64)


def cached(case: Case) -> Array:
    """(B, 1, Lk, 1): whether a key lies in a cache already."""
    lk = np.array(case.lengths[1], dtype=np.int64)[:, None, None, None]
    return (np.arange(case.Lk)[:, None] < lk - case.Lq) & isinstance(case.storage, Cache)


def quantised(case: Case, logical: dict[str, Array]) -> dict[str, Array]:
    """Codes under the names of what they stand for, and k_scale, v_scale, q_scale."""
    if case.quant is None:
        return {}
    stored = {}
    for name in ("k", "v") if case.quant.of == "kv" else ("q", "k", "v"):
        codes, scale = quantise(logical[name].astype(np.float64), case.quant.kind, case.quant.granularity)
        stored[name], stored[f"{name}_scale"] = codes, scale
        logical[name] = dequantise(codes, scale, case.quant.kind)
    return stored
