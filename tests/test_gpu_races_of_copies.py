"""cp.async: what is not waited for, not committed, or written over is found under every schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import ptx, simt  # noqa: E402
from tests.gpu_hazards import SCHEDULES, found, run  # noqa: E402

Z4, Z16 = np.zeros(4, np.uint8), np.zeros(16, np.uint8)


@cuda.jit
def copy_not_waited_for(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    out[t] = simt.load("shared", simt.shared_base() + 16 * t, 4).view(np.float32)[0]


@cuda.jit
def copy_not_waited_for_but_barrier(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    cuda.syncthreads()
    simt.load("shared", simt.shared_base() + 16 * ((t + 32) % 64), 4)


@cuda.jit
def copy_waited_for_without_barrier(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    simt.wait_group(0)
    if cured:
        cuda.syncthreads()
    simt.load("shared", simt.shared_base() + 16 * ((t + 32) % 64), 4)


@cuda.jit
def copy_waited_for_after_barrier(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    cuda.syncthreads()
    simt.wait_group(0)
    simt.load("shared", simt.shared_base() + 16 * ((t + 32) % 64), 4)


@cuda.jit
def copy_not_committed(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    if cured:
        simt.commit_group()
    simt.wait_group(0)
    simt.load("shared", simt.shared_base() + 16 * t, 4)


@cuda.jit
def copy_of_the_last_group(out, address, cured):
    t = cuda.threadIdx.x
    for i in range(2):
        simt.copy_async(simt.shared_base() + 16 * t + 1024 * i, address + 16 * t, 16)
        simt.commit_group()
    simt.wait_group(0 if cured else 1)
    simt.load("shared", simt.shared_base() + 16 * t, 4)
    simt.load("shared", simt.shared_base() + 16 * t + 1024, 4)


@cuda.jit
def copy_over_what_is_read(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    cuda.syncthreads()
    ptx.ldmatrix_x4(simt.shared_base() + 16 * ((t + 32) % 64))
    if cured:
        cuda.syncthreads()
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)


@cuda.jit
def copy_over_what_is_written(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    if cured:
        cuda.syncthreads()
    simt.copy_async(simt.shared_base() + 16 * ((t + 32) % 64), address + 16 * t, 16)


@cuda.jit
def write_under_a_copy(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    simt.store("shared", simt.shared_base() + 16 * t + 4, Z4)


@cuda.jit
def copy_under_a_copy(out, address, cured):
    t = cuda.threadIdx.x
    for _ in range(2):
        simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
        simt.commit_group()
        if cured:
            simt.wait_group(0)


@cuda.jit
def copy_between_own_reads(out, address, cured):
    t = cuda.threadIdx.x
    simt.store("shared", simt.shared_base() + 16 * t, Z16)
    simt.load("shared", simt.shared_base() + 16 * t, 4)
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    simt.load("shared", simt.shared_base() + 16 * t, 4)


@cuda.jit
def copy_of_the_same_warp(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    simt.wait_group(0)
    if cured:
        cuda.syncwarp()
    ptx.ldmatrix_x4(simt.shared_base() + 16 * t)


@cuda.jit
def zeros_are_in_flight_too(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address, 0)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    out[t] = simt.load("shared", simt.shared_base() + 16 * t + 12, 4).view(np.float32)[0]


HAZARDS = {
    copy_not_waited_for: "in flight", copy_not_waited_for_but_barrier: "in flight",
    copy_waited_for_without_barrier: "read after write|in flight",
    copy_waited_for_after_barrier: "read after write|in flight",
    copy_not_committed: "in flight", copy_of_the_last_group: "in flight",
    copy_over_what_is_read: "write after read|in flight", copy_over_what_is_written: "write after write|in flight",
    write_under_a_copy: "in flight", copy_under_a_copy: "in flight", copy_between_own_reads: "in flight",
    copy_of_the_same_warp: "syncwarp", zeros_are_in_flight_too: "in flight",
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", HAZARDS, ids=lambda kernel: kernel.__name__)
def test_hazard(kernel: Any, schedule: Any) -> None:
    found(kernel, HAZARDS[kernel], schedule)


@cuda.jit
def pipeline(out, address, cured):
    t = cuda.threadIdx.x
    simt.copy_async(simt.shared_base() + 16 * t, address + 16 * t, 16)
    simt.commit_group()
    for i in range(3):
        if i < 2:
            simt.copy_async(simt.shared_base() + 16 * t + (i + 1) % 2 * 1024, address + 16 * t, 8)
        simt.commit_group()
        simt.wait_group(1)
        cuda.syncthreads()
        ptx.ldmatrix_x4(simt.shared_base() + 16 * ((t + 32) % 64) + i % 2 * 1024)
        simt.load("shared", simt.shared_base() + 16 * (t ^ 1) + i % 2 * 1024, 2)
        cuda.syncthreads()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_is_no_hazard(schedule: Any) -> None:
    run(pipeline, 1, schedule)
