"""Tiles turned: rows that follow each other in memory become lanes side by side, and back.

As many rows as a vector has lanes are turned at once in registers, by shuffles of pairs of vectors; what is left over
is copied number by number.  Nothing is computed but the sign of what goes in and the factor of what comes out.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from numba import types
from numba.extending import intrinsic, overload

from .compiled import inlined
from .vectors import ACROSS, Vectors, array_data

__all__ = ["pack", "unpack"]


def _turn(scaled: bool) -> Any:
    def typed(typing: Any, x: Any, x0: Any, ldx: Any, y: Any, y0: Any, ldy: Any, factor: Any, f0: Any) -> Any:
        signature = types.void(x, *[types.int64] * 2, y, *[types.int64] * 2, factor, types.int64)
        return signature, partial(_turn_code, scaled)

    return intrinsic(typed)


def _turn_code(scaled: bool, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    x, y, factor = (array_data(context, builder, signature.args[i], args[i]) for i in (0, 3, 6))
    _, x0, ldx, _, y0, ldy, _, f0 = args
    kind = signature.args[0].dtype
    v = Vectors(builder, types.float32 if kind == types.int32 else kind)
    lines = [v.at(x, builder.add(x0, builder.mul(v.index(i), ldx))) for i in range(v.lanes)]
    rows = [v.load(line, 0) for line in lines]
    if scaled:
        by = v.load(factor, f0)
        rows = [builder.fmul(row, by) for row in rows]
    rounded = signature.args[3].dtype == types.uint16
    for i, column in enumerate(v.turned(rows)):
        v.store(v.to_bfloat16(column) if rounded else column, y, builder.add(y0, builder.mul(v.index(i), ldy)))
    return context.get_dummy_value()


turn = _turn(False)
"""y[y0 + j ldy + i] = x[x0 + i ldx + j] for as many i and j as a vector has lanes; the last two arguments are unused"""
turn_scaled = _turn(True)
"""the same of x[x0 + i ldx + j] factor[f0 + j], rounded to bfloat16 where y holds its bits"""


def negative(x):  # type: ignore[no-untyped-def]
    """-x, or both of a pair of bfloat16."""


@overload(negative)
def _negative(x):  # type: ignore[no-untyped-def]
    if isinstance(x, types.Float):
        return lambda x: -x
    signs = 0x80008000 - (1 << 32)
    return lambda x: types.int32(x ^ signs)


def stored(x, like):  # type: ignore[no-untyped-def]
    """x, or its bits as bfloat16 where `like` holds such."""


@overload(stored)
def _stored(x, like):  # type: ignore[no-untyped-def]
    return (lambda x, like: as_bfloat16(x)) if like.dtype == types.uint16 else (lambda x, like: x)


@intrinsic
def as_bfloat16(typing: Any, x: Any) -> Any:
    """The bits of x, a float32, rounded to bfloat16."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder, types.float32)
        return builder.extract_element(v.to_bfloat16(v.spread(args[0])), v.index(0))

    return types.uint16(x), code


@inlined
def pack(x, first, rows, size, sign, wide, into, at):  # type: ignore[no-untyped-def]
    """Rows first, first + 1, ... of x (rows, size), of that sign, side by side; beyond the last it is repeated."""
    lanes = wide // ACROSS
    turned, along = min(rows, wide) // lanes * lanes, size // lanes * lanes
    for i in range(0, turned, lanes):
        for d in range(0, along, lanes):
            turn(x, (first + i) * size + d, size, into, at + d * wide + i, wide, x, 0)
    for i in range(wide):
        row = (first + min(i, rows - 1)) * size
        for d in range(along if i < turned else 0, size):
            into[at + d * wide + i] = x[row + d]
    if sign < 0:
        for place in range(at, at + size * wide):
            into[place] = negative(into[place])


@inlined
def unpack(x, at, rows, size, wide, factor, first, into):  # type: ignore[no-untyped-def]
    """Rows first, first + 1, ... of `into` (rows, size) = what `pack` would have made x of, times factor[row]."""
    lanes = wide // ACROSS
    turned, along = rows // lanes * lanes, size // lanes * lanes
    for i in range(0, turned, lanes):
        for d in range(0, along, lanes):
            turn_scaled(x, at + d * wide + i, wide, into, (first + i) * size + d, size, factor, first + i)
    for i in range(rows):
        row = first + i
        for d in range(along if i < turned else 0, size):
            into[row * size + d] = stored(x[at + d * wide + i] * factor[row], into)
