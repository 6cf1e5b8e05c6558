"""5. Few queries, many keys (Lq = 1 ... 16): the keys are split over blocks, and the parts merged.

Added to k3: a block takes the query heads of one key head together (`grouped`), and only its split of the keys, so
that few heads fill the device.  Its warps have the same rows and take tiles of keys in turn, each through its own
buffers with cp.async: no barrier until the end, and always a tile a warp on its way, which is what a kernel that
waits for memory needs.  Then the warps' parts are merged, and a second kernel merges those of the splits, in a fixed
order: answers are the same bits in each run.

What a split hands on for a row is (o, top, total) in float32: o = sum of 2**(x - top) v and total = sum of
2**(x - top) over its keys, where x is the score in base 2 and top the largest.  Unlike an lse they are not
rounded where scores are large.  No key seen: total = 0, and o is not read.  The sink joins in the merge, once.

    split    grid(B, Hkv, group * Lq, splits, spec), block (spec.threads,), shared_bytes(spec)
             q, k, v, partial, shape, band, lengths, scores, bias
    merge    grid (Lq, H, B), block (merge_threads(spec),), merge_bytes(spec)
             partial, out, lse, shape, lengths, scores

on the same stream.  Source: Dao et al. 2023, Flash-Decoding; Milakov and Gimelshein 2018, section 3.1 (the merge).
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import kernel

from .arguments import BAND, BIAS, LENGTHS, OPERAND, SCORES, SHAPE, Specialisation, dtypes_of
from .grouped import grouped
from .k5_merge import (
    MAX_SPLITS,
    MERGE_SIGNATURE,
    PARTIAL,
    Partial,
    merge,
    merge_bytes,
    merge_threads,
    splits_for,
    workspace,
)
from .places import begin_key, end_key, extent, whole
from .softmax import INFINITE, LOG2E, softmax_of
from .spec import HEAD_SIZES, Spec
from .tiles import load_by_warp, packing, row_bytes, tile_of

__all__ = [
    "MAX_SPLITS", "MERGE_SIGNATURE", "PARTIAL", "Partial", "SIGNATURE", "grid", "merge", "merge_bytes", "merge_threads",
    "shared_bytes", "specialisations", "split", "splits_for", "usual", "workspace",
]  # fmt: skip

TINY = float32(2.0**-126)
SIGNATURE = types.void(OPERAND, OPERAND, OPERAND, PARTIAL, SHAPE, BAND, LENGTHS, SCORES, BIAS)


def usual(dtype: str, D: int, Dv: int, rows: int, **features: Any) -> Spec:
    """The tile that suits head sizes and `rows` = group * Lq; a warp has about 8 KiB on their way."""
    size = max(D, Dv)
    row_tiles = 2 if rows > 16 and size <= 128 else 1
    tile = {"row_tiles": row_tiles, "keys": 32 if size <= 64 else 16, "q_in_registers": row_tiles * size <= 128}
    return Spec(dtype, D, Dv, **{**tile, **features})


def grid(B: int, Hkv: int, rows: int, splits: int, spec: Spec) -> tuple[int, int, int]:
    """The grid of `split`, `rows` = group * Lq: blocks of the same rows are neighbours, then splits, heads, entries."""
    return splits * -(-rows // (16 * spec.row_tiles)), Hkv, B


def _warp_bytes(spec: Spec) -> int:
    """A warp's shared memory: two tiles of keys and of values, later its output in float32."""
    buffers = 2 * spec.keys * (row_bytes(spec.D) + row_bytes(spec.Dv))
    return max(buffers, 16 * spec.row_tiles * _out_bytes(spec))


def _out_bytes(spec: Spec) -> int:
    """A row of float32 outputs in shared memory, moved by 8 banks against the one before."""
    return 4 * spec.Dv + 32


def shared_bytes(spec: Spec) -> int:
    """Dynamic shared memory of `split`: rows of q, a (top, total) for each row and warp, and what the warps have."""
    rows = 16 * spec.row_tiles
    return rows * row_bytes(spec.D) + 8 * rows * spec.warps + spec.warps * _warp_bytes(spec)


@functools.cache
def split(spec: Spec) -> Any:
    """The kernel of the parts; `spec.row_tiles` times 16 rows to a block, `spec.keys` keys to a warp at a time."""
    WARPS, STRIPES, KEYS, OWN_ROWS = spec.warps, spec.row_tiles, spec.keys, 16 * spec.row_tiles
    THREADS, STEP = spec.threads, spec.keys * spec.warps
    VALUES = KEYS * row_bytes(spec.D)
    BUFFER = VALUES + KEYS * row_bytes(spec.Dv)
    SUMS = OWN_ROWS * row_bytes(spec.D)
    OWN, OWN_BYTES, OUT_BYTES = SUMS + 8 * OWN_ROWS * WARPS, _warp_bytes(spec), _out_bytes(spec)
    DV, CHUNKS, COLUMNS = spec.Dv, spec.Dv // 4, spec.Dv // 8
    OUTPUTS = -(-OWN_ROWS * CHUNKS // THREADS)
    S_SIZE, P_SIZE, O_SIZE, M_SIZE = STRIPES * KEYS // 2, STRIPES * KEYS // 4, STRIPES * spec.Dv // 2, 2 * STRIPES
    A_SIZE = STRIPES * spec.D // 4 if spec.q_in_registers else 1
    resident, modified = spec.q_in_registers, spec.modified

    k_tile = tile_of(spec.D, KEYS, STRIPES, 32, spec.dtype, spec.vector)
    v_tile = tile_of(spec.Dv, KEYS, STRIPES, 32, spec.dtype, spec.vector)
    load_k, load_v = load_by_warp(spec.D, KEYS, spec.vector), load_by_warp(spec.Dv, KEYS, spec.vector)
    fragments, times = k_tile.fragments, v_tile.times
    times_transposed, stripes_transposed = k_tile.times_transposed, k_tile.stripes_transposed
    softmax = softmax_of(spec, STRIPES, KEYS, spec.Dv)
    update, apply = softmax.update, softmax.apply
    load_q, identify, modify, hide = grouped(spec, STRIPES, KEYS)
    pack = packing(S_SIZE, spec.dtype)

    @kernel(spec.threads)
    def split(q, k, v, partial, shape, band, lengths, scores, bias):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        warp, lane = int32(thread >> 5), int32(thread & 31)
        block, head, b = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        group, rows, splits = shape.group, int32(shape.group * shape.Lq), partial.splits
        stripes = int32(rows + int32(OWN_ROWS - 1)) // int32(OWN_ROWS)
        part = ptx.divide(block, stripes)
        row = int32((block - part * stripes) * int32(OWN_ROWS))
        start_q, start_k, Lq, Lk = extent(b, shape, lengths)
        Lq, Lk, first_head = int32(Lq), int32(Lk), int32(head * group)
        q_first = q.ptr + int64(b) * q.batch + int64(first_head) * q.head + start_q * q.row
        k_first = k.ptr + int64(b) * k.batch + int64(head) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(head) * v.head + start_k * v.row

        first_query, last_query = ptx.divide(row, group), ptx.divide(row + int32(OWN_ROWS - 1), group)
        offset = int32(Lk - Lq if band.bottom_right != 0 else int32(0))
        queries = int32(last_query - first_query + int32(1))
        begin = int32(begin_key(first_query, offset, band))
        end = int32(end_key(first_query, queries, offset, band, Lq, Lk))
        tiles = int32(max(end - begin, int32(0)) + int32(KEYS - 1)) // int32(KEYS)
        each = ptx.divide(tiles, splits)
        more = int32(tiles - each * splits)  # so many splits have a tile more
        start = int32(begin + (each * part + min(part, more)) * int32(KEYS))
        stop = int32(start + (each + (int32(1) if part < more else int32(0))) * int32(KEYS))

        unit = scores.scale * LOG2E
        negative = unit < 0 and not modified
        if modified:
            unit = float32(1)
        elif negative:  # the row's largest score is wanted: the sign goes to the scores
            unit = -unit
        elif unit == 0:
            unit = TINY  # so that hidden scores stay -inf

        a = cuda.local.array(A_SIZE, int32)
        p = cuda.local.array(P_SIZE, int32)
        s = cuda.local.array(S_SIZE, float32)
        o = cuda.local.array(O_SIZE, float32)
        m = cuda.local.array(M_SIZE, float32)
        l = cuda.local.array(M_SIZE, float32)  # noqa: E741
        query = cuda.local.array(M_SIZE, int32)
        slope = cuda.local.array(M_SIZE, float32)
        bias_at = cuda.local.array(M_SIZE, int64)
        for i in range(O_SIZE):
            o[i] = float32(0)
        for i in range(M_SIZE):
            m[i], l[i] = -INFINITE, float32(0)
        identify(query, slope, bias_at, row, b, first_head, group, scores, bias, lane)

        own = int32(memory + int32(OWN) + warp * int32(OWN_BYTES))
        current, other = own, int32(own + int32(BUFFER))
        load_q(memory, q_first, q, row, group, Lq, shape.D, thread)
        ptx.commit_copies()
        first = int32(start + warp * int32(KEYS))
        if first < stop:
            load_k(current, k_first, k.row, first, end, shape.D, lane)
            load_v(current + int32(VALUES), v_first, v.row, first, end, shape.Dv, lane)
        ptx.commit_copies()
        ptx.wait_copies_but_one()
        cuda.syncthreads()  # q has arrived
        if resident:
            fragments(a, memory, lane)
        for key in range(first, stop, int32(STEP)):
            if key + STEP < stop:
                load_k(other, k_first, k.row, key + int32(STEP), end, shape.D, lane)
                load_v(other + int32(VALUES), v_first, v.row, key + int32(STEP), end, shape.Dv, lane)
            ptx.commit_copies()  # an empty group in the last turn, so that this tile is always the last but one
            ptx.wait_copies_but_one()
            cuda.syncwarp()  # this tile has arrived
            for i in range(S_SIZE):
                s[i] = float32(0)
            if resident:
                times_transposed(s, a, current, lane)
            else:
                stripes_transposed(s, memory, current, lane)
            if modified:
                modify(s, query, slope, bias_at, bias.column, scores, key, Lk - Lq, Lq, Lk, lane)
            elif negative:
                for i in range(S_SIZE):
                    s[i] = -s[i]
            if not whole(key, int32(KEYS), first_query, queries, offset, band, Lk):
                hide(s, query, key, offset, band, Lk, lane)
            update(s, m, l, o, unit)
            pack(p, s)
            times(o, p, current + int32(VALUES), lane)
            cuda.syncwarp()  # no lane reads this tile any more
            current, other = other, current

        sums = int32(memory + int32(SUMS))
        for r in range(M_SIZE):
            total = l[r] + ptx.shuffle_xor(l[r], 1)
            total += ptx.shuffle_xor(total, 2)
            if lane & 3 == 0:
                to = sums + (warp * int32(OWN_ROWS) + int32(r * 8) + (lane >> 2)) * int32(8)
                ptx.store_shared_f32(to, m[r] * unit)
                ptx.store_shared_f32(to + 4, total)
        cuda.syncthreads()  # all warps' sums are there
        for r in range(M_SIZE):
            top = -INFINITE
            for w in range(WARPS):
                top = max(top, ptx.load_shared_f32(sums + (int32(w * OWN_ROWS + r * 8) + (lane >> 2)) * int32(8)))
            l[r] = ptx.ex2(m[r] * unit - top)  # NaN where no warp saw a key: total is 0, so that o is not read
        apply(o, l)
        for t in range(STRIPES):
            for n in range(COLUMNS):
                for e in range(4):
                    i = int32(t * 16 + (e >> 1) * 8) + (lane >> 2)
                    to = own + i * int32(OUT_BYTES) + int32(n * 32 + (e & 1) * 4) + (lane & 3) * int32(8)
                    ptx.store_shared_f32(to, o[(t * COLUMNS + n) * 4 + e])
        cuda.syncthreads()  # all warps' outputs are there
        at = (int64(b) * int64(cuda.gridDim.y) + head) * splits + part
        limit = group * Lq
        if thread < OWN_ROWS and row + thread < limit:
            top, total = -INFINITE, float32(0)
            for w in range(WARPS):
                top = max(top, ptx.load_shared_f32(sums + (int32(w * OWN_ROWS) + thread) * int32(8)))
            for w in range(WARPS):
                source = sums + (int32(w * OWN_ROWS) + thread) * int32(8)
                part_total = ptx.load_shared_f32(source + 4)
                if part_total != 0:  # else top may be -inf - -inf
                    total += part_total * ptx.ex2(ptx.load_shared_f32(source) - top)
            to = partial.sums + (at * rows + row + thread) * 8
            ptx.store_global_f32(to, top)
            ptx.store_global_f32(to + 4, total)
        if start < stop:
            for i in range(OUTPUTS):
                c = int32(thread + int32(i * THREADS))
                r = int32(c // int32(CHUNKS))
                chunk = int32(c - r * int32(CHUNKS))
                if r < OWN_ROWS and row + r < limit:
                    x0, x1, x2, x3 = float32(0), float32(0), float32(0), float32(0)
                    for w in range(WARPS):
                        source = memory + int32(OWN + w * OWN_BYTES) + r * int32(OUT_BYTES) + chunk * int32(16)
                        y = ptx.load_shared_f32x4(source)
                        x0, x1, x2, x3 = x0 + y[0], x1 + y[1], x2 + y[2], x3 + y[3]
                    to = partial.outputs + ((at * rows + row + r) * int32(DV) + chunk * 4) * 4
                    ptx.store_global_f32x4(to, x0, x1, x2, x3)

    return split


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles."""
    found = []
    archs = ("sm_80", "sm_90")
    for D in HEAD_SIZES:
        for dtype in dtypes_of(D):
            for rows in (16, 32) if D <= 128 else (16,):
                spec = usual(dtype, D, D, rows)
                found.append(
                    Specialisation(
                        f"decode split {dtype} D={D} rows={rows}", split(spec).py_func, SIGNATURE, spec.threads,
                        shared_bytes(spec), archs, 2 * spec.row_tiles * spec.keys * D // 128,
                    )
                )  # fmt: skip
            found.append(
                Specialisation(
                    f"decode merge {dtype} Dv={D}", merge(spec).py_func, MERGE_SIGNATURE, merge_threads(spec),
                    merge_bytes(spec), archs, 0,
                )
            )  # fmt: skip
    return found
