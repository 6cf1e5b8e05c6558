"""How a row of the case table is written down."""

from __future__ import annotations

from typing import Any

from ..case import Case

__all__ = ["BF16", "E4M3", "E5M2", "F16", "F32", "F64", "GRAD", "Sizes", "row"]

F64, F32, F16, BF16, E4M3, E5M2 = "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"
GRAD = frozenset({"dq", "dk", "dv"})

Sizes = tuple[int, int, int, int, int, int, int]


def row(chapter: str, id: str, why: str, flags: str, sizes: Sizes, dtype: str, family: str, **features: Any) -> Case:
    """A case: `flags` separated by spaces, `sizes` = (B, H, Hkv, Lq, Lk, D, Dv), other fields of `Case` by name."""
    named: dict[str, Any] = dict(zip(("B", "H", "Hkv", "Lq", "Lk", "D", "Dv"), sizes, strict=True))
    return Case(id, why, tuple(flags.split()), chapter, dtype=dtype, family=family, **named, **features)
