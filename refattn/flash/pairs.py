"""bfloat16 by the two: operands of the instruction that adds two products at once, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..precision import Precision, preset
from .vectors import PAIRS

__all__ = ["above_each_other", "contract", "finite", "side_by_side"]

Array = np.ndarray[Any, Any]
SOURCE = "VDPBF16PS (Intel's manual, volume 2): subnormal operands and results are taken as 0"


def contract(kind: str) -> Precision:
    """What `attention` promises for inputs of that dtype.

    Nothing is rounded between inputs and outputs, but where this machine multiplies bfloat16: there weights are.
    """
    if kind == "bfloat16" and PAIRS:
        return replace(preset(kind), rotated=None, flush_subnormal=True, source=SOURCE)
    return replace(preset(kind), weights=None, rotated=None)


def side_by_side(x: Array, length: int) -> Array:
    """x (B, heads, n, size) bfloat16 as int32 (B, heads, length, size / 2), zeros up to length and an even size."""
    room = _room(x, length, x.shape[3] + x.shape[3] % 2)
    return room.view(np.int32)


def above_each_other(x: Array, length: int, size: int) -> Array:
    """x (B, heads, n, own) bfloat16 as int32 (B, heads, length / 2, size): rows 2j and 2j + 1, with zeros around x."""
    room = _room(x, length, size)
    return (room[:, :, 0::2] | room[:, :, 1::2].astype(np.uint32) << 16).view(np.int32)


def finite(x: Array) -> bool:
    """np.isfinite(x).all(); of bfloat16 by its bits, which is faster."""
    if x.dtype.itemsize > 2:
        return bool(np.isfinite(x).all())
    return bool(((x.view(np.uint16) & 0x7F80) != 0x7F80).all())


def _room(x: Array, length: int, size: int) -> Array:
    B, heads, n, own = x.shape
    bits = x.view(np.uint16)
    if (n, own) == (length, size):
        return np.require(bits, None, ["C", "A"])
    room = np.zeros((B, heads, length, size), np.uint16)
    room[:, :, :n, :own] = bits
    return room
