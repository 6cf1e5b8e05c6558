"""4a. Before and after the backward: what each query knows, and the gradients of the sinks.

    delta = sum_d out_d dout_d - dlse          less = lse log2(e)
    dsinks = -sum over rows of exp(sink - lse) delta

for one row of one head; out and dout have 16 bits, the rest is float32.  A row that sees neither a key nor a sink
(lse = -inf) has less = +inf and delta = 0: its weights 2**(t - less) are 0, and its dlse is not looked at.  A row that
sees a sink alone has out = 0 and lse = sink, and so adds its dlse to dsinks.

Launch: `delta` before the kernels of `k4_backward`, `sink_gradients` after it.

    delta(spec)     delta_blocks(Lq, B, H, spec) of THREADS threads, no shared memory;
        (out, dout, lse, dlse, rows, shape, lengths); dlse.ptr = 0: there is none.  Of the spec it looks at dtype, Dv,
        vector and varlen: Lq is then q.shape[0].
    sink_gradients  H blocks of THREADS threads, SINK_BYTES of shared memory; (rows, dsinks, shape, lengths, scores);
        dsinks is the address of H float32.

`rows`: less and delta side by side, float32 (B, H, Lq, 2), packed (H, tokens, 2), at a multiple of 8 bytes.
Rows beyond a used length are neither written nor read.

Sums have a fixed order, so that the same input gives the same bits.  Source: Dao 2023, FlashAttention-2, algorithm 2,
line 4; dlse joins delta, since the gradient of lse with respect to t is p.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import kernel

from .arguments import LENGTHS, OPERAND, ROWS, SCORES, SHAPE, Specialisation
from .places import extent, place_of, place_of_packed
from .softmax import INFINITE, LOG2E
from .spec import HEAD_SIZES, Spec
from .weights import ROW_BYTES

__all__ = [
    "DELTA_SIGNATURE", "SINK_BYTES", "SINK_SIGNATURE", "THREADS", "delta", "delta_blocks", "rows_of_block",
    "sink_gradients", "specialisations",
]  # fmt: skip

DELTA_SIGNATURE = types.void(OPERAND, OPERAND, ROWS, ROWS, ROWS, SHAPE, LENGTHS)
SINK_SIGNATURE = types.void(ROWS, types.int64, SHAPE, LENGTHS, SCORES)
THREADS = 128
WARPS = THREADS // 32
SINK_BYTES = 4 * WARPS


def lanes_of_row(spec: Spec) -> int:
    """Lanes that share a row, 8 elements each; a power of two."""
    return 1 << (spec.Dv // 8 - 1).bit_length()


def rows_of_block(spec: Spec) -> int:
    """Rows of a block of `delta`."""
    return THREADS // lanes_of_row(spec)


def delta_blocks(rows: int, B: int, H: int, spec: Spec) -> int:
    """Blocks of `delta` that cover `rows` rows of each of B entries, or, with spec.varlen, of B sequences together."""
    if spec.varlen:
        return (rows // rows_of_block(spec) + B) * H if rows else 0
    return -(-rows // rows_of_block(spec)) * H * B


@functools.cache
def delta(spec: Spec) -> Any:
    """The kernel (out, dout, lse, dlse, rows, shape, lengths)."""
    LANES, BLOCK_ROWS = lanes_of_row(spec), rows_of_block(spec)
    STEPS = LANES.bit_length() - 1
    vector, place = spec.vector, place_of_packed if spec.varlen else place_of
    low, high = ptx.unpack_low_f16, ptx.unpack_high_f16
    if spec.dtype == "bfloat16":
        low, high = ptx.unpack_low_bf16, ptx.unpack_high_bf16

    @kernel(THREADS)
    def delta(out, dout, lse, dlse, rows, shape, lengths):  # type: ignore[no-untyped-def]
        thread = int32(cuda.threadIdx.x)
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(BLOCK_ROWS), shape, lengths)
        i, chunk = int32(row + thread // LANES), int32(thread % LANES)
        total = float32(0)
        if i < Lq and chunk * 8 < shape.Dv:
            x = out.ptr + int64(b) * out.batch + int64(h) * out.head + (start_q + i) * out.row + int64(chunk * 16)
            y = dout.ptr + int64(b) * dout.batch + int64(h) * dout.head + (start_q + i) * dout.row + int64(chunk * 16)
            if vector:
                x0, x1, x2, x3 = ptx.load_global_b32x4(x)
                y0, y1, y2, y3 = ptx.load_global_b32x4(y)
                total += low(x0) * low(y0)
                total += high(x0) * high(y0)
                total += low(x1) * low(y1)
                total += high(x1) * high(y1)
                total += low(x2) * low(y2)
                total += high(x2) * high(y2)
                total += low(x3) * low(y3)
                total += high(x3) * high(y3)
            else:
                for e in range(8):
                    if chunk * 8 + e < shape.Dv:
                        total += low(ptx.load_global_b16(x + e * 2)) * low(ptx.load_global_b16(y + e * 2))
        for step in range(STEPS):
            total += ptx.shuffle_xor(total, int32(1 << step))
        if chunk == 0 and i < Lq:
            less = ptx.load_global_f32(lse.ptr + int64(b) * lse.batch + int64(h) * lse.head + (start_q + i) * 4) * LOG2E
            if less == -INFINITE:  # a NaN goes on
                less, total = INFINITE, float32(0)
            elif dlse.ptr != 0:
                at = dlse.ptr + int64(b) * dlse.batch + int64(h) * dlse.head + (start_q + i) * 4
                total -= ptx.load_global_f32(at)
            to = rows.ptr + int64(b) * rows.batch + int64(h) * rows.head + (start_q + i) * int64(ROW_BYTES)
            ptx.store_global_f32(to, less)
            ptx.store_global_f32(to + 4, total)

    return delta


@kernel(THREADS)
def sink_gradients(rows, dsinks, shape, lengths, scores):  # type: ignore[no-untyped-def]
    """dsinks of one head: each thread adds its rows in ascending order, then the threads' sums are added as a tree."""
    memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
    thread, h = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    sink = ptx.load_global_f32(scores.sinks + int64(h) * 4) * LOG2E
    total = float32(0)
    for b in range(int32(0), shape.B, int32(1)):
        start_q, start_k, Lq, Lk = extent(b, shape, lengths)
        first = rows.ptr + int64(b) * rows.batch + int64(h) * rows.head + start_q * int64(ROW_BYTES)
        for i in range(thread, Lq, int32(THREADS)):
            at = first + int64(i) * int64(ROW_BYTES)
            total -= ptx.ex2(sink - ptx.load_global_f32(at)) * ptx.load_global_f32(at + 4)
    for step in range(5):
        total += ptx.shuffle_xor(total, int32(1 << step))
    if thread & 31 == 0:
        ptx.store_shared_f32(memory + (thread >> 5) * 4, total)
    cuda.syncthreads()
    if thread == 0:
        total = ptx.load_shared_f32(memory)
        for warp in range(1, WARPS):
            total += ptx.load_shared_f32(memory + warp * 4)
        ptx.store_global_f32(dsinks + int64(h) * 4, total)


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles."""
    archs = ("sm_80", "sm_90")
    name, function = "dsinks element by element", sink_gradients.py_func
    found = [Specialisation(name, function, SINK_SIGNATURE, THREADS, SINK_BYTES, archs, 0)]
    for Dv in HEAD_SIZES:
        spec = Spec("bfloat16", Dv, Dv)
        function = delta(spec).py_func
        found.append(Specialisation(f"delta bfloat16 Dv={Dv}", function, DELTA_SIGNATURE, THREADS, 0, archs, 0))
    return found
