"""Shared memory that wgmma reads: proxy fences, barriers and waits that are missing are found under every schedule."""

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

from gpu import simt  # noqa: E402
from tests.gpu_hazards import SCHEDULES, found, run  # noqa: E402


def read_all(payloads: list[int]) -> list[Any]:
    return list(simt.read_async(np.array(payloads), 16))


read_all.__name__ = "wgmma"


def wgmma() -> None:
    """The warpgroup reads 2 KiB of shared memory by the asynchronous proxy, 16 bytes for each lane."""
    simt.collective(read_all, simt.shared_base() + 16 * (cuda.threadIdx.x % 128), 128)


def fill(step: int = 16) -> None:
    simt.store("shared", simt.shared_base() + step * cuda.threadIdx.x, np.zeros(step, np.uint8))


@cuda.jit
def no_fence(out, address, cured):
    fill()
    if cured:
        simt.proxy_fence()
    cuda.syncthreads()
    wgmma()


@cuda.jit
def fence_before_write(out, address, cured):
    if not cured:
        simt.proxy_fence()
    fill()
    if cured:
        simt.proxy_fence()
    cuda.syncthreads()
    wgmma()


@cuda.jit
def fence_of_one_lane_missing(out, address, cured):
    fill()
    if cured or cuda.threadIdx.x != 77:
        simt.proxy_fence()
    cuda.syncthreads()
    wgmma()


@cuda.jit
def fence_without_barrier(out, address, cured):
    fill()
    simt.proxy_fence()
    if cured:
        cuda.syncthreads()
    wgmma()


@cuda.jit
def copy_without_fence(out, address, cured):
    simt.copy_async(simt.shared_base() + 16 * cuda.threadIdx.x, address, 16)
    simt.commit_group()
    simt.wait_group(0)
    if cured:
        simt.proxy_fence()
    cuda.syncthreads()
    wgmma()


@cuda.jit
def copy_fenced_before_wait(out, address, cured):
    simt.copy_async(simt.shared_base() + 16 * cuda.threadIdx.x, address, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    simt.proxy_fence()
    simt.wait_group(0)
    cuda.syncthreads()
    wgmma()


@cuda.jit
def copy_in_flight(out, address, cured):
    simt.copy_async(simt.shared_base() + 16 * cuda.threadIdx.x, address, 16)
    simt.commit_group()
    if cured:
        simt.wait_group(0)
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()


@cuda.jit
def nobody_wrote(out, address, cured):
    if cured or cuda.threadIdx.x < 127:
        fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()


@cuda.jit
def overwritten_while_read(out, address, cured):
    fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    simt.commit_reads()
    if cured:
        simt.wait_reads(0)
    cuda.syncthreads()
    fill()


@cuda.jit
def overwritten_without_barrier(out, address, cured):
    fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    simt.commit_reads()
    simt.wait_reads(0)
    if cured:
        cuda.syncthreads()
    fill()


@cuda.jit
def overwritten_by_a_copy(out, address, cured):
    fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    simt.commit_reads()
    simt.wait_reads(0 if cured else 1)
    cuda.syncthreads()
    simt.copy_async(simt.shared_base() + 16 * cuda.threadIdx.x, address, 16)


@cuda.jit
def second_group_pending(out, address, cured):
    fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    simt.commit_reads()
    wgmma()
    simt.commit_reads()
    simt.wait_reads(0 if cured else 1)
    cuda.syncthreads()
    fill()


@cuda.jit
def not_committed(out, address, cured):
    fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    if cured:
        simt.commit_reads()
    simt.wait_reads(0)
    cuda.syncthreads()
    fill()


@cuda.jit
def narrow_write_while_read(out, address, cured):
    fill()
    simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    simt.commit_reads()
    if cured:
        simt.wait_reads(0)
    cuda.syncthreads()
    fill(2)


ASYNCHRONOUS = {
    no_fence: "proxy", fence_before_write: "proxy", fence_of_one_lane_missing: "warp 2, lane 13 wrote without fence",
    fence_without_barrier: "read after write", copy_without_fence: "proxy", copy_fenced_before_wait: "proxy",
    copy_in_flight: "in flight", nobody_wrote: "nobody wrote", overwritten_while_read: "not waited for",
    overwritten_without_barrier: "write after read", overwritten_by_a_copy: "not waited for",
    second_group_pending: "not waited for", not_committed: "not waited for", narrow_write_while_read: "not waited for",
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", ASYNCHRONOUS, ids=lambda kernel: kernel.__name__)
def test_asynchronous_proxy(kernel: Any, schedule: Any) -> None:
    found(kernel, ASYNCHRONOUS[kernel], schedule, block=128)


@cuda.jit
def two_warpgroups(out, address, cured):
    if cuda.threadIdx.x < 128:
        fill()
        simt.proxy_fence()
    cuda.syncthreads()
    wgmma()
    simt.commit_reads()
    if cured or cuda.threadIdx.x < 128:
        simt.wait_reads(0)
    cuda.syncthreads()
    if cuda.threadIdx.x < 128:
        fill()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_warpgroup_waits_for_its_own_reads(schedule: Any) -> None:
    with pytest.raises(simt.Race, match="not waited for"):
        run(two_warpgroups, 0, schedule, block=256)
    run(two_warpgroups, 1, schedule, block=256)
