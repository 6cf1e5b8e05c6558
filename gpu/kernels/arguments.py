"""What the kernels are handed: nested tuples of scalars, so that one signature serves all layouts.

Arrays go by address and byte strides: element d of row i of head h of batch entry b lies at
ptr + b * batch + h * head + i * row + d * itemsize.  Offsets are 64 bits wide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba.cuda import types

__all__ = [
    "BIAS", "BAND", "Band", "Bias", "LENGTHS", "Lengths", "NO_LIMIT", "OPERAND", "Operand", "ROWS", "Rows", "SCORES",
    "SHAPE", "Scores", "Shape", "Specialisation", "dtypes_of", "named",
]  # fmt: skip

NO_LIMIT = 2**30
"""A window's side without a limit."""


class Operand(NamedTuple):
    """q, k, v, out or a gradient: address and byte strides, int64."""

    ptr: Any
    batch: Any
    head: Any
    row: Any


class Rows(NamedTuple):
    """lse, delta: one float32 for each row, contiguous along the rows; address and byte strides, int64."""

    ptr: Any
    batch: Any
    head: Any


class Bias(NamedTuple):
    """An additive bias: address (0: none) and byte strides, 0 where it broadcasts; int64."""

    ptr: Any
    batch: Any
    head: Any
    row: Any
    column: Any


class Shape(NamedTuple):
    """Sizes, int32; `group` is H // Hkv; Lq and Lk are the longest where lengths are given; tiles: of rows, a head."""

    B: Any
    H: Any
    group: Any
    Lq: Any
    Lk: Any
    D: Any
    Dv: Any


class Band(NamedTuple):
    """Which keys row i sees: d - left <= j <= d + right, d = i, or i + lk - lq if `bottom_right`; int32."""

    left: Any
    right: Any
    bottom_right: Any


class Lengths(NamedTuple):
    """Addresses (0: none) of int32 arrays: first tokens (B + 1) of packed sequences, and used lengths (B)."""

    start_q: Any
    start_k: Any
    used_q: Any
    used_k: Any


class Scores(NamedTuple):
    """scale and softcap (float32); addresses (0: none) of float32 sinks (H) and ALiBi slopes (H)."""

    scale: Any
    softcap: Any
    sinks: Any
    slopes: Any


def named(kind: Any, *members: Any) -> Any:
    """The numba type of a named tuple."""
    if len(set(members)) == 1:
        return types.NamedUniTuple(members[0], len(members), kind)
    return types.NamedTuple(members, kind)


OPERAND = named(Operand, *[types.int64] * 4)
ROWS = named(Rows, *[types.int64] * 3)
BIAS = named(Bias, *[types.int64] * 5)
SHAPE = named(Shape, *[types.int32] * 7)
BAND = named(Band, *[types.int32] * 3)
LENGTHS = named(Lengths, *[types.int64] * 4)
SCORES = named(Scores, types.float32, types.float32, types.int64, types.int64)


class Specialisation(NamedTuple):
    """One compiled form of a kernel, for the SASS gate: what to compile, for what, and what it must hold."""

    name: str
    function: Callable[..., Any]
    signature: Any
    threads: int
    shared_bytes: int
    archs: tuple[str, ...]
    hmma: int


def dtypes_of(D: int) -> tuple[str, ...]:
    """The dtypes that the gate compiles a head size for: float16 differs in two instructions, so once is enough."""
    return ("bfloat16", "float16") if D == 64 else ("bfloat16",)
