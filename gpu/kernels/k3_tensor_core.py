"""3. The forward on tensor cores, for float16 and bfloat16.

Added to k2: products by mma.sync on fragments that ldmatrix brings from padded shared memory; the next tile of keys
and values is copied (cp.async) while this one is multiplied, so that one barrier a tile is enough; scores never
leave registers, since the C fragments of q·k are, rounded in pairs, the A fragments of p·v.  Tiles that the
band or the lengths empty are not read, and tiles that they leave whole are not compared.

A block has `spec.rows` queries of one head; grid: (tiles of queries * heads * batch,), the longest rows of a causal
head first.  The arithmetic: scores and sums in float32, weights rounded to the inputs' dtype before p·v, and the
output rounded once.  Source: Dao 2023, FlashAttention-2, algorithm 1 and section 3.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import kernel

from .arguments import BAND, BIAS, LENGTHS, OPERAND, ROWS, SCORES, SHAPE, Specialisation, dtypes_of
from .places import begin_key, bias_of_head, end_key, place_of, place_of_packed, whole
from .softmax import INFINITE, softmax_of, unit_of
from .spec import HEAD_SIZES, Spec
from .tiles import packing, row_bytes, tile_of

__all__ = ["SIGNATURE", "forward", "shared_bytes", "specialisations", "usual"]

SIGNATURE = types.void(OPERAND, OPERAND, OPERAND, OPERAND, ROWS, SHAPE, BAND, LENGTHS, SCORES, BIAS)


def shared_bytes(spec: Spec) -> int:
    """Dynamic shared memory of a block: a tile of queries (later of outputs), and two of keys and of values."""
    queries = spec.rows * row_bytes(max(spec.D, spec.Dv))
    return queries + 2 * spec.keys * (row_bytes(spec.D) + row_bytes(spec.Dv))


@functools.cache
def forward(spec: Spec) -> Any:
    """The kernel: (q, k, v, out, lse, shape, band, lengths, scores, bias), see `gpu.kernels.arguments`."""
    ROWS_, KEYS, STRIPES, OWN_ROWS = spec.rows, spec.keys, spec.row_tiles, 16 * spec.row_tiles
    VALUES = KEYS * row_bytes(spec.D)
    BUFFER = VALUES + KEYS * row_bytes(spec.Dv)
    BUFFERS = ROWS_ * row_bytes(max(spec.D, spec.Dv))
    OWN_Q, OWN_OUT = OWN_ROWS * row_bytes(spec.D), OWN_ROWS * row_bytes(spec.Dv)
    S_SIZE, P_SIZE, O_SIZE, M_SIZE = STRIPES * KEYS // 2, STRIPES * KEYS // 4, STRIPES * spec.Dv // 2, 2 * STRIPES
    A_SIZE = STRIPES * spec.D // 4 if spec.q_in_registers else 1
    COLUMNS = spec.Dv // 8
    resident, modified, alibi = spec.q_in_registers, spec.modified, spec.alibi
    place = place_of_packed if spec.varlen else place_of

    load_q = tile_of(spec.D, ROWS_, STRIPES, spec.threads, spec.dtype, spec.vector).load
    k_tile = tile_of(spec.D, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    v_tile = tile_of(spec.Dv, KEYS, STRIPES, spec.threads, spec.dtype, spec.vector)
    load_k, load_v, fragments = k_tile.load, v_tile.load, k_tile.fragments
    times_transposed, stripes_transposed = k_tile.times_transposed, k_tile.stripes_transposed
    times, save, store = v_tile.times, v_tile.save, v_tile.store
    softmax = softmax_of(spec, STRIPES, KEYS, spec.Dv)
    modify, hide, update, finish, apply = softmax
    pack = packing(S_SIZE, spec.dtype)

    @kernel(spec.threads)
    def forward(q, k, v, out, lse, shape, band, lengths, scores, bias):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        thread = int32(cuda.threadIdx.x)
        warp, lane = thread >> 5, thread & 31
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(ROWS_), shape, lengths)
        q_first = q.ptr + int64(b) * q.batch + int64(h) * q.head + start_q * q.row
        k_first = k.ptr + int64(b) * k.batch + int64(h // shape.group) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(h // shape.group) * v.head + start_k * v.row
        Lq, Lk = int32(Lq), int32(Lk)
        offset = int32(Lk - Lq) if band.bottom_right != 0 else int32(0)
        begin = int32(begin_key(row, offset, band) // KEYS * KEYS)
        end = int32(end_key(row, ROWS_, offset, band, Lq, Lk))

        unit, negative = unit_of(scores.scale, modified)
        slope = float32(0)
        if alibi:
            slope = ptx.load_global_f32(scores.slopes + int64(h) * 4)
        bias_h = bias_of_head(bias, b, h)

        own_row = int32(row + warp * OWN_ROWS)
        own_q = int32(memory + warp * OWN_Q)
        a = cuda.local.array(A_SIZE, int32)
        p = cuda.local.array(P_SIZE, int32)
        s = cuda.local.array(S_SIZE, float32)
        o = cuda.local.array(O_SIZE, float32)
        m = cuda.local.array(M_SIZE, float32)
        l = cuda.local.array(M_SIZE, float32)  # noqa: E741
        for i in range(O_SIZE):
            o[i] = float32(0)
        for i in range(M_SIZE):
            m[i], l[i] = -INFINITE, float32(0)
        current, other = int32(memory + BUFFERS), int32(memory + BUFFERS + BUFFER)
        if begin < end:
            load_q(memory, q_first, q.row, row, Lq, shape.D, thread)
            load_k(current, k_first, k.row, begin, Lk, shape.D, thread)
            load_v(int32(current + VALUES), v_first, v.row, begin, Lk, shape.Dv, thread)
            ptx.commit_copies()
        for key in range(begin, end, int32(KEYS)):
            ptx.wait_copies()
            cuda.syncthreads()  # this tile has arrived, and nobody reads the other one any more
            if key + KEYS < end:
                load_k(other, k_first, k.row, int32(key + KEYS), Lk, shape.D, thread)
                load_v(int32(other + VALUES), v_first, v.row, int32(key + KEYS), Lk, shape.Dv, thread)
                ptx.commit_copies()
            for i in range(S_SIZE):
                s[i] = float32(0)
            if resident:
                if key == begin:
                    fragments(a, own_q, lane)
                times_transposed(s, a, current, lane)
            else:
                stripes_transposed(s, own_q, current, lane)
            if modified:
                modify(s, scores, bias_h, slope, own_row, key, int32(Lk - Lq), Lq, Lk, lane)
            elif negative:
                for i in range(S_SIZE):
                    s[i] = -s[i]
            if not whole(key, KEYS, own_row, OWN_ROWS, offset, band, Lk):
                hide(s, own_row, key, offset, band, Lk, lane)
            update(s, m, l, o, unit)
            pack(p, s)
            times(o, p, int32(current + VALUES), lane)
            current, other = other, current

        # found again rather than kept in registers, of which the loop has none to spare
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(ROWS_), shape, lengths)
        own_row = int32(row + warp * OWN_ROWS)
        sink = -INFINITE
        if scores.sinks != 0:
            sink = ptx.load_global_f32(scores.sinks + int64(h) * 4)
        factor = cuda.local.array(M_SIZE, float32)
        row_lse = cuda.local.array(M_SIZE, float32)
        finish(m, l, unit, sink, factor, row_lse)
        apply(o, factor)
        for r in range(M_SIZE):
            if own_row + (r >> 1) * 16 + (r & 1) * 8 + (lane >> 2) >= Lq:  # beyond a length: 0, and -inf
                row_lse[r] = -INFINITE
                for n in range(COLUMNS):
                    i = ((r >> 1) * COLUMNS + n) * 4 + (r & 1) * 2
                    o[i], o[i + 1] = float32(0), float32(0)
        limit = Lq if lengths.start_q != 0 else shape.Lq  # rows beyond a length are written too: 0, and -inf
        cuda.syncthreads()  # nobody reads q any more: outputs take its place
        own_out = int32(memory + warp * OWN_OUT)
        save(o, own_out, lane)
        cuda.syncwarp()
        first = out.ptr + int64(b) * out.batch + int64(h) * out.head + start_q * out.row
        store(own_out, first, out.row, own_row, limit, shape.Dv, lane)
        if lane & 3 == 0:
            for r in range(M_SIZE):
                i = own_row + (r >> 1) * 16 + (r & 1) * 8 + (lane >> 2)
                if i < limit:
                    at = lse.ptr + int64(b) * lse.batch + int64(h) * lse.head + (start_q + i) * 4
                    ptx.store_global_f32(at, row_lse[r])

    return forward


def usual(dtype: str, D: int, Dv: int, **features: Any) -> Spec:
    """The tile that suits a head size: nothing is spilled (gpu/sass.json), and two blocks fit a multiprocessor."""
    size = max(D, Dv)
    tile: dict[str, Any] = {"row_tiles": 2 if size <= 128 else 1, "keys": 64 if size <= 64 else 32}
    return Spec(dtype, D, Dv, q_in_registers=size <= 64, **{**tile, **features})


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles."""
    found = []
    for D in HEAD_SIZES:
        for dtype in dtypes_of(D):
            spec = usual(dtype, D, D)
            found.append(
                Specialisation(
                    f"forward {dtype} D={D}", forward(spec).py_func, SIGNATURE, spec.threads, shared_bytes(spec),
                    ("sm_80", "sm_90"), 2 * spec.row_tiles * spec.keys * D // 128,
                )
            )  # fmt: skip
    return found
