"""4c. The gradient of queries; see `k4_backward` for what it is and how the kernel is launched.

Shaped like the forward: a block has `spec.rows` queries of one head, and goes through the keys that they see,
`spec.keys` at a time.  A tile of keys is used twice, for the scores and for dq; a tile of values for dout·v.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import kernel

from .arguments import BAND, BIAS, LENGTHS, OPERAND, ROWS, SCORES, SHAPE
from .places import begin_key, bias_of_head, end_key, place_of, place_of_packed, room
from .spec import Spec
from .tiles import packing, row_bytes, tile_of
from .weights import ROW_BYTES, finish_of, load_rows_of, weights_of

__all__ = ["QUERIES_SIGNATURE", "queries_bytes", "queries_kernel"]

QUERIES_SIGNATURE = types.void(*[OPERAND] * 4, ROWS, OPERAND, SHAPE, BAND, LENGTHS, SCORES, BIAS)


def queries_bytes(spec: Spec) -> int:
    """Dynamic shared memory: the block's queries, dout, and what they know, and two tiles of keys and values."""
    return (spec.rows + 2 * spec.keys) * (row_bytes(spec.D) + row_bytes(spec.Dv)) + spec.rows * ROW_BYTES


@functools.cache
def queries_kernel(spec: Spec) -> Any:
    """The kernel (q, k, v, dout, rows, dq, shape, band, lengths, scores, bias)."""
    QUERIES, KEYS, STRIPES, OWN_ROWS = spec.rows, spec.keys, spec.row_tiles, 16 * spec.row_tiles
    DOUT = QUERIES * row_bytes(spec.D)
    KNOWN = DOUT + QUERIES * row_bytes(spec.Dv)
    BUFFERS = KNOWN + QUERIES * ROW_BYTES
    VALUES = KEYS * row_bytes(spec.D)
    BUFFER = VALUES + KEYS * row_bytes(spec.Dv)
    OWN_Q, OWN_DOUT, OWN_KNOWN = OWN_ROWS * row_bytes(spec.D), OWN_ROWS * row_bytes(spec.Dv), OWN_ROWS * ROW_BYTES
    S_SIZE, P_SIZE, DQ_SIZE = STRIPES * KEYS // 2, STRIPES * KEYS // 4, STRIPES * spec.D // 2

    q_tile = tile_of(spec.D, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector)
    k_tile = tile_of(spec.D, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    v_tile = tile_of(spec.Dv, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    load_dout = tile_of(spec.Dv, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector).load
    load_q, load_k, load_v = q_tile.load, k_tile.load, v_tile.load
    times_k_transposed, times_v_transposed = k_tile.stripes_transposed, v_tile.stripes_transposed
    times_k, save, store = k_tile.times, q_tile.save, q_tile.store
    load_rows, finish = load_rows_of(QUERIES, spec.threads), finish_of(STRIPES, spec.D)
    weights = weights_of(spec, STRIPES, KEYS, transposed=False)
    unit_of, prepare, full, hide, weigh = weights
    pack = packing(S_SIZE, spec.dtype)
    place = place_of_packed if spec.varlen else place_of
    alibi = spec.alibi

    @kernel(spec.threads)
    def queries_kernel(q, k, v, dout, rows, dq, shape, band, lengths, scores, bias):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        warp, lane = int32(thread >> 5), int32(thread & 31)
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(QUERIES), shape, lengths)
        h_k = ptx.divide(h, shape.group)
        q_first = q.ptr + int64(b) * q.batch + int64(h) * q.head + start_q * q.row
        dout_first = dout.ptr + int64(b) * dout.batch + int64(h) * dout.head + start_q * dout.row
        rows_first = rows.ptr + int64(b) * rows.batch + int64(h) * rows.head + start_q * ROW_BYTES
        k_first = k.ptr + int64(b) * k.batch + int64(h_k) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(h_k) * v.head + start_k * v.row
        offset = int32(Lk - Lq) if band.bottom_right != 0 else int32(0)
        begin = int32(begin_key(row, offset, band) // KEYS * KEYS)
        end = int32(end_key(row, int32(QUERIES), offset, band, Lq, Lk))
        unit, slope = unit_of(scores), float32(0)
        if alibi:
            slope = ptx.load_global_f32(scores.slopes + int64(h) * 4)
        bias_h = bias_of_head(bias, b, h)

        own_row = int32(row + warp * OWN_ROWS)
        own_q, own_dout = int32(memory + warp * OWN_Q), int32(memory + DOUT + warp * OWN_DOUT)
        own_known = int32(memory + KNOWN + warp * OWN_KNOWN)
        p = cuda.local.array(P_SIZE, int32)
        s = cuda.local.array(S_SIZE, float32)
        dp = cuda.local.array(S_SIZE, float32)
        sums = cuda.local.array(DQ_SIZE, float32)
        for i in range(DQ_SIZE):
            sums[i] = float32(0)
        current, both = int32(memory + BUFFERS), int32(2 * (memory + BUFFERS) + BUFFER)
        if begin < end:
            load_q(memory, q_first, q.row, row, Lq, shape.D, thread)
            load_dout(int32(memory + DOUT), dout_first, dout.row, row, Lq, shape.Dv, thread)
            load_rows(int32(memory + KNOWN), rows_first, row, Lq, thread)
            load_k(current, k_first, k.row, begin, end, shape.D, thread)
            load_v(int32(current + VALUES), v_first, v.row, begin, end, shape.Dv, thread)
            ptx.commit_copies()
        for key in range(begin, end, int32(KEYS)):
            ptx.wait_copies()
            cuda.syncthreads()  # this tile has arrived, and nobody reads the other one any more
            other = int32(both - current)
            if key + KEYS < end:
                load_k(other, k_first, k.row, int32(key + KEYS), end, shape.D, thread)
                load_v(int32(other + VALUES), v_first, v.row, int32(key + KEYS), end, shape.Dv, thread)
                ptx.commit_copies()
            for i in range(S_SIZE):
                s[i], dp[i] = float32(0), float32(0)
            times_k_transposed(s, own_q, current, lane)
            times_v_transposed(dp, own_dout, int32(current + VALUES), lane)
            prepare(s, dp, own_known, unit, scores, bias_h, slope, own_row, key, int32(Lk - Lq), Lq, Lk, lane)
            shift, exist = int32(int32(own_row + offset) - key), int32(end - key)
            if not full(shift, exist, band):
                hide(s, dp, shift, exist, band, lane)
            weigh(s, dp)
            pack(p, dp)
            times_k(sums, p, current, lane)
            current = other

        # found again rather than kept in registers, of which the loop has none to spare
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(QUERIES), shape, lengths)
        own_row, limit = int32(row + warp * OWN_ROWS), room(b, lengths.start_q, shape.Lq)
        cuda.syncthreads()  # nobody reads q any more: its gradient takes its place
        finish(sums, scores.scale, int32(Lq - own_row), lane)
        save(sums, own_q, lane)
        cuda.syncwarp()
        first = dq.ptr + int64(b) * dq.batch + int64(h) * dq.head + start_q * dq.row
        store(own_q, first, dq.row, own_row, limit, shape.D, lane)

    return queries_kernel
