"""Tiles of 16-bit rows in shared memory: how they come, and how products of them are had on tensor cores.

A row of D elements takes 2 D + 16 bytes, so that the eight rows that one ldmatrix reads lie in different banks.
Functions are of one lane, `lane` is its number in the warp.  Fragments are local arrays (layout: `gpu.ptx.tensor`)
and are indexed by loops of constant length, which the compiler unrolls, so that they stay in registers:

    A (16 T x K)  a[(t * K / 16 + k) * 4 + e]      16-bit pairs, int32
    C (16 T x N)  c[(t * N / 8 + n) * 4 + e]       float32

for T stripes of 16 rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy import int32, int64

from gpu import ptx
from gpu.target import device

__all__ = ["Tile", "load_by_warp", "packing", "row_bytes", "tile_of"]


def row_bytes(D: int) -> int:
    """Bytes from one row of a tile to the next."""
    return 2 * D + 16


class Tile(NamedTuple):
    """Device functions for a tile of `rows` x `D`, whose `shared` is its address."""

    load: Any
    """load(shared, first, stride, row, limit, used, thread): begins the copy of rows row, row + 1, ... of the
    operand at address `first`; rows from `limit` on and columns from `used` on become 0."""
    fragments: Any
    """fragments(a, shared, lane): a = A fragments of 16 T rows, from the row at `shared` on."""
    times_transposed: Any
    """times_transposed(c, a, shared, lane): c (16 T x rows) += a (16 T x D) · tile transposed."""
    stripes_transposed: Any
    """stripes_transposed(c, stripes, shared, lane): the same, a read from the 16 T rows at `stripes`; T is 1 or 2."""
    times: Any
    """times(c, a, shared, lane): c (16 T x D) += a (16 T x rows) · tile."""
    save: Any
    """save(c, shared, lane): the C fragments (16 T x D), rounded, into the rows at `shared`."""
    store: Any
    """store(shared, first, stride, row, limit, used, lane): 16 T rows from shared to global memory, by one warp."""


def tile_of(D: int, rows: int, stripes: int, threads: int, dtype: str, vector: bool) -> Tile:
    """The functions for a tile of `rows` x `D`, loaded by `threads` threads, and operands of `stripes` times 16 rows.

    `vector`: global rows are 16-byte aligned and copied 16 bytes at a time; otherwise element by element.
    """
    ROW, CHUNKS, STEPS, BLOCKS = row_bytes(D), D // 8, D // 16, rows // 16
    STEP16 = 16 * ROW
    LOADS, STORES = (rows * CHUNKS + threads - 1) // threads, 16 * stripes * CHUNKS // 32
    EVEN = rows * CHUNKS % threads == 0
    STRIDE = threads // CHUNKS if threads % CHUNKS == 0 else 0
    mma = ptx.mma_bf16 if dtype == "bfloat16" else ptx.mma_f16
    pack = ptx.pack_bf16 if dtype == "bfloat16" else ptx.pack_f16

    @device
    def multiply(c, i, a0, a1, a2, a3, b):  # type: ignore[no-untyped-def]
        """c[i : i + 8], two neighbouring blocks of 16 x 8, += A · B."""
        d = mma(a0, a1, a2, a3, b[0], b[1], c[i], c[i + 1], c[i + 2], c[i + 3])
        c[i], c[i + 1], c[i + 2], c[i + 3] = d[0], d[1], d[2], d[3]
        d = mma(a0, a1, a2, a3, b[2], b[3], c[i + 4], c[i + 5], c[i + 6], c[i + 7])
        c[i + 4], c[i + 5], c[i + 6], c[i + 7] = d[0], d[1], d[2], d[3]

    @device
    def copy_chunk(to, source, row, limit, left):  # type: ignore[no-untyped-def]
        """Eight columns of a row, of which `left` exist; where none is to be read, the address may be any."""
        exists = row < limit and left > 0
        if vector:
            ptx.copy_async(to, source, int32(16) if exists else int32(0))
        else:
            for e in range(8):
                x = int32(0)
                if exists and e < left:
                    x = ptx.load_global_b16(source + e * 2)
                ptx.store_shared_b16(int32(to + e * 2), x)

    @device
    def load(shared, first, stride, row, limit, used, thread):  # type: ignore[no-untyped-def]
        if STRIDE > 0:  # each thread stays in its column and walks down: few addresses are held
            r = int32(thread // CHUNKS)
            chunk = int32(thread - r * CHUNKS)
            to, left = int32(shared + r * ROW + chunk * 16), int32(used - chunk * 8)
            source, step = first + int64(row + r) * stride + chunk * 16, stride * STRIDE
            for i in range(LOADS):
                if EVEN or r + i * STRIDE < rows:
                    copy_chunk(int32(to + i * STRIDE * ROW), source, int32(row + r + i * STRIDE), limit, left)
                source += step
        else:
            for i in range(LOADS):
                c = int32(thread + i * threads)
                r = int32(c // CHUNKS)
                chunk = int32(c - r * CHUNKS)
                if EVEN or r < rows:
                    to, source = int32(shared + r * ROW + chunk * 16), first + int64(row + r) * stride + chunk * 16
                    copy_chunk(to, source, int32(row + r), limit, int32(used - chunk * 8))

    @device
    def fragments(a, shared, lane):  # type: ignore[no-untyped-def]
        own = int32(shared + (lane & 15) * ROW + (lane >> 4) * 16)
        for t in range(stripes):
            for k in range(STEPS):
                x = ptx.ldmatrix_x4(int32(own + t * STEP16 + k * 32))
                for e in range(4):
                    a[(t * STEPS + k) * 4 + e] = x[e]

    @device
    def times_transposed(c, a, shared, lane):  # type: ignore[no-untyped-def]
        own = int32(shared + ((lane & 7) + (lane >> 4) * 8) * ROW + (lane >> 3 & 1) * 16)
        for k in range(STEPS):
            for n in range(BLOCKS):
                b = ptx.ldmatrix_x4(int32(own + n * STEP16 + k * 32))
                for t in range(stripes):
                    i = (t * STEPS + k) * 4
                    multiply(c, (t * BLOCKS + n) * 8, a[i], a[i + 1], a[i + 2], a[i + 3], b)

    @device
    def stripes_transposed(c, stripes_, shared, lane):  # type: ignore[no-untyped-def]
        left = int32(stripes_ + (lane & 15) * ROW + (lane >> 4) * 16)
        own = int32(shared + ((lane & 7) + (lane >> 4) * 8) * ROW + (lane >> 3 & 1) * 16)
        for k in range(STEPS):
            x = ptx.ldmatrix_x4(int32(left + k * 32))
            y = ptx.ldmatrix_x4(int32(left + STEP16 + k * 32)) if stripes == 2 else x
            for n in range(BLOCKS):
                b = ptx.ldmatrix_x4(int32(own + n * STEP16 + k * 32))
                multiply(c, n * 8, x[0], x[1], x[2], x[3], b)
                if stripes == 2:
                    multiply(c, (BLOCKS + n) * 8, y[0], y[1], y[2], y[3], b)

    @device
    def times(c, a, shared, lane):  # type: ignore[no-untyped-def]
        own = int32(shared + ((lane & 7) + (lane >> 3 & 1) * 8) * ROW + (lane >> 4) * 16)
        for k in range(BLOCKS):
            for n in range(STEPS):
                b = ptx.ldmatrix_x4_trans(int32(own + k * STEP16 + n * 32))
                for t in range(stripes):
                    i = (t * BLOCKS + k) * 4
                    multiply(c, (t * STEPS + n) * 8, a[i], a[i + 1], a[i + 2], a[i + 3], b)

    @device
    def save(c, shared, lane):  # type: ignore[no-untyped-def]
        own = int32(shared + (lane >> 2) * ROW + (lane & 3) * 4)
        for t in range(stripes):
            for n in range(2 * STEPS):
                i = (t * 2 * STEPS + n) * 4
                ptx.store_shared_b32(int32(own + t * STEP16 + n * 16), pack(c[i], c[i + 1]))
                ptx.store_shared_b32(int32(own + t * STEP16 + 8 * ROW + n * 16), pack(c[i + 2], c[i + 3]))

    @device
    def store(shared, first, stride, row, limit, used, lane):  # type: ignore[no-untyped-def]
        for i in range(STORES):
            c = int32(lane + i * 32)
            r = int32(c // CHUNKS)
            chunk = int32(c - r * CHUNKS)
            if row + r < limit and chunk * 8 < used:
                to = first + int64(row + r) * stride + chunk * 16
                x = ptx.load_shared_b32x4(int32(shared + r * ROW + chunk * 16))
                if vector:
                    ptx.store_global_b32x4(to, x[0], x[1], x[2], x[3])
                else:
                    for e in range(8):
                        if chunk * 8 + e < used:
                            ptx.store_global_b16(to + e * 2, x[e >> 1] >> (e & 1) * 16)

    return Tile(load, fragments, times_transposed, stripes_transposed, times, save, store)


def load_by_warp(D: int, rows: int, vector: bool) -> Any:
    """`Tile.load` for a tile that one warp loads for itself; its last argument is the lane.

    A lane copies the same columns of every fourth (eighth) row, so that few addresses have to be held.
    """
    ROW, WIDE = row_bytes(D), 8 if D % 64 == 0 else 4
    ROWS_AT_ONCE, COLUMNS_AT_ONCE = 32 // WIDE, 8 * WIDE
    DOWN, ACROSS = rows // ROWS_AT_ONCE, D // COLUMNS_AT_ONCE

    @device
    def load(shared, first, stride, row, limit, used, lane):  # type: ignore[no-untyped-def]
        own_row, own_column = int32(lane // int32(WIDE)), int32(lane % int32(WIDE) * int32(8))
        to = int32(shared + own_row * int32(ROW) + own_column * int32(2))
        source = first + int64(row + own_row) * stride + int64(own_column * 2)
        left = int32(limit - row - own_row)
        for i in range(DOWN):
            for j in range(ACROSS):
                column = int32(own_column + int32(j * COLUMNS_AT_ONCE))
                exists = left > i * ROWS_AT_ONCE and column < used
                at = to + int32(i * ROWS_AT_ONCE * ROW + j * COLUMNS_AT_ONCE * 2)
                if vector:
                    here = source + j * COLUMNS_AT_ONCE * 2 if exists else first
                    ptx.copy_async(at, here, int32(16) if exists else int32(0))
                else:
                    for e in range(8):
                        x = int32(0)
                        if exists and column + e < used:
                            x = ptx.load_global_b16(source + (j * COLUMNS_AT_ONCE + e) * 2)
                        ptx.store_shared_b16(at + e * 2, x)
            source += ROWS_AT_ONCE * stride

    return load


def packing(size: int, dtype: str) -> Any:
    """pack(a, c): `size` floats of C fragments (16 T x N), rounded in pairs, as the A fragments of the next product."""
    pairs = size // 2
    pack_two = ptx.pack_bf16 if dtype == "bfloat16" else ptx.pack_f16

    @device
    def pack(a, c):  # type: ignore[no-untyped-def]
        for i in range(pairs):
            a[i] = pack_two(c[2 * i], c[2 * i + 1])

    return pack
