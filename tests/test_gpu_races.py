"""The race detector: each hazard is found under every schedule, and the kernel with the hazard cured passes under all.

A kernel has an argument `cured`: 0 leaves out what makes it right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda  # noqa: E402
from numpy import float16, float32, int8  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import ptx, simt  # noqa: E402
from tests.gpu_hazards import SCHEDULES, found, run  # noqa: E402

Z4, Z16 = np.zeros(4, np.uint8), np.zeros(16, np.uint8)


# ---- across warps


@cuda.jit
def read_after_write(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    if cured:
        cuda.syncthreads()
    out[t] = s[(t + 32) % 64]


@cuda.jit
def write_after_read(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    out[t] = s[(t + 32) % 64]
    if cured:
        cuda.syncthreads()
    s[t] = 0


@cuda.jit
def write_after_several_read(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncthreads()
    out[t] = s[5]
    if cured:
        cuda.syncthreads()
    if t == 5:
        s[5] = 0


@cuda.jit
def write_after_write(out, address, cured):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    if t < 32:
        s[t] = t
    if cured:
        cuda.syncthreads()
    if t >= 32:
        s[t - 32] = 0


@cuda.jit
def barrier_of_the_warp_only(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncwarp()
    if cured:
        cuda.syncthreads()
    out[t] = s[63 - t]


@cuda.jit
def loop_without_second_barrier(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for i in range(3):
        s[t] = i
        cuda.syncthreads()
        out[t] = s[(t + 32) % 64]
        if cured:
            cuda.syncthreads()


@cuda.jit
def by_address(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    if cured:
        cuda.syncthreads()
    simt.load("shared", simt.shared_base() + 16 * ((t + 32) % 64) + 4, 4)


@cuda.jit
def two_views_of_the_same_bytes(out, address, cured):
    a = cuda.shared.array(0, float32)
    b = cuda.shared.array(0, float16)
    t = cuda.threadIdx.x
    a[t] = t
    if cured:
        cuda.syncthreads()
    out[t] = b[2 * ((t + 32) % 64) + 1]


@cuda.jit
def rows_of_another_warp(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    cuda.syncwarp()
    if cured:
        cuda.syncthreads()
    ptx.ldmatrix_x4(simt.shared_base() + 16 * ((t + 32) % 64))


@cuda.jit
def rows_overwritten(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    cuda.syncthreads()
    ptx.ldmatrix_x4(simt.shared_base() + 16 * ((t + 32) % 64))
    if cured:
        cuda.syncthreads()
    simt.store("shared", simt.shared_base() + 16 * t + 8, Z4)


# ---- within a warp


@cuda.jit
def warp_read_after_write(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    if cured:
        cuda.syncwarp()
    out[t] = s[t ^ 1]


@cuda.jit
def warp_write_after_read(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncwarp()
    out[t] = s[t ^ 1]
    if cured:
        cuda.syncwarp()
    s[t] = 0


@cuda.jit
def warp_write_after_several_read(out, address, cured):
    s = cuda.shared.array(2, float32)
    t = cuda.threadIdx.x
    if t % 32 == 0:
        s[t // 32] = t
    cuda.syncwarp()
    out[t] = s[t // 32]
    if cured:
        cuda.syncwarp()
    if t % 32 == 0:
        s[t // 32] = 0


@cuda.jit
def warp_write_after_write(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    if cured:
        cuda.syncwarp()
    s[t ^ 1] = 0


@cuda.jit
def shuffle_is_no_barrier(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.shfl_xor_sync(0xFFFFFFFF, t, 1)
    if cured:
        cuda.syncwarp()
    out[t] = s[t ^ 1]


@cuda.jit
def rows_of_the_warp(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    if cured:
        cuda.syncwarp()
    ptx.ldmatrix_x4(simt.shared_base() + 16 * t)


@cuda.jit
def rows_of_the_warp_overwritten(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    cuda.syncwarp()
    ptx.ldmatrix_x4(simt.shared_base() + 16 * t)
    if cured:
        cuda.syncwarp()
    simt.store("shared", simt.shared_base() + 16 * t, Z16)


HAZARDS = {
    read_after_write: "read after write", write_after_read: "write after read|read after write",
    write_after_several_read: "write after read|read after write", write_after_write: "write after write",
    barrier_of_the_warp_only: "read after write|write after read",
    loop_without_second_barrier: "write after read|read after write",
    by_address: "read after write|write after read", two_views_of_the_same_bytes: "read after write|write after read",
    rows_of_another_warp: "read after write|write after read", rows_overwritten: "write after read|read after write",
    warp_read_after_write: "syncwarp", warp_write_after_read: "syncwarp", warp_write_after_several_read: "syncwarp",
    warp_write_after_write: "syncwarp", shuffle_is_no_barrier: "syncwarp", rows_of_the_warp: "syncwarp",
    rows_of_the_warp_overwritten: "syncwarp",
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", HAZARDS, ids=lambda kernel: kernel.__name__)
def test_hazard(kernel: Any, schedule: Any) -> None:
    found(kernel, HAZARDS[kernel], schedule)


def test_both_sides_are_named() -> None:
    with pytest.raises(simt.Race) as caught:
        run(write_after_write, 0, "first")
    what, where = str(caught.value).splitlines()
    assert "writes shared offset" in what and "which warp 0, lane 0 wrote since the last syncthreads()" in what
    assert "warp 1, lane 0, at test_gpu_races.py" in where and where.endswith("s[t - 32] = 0")


# ---- no false alarms


@cuda.jit
def neighbours(out, address, cured):
    a = cuda.shared.array(64, int8)
    b = cuda.shared.array(64, float16)
    t = cuda.threadIdx.x
    i = t // 32 + 2 * (t % 32)  # the two warps write alternate elements of the same words
    a[i] = t
    b[i] = t
    out[t] = a[i] + b[i]
    out[t] += a[i]


@cuda.jit
def own_cells(out, address, cured):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for i in range(3):
        s[t] = i
        out[t] = s[t]
    cuda.syncwarp()
    out[t] += s[t ^ 3]
    cuda.syncwarp()
    s[t ^ 3] = 5
    cuda.syncwarp()
    out[t] += s[t]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_false_alarm(schedule: Any) -> None:
    t = np.arange(64)
    assert (run(neighbours, 1, schedule)[:64] == 3 * t).all()
    assert (run(own_cells, 1, schedule)[:64] == 9).all()
