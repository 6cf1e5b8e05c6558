"""2. The backward of k2: gradients by two kernels without atomics, the same bits in every run; float32 and float64.

Scores are computed again, and the weights from them and lse, so that nothing of size Lq · Lk is ever in memory:

    p = exp(t - lse)               t: what `plain.score_of` makes of q·k
    ds = p (v·dout - delta)        delta: see k2_delta; with a softcap also / cosh(scale q·k / softcap)²
    dv_j = sum_i p dout_i          kernel `keys`: one thread a key, over the queries of all heads of its group
    dk_j = scale sum_i ds q_i
    dq_i = scale sum_j ds k_j      kernel `queries`: one thread a row

Tiles, parts of columns and what becomes of hidden pairs: as in k2.  A thread of `keys` has columns of either dv or dk.
Rows and keys beyond a length have gradients 0; of packed arrays they are not written.

For a launch, with `tile = usual(dtype, D, Dv, most bytes of shared memory)` and `kernels(dtype, tile)`, which has
k2_delta's too, in this order (T is the dtype; shape, band and given are NamedTuples of int32; delta is a workspace of T
as lse is, (B, H, Lq); no launch where a side of the grid is 0):

    delta    grid (ceil(B·H·Lq / THREADS),), block THREADS, no dynamic shared memory
             (out, dout, dlse, start_q, used_q, delta, shape, given)
    keys     grid `keys_grid(tile, shape)`, block tile.rows, `shared_bytes(dtype, tile)`
             (q, k, v, dout, lse, delta, dk, dv, *rest)
    queries  grid `queries_grid(tile, shape)`, block tile.rows, `shared_bytes(dtype, tile)`
             (q, k, v, dout, lse, delta, dq, *rest)
    sinks    grid (H,), block THREADS, no dynamic shared memory; only where there are sinks
             (sinks, lse, delta, dsinks, start_q, used_q, shape, given)

rest: bias, slopes, start_q, start_k, used_q, used_k, shape, band, given, scale: T, softcap: T.

Source: Dao et al. 2022, "FlashAttention", appendix B.2; the two passes: Dao 2023, "FlashAttention-2", section 3.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numba.cuda import types
from numpy import int32

from gpu.target import SIMULATED, device, kernel

from .arguments import BAND, SHAPE, Band, Shape, Specialisation
from .k2_delta import THREADS, delta_of, sinks_of
from .plain import GIVEN, extent_of, fitted, keys_of, load, products_of, real_of, score_of, size_of, span_of

__all__ = [
    "Gradients", "THREADS", "Tile", "kernels", "keys_grid", "queries_grid", "shared_bytes", "specialisations", "usual",
]  # fmt: skip

ALIGNED = not SIMULATED
WITHIN = 0xFFFF
"""Holds all indices of shared memory; `at & WITHIN` is `at`, seen to be >= 0, and so it is not checked."""


class Tile(NamedTuple):
    """What the kernels are compiled for.

    D, Dv: numbers of a row in shared memory, multiples of 4; rows of a block (keys of the kernel `keys`), which are its
    threads; `others` that it reads at a time; columns of a gradient that a thread keeps.
    """

    D: int
    Dv: int
    rows: int
    others: int
    columns: int


class Gradients(NamedTuple):
    """In the order in which they are launched."""

    delta: Any
    keys: Any
    queries: Any
    sinks: Any


def usual(dtype: str, D: int, Dv: int, most: int = 96 * 1024) -> Tile:
    """The tile that suits sizes up to 256; of `most` bytes of shared memory, or as little as there can be."""
    others, columns = (16, 64) if real_of(dtype).size == 4 else (8, 32)
    D, Dv = size_of(D, "D"), size_of(Dv, "Dv")
    tile = Tile(D, Dv, 64, others, min(columns, D, Dv))
    return fitted(tile, "others", lambda smaller: shared_bytes(dtype, smaller), most)  # type: ignore[no-any-return]


def shared_bytes(dtype: str, tile: Tile) -> int:
    """Dynamic shared memory of a block: its own rows, a tile of others, and of each pair p and ds."""
    D, Dv, rows, others, _ = tile
    return real_of(dtype).size * (others * (D + Dv + 2 * rows + 2) + rows * (D + Dv + 2))


def keys_grid(tile: Tile, shape: Shape) -> tuple[int, int, int]:
    """Blocks of `keys`: (tiles of keys * heads of keys * batch, parts of the columns, 0: dv, 1: dk)."""
    heads = shape.H // shape.group * shape.B
    return int(-(-shape.Lk // tile.rows) * heads), int(max(tile.D, tile.Dv) // tile.columns), 2


def queries_grid(tile: Tile, shape: Shape) -> tuple[int, int]:
    """Blocks of `queries`: (tiles of rows * heads * batch, parts of the columns)."""
    return int(-(-shape.Lq // tile.rows) * shape.H * shape.B), int(tile.D // tile.columns)


@functools.cache
def weigh_of(dtype: str) -> Any:
    """The device function weigh(x, dp, lse, delta, ...): p and ds where x = q·k, dp = v·dout; p is -1 if hidden."""
    real, score = real_of(dtype).cast, score_of(dtype)
    hidden = real(-np.inf)

    @device
    def weigh(  # type: ignore[no-untyped-def]
        x, dp, lse, delta, b, h, i, j, Lq, Lk, scale, softcap, bias, slopes, given
    ):
        t = score(x, b, h, i, j, Lq, Lk, scale, softcap, bias, slopes, given)
        p, ds = real(-1), real(0)
        if t != hidden:
            p = real(math.exp(t - lse))
            ds = p * (dp - delta)
            if softcap != 0:  # 1 / cosh², which 1 - tanh² would cancel
                e = real(math.exp(real(-2) * abs(x * scale / softcap)))
                ds *= real(4) * e / ((real(1) + e) * (real(1) + e))
        return p, ds

    return weigh


@functools.cache
def kernels(dtype: str, tile: Tile) -> Gradients:
    """The kernels; `delta` and `sinks` are the same for all tiles."""
    return Gradients(delta_of(dtype), keys_of_tile(dtype, tile), queries_of_tile(dtype, tile), sinks_of(dtype))


@functools.cache
def keys_of_tile(dtype: str, tile: Tile) -> Any:
    """dk and dv: one thread a key."""
    real, scalar = real_of(dtype).cast, real_of(dtype).numba
    D, DV, ROWS, OTHERS, COLUMNS = tile
    DOUT, WEIGHTS = OTHERS * D, OTHERS * (D + DV)
    SLOPES = WEIGHTS + OTHERS * ROWS
    LSE = SLOPES + OTHERS * ROWS
    KEYS = LSE + 2 * OTHERS
    VALUES = KEYS + ROWS * (D + 1)
    products, dots = products_of(D, OTHERS, ROWS), products_of(DV, OTHERS, ROWS)
    weigh, hidden = weigh_of(dtype), real(-1)

    @kernel(ROWS)
    def keys(  # type: ignore[no-untyped-def]
        q, k, v, dout, lse, delta, dk, dv,
        bias, slopes, start_q, start_k, used_q, used_k, shape, band, given, scale, softcap,
    ):
        if ALIGNED:
            memory = cuda.shared.array(0, scalar, alignment=16)
        else:
            memory = cuda.shared.array(0, scalar)
        thread = int32(cuda.threadIdx.x)
        tiles = (shape.Lk + int32(ROWS - 1)) // int32(ROWS)
        head = int32(cuda.blockIdx.x) // tiles
        key = (int32(cuda.blockIdx.x) - head * tiles) * int32(ROWS)
        column = int32(cuda.blockIdx.y) * int32(COLUMNS)
        of_values = cuda.blockIdx.z == 0
        heads = shape.H // shape.group
        b, head_k = head // heads, head % heads
        in_q, first_q, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
        in_k, first_k, Lk = extent_of(b, shape.Lk, start_k, given.start_k, used_k, given.used_k)
        j = key + thread
        begin, end = span_of(key, int32(ROWS), Lk, Lq, Band(band.right, band.left, band.bottom_right))

        load(memory, KEYS, D + 1, k, in_k, head_k, first_k + key, ROWS, first_k + Lk, 0, shape.D, thread, ROWS)
        load(memory, VALUES, DV + 1, v, in_k, head_k, first_k + key, ROWS, first_k + Lk, 0, shape.Dv, thread, ROWS)
        own_k, own_v = KEYS + thread * (D + 1), VALUES + thread * (DV + 1)
        s = cuda.local.array(OTHERS, scalar)
        own = cuda.local.array(COLUMNS, scalar)
        for c in range(COLUMNS):
            own[c] = 0
        factors, pitch, width = 0, D, shape.D
        if of_values:
            factors, pitch, width = DOUT, DV, shape.Dv
        if column >= width:
            end = begin  # fewer columns than the other gradient has: nothing to do
        for h in range(head_k * shape.group, (head_k + int32(1)) * shape.group):
            for row in range(begin, end, int32(OTHERS)):
                cuda.syncthreads()  # nobody reads the last tile any more
                at, stop = first_q + row, first_q + Lq
                load(memory, 0, D, q, in_q, h, at, OTHERS, stop, 0, shape.D, thread, ROWS)
                load(memory, DOUT, DV, dout, in_q, h, at, OTHERS, stop, 0, shape.Dv, thread, ROWS)
                count = min(int32(OTHERS), end - row)
                for r in range(thread, count, int32(ROWS)):
                    memory[LSE + r] = lse[in_q, h, at + r]
                    memory[LSE + OTHERS + r] = delta[in_q, h, at + r]
                cuda.syncthreads()
                products(s, memory, own_k, 0, WEIGHTS + thread)
                dots(s, memory, own_v, DOUT, SLOPES + thread)
                for r in range(count):
                    p, ds = hidden, real(0)
                    first, last = keys_of(row + r, Lq, Lk, band)
                    if first <= j and j <= last:
                        x, dp = memory[WEIGHTS + thread + r * ROWS], memory[SLOPES + thread + r * ROWS]
                        p, ds = weigh(
                            x, dp, memory[LSE + r], memory[LSE + OTHERS + r], b, h, row + r, j, Lq, Lk, scale, softcap,
                            bias, slopes, given,
                        )  # fmt: skip
                    memory[WEIGHTS + thread + r * ROWS] = p
                    memory[SLOPES + thread + r * ROWS] = p if of_values else ds
                for r in range(count, OTHERS):
                    memory[WEIGHTS + thread + r * ROWS] = hidden
                for r in range(OTHERS):
                    if memory[WEIGHTS + thread + r * ROWS] != hidden:  # and else q and dout may be NaN
                        x = memory[SLOPES + thread + r * ROWS]
                        at = (factors + r * pitch + column) & WITHIN
                        for c in range(COLUMNS):
                            own[c] += x * memory[at + c]

        if j < (Lk if given.start_k != 0 else shape.Lk):
            for c in range(COLUMNS):
                if column + c < width:
                    if of_values:
                        dv[in_k, head_k, first_k + j, column + c] = own[c]
                    else:
                        dk[in_k, head_k, first_k + j, column + c] = own[c] * scale

    return keys


@functools.cache
def queries_of_tile(dtype: str, tile: Tile) -> Any:
    """dq: one thread a row."""
    real, scalar = real_of(dtype).cast, real_of(dtype).numba
    D, DV, ROWS, OTHERS, COLUMNS = tile
    VALUES, WEIGHTS = OTHERS * D, OTHERS * (D + DV)
    SLOPES = WEIGHTS + OTHERS * ROWS
    QUERIES = SLOPES + OTHERS * ROWS
    DOUT = QUERIES + ROWS * (D + 1)
    products, dots = products_of(D, OTHERS, ROWS), products_of(DV, OTHERS, ROWS)
    weigh, hidden = weigh_of(dtype), real(-1)

    @kernel(ROWS)
    def queries(  # type: ignore[no-untyped-def]
        q, k, v, dout, lse, delta, dq,
        bias, slopes, start_q, start_k, used_q, used_k, shape, band, given, scale, softcap,
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

        load(memory, QUERIES, D + 1, q, in_q, h, first_q + row, ROWS, first_q + Lq, 0, shape.D, thread, ROWS)
        load(memory, DOUT, DV + 1, dout, in_q, h, first_q + row, ROWS, first_q + Lq, 0, shape.Dv, thread, ROWS)
        own_q, own_dout = QUERIES + thread * (D + 1), DOUT + thread * (DV + 1)
        own_lse, own_delta = real(0), real(0)
        if i < Lq:
            own_lse, own_delta = lse[in_q, h, first_q + i], delta[in_q, h, first_q + i]
        s = cuda.local.array(OTHERS, scalar)
        own_dq = cuda.local.array(COLUMNS, scalar)
        for c in range(COLUMNS):
            own_dq[c] = 0
        for key in range(begin, end, int32(OTHERS)):
            cuda.syncthreads()  # nobody reads the last tile any more
            at, stop = first_k + key, first_k + Lk
            load(memory, 0, D, k, in_k, head_k, at, OTHERS, stop, 0, shape.D, thread, ROWS)
            load(memory, VALUES, DV, v, in_k, head_k, at, OTHERS, stop, 0, shape.Dv, thread, ROWS)
            cuda.syncthreads()
            products(s, memory, own_q, 0, WEIGHTS + thread)
            dots(s, memory, own_dout, VALUES, SLOPES + thread)
            count = min(int32(OTHERS), end - key)
            for r in range(count):
                p, ds = hidden, real(0)
                if first <= key + r and key + r <= last:
                    x, dp = memory[WEIGHTS + thread + r * ROWS], memory[SLOPES + thread + r * ROWS]
                    p, ds = weigh(
                        x, dp, own_lse, own_delta, b, h, i, key + r, Lq, Lk, scale, softcap, bias, slopes, given
                    )  # fmt: skip
                memory[WEIGHTS + thread + r * ROWS] = p
                memory[SLOPES + thread + r * ROWS] = ds
            for r in range(count, OTHERS):
                memory[WEIGHTS + thread + r * ROWS] = hidden
            for r in range(OTHERS):
                if memory[WEIGHTS + thread + r * ROWS] != hidden:  # and else its key may be NaN
                    ds = memory[SLOPES + thread + r * ROWS]
                    at = (r * D + column) & WITHIN
                    for c in range(COLUMNS):
                        own_dq[c] += ds * memory[at + c]

        if i < (Lq if given.start_q != 0 else shape.Lq):
            for c in range(COLUMNS):
                if column + c < shape.D:
                    dq[in_q, h, first_q + i, column + c] = own_dq[c] * scale

    return queries


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles; arrays of any strides are read element by element."""
    found = []
    for dtype in ("float32", "float64"):
        scalar = real_of(dtype).numba
        four, three, one = (types.Array(scalar, n, "A") for n in (4, 3, 1))
        ints = types.Array(types.int32, 1, "A")
        rest = (four, one, ints, ints, ints, ints, SHAPE, BAND, GIVEN, scalar, scalar)
        for D in (64, 128):
            tile = usual(dtype, D, D)
            for function, outputs in ((keys_of_tile, (four, four)), (queries_of_tile, (four,))):
                compiled = function(dtype, tile).py_func
                signature = types.void(four, four, four, four, three, three, *outputs, *rest)
                found.append(
                    Specialisation(
                        f"{compiled.__name__} {dtype} D={D} element", compiled, signature, tile.rows,
                        shared_bytes(dtype, tile), ("sm_80", "sm_90"), 0,
                    )
                )  # fmt: skip
    return found
