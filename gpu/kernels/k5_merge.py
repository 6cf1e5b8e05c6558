"""5, second part: what the splits of the keys hand on, how many they are, and the kernel that merges them.

A block of the merge has one row of the output: its threads weigh the parts, then add them up, some columns and some
of the splits each, and the sums of the splits' subsets in order.  The sink joins here, once, and the output is
rounded here, once.  Source: Milakov and Gimelshein 2018, section 3.1.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import kernel

from .arguments import LENGTHS, OPERAND, ROWS, SCORES, SHAPE, named
from .places import extent
from .softmax import INFINITE, LN2, LOG2E
from .spec import Spec

__all__ = [
    "MAX_SPLITS", "MERGE_SIGNATURE", "PARTIAL", "Partial", "merge", "merge_bytes", "merge_threads", "splits_for",
    "workspace",
]  # fmt: skip

MAX_SPLITS = 128


class Partial(NamedTuple):
    """The parts: 16-byte aligned addresses of float32 arrays that need no initial value, and the number of splits."""

    outputs: Any
    """o, (B, Hkv, splits, group * Lq, spec.Dv); int64"""
    sums: Any
    """(top, total), (B, Hkv, splits, group * Lq, 2); int64"""
    splits: Any
    """1 to MAX_SPLITS; int32"""


PARTIAL = named(Partial, types.int64, types.int64, types.int32)
MERGE_SIGNATURE = types.void(PARTIAL, OPERAND, ROWS, SHAPE, LENGTHS, SCORES)


def splits_for(heads: int, rows: int, Lk: int, multiprocessors: int, spec: Spec) -> int:
    """Into how many parts the keys are split, from sizes alone: no length of a batch entry matters.

    `heads` = B * Hkv, `rows` = group * Lq.  The time is modelled as (waves of blocks) x (steps of a block + 4), where a
    step is a tile of keys for each warp, two blocks share a multiprocessor, and 4 steps stand for
    starting a block and for writing and merging its part.  The smallest number within 5 % of the best is taken.
    """
    rows_of_blocks = heads * -(-rows // (16 * spec.row_tiles))
    steps = max(1, -(-Lk // (spec.warps * spec.keys)))

    def time(splits: int) -> int:
        return -(-rows_of_blocks * splits // (2 * multiprocessors)) * (-(-steps // splits) + 4)

    choices = range(1, min(MAX_SPLITS, steps) + 1)
    best = min(map(time, choices))
    return next(splits for splits in choices if 100 * time(splits) <= 105 * best)


def workspace(heads: int, rows: int, splits: int, spec: Spec) -> tuple[int, int]:
    """Bytes of `Partial.outputs` and of `Partial.sums`."""
    return 4 * heads * splits * rows * spec.Dv, 8 * heads * splits * rows


def merge_threads(spec: Spec) -> int:
    """Threads of a block of `merge`: at least one for each four columns."""
    return max(spec.threads, -(-spec.Dv // 128) * 32)


def merge_bytes(spec: Spec) -> int:
    """Dynamic shared memory of `merge`: a weight a split, two numbers a warp, and sums of four columns a thread."""
    threads = merge_threads(spec)
    return -(-(4 * MAX_SPLITS + 8 * (threads // 32)) // 16) * 16 + 16 * threads


@functools.cache
def merge(spec: Spec) -> Any:
    """The kernel that merges; of `spec` it takes dtype, Dv and vector."""
    THREADS = merge_threads(spec)
    WARPS, EACH = THREADS // 32, -(-MAX_SPLITS // THREADS)
    SUMS, OUTPUTS = 4 * MAX_SPLITS, -(-(4 * MAX_SPLITS + 8 * WARPS) // 16) * 16
    DV, CHUNKS = spec.Dv, spec.Dv // 4
    SUBSETS = THREADS // CHUNKS
    vector, pack = spec.vector, spec.pack

    @kernel(THREADS)
    def merge(partial, out, lse, shape, lengths, scores):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        i, h, b = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y), int32(cuda.blockIdx.z)
        start_q, _, Lq, _ = extent(b, shape, lengths)
        limit = Lq if lengths.start_q != 0 else shape.Lq  # rows beyond a length are written too: 0, and -inf
        group, splits = shape.group, partial.splits
        rows = group * shape.Lq
        head = ptx.divide(h, group)
        row = (int64(b) * ptx.divide(shape.H, group) + head) * splits * rows + i * group + h - head * group

        tops, totals = cuda.local.array(EACH, float32), cuda.local.array(EACH, float32)  # of this thread's splits
        highest = -INFINITE
        for n in range(EACH):
            part = int32(thread + int32(n * THREADS))
            tops[n], totals[n] = -INFINITE, float32(0)
            if part < splits and i < Lq:
                at = partial.sums + (row + int64(part) * rows) * 8
                tops[n], totals[n] = ptx.load_global_f32(at), ptx.load_global_f32(at + 4)
            highest = max(highest, tops[n])
        sink = -INFINITE
        if scores.sinks != 0 and i < Lq:
            sink = ptx.load_global_f32(scores.sinks + int64(h) * 4) * LOG2E
        for bit in range(5):
            highest = max(highest, ptx.shuffle_xor(highest, 1 << bit))
        if thread & 31 == 0:
            ptx.store_shared_f32(memory + int32(SUMS) + (thread >> 5) * int32(8), highest)
        cuda.syncthreads()  # the warps' largest scores are there
        highest = sink
        for w in range(WARPS):
            highest = max(highest, ptx.load_shared_f32(memory + int32(SUMS + w * 8)))
        whole = float32(0)
        for n in range(EACH):
            part = int32(thread + int32(n * THREADS))
            weight = float32(-1)  # this split has no key for this row
            if totals[n] != 0:
                weight = ptx.ex2(tops[n] - highest)
                whole += totals[n] * weight
            if part < splits:
                ptx.store_shared_f32(memory + part * int32(4), weight)
        for bit in range(5):
            whole += ptx.shuffle_xor(whole, 1 << bit)
        if thread & 31 == 0:
            ptx.store_shared_f32(memory + int32(SUMS + 4) + (thread >> 5) * int32(8), whole)
        cuda.syncthreads()  # weights and the warps' sums are there
        whole = float32(0)
        for w in range(WARPS):
            whole += ptx.load_shared_f32(memory + int32(SUMS + 4 + w * 8))
        factor, row_lse = float32(0), -INFINITE
        if whole != 0 or sink > -INFINITE:  # else: no key and no sink; a NaN goes on
            whole += ptx.ex2(sink - highest)
            factor = float32(1) / whole
            row_lse = (highest + ptx.lg2(whole)) * LN2

        subset = thread // int32(CHUNKS)
        chunk = thread - subset * int32(CHUNKS)
        x = cuda.local.array(16, float32)
        y0, y1, y2, y3 = float32(0), float32(0), float32(0), float32(0)
        own = memory + int32(OUTPUTS) + thread * int32(16)
        if subset < SUBSETS:
            for first in range(subset, splits, int32(4 * SUBSETS)):
                for u in range(4):  # four loads on their way at a time
                    n = first + int32(u * SUBSETS)
                    weight = float32(-1)
                    if n < splits:
                        weight = ptx.load_shared_f32(memory + n * int32(4))
                    for e in range(4):
                        x[u * 4 + e] = float32(0)
                    if not weight < 0:
                        at = partial.outputs + ((row + int64(n) * rows) * int32(DV) + chunk * 4) * 4
                        z = ptx.load_global_f32x4(at)
                        for e in range(4):
                            x[u * 4 + e] = z[e]
                for u in range(4):
                    n = first + int32(u * SUBSETS)
                    if n < splits:
                        weight = ptx.load_shared_f32(memory + n * int32(4))
                        y0 += weight * x[u * 4]
                        y1 += weight * x[u * 4 + 1]
                        y2 += weight * x[u * 4 + 2]
                        y3 += weight * x[u * 4 + 3]
            ptx.store_shared_f32(own, y0)
            ptx.store_shared_f32(own + 4, y1)
            ptx.store_shared_f32(own + 8, y2)
            ptx.store_shared_f32(own + 12, y3)
        cuda.syncthreads()  # the subsets' sums are there
        if thread < CHUNKS and i < limit:
            y0, y1, y2, y3 = float32(0), float32(0), float32(0), float32(0)
            for n in range(SUBSETS):
                z = ptx.load_shared_f32x4(own + int32(n * CHUNKS * 16))
                y0, y1, y2, y3 = y0 + z[0], y1 + z[1], y2 + z[2], y3 + z[3]
            low, high = pack(y0 * factor, y1 * factor), pack(y2 * factor, y3 * factor)
            to = out.ptr + int64(b) * out.batch + int64(h) * out.head + (start_q + i) * out.row + int64(chunk * 8)
            if vector:
                if chunk * 4 < shape.Dv:
                    ptx.store_global_b32(to, low)
                    ptx.store_global_b32(to + 4, high)
            else:
                for e in range(4):
                    if chunk * 4 + e < shape.Dv:
                        ptx.store_global_b16(to + e * 2, (low if e < 2 else high) >> (e & 1) * 16)
        if thread == 0 and i < limit:
            ptx.store_global_f32(lse.ptr + int64(b) * lse.batch + int64(h) * lse.head + (start_q + i) * 4, row_lse)

    return merge
