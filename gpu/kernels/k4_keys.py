"""4b. The gradients of keys and values; see `k4_backward` for what they are and how the kernel is launched.

A block has `spec.rows` keys of one key head, and goes through the queries of all heads that read it, `spec.keys` at a
time.  It works on transposed scores, keys down and queries across: so the weights, rounded, are A fragments of dv,
and the gradients of the scores those of dk, without leaving registers.

The next tile of queries, of dout, and of what the queries know is copied while this one is multiplied, as in k3; after
the last tile of a head comes the first of the next head.  A tile that the band empties is not read.
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
from .places import begin_row, bias_of_head, end_row, place_of_keys, place_of_packed_keys, room
from .spec import Spec
from .tiles import packing, row_bytes, tile_of
from .weights import ROW_BYTES, finish_of, load_rows_of, weights_of

__all__ = ["KEYS_SIGNATURE", "keys_bytes", "keys_kernel"]

KEYS_SIGNATURE = types.void(*[OPERAND] * 4, ROWS, OPERAND, OPERAND, SHAPE, BAND, LENGTHS, SCORES, BIAS)


def keys_bytes(spec: Spec, outputs: str = "both") -> int:
    """Dynamic shared memory: the block's keys and values, and two tiles of queries, dout, and what queries know."""
    k, v = row_bytes(spec.D), row_bytes(spec.Dv)
    return spec.rows * (max(k, v) if outputs == "dv" else k + v) + 2 * spec.keys * (k + v + ROW_BYTES)


@functools.cache
def keys_kernel(spec: Spec, outputs: str = "both") -> Any:
    """The kernel (q, k, v, dout, rows, dk, dv, shape, band, lengths, scores, bias); outputs: "both", "dk" or "dv"."""
    if outputs not in ("both", "dk", "dv"):
        raise ValueError(f"outputs={outputs!r} must be both, dk or dv")
    with_dk, with_dv = outputs != "dv", outputs != "dk"
    KEYS, QUERIES, STRIPES, OWN_KEYS = spec.rows, spec.keys, spec.row_tiles, 16 * spec.row_tiles
    DOUT = QUERIES * row_bytes(spec.D)
    KNOWN = DOUT + QUERIES * row_bytes(spec.Dv)
    BUFFER = KNOWN + QUERIES * ROW_BYTES
    BUFFERS = keys_bytes(spec, outputs) - 2 * BUFFER
    VALUES = KEYS * row_bytes(spec.D) if with_dk else 0  # dv alone reads no values, and may take the place of keys
    OWN_K, OWN_V = OWN_KEYS * row_bytes(spec.D), OWN_KEYS * row_bytes(spec.Dv)
    S_SIZE, P_SIZE = STRIPES * QUERIES // 2, STRIPES * QUERIES // 4
    DK_SIZE, DV_SIZE = STRIPES * spec.D // 2 if with_dk else 1, STRIPES * spec.Dv // 2 if with_dv else 1

    k_tile = tile_of(spec.D, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    v_tile = tile_of(spec.Dv, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    q_tile = tile_of(spec.D, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector)
    dout_tile = tile_of(spec.Dv, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector)
    load_k, load_v, load_q, load_dout = k_tile.load, v_tile.load, q_tile.load, dout_tile.load
    times_q_transposed, times_dout_transposed = q_tile.stripes_transposed, dout_tile.stripes_transposed
    times_q, times_dout = q_tile.times, dout_tile.times
    save_dk, store_dk, save_dv, store_dv = k_tile.save, k_tile.store, v_tile.save, v_tile.store
    finish_dk, finish_dv = finish_of(STRIPES, spec.D), finish_of(STRIPES, spec.Dv)
    load_rows = load_rows_of(QUERIES, spec.threads)
    weights = weights_of(spec, STRIPES, QUERIES, transposed=True)
    unit_of, prepare, full, hide, weigh = weights
    pack = packing(S_SIZE, spec.dtype)
    place = place_of_packed_keys if spec.varlen else place_of_keys
    alibi = spec.alibi

    @kernel(spec.threads)
    def keys_kernel(  # type: ignore[no-untyped-def]
        q, k, v, dout, rows, dk, dv, shape, band, lengths, scores, bias
    ):
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        warp, lane = int32(thread >> 5), int32(thread & 31)
        b, h_k, key, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(KEYS), shape, lengths)
        k_first = k.ptr + int64(b) * k.batch + int64(h_k) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(h_k) * v.head + start_k * v.row
        q_first = q.ptr + int64(b) * q.batch + start_q * q.row
        dout_first = dout.ptr + int64(b) * dout.batch + start_q * dout.row
        rows_first = rows.ptr + int64(b) * rows.batch + start_q * ROW_BYTES
        offset = int32(Lk - Lq) if band.bottom_right != 0 else int32(0)
        begin = int32(begin_row(key, offset, band))
        end = int32(end_row(key, int32(KEYS), offset, band, Lq, Lk))
        head, row = int32(h_k * shape.group), begin
        last = int32(head + shape.group) if begin < end else head
        unit, slope = unit_of(scores), float32(0)

        own_key = int32(key + warp * OWN_KEYS)
        own_k, own_v = int32(memory + warp * OWN_K), int32(memory + VALUES + warp * OWN_V)
        p = cuda.local.array(P_SIZE, int32)
        s = cuda.local.array(S_SIZE, float32)
        dp = cuda.local.array(S_SIZE, float32)
        sum_k = cuda.local.array(DK_SIZE, float32)
        sum_v = cuda.local.array(DV_SIZE, float32)
        for i in range(DK_SIZE):
            sum_k[i] = float32(0)
        for i in range(DV_SIZE):
            sum_v[i] = float32(0)
        current, both = int32(memory + BUFFERS), int32(2 * (memory + BUFFERS) + BUFFER)
        if head < last:
            load_k(memory, k_first, k.row, key, Lk, shape.D, thread)
            if with_dk:
                load_v(int32(memory + VALUES), v_first, v.row, key, Lk, shape.Dv, thread)
            load_q(current, q_first + int64(head) * q.head, q.row, row, end, shape.D, thread)
            load_dout(int32(current + DOUT), dout_first + int64(head) * dout.head, dout.row, row, end, shape.Dv, thread)
            load_rows(int32(current + KNOWN), rows_first + int64(head) * rows.head, row, end, thread)
            ptx.commit_copies()
        while head < last:
            ptx.wait_copies()
            cuda.syncthreads()  # this tile has arrived, and nobody reads the other one any more
            other = int32(both - current)
            next_head, next_row = head, int32(row + QUERIES)
            if next_row >= end:
                next_head, next_row = int32(head + 1), begin
            if next_head < last:
                to, dout_to = next_head, dout_first + int64(next_head) * dout.head
                load_q(other, q_first + int64(to) * q.head, q.row, next_row, end, shape.D, thread)
                load_dout(int32(other + DOUT), dout_to, dout.row, next_row, end, shape.Dv, thread)
                load_rows(int32(other + KNOWN), rows_first + int64(to) * rows.head, next_row, end, thread)
                ptx.commit_copies()
            for i in range(S_SIZE):
                s[i], dp[i] = float32(0), float32(0)
            times_q_transposed(s, own_k, current, lane)
            if with_dk:
                times_dout_transposed(dp, own_v, int32(current + DOUT), lane)
            if alibi:
                slope = ptx.load_global_f32(scores.slopes + int64(head) * 4)
            bias_h = bias_of_head(bias, b, head)
            known, away = int32(current + KNOWN), int32(Lk - Lq)
            prepare(s, dp, known, unit, scores, bias_h, slope, row, own_key, away, Lq, Lk, lane)
            shift, exist = int32(row + int32(offset - own_key)), int32(end - row)
            if not full(shift, exist, band):
                hide(s, dp, shift, exist, band, lane)
            weigh(s, dp)
            if with_dv:
                pack(p, s)
                times_dout(sum_v, p, int32(current + DOUT), lane)
            if with_dk:
                pack(p, dp)
                times_q(sum_k, p, current, lane)
            current, head, row = other, next_head, next_row

        # found again rather than kept in registers, of which the loop has none to spare
        b, h_k, key, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(KEYS), shape, lengths)
        own_key, limit = int32(key + warp * OWN_KEYS), room(b, lengths.start_k, shape.Lk)
        cuda.syncthreads()  # nobody reads keys and values any more: gradients take their place
        if with_dk:
            finish_dk(sum_k, scores.scale, int32(Lk - own_key), lane)
            save_dk(sum_k, own_k, lane)
        if with_dv:
            finish_dv(sum_v, float32(1), int32(Lk - own_key), lane)
            save_dv(sum_v, own_v, lane)
        cuda.syncwarp()
        if with_dk:
            first = dk.ptr + int64(b) * dk.batch + int64(h_k) * dk.head + start_k * dk.row
            store_dk(own_k, first, dk.row, own_key, limit, shape.D, lane)
        if with_dv:
            first = dv.ptr + int64(b) * dv.batch + int64(h_k) * dv.head + start_k * dv.row
            store_dv(own_v, first, dv.row, own_key, limit, shape.Dv, lane)

    return keys_kernel
