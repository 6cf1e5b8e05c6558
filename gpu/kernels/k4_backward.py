"""4. The backward on tensor cores, for float16 and bfloat16: two kernels without atomics, the same bits in every run.

Added to k3: gradients.  Weights are made again from scores and lse (`weights`), so that nothing of the size of
Lq x Lk is ever stored.  No two blocks add to the same number: a block either has keys, and goes through all queries of
all heads that read them, or has queries, and goes through their keys.  The first works on transposed scores: there
the weights are A fragments of sums over queries without leaving registers.

    p   as in `weights`, rounded to 16 bits           ds  the gradient of the scores, rounded to 16 bits
    dv = sum_i p_ij dout_i                            dk = scale sum_i ds_ij q_i       i: rows of all heads of a group
    dq = scale sum_j ds_ij k_j                        sums in float32, each result rounded once

Launch, after `k4_delta.delta`, in any order (`spec.rows` is what a block has, `spec.keys` what it goes through at a time):

    keys_kernel(spec, outputs)  grid (ceil(Lk / spec.rows) * Hkv * B,), block spec.threads, keys_bytes(spec, outputs);
        (q, k, v, dout, rows, dk, dv, shape, band, lengths, scores, bias).  outputs: "both"; or "dk" and "dv" in two
        launches, where both would not fit in registers (`usual_keys` tells); the other address is then not used.
    queries_kernel(spec)        grid (ceil(Lq / spec.rows) * H * B,), block spec.threads, queries_bytes(spec);
        (q, k, v, dout, rows, dq, shape, band, lengths, scores, bias)

`rows` is what `k4_delta.delta` wrote.  Sinks act through lse alone: `scores.sinks` is not read.  All rows of dq, dk, dv are
written: 0 at those that are beyond a length, or that nothing sees.

Source: Dao 2023, FlashAttention-2, algorithm 2; the two loops instead of atomics: Triton's tutorial 06 has them too.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import kernel

from .arguments import BAND, BIAS, LENGTHS, OPERAND, ROWS, SCORES, SHAPE, Specialisation
from .places import begin_key, begin_row, bias_of_head, end_key, end_row, extent, place_of, room, whole
from .softmax import INFINITE, LOG2E
from .spec import HEAD_SIZES, Spec
from .tiles import packing, row_bytes, tile_of
from .weights import ROW_BYTES, load_rows_of, weights_of

__all__ = [
    "KEYS_SIGNATURE", "QUERIES_SIGNATURE", "keys_bytes", "keys_kernel", "queries_bytes", "queries_kernel",
    "specialisations", "usual_keys", "usual_queries",
]  # fmt: skip

QUERIES_SIGNATURE = types.void(*[OPERAND] * 4, ROWS, OPERAND, SHAPE, BAND, LENGTHS, SCORES, BIAS)
KEYS_SIGNATURE = types.void(*[OPERAND] * 4, ROWS, OPERAND, OPERAND, SHAPE, BAND, LENGTHS, SCORES, BIAS)


def keys_bytes(spec: Spec, outputs: str = "both") -> int:
    """Dynamic shared memory: the block's keys and values, and twice a tile of queries, dout, and what rows know."""
    k, v = row_bytes(spec.D), row_bytes(spec.Dv)
    return spec.rows * (max(k, v) if outputs == "dv" else k + v) + 2 * spec.keys * (k + v + ROW_BYTES)


def queries_bytes(spec: Spec) -> int:
    """Dynamic shared memory: the block's queries and dout, and twice a tile of keys and values."""
    return (spec.rows + 2 * spec.keys) * (row_bytes(spec.D) + row_bytes(spec.Dv))


@functools.lru_cache(maxsize=None)
def keys_kernel(spec: Spec, outputs: str = "both") -> Any:
    """The kernel for dk and dv, or for one of them; see the head of the module."""
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
    S_SIZE = STRIPES * QUERIES // 2
    P_SIZE, DK_SIZE, DV_SIZE = S_SIZE // 2, STRIPES * spec.D // 2 if with_dk else 1, STRIPES * spec.Dv // 2 if with_dv else 1

    k_tile = tile_of(spec.D, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    v_tile = tile_of(spec.Dv, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    q_tile = tile_of(spec.D, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector)
    dout_tile = tile_of(spec.Dv, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector)
    load_k, load_v, load_q, load_dout = k_tile.load, v_tile.load, q_tile.load, dout_tile.load
    times_q_transposed, times_dout_transposed = q_tile.stripes_transposed, dout_tile.stripes_transposed
    times_q, times_dout = q_tile.times, dout_tile.times
    save_dk, store_dk, save_dv, store_dv = k_tile.save, k_tile.store, v_tile.save, v_tile.store
    load_rows = load_rows_of(QUERIES, spec.threads)
    weights = weights_of(spec, STRIPES, QUERIES, transposed=True)
    prepare, hide, weigh = weights
    pack = packing(S_SIZE, spec.dtype)
    alibi = spec.alibi

    @kernel(spec.threads)
    def keys_kernel(  # type: ignore[no-untyped-def]
        q, k, v, dout, rows, dk, dv, shape, band, lengths, scores, bias
    ):
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        warp, lane = thread >> 5, thread & 31
        tiles = (shape.Lk + int32(KEYS - 1)) // int32(KEYS)
        place = int32(cuda.blockIdx.x) // tiles  # the first keys come first: under a causal mask they have most rows
        key = (int32(cuda.blockIdx.x) - place * tiles) * int32(KEYS)
        heads = shape.H // shape.group
        b = place // heads
        h_k = place - b * heads
        start_q, start_k, Lq, Lk = extent(b, shape, lengths)
        k_first = k.ptr + int64(b) * k.batch + int64(h_k) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(h_k) * v.head + start_k * v.row
        q_first = q.ptr + int64(b) * q.batch + start_q * q.row
        dout_first = dout.ptr + int64(b) * dout.batch + start_q * dout.row
        rows_first = rows.ptr + int64(b) * rows.batch + start_q * int64(ROW_BYTES)
        offset = Lk - Lq if band.bottom_right != 0 else int32(0)
        begin = begin_row(key, offset, band)
        end = end_row(key, int32(KEYS), offset, band, Lq, Lk)
        head, last = h_k * shape.group, (h_k + int32(1)) * shape.group
        if begin >= end:
            last = head
        unit, slope = scores.scale * LOG2E, float32(0)

        own_key = key + warp * int32(OWN_KEYS)
        own_k, own_v = memory + warp * int32(OWN_K), memory + int32(VALUES) + warp * int32(OWN_V)
        p = cuda.local.array(P_SIZE, int32)
        s = cuda.local.array(S_SIZE, float32)
        dp = cuda.local.array(S_SIZE, float32)
        sum_k = cuda.local.array(DK_SIZE, float32)
        sum_v = cuda.local.array(DV_SIZE, float32)
        for i in range(DK_SIZE):
            sum_k[i] = float32(0)
        for i in range(DV_SIZE):
            sum_v[i] = float32(0)
        current, other = memory + int32(BUFFERS), memory + int32(BUFFERS + BUFFER)
        if head < last:
            load_k(memory, k_first, k.row, key, Lk, shape.D, thread)
            if with_dk:
                load_v(memory + int32(VALUES), v_first, v.row, key, Lk, shape.Dv, thread)
            load_q(current, q_first + int64(head) * q.head, q.row, begin, Lq, shape.D, thread)
            load_dout(current + int32(DOUT), dout_first + int64(head) * dout.head, dout.row, begin, Lq, shape.Dv, thread)
            load_rows(current + int32(KNOWN), rows_first + int64(head) * rows.head, begin, Lq, thread)
            ptx.commit_copies()
        row = begin
        while head < last:
            ptx.wait_copies()
            cuda.syncthreads()  # this tile has arrived, and nobody reads the other one any more
            next_head, next_row = head, int32(row + QUERIES)
            if next_row >= end:
                next_head, next_row = int32(head + 1), begin
            if next_head < last:
                to = next_head
                load_q(other, q_first + int64(to) * q.head, q.row, next_row, Lq, shape.D, thread)
                load_dout(other + int32(DOUT), dout_first + int64(to) * dout.head, dout.row, next_row, Lq, shape.Dv, thread)
                load_rows(other + int32(KNOWN), rows_first + int64(to) * rows.head, next_row, Lq, thread)
                ptx.commit_copies()
            for i in range(S_SIZE):
                s[i], dp[i] = float32(0), float32(0)
            times_q_transposed(s, own_k, current, lane)
            if with_dk:
                times_dout_transposed(dp, own_v, current + int32(DOUT), lane)
            if alibi:
                slope = ptx.load_global_f32(scores.slopes + int64(head) * 4)
            bias_h = bias_of_head(bias, b, head)
            prepare(s, dp, current + int32(KNOWN), unit, scores, bias_h, slope, row, own_key, Lk - Lq, Lq, Lk, lane)
            if row + QUERIES > Lq or not whole(own_key, int32(OWN_KEYS), row, int32(QUERIES), offset, band, Lk):
                hide(s, dp, row, own_key, offset, band, Lq, Lk, lane)
            weigh(s, dp)
            if with_dv:
                pack(p, s)
                times_dout(sum_v, p, current + int32(DOUT), lane)
            if with_dk:
                pack(p, dp)
                times_q(sum_k, p, current, lane)
            current, other = other, current
            head, row = next_head, next_row

        cuda.syncthreads()  # nobody reads keys and values any more: gradients take their place
        limit = room(b, lengths.start_k, shape.Lk)
        if with_dk:
            for i in range(DK_SIZE):
                sum_k[i] *= scores.scale
            save_dk(sum_k, own_k, lane)
        if with_dv:
            save_dv(sum_v, own_v, lane)
        cuda.syncwarp()
        if with_dk:
            first = dk.ptr + int64(b) * dk.batch + int64(h_k) * dk.head + start_k * dk.row
            store_dk(own_k, first, dk.row, own_key, limit, shape.D, lane)
        if with_dv:
            first = dv.ptr + int64(b) * dv.batch + int64(h_k) * dv.head + start_k * dv.row
            store_dv(own_v, first, dv.row, own_key, limit, shape.Dv, lane)

    return keys_kernel


@functools.lru_cache(maxsize=None)
def queries_kernel(spec: Spec) -> Any:
    """The kernel for dq; see the head of the module."""
    QUERIES, KEYS, STRIPES, OWN_ROWS = spec.rows, spec.keys, spec.row_tiles, 16 * spec.row_tiles
    DOUT = QUERIES * row_bytes(spec.D)
    BUFFERS = DOUT + QUERIES * row_bytes(spec.Dv)
    VALUES = KEYS * row_bytes(spec.D)
    BUFFER = VALUES + KEYS * row_bytes(spec.Dv)
    OWN_Q, OWN_DOUT = OWN_ROWS * row_bytes(spec.D), OWN_ROWS * row_bytes(spec.Dv)
    S_SIZE, DQ_SIZE, HALVES = STRIPES * KEYS // 2, STRIPES * spec.D // 2, 2 * STRIPES
    P_SIZE, KNOWN_SIZE = S_SIZE // 2, 2 * HALVES

    q_tile = tile_of(spec.D, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector)
    load_dout = tile_of(spec.Dv, QUERIES, STRIPES, spec.threads, spec.dtype, spec.vector).load
    k_tile = tile_of(spec.D, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    v_tile = tile_of(spec.Dv, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    load_q, load_k, load_v = q_tile.load, k_tile.load, v_tile.load
    times_k_transposed, times_v_transposed = k_tile.stripes_transposed, v_tile.stripes_transposed
    times_k, save, store = k_tile.times, q_tile.save, q_tile.store
    weights = weights_of(spec, STRIPES, KEYS, transposed=False)
    prepare, hide, weigh = weights
    pack = packing(S_SIZE, spec.dtype)
    alibi = spec.alibi

    @kernel(spec.threads)
    def queries_kernel(  # type: ignore[no-untyped-def]
        q, k, v, dout, rows, dq, shape, band, lengths, scores, bias
    ):
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        warp, lane = thread >> 5, thread & 31
        b, h, row, start_q, start_k, Lq, Lk = place_of(int32(cuda.blockIdx.x), int32(QUERIES), shape, lengths)
        q_first = q.ptr + int64(b) * q.batch + int64(h) * q.head + start_q * q.row
        dout_first = dout.ptr + int64(b) * dout.batch + int64(h) * dout.head + start_q * dout.row
        k_first = k.ptr + int64(b) * k.batch + int64(h // shape.group) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(h // shape.group) * v.head + start_k * v.row
        offset = Lk - Lq if band.bottom_right != 0 else int32(0)
        begin = begin_key(row, offset, band) // int32(KEYS) * int32(KEYS)
        end = end_key(row, int32(QUERIES), offset, band, Lq, Lk)
        unit, slope = scores.scale * LOG2E, float32(0)
        if alibi:
            slope = ptx.load_global_f32(scores.slopes + int64(h) * 4)
        bias_h = bias_of_head(bias, b, h)

        own_row = row + warp * int32(OWN_ROWS)
        own_q, own_dout = memory + warp * int32(OWN_Q), memory + int32(DOUT) + warp * int32(OWN_DOUT)
        known = cuda.local.array(KNOWN_SIZE, float32)
        for r in range(HALVES):
            i = own_row + int32(r >> 1) * int32(16) + int32(r & 1) * int32(8) + (lane >> 2)
            known[2 * r], known[2 * r + 1] = INFINITE, float32(0)  # a row that does not exist: like one without a key
            if i < Lq:
                at = rows.ptr + int64(b) * rows.batch + int64(h) * rows.head + (start_q + i) * ROW_BYTES
                known[2 * r], known[2 * r + 1] = ptx.load_global_f32(at), ptx.load_global_f32(at + 4)
        p = cuda.local.array(P_SIZE, int32)
        s = cuda.local.array(S_SIZE, float32)
        dp = cuda.local.array(S_SIZE, float32)
        sums = cuda.local.array(DQ_SIZE, float32)
        for i in range(DQ_SIZE):
            sums[i] = float32(0)
        current, other = memory + int32(BUFFERS), memory + int32(BUFFERS + BUFFER)
        if begin < end:
            load_q(memory, q_first, q.row, row, Lq, shape.D, thread)
            load_dout(memory + int32(DOUT), dout_first, dout.row, row, Lq, shape.Dv, thread)
            load_k(current, k_first, k.row, begin, Lk, shape.D, thread)
            load_v(current + int32(VALUES), v_first, v.row, begin, Lk, shape.Dv, thread)
            ptx.commit_copies()
        for key in range(begin, end, int32(KEYS)):
            ptx.wait_copies()
            cuda.syncthreads()  # this tile has arrived, and nobody reads the other one any more
            if key + KEYS < end:
                load_k(other, k_first, k.row, key + int32(KEYS), Lk, shape.D, thread)
                load_v(other + int32(VALUES), v_first, v.row, key + int32(KEYS), Lk, shape.Dv, thread)
                ptx.commit_copies()
            for i in range(S_SIZE):
                s[i], dp[i] = float32(0), float32(0)
            times_k_transposed(s, own_q, current, lane)
            times_v_transposed(dp, own_dout, current + int32(VALUES), lane)
            prepare(s, dp, known, unit, scores, bias_h, slope, own_row, key, Lk - Lq, Lq, Lk, lane)
            if not whole(key, int32(KEYS), own_row, int32(OWN_ROWS), offset, band, Lk):
                hide(s, dp, own_row, key, offset, band, Lq, Lk, lane)
            weigh(s, dp)
            pack(p, dp)
            times_k(sums, p, current, lane)
            current, other = other, current

        for i in range(DQ_SIZE):
            sums[i] *= scores.scale
        cuda.syncthreads()  # nobody reads q any more: its gradient takes its place
        save(sums, own_q, lane)
        cuda.syncwarp()
        first = dq.ptr + int64(b) * dq.batch + int64(h) * dq.head + start_q * dq.row
        store(own_q, first, dq.row, own_row, room(b, lengths.start_q, shape.Lq), shape.D, lane)

    return queries_kernel


def usual_keys(dtype: str, D: int, Dv: int, **features: Any) -> list[tuple[Spec, str]]:
    """Tiles and outputs of the launches for dk and dv."""
    size = max(D, Dv)
    if size <= 64:
        return [(Spec(dtype, D, Dv, **{"row_tiles": 2, "keys": 32, **features}), "both")]
    if size <= 128:
        return [(Spec(dtype, D, Dv, **{"keys": 32, **features}), "both")]
    spec = Spec(dtype, D, Dv, **{"keys": 32, **features})
    return [(spec, "dk"), (spec, "dv")]


def usual_queries(dtype: str, D: int, Dv: int, **features: Any) -> Spec:
    """The tile for dq."""
    size = max(D, Dv)
    tile = {"row_tiles": 2, "keys": 64} if size <= 64 else {"row_tiles": 2, "keys": 32} if size <= 128 else {"keys": 32}
    return Spec(dtype, D, Dv, **{**tile, **features})


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles."""
    return []
