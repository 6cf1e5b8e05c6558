"""2. What flash attention is: keys and values go by in tiles through shared memory; float32 and float64.

Added to k1: the softmax is online, so that the scores are never in memory.  A block has `rows` queries of one head,
one for each thread, and reads `keys` keys at a time, which all of its threads use.  A thread keeps its row's
largest score m, total = sum_j exp(s_j - m) and output o = sum_j exp(s_j - m) v_j; a tile with a larger score
shrinks both sums by exp(m - larger).  Tiles that the band or the lengths empty are not read.

A thread has registers for `columns` columns of the output.  Where there are more, blocks share them: each has all
the scores and one part of the columns.  Gradients are in k2_gradients.  Arrays, and what becomes of hidden
pairs and rows without a key: as in k1.

For a launch, with `tile = usual(dtype, D, Dv, most bytes of shared memory)`: the kernel is `forward(dtype, tile)`, the
grid `grid(tile, shape)` (none if a side is 0), the block `(tile.rows,)`, dynamic shared memory `shared_bytes(dtype,
tile)`.  Arguments (T is the dtype; shape, band and given are NamedTuples of int32):

    (q, k, v, out, lse, bias, sinks, slopes, start_q, start_k, used_q, used_k, shape, band, given, scale: T, softcap: T)

Sources: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022, "FlashAttention",
algorithm 1.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numba.cuda import types
from numpy import int32

from gpu.target import SIMULATED, kernel

from .arguments import BAND, SHAPE, Shape, Specialisation
from .plain import GIVEN, extent_of, fitted, keys_of, load, products_of, real_of, score_of, size_of, span_of

__all__ = ["Tile", "forward", "grid", "shared_bytes", "signature", "specialisations", "usual"]

ALIGNED = not SIMULATED  # told to the compiler, so that four numbers are read at a time; a device aligns to more


class Tile(NamedTuple):
    """What a kernel is compiled for.

    D: numbers of a row of q and k in shared memory, a multiple of 4; rows of a block, which are its threads; keys
    that it reads at a time; columns of the output that a thread keeps.
    """

    D: int
    rows: int
    keys: int
    columns: int


def usual(dtype: str, D: int, Dv: int, most: int = 96 * 1024) -> Tile:
    """The tile that suits sizes up to 256; of `most` bytes of shared memory, or as little as there can be."""
    rows, keys, columns = (64, 16, 64) if real_of(dtype).size == 4 else (64, 8, 32)
    tile = Tile(size_of(D, "D"), rows, keys, min(columns, size_of(Dv, "Dv")))
    return fitted(tile, "keys", lambda smaller: shared_bytes(dtype, smaller), most)  # type: ignore[no-any-return]


def shared_bytes(dtype: str, tile: Tile) -> int:
    """Dynamic shared memory of a block: a tile of keys, one of values, their scores, and the block's rows of q."""
    return real_of(dtype).size * (tile.keys * (tile.D + tile.columns + tile.rows) + tile.rows * (tile.D + 1))


def grid(tile: Tile, shape: Shape) -> tuple[int, int]:
    """Blocks: (tiles of rows * heads * batch, parts of the columns)."""
    return int(-(-shape.Lq // tile.rows) * shape.H * shape.B), int(max(-(-shape.Dv // tile.columns), 1))


@functools.cache
def forward(dtype: str, tile: Tile) -> Any:
    """The kernel."""
    real, scalar = real_of(dtype).cast, real_of(dtype).numba
    score_of_product, hidden = score_of(dtype), real(-np.inf)
    D, ROWS, KEYS, COLUMNS = tile
    VALUES = KEYS * D
    SCORES = VALUES + KEYS * COLUMNS
    QUERIES = SCORES + KEYS * ROWS
    PITCH = D + 1  # odd: rows of neighbouring threads lie in different banks

    products = products_of(D, KEYS, ROWS)

    @kernel(ROWS)
    def forward(  # type: ignore[no-untyped-def]
        q, k, v, out, lse, bias, sinks, slopes, start_q, start_k, used_q, used_k, shape, band, given, scale, softcap
    ):
        if ALIGNED:
            memory = cuda.shared.array(0, scalar, alignment=16)
        else:
            memory = cuda.shared.array(0, scalar)
        thread = int32(cuda.threadIdx.x)
        tiles = (shape.Lq + int32(ROWS - 1)) // int32(ROWS)
        head = int32(cuda.blockIdx.x) // tiles
        row = (tiles - int32(1) - (int32(cuda.blockIdx.x) - head * tiles)) * int32(ROWS)  # the longest rows, if causal
        column = int32(cuda.blockIdx.y) * int32(COLUMNS)
        b, h = head // shape.H, head % shape.H
        head_k = h // shape.group
        in_q, first_q, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
        in_k, first_k, Lk = extent_of(b, shape.Lk, start_k, given.start_k, used_k, given.used_k)
        i = row + thread
        first, last = keys_of(i, Lq, Lk, band)
        begin, end = span_of(row, int32(ROWS), Lq, Lk, band)

        load(memory, QUERIES, PITCH, q, in_q, h, first_q + row, ROWS, first_q + Lq, 0, shape.D, thread, ROWS)
        own, scores = QUERIES + thread * PITCH, SCORES + thread
        s = cuda.local.array(KEYS, scalar)
        o = cuda.local.array(COLUMNS, scalar)
        for c in range(COLUMNS):
            o[c] = 0
        m, total = hidden, real(0)
        for key in range(begin, end, int32(KEYS)):
            cuda.syncthreads()  # nobody reads the last tile any more
            at, stop = first_k + key, first_k + Lk
            load(memory, 0, D, k, in_k, head_k, at, KEYS, stop, 0, shape.D, thread, ROWS)
            load(memory, VALUES, COLUMNS, v, in_k, head_k, at, KEYS, stop, column, shape.Dv, thread, ROWS)
            cuda.syncthreads()
            products(s, memory, own, 0, scores)
            top = m
            count = min(int32(KEYS), end - key)
            for j in range(count):
                x = hidden
                if first <= key + j and key + j <= last:
                    x = memory[scores + j * ROWS]
                    x = score_of_product(x, b, h, i, key + j, Lq, Lk, scale, softcap, bias, slopes, given)
                top = max(top, x)
                memory[scores + j * ROWS] = x
            for j in range(count, KEYS):
                memory[scores + j * ROWS] = hidden
            shrink = real(1)
            if top > m:
                shrink = real(math.exp(m - top))
            m = top
            total *= shrink
            for c in range(COLUMNS):
                o[c] *= shrink
            for j in range(KEYS):
                x = memory[scores + j * ROWS]
                if x != hidden:  # and else its value may be NaN
                    x = real(math.exp(x - m))
                    total += x
                    for c in range(COLUMNS):
                        o[c] += x * memory[VALUES + j * COLUMNS + c]

        factor = real(1)
        if given.sinks != 0 and real(sinks[h]) > hidden:  # it joins once, at the end
            sink = real(sinks[h])
            top = max(m, sink)
            factor = real(math.exp(m - top))
            total = total * factor + real(math.exp(sink - top))
            m = top
        row_lse = hidden
        if i < Lq and total != 0:
            factor /= total
            row_lse = m + real(math.log(total))
        if i < (Lq if given.start_q != 0 else shape.Lq):
            for c in range(COLUMNS):
                if column + c < shape.Dv:
                    out[in_q, h, first_q + i, column + c] = o[c] * factor
            if column == 0:
                lse[in_q, h, first_q + i] = row_lse

    return forward


def signature(dtype: str) -> Any:
    """The kernel's, for arrays of any strides, all optional ones of the same dtype."""
    scalar = real_of(dtype).numba

    def arrays(kind: Any, ndim: int, n: int) -> list[Any]:
        return [types.Array(kind, ndim, "A")] * n

    return types.void(
        *arrays(scalar, 4, 4), *arrays(scalar, 3, 1), *arrays(scalar, 4, 1), *arrays(scalar, 1, 2),
        *arrays(types.int32, 1, 4), SHAPE, BAND, GIVEN, scalar, scalar,
    )  # fmt: skip


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles; arrays of any strides are read element by element."""
    return [
        Specialisation(
            f"forward {dtype} D={D} element", forward(dtype, tile).py_func, signature(dtype), tile.rows,
            shared_bytes(dtype, tile), ("sm_80", "sm_90"), 0,
        )
        for dtype in ("float32", "float64")
        for D in (64, 128)
        for tile in [usual(dtype, D, D)]
    ]  # fmt: skip
