"""What k1 and k2 share: plain arrays in, the geometry of one row, and what happens to a score.

Arrays have four dimensions and any strides: element d of row i of head h of batch entry b is x[b, h, i, d].  Packed
sequences are arrays (1, heads, tokens, D), of which entry b has the rows from start[b] to start[b + 1].  An
optional array that is not given may be any array of its dimensions and dtype, of one element; `Given` says
which are there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.cuda import types
from numpy import int32

from gpu.target import device

from .arguments import named

__all__ = [
    "GIVEN", "Given", "Real", "SIZES", "extent_of", "fitted", "keys_of", "load", "products_of", "real_of", "score_of",
    "size_of", "span_of",
]  # fmt: skip


class Given(NamedTuple):
    """1 where an optional argument is given, else 0; int32.

    start_q, start_k: first tokens (B + 1,) of packed sequences; used_q, used_k: lengths (B,); all int32.
    bias: (B or 1, H or 1, Lq or 1, Lk or 1); sinks, slopes (ALiBi): (H,); float16, float32 or float64.
    dlse: as lse; for gradients only.
    """

    start_q: Any = np.int32(0)
    start_k: Any = np.int32(0)
    used_q: Any = np.int32(0)
    used_k: Any = np.int32(0)
    bias: Any = np.int32(0)
    sinks: Any = np.int32(0)
    slopes: Any = np.int32(0)
    dlse: Any = np.int32(0)


GIVEN = named(Given, *[types.int32] * 8)
SIZES = (16, 32, 64, 128, 192, 256)
"""Lengths that rows are padded to in shared memory."""


def size_of(D: int, name: str) -> int:
    """The padded length of rows of D numbers."""
    if not 0 <= D <= SIZES[-1]:
        raise ValueError(f"{name}={D} must be from 0 to {SIZES[-1]}; k1_naive takes any")
    return next(n for n in SIZES if n >= D)


def fitted(tile: Any, along: str, size: Callable[[Any], int], most: int) -> Any:
    """The tile, its rows and what it has along the other side halved until size(tile) bytes are at most `most`.

    Rows are kept at 32 as long as that helps.  The smallest tile there is, if none fits.
    """
    for name, least in (("rows", 32), (along, 4), ("rows", 8)):
        while size(tile) > most and getattr(tile, name) > least:
            tile = tile._replace(**{name: getattr(tile, name) // 2})
    return tile


class Real(NamedTuple):
    """The dtype that a kernel computes in: as numba has it, as a cast, and its size in bytes."""

    numba: Any
    cast: Any
    size: int


def real_of(dtype: str) -> Real:
    """The dtype of a kernel on float32 or float64; others are refused."""
    known = {"float32": Real(types.float32, np.float32, 4), "float64": Real(types.float64, np.float64, 8)}
    if dtype not in known:
        raise ValueError(f"dtype={dtype!r} must be float32 or float64; k3_tensor_core takes float16 and bfloat16")
    return known[dtype]


@device
def extent_of(b, longest, starts, is_packed, used, is_used):  # type: ignore[no-untyped-def]
    """(index of the batch entry in the array, its first row, its length)."""
    entry, first, length = b, int32(0), longest
    if is_packed != 0:
        entry, first = 0, starts[b]
        length = starts[b + 1] - first
    if is_used != 0:
        length = used[b]
    return entry, first, length


@device
def keys_of(i, Lq, Lk, band):  # type: ignore[no-untyped-def]
    """The first and the last key that row i sees; last < first where there is none."""
    diagonal = i + (Lk - Lq) if band.bottom_right != 0 else i
    last = min(diagonal + band.right, Lk - int32(1)) if i < Lq else int32(-1)
    return max(diagonal - band.left, int32(0)), last


@device
def span_of(row, rows, Lq, Lk, band):  # type: ignore[no-untyped-def]
    """The keys from begin to end - 1 are all that `rows` rows from `row` on see; end <= begin where there is none."""
    begin, _ = keys_of(row, Lq, Lk, band)
    _, last = keys_of(min(row + rows, Lq) - int32(1), Lq, Lk, band)
    end = last + int32(1) if row < Lq else int32(0)
    return begin, end


@device
def load(memory, at, pitch, x, entry, head, row, rows, end, column, width, thread, threads):  # type: ignore[no-untyped-def]
    """Rows from `row` on, of x[entry, head], columns from `column` on, into shared memory: `rows` of `pitch` numbers.

    All threads of a block take part, neighbours read neighbours.  What lies beyond row `end` or column `width` is 0.
    """
    for r in range(rows):
        for c in range(thread, pitch, threads):
            if row + r < end and column + c < width:
                memory[at + r * pitch + c] = x[entry, head, row + r, column + c]
            else:
                memory[at + r * pitch + c] = 0


@functools.cache
def products_of(D: int, keys: int, pitch: int) -> Any:
    """products(s, memory, own, tile, to): memory[to + j pitch] = own row · row j of a tile, for all of its `keys` rows.

    `own` and `tile` are where the rows begin in shared memory, of length D, a multiple of 4; s is a local array for
    the sums.  Four numbers of a row are read at a time, and indices can be seen to be >= 0, or they would be checked.
    """
    FOURS = D // 4

    @device
    def products(s, memory, own, tile, to):  # type: ignore[no-untyped-def]
        for j in range(keys):
            s[j] = 0
        for four in range(FOURS):
            d = 4 * four
            x0, x1, x2, x3 = memory[own + d], memory[own + d + 1], memory[own + d + 2], memory[own + d + 3]
            for j in range(keys):
                total = s[j] + x0 * memory[tile + j * D + d]
                total += x1 * memory[tile + j * D + d + 1]
                total += x2 * memory[tile + j * D + d + 2]
                s[j] = total + x3 * memory[tile + j * D + d + 3]
        for j in range(keys):
            memory[to + j * pitch] = s[j]

    return products


@functools.cache
def score_of(dtype: str) -> Any:
    """The device function score(x, b, h, i, j, ...) for a dtype: scale, softcap, ALiBi and bias of a product q·k.

    With softcap c (0: none) and slope m: c tanh(scale x / c) - m |i + Lk - Lq - j| + bias[b, h, i, j].
    """
    real = real_of(dtype).cast
    hidden = real(-np.inf)

    @device
    def score(x, b, h, i, j, Lq, Lk, scale, softcap, bias, slopes, given):  # type: ignore[no-untyped-def]
        x = x * scale
        if softcap != 0:
            x = softcap * real(math.tanh(x / softcap))
        if given.slopes != 0:
            x -= real(slopes[h]) * real(abs(i + (Lk - Lq) - j))
        if given.bias != 0:
            at_b, at_h = b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0
            at_i, at_j = i if bias.shape[2] > 1 else 0, j if bias.shape[3] > 1 else 0
            y = real(bias[at_b, at_h, at_i, at_j])
            x = y if y == hidden else x + y  # it hides a NaN too
        return x

    return score
