"""7. The forward on Hopper (sm_90a): products of four warps together, asynchronous, straight from shared memory.

Added to k3: a warpgroup of 128 threads has 64 rows; wgmma reads k and v, and q, where cp.async put them, so that no
fragments are loaded, and a product costs its warps one instruction.  Products run beside the warps, and are
issued so that the tensor cores have work while weights are computed (Shah et al. 2024, FlashAttention-3, section 3.2).
With S_j = q k_j and P_j its weights:

    S_j = q k_j and O += P_(j-1) v_(j-1) are issued together
    wait for S_j; maxima, weights and sums of S_j, while O is still being added to
    wait for O; O shrinks to the new maxima; S_j, rounded, is P_j

Keys come a tile before their values: in round j, k_(j+1) and v_j are on their way.  One barrier a tile: before it,
each thread makes what it copied visible to the products (proxy fence); after it, nobody reads the other buffers.

A block has `spec.rows` = 64 * warpgroups queries of one head.  Launch: grid (tiles of queries * heads * batch,), the
longest rows of a causal head first; block (spec.threads,); dynamic shared memory `shared_bytes(spec)`; arguments as k3:
(q, k, v, out, lse, shape, band, lengths, scores, bias).  The arithmetic is k3's.  Head sizes are multiples of 64,
others up to 256 are zero-padded; `check` refuses what this kernel has not.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import device, kernel

from .arguments import Specialisation, dtypes_of
from .k3_tensor_core import SIGNATURE
from .places import begin_key, bias_of_head, end_key, place_of, place_of_packed, whole
from .softmax import INFINITE, softmax_of, unit_of, weighing
from .spec import Spec
from .swizzled import ALIGNMENT, loader, panel_bytes, step_along_d, step_along_rows, tile_bytes
from .tiles import packing, row_bytes, tile_of

__all__ = ["ARCH", "HEAD_SIZES", "SIGNATURE", "check", "forward", "shared_bytes", "specialisations", "usual"]

ARCH = "sm_90a"
HEAD_SIZES = (64, 128, 192, 256)


def check(spec: Spec) -> None:
    """Raises ValueError for a spec that this kernel cannot be compiled for."""
    for name in ("D", "Dv"):
        if getattr(spec, name) not in HEAD_SIZES:
            sizes = ", ".join(map(str, HEAD_SIZES))
            raise ValueError(f"{name}={getattr(spec, name)} must be one of {sizes}; k3_tensor_core takes others")
    if spec.warps % 4:
        raise ValueError(f"warps={spec.warps} must be a multiple of 4: a warpgroup has 4")
    if spec.row_tiles != 1:
        raise ValueError(f"row_tiles={spec.row_tiles} must be 1: wgmma has 16 rows a warp; take more warps")
    if spec.keys > 256:
        raise ValueError(f"keys={spec.keys} must be <= 256, the widest product")


def shared_bytes(spec: Spec) -> int:
    """Dynamic shared memory of a block: q, two tiles of k and of v (at the end, outputs), and room to align them."""
    tiles = tile_bytes(spec.rows, spec.D) + 2 * (tile_bytes(spec.keys, spec.D) + tile_bytes(spec.keys, spec.Dv))
    return ALIGNMENT + max(tiles, spec.rows * row_bytes(spec.Dv))


@functools.cache
def forward(spec: Spec) -> Any:
    """The kernel: (q, k, v, out, lse, shape, band, lengths, scores, bias), see `gpu.kernels.arguments`."""
    check(spec)
    ROWS_, KEYS = spec.rows, spec.keys
    K_TILE, V_TILE = tile_bytes(KEYS, spec.D), tile_bytes(KEYS, spec.Dv)
    K_TILES = tile_bytes(ROWS_, spec.D)
    V_TILES = K_TILES + 2 * K_TILE
    OWN_Q, V_PANEL, OWN_OUT = panel_bytes(64), panel_bytes(KEYS), 16 * row_bytes(spec.Dv)
    D_STEPS, KEY_STEPS, KEY_STEP = spec.D // 16, KEYS // 16, step_along_rows(1)
    D_STEP, Q_PANEL_STEP, K_PANEL_STEP = step_along_d(1, KEYS), step_along_d(4, ROWS_), step_along_d(4, KEYS)
    S_SIZE, P_SIZE, O_SIZE, COLUMNS = KEYS // 2, KEYS // 4, spec.Dv // 2, spec.Dv // 8
    modified, alibi = spec.modified, spec.alibi
    place = place_of_packed if spec.varlen else place_of

    load_q = loader(spec.D, ROWS_, spec.threads, spec.vector)
    load_k = loader(spec.D, KEYS, spec.threads, spec.vector)
    load_v = loader(spec.Dv, KEYS, spec.threads, spec.vector)
    out_tile = tile_of(spec.Dv, 16, 1, 32, spec.dtype, spec.vector)
    save, store = out_tile.save, out_tile.store
    scores_product = ptx.wgmma_product(KEYS, spec.dtype)
    values_product = ptx.wgmma_product(spec.Dv, spec.dtype, a_in_registers=True, transposed_b=True)
    pin_s, pin_p, pin_o = ptx.pin(S_SIZE), ptx.pin(P_SIZE, "int32"), ptx.pin(O_SIZE)
    modify, hide, _, finish, apply = softmax_of(spec, 1, KEYS, spec.Dv)
    weigh_row, pack = weighing(KEYS), packing(S_SIZE, spec.dtype)

    @device
    def add_scores(s, q, k):  # type: ignore[no-untyped-def]
        """Begins s = q kᵀ; q and k are descriptors."""
        for t in range(D_STEPS):
            q_step = int64((t >> 2) * Q_PANEL_STEP + (t & 3) * D_STEP)
            k_step = int64((t >> 2) * K_PANEL_STEP + (t & 3) * D_STEP)
            scores_product(s, q + q_step, k + k_step, int32(t > 0))

    @device
    def add_values(o, p, v):  # type: ignore[no-untyped-def]
        """Begins o += p v; v is a descriptor."""
        for t in range(KEY_STEPS):
            values_product(o, p, t * 4, v + int64(t * KEY_STEP), int32(1))

    @kernel(spec.threads)
    def forward(q, k, v, out, lse, shape, band, lengths, scores, bias):  # type: ignore[no-untyped-def]
        start = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        memory = int32((start + int32(ALIGNMENT - 1)) & int32(-ALIGNMENT))
        thread = int32(cuda.threadIdx.x)
        warp, lane = ptx.of_first_lane(thread >> 5), int32(thread & 31)
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(ROWS_), shape, lengths)
        h, row, Lq, Lk = int32(h), int32(row), int32(Lq), int32(Lk)
        key_head = ptx.divide(h, shape.group)
        q_first = q.ptr + int64(b) * q.batch + int64(h) * q.head + start_q * q.row
        k_first = k.ptr + int64(b) * k.batch + int64(key_head) * k.head + start_k * k.row
        v_first = v.ptr + int64(b) * v.batch + int64(key_head) * v.head + start_k * v.row
        offset = int32(Lk - Lq if band.bottom_right != 0 else 0)
        begin = int32(begin_key(row, offset, band) // int32(KEYS) * int32(KEYS))
        end = int32(end_key(row, int32(ROWS_), offset, band, Lq, Lk))

        unit, negative = unit_of(scores.scale, modified)
        slope = float32(0)
        if alibi:
            slope = ptx.load_global_f32(scores.slopes + int64(h) * 4)
        bias_h = bias_of_head(bias, b, h)

        own_row = int32(row + warp * int32(16))
        s = cuda.local.array(S_SIZE, float32)
        p = cuda.local.array(P_SIZE, int32)
        o = cuda.local.array(O_SIZE, float32)
        m = cuda.local.array(2, float32)
        l = cuda.local.array(2, float32)  # noqa: E741
        shrink = cuda.local.array(2, float32)
        for i in range(O_SIZE):
            o[i] = float32(0)
        for i in range(2):
            m[i], l[i] = -INFINITE, float32(0)

        q_own = ptx.descriptor(int32(memory + (warp >> 2) * int32(OWN_Q)), int32(0), int32(ALIGNMENT))
        k_now, k_next = int32(memory + int32(K_TILES)), int32(memory + int32(K_TILES + K_TILE))
        v_now, v_next = int32(memory + int32(V_TILES)), int32(memory + int32(V_TILES + V_TILE))
        if begin < end:
            load_q(memory, q_first, q.row, row, Lq, shape.D, thread)
            load_k(k_now, k_first, k.row, begin, Lk, shape.D, thread)
            ptx.commit_copies()
        for key in range(begin, end, int32(KEYS)):
            ptx.wait_copies()
            ptx.fence_async_proxy()
            cuda.syncthreads()  # these keys and the values before have arrived, nobody reads the other buffers any more
            pin_s(s)
            ptx.wgmma_fence()
            add_scores(s, q_own, ptx.descriptor(k_now, int32(0), int32(ALIGNMENT)))
            ptx.wgmma_commit()
            if key + KEYS < end:
                load_k(k_next, k_first, k.row, int32(key + int32(KEYS)), Lk, shape.D, thread)
            load_v(v_next, v_first, v.row, key, Lk, shape.Dv, thread)
            ptx.commit_copies()
            if key > begin:
                pin_p(p)
                pin_o(o)
                ptx.wgmma_fence()
                add_values(o, p, ptx.descriptor(v_now, int32(V_PANEL), int32(ALIGNMENT)))
                ptx.wgmma_commit()
                ptx.wgmma_wait_but_one()
            else:
                ptx.wgmma_wait()
            pin_s(s)
            if modified:
                modify(s, scores, bias_h, slope, own_row, key, int32(Lk - Lq), Lq, Lk, lane)
            elif negative:
                for i in range(S_SIZE):
                    s[i] = -s[i]
            if not whole(key, int32(KEYS), own_row, int32(16), offset, band, Lk):
                hide(s, own_row, key, offset, band, Lk, lane)
            for half in range(2):
                shrink[half] = weigh_row(s, m, l, unit, 0, half)
            ptx.hold(l[0] + l[1])
            ptx.wgmma_wait()
            pin_o(o)
            apply(o, shrink)
            pack(p, s)
            k_now, k_next = k_next, k_now
            v_now, v_next = v_next, v_now
        if begin < end:
            ptx.wait_copies()
            ptx.fence_async_proxy()
            cuda.syncthreads()
            pin_p(p)
            pin_o(o)
            ptx.wgmma_fence()
            add_values(o, p, ptx.descriptor(v_now, int32(V_PANEL), int32(ALIGNMENT)))
            ptx.wgmma_commit()
            ptx.wgmma_wait()
            pin_o(o)

        # found again rather than kept in registers, of which the loop has none to spare
        b, h, row, start_q, start_k, Lq, Lk = place(ptx.block_x(), int32(ROWS_), shape, lengths)
        h, Lq = int32(h), int32(Lq)
        own_row = int32(row + warp * 16)
        sink = -INFINITE
        if scores.sinks != 0:
            sink = ptx.load_global_f32(scores.sinks + int64(h) * 4)
        factor = cuda.local.array(2, float32)
        row_lse = cuda.local.array(2, float32)
        finish(m, l, unit, sink, factor, row_lse)
        apply(o, factor)
        for r in range(2):
            if int32(own_row + r * 8 + (lane >> 2)) >= Lq:  # beyond a length: 0, and -inf
                row_lse[r] = -INFINITE
                for n in range(COLUMNS):
                    o[n * 4 + r * 2], o[n * 4 + r * 2 + 1] = float32(0), float32(0)
        limit = Lq if lengths.start_q != 0 else shape.Lq
        cuda.syncthreads()  # nobody reads shared memory any more: outputs take its place
        own_out = int32(memory + warp * int32(OWN_OUT))
        save(o, own_out, lane)
        cuda.syncwarp()
        first = out.ptr + int64(b) * out.batch + int64(h) * out.head + start_q * out.row
        store(own_out, first, out.row, own_row, limit, shape.Dv, lane)
        if lane & 3 == 0:
            for r in range(2):
                i = int32(own_row + r * 8 + (lane >> 2))
                if i < limit:
                    at = lse.ptr + int64(b) * lse.batch + int64(h) * lse.head + (start_q + i) * 4
                    ptx.store_global_f32(at, row_lse[r])

    return forward


def usual(dtype: str, D: int, Dv: int, **features: Any) -> Spec:
    """The tile that suits a head size: no registers are spilled (gpu/sass.json)."""
    size = max(D, Dv)
    keys = 128 if size <= 128 else 96 if size <= 192 else 64
    if features.get("softcap") or features.get("bias") or features.get("alibi"):
        keys = 64  # what is done to a score takes registers too
    return Spec(dtype, D, Dv, **{"warps": 12 if size <= 64 else 8, "keys": keys, **features})


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles: q·k once a tile, p·v there and once after the last."""
    found = []
    for D in HEAD_SIZES:
        for dtype in dtypes_of(D):
            spec = usual(dtype, D, D)
            found.append(
                Specialisation(
                    f"forward {dtype} D={D}", forward(spec).py_func, SIGNATURE, spec.threads, shared_bytes(spec),
                    (ARCH,), D // 16 + 2 * spec.keys // 16,
                )
            )  # fmt: skip
    return found
