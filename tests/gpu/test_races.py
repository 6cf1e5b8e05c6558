"""The race detector: each hazard is found under every schedule, and the kernel with the hazard cured passes under all.

A kernel has an argument `cured`: 0 leaves out what makes it right.  At the end drawn programs are held to a model that
compares all pairs of accesses.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba.cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")
pytest.importorskip("hypothesis", reason="no hypothesis; pip install 'refattn[test]'")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from numba import cuda  # noqa: E402
from numpy import float16, float32, int8  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import ptx, simt  # noqa: E402

SCHEDULES = ["first", "last", 0, 1, 2, 3]
Z4, Z16 = np.zeros(4, np.uint8), np.zeros(16, np.uint8)


def run(kernel: Any, cured: int, schedule: Any, grid: int = 1, block: int = 64) -> np.ndarray:
    out = np.arange(1024, dtype=np.float32)
    simt.run(kernel, grid, block, 2048, [out, out.ctypes.data, cured], [out], schedule)
    return out


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


# ---- cp.async


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


# ---- blocks


@cuda.jit
def blocks_write_the_same(out, address, cured):
    out[cuda.blockIdx.x if cured else 0] = 1


@cuda.jit
def block_reads_what_another_writes(out, address, cured):
    b = cuda.blockIdx.x
    out[b] = out[b] if cured else out[1 - b]


@cuda.jit
def block_stores_where_another_loads(out, address, cured):
    b = cuda.blockIdx.x
    simt.load("global", address + 64 * b, 16)
    simt.store("global", address + (64 * b if cured else 64 * (1 - b) + 12), Z4)


@cuda.jit
def block_copies_what_another_stores(out, address, cured):
    b = cuda.blockIdx.x
    if b == 0:
        simt.copy_async(simt.shared_base(), address, 16)
    else:
        simt.store("global", address + (16 if cured else 8), Z4)


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
    copy_not_waited_for: "in flight", copy_not_waited_for_but_barrier: "in flight",
    copy_waited_for_without_barrier: "read after write|in flight",
    copy_waited_for_after_barrier: "read after write|in flight",
    copy_not_committed: "in flight", copy_of_the_last_group: "in flight",
    copy_over_what_is_read: "write after read|in flight", copy_over_what_is_written: "write after write|in flight",
    write_under_a_copy: "in flight", copy_under_a_copy: "in flight", copy_between_own_reads: "in flight",
    copy_of_the_same_warp: "syncwarp", zeros_are_in_flight_too: "in flight",
    blocks_write_the_same: "across blocks", block_reads_what_another_writes: "across blocks",
    block_stores_where_another_loads: "across blocks", block_copies_what_another_stores: "across blocks",
}  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kernel", HAZARDS, ids=lambda kernel: kernel.__name__)
def test_hazard(kernel: Any, schedule: Any) -> None:
    grid = 2 if HAZARDS[kernel] == "across blocks" else 1
    block = 1 if grid == 2 else 64
    with pytest.raises((simt.Race, simt.UninitialisedRead)) as caught:
        run(kernel, 0, schedule, grid, block)
    text = str(caught.value)
    if isinstance(caught.value, simt.Race):
        assert any(name in text for name in HAZARDS[kernel].split("|")), text
    else:  # the reader came first: nobody had written
        assert "read after write" in HAZARDS[kernel] or HAZARDS[kernel] in ("syncwarp", "in flight"), text
    where = text.splitlines()[-1]
    assert all(part in where for part in (f"{kernel.__name__}: block (", ", warp ", ", lane ", "test_races.py:"))
    run(kernel, 1, schedule, grid, block)


def test_both_sides_are_named() -> None:
    with pytest.raises(simt.Race) as caught:
        run(write_after_write, 0, "first")
    what, where = str(caught.value).splitlines()
    assert "writes shared offset" in what and "which warp 0, lane 0 wrote since the last syncthreads()" in what
    assert "warp 1, lane 0, at test_races.py" in where and where.endswith("s[t - 32] = 0")


# ---- the asynchronous proxy


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


@pytest.mark.parametrize("schedule", SCHEDULES[:4])
@pytest.mark.parametrize("kernel", ASYNCHRONOUS, ids=lambda kernel: kernel.__name__)
def test_asynchronous_proxy(kernel: Any, schedule: Any) -> None:
    with pytest.raises((simt.Race, simt.UninitialisedRead)) as caught:
        run(kernel, 0, schedule, block=128)
    assert ASYNCHRONOUS[kernel] in str(caught.value)
    assert f"{kernel.__name__}: block (0, 0, 0), warp " in str(caught.value)
    run(kernel, 1, schedule, block=128)


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


@pytest.mark.parametrize("schedule", SCHEDULES[:4])
def test_each_warpgroup_waits_for_its_own_reads(schedule: Any) -> None:
    with pytest.raises(simt.Race, match="not waited for"):
        run(two_warpgroups, 0, schedule, block=256)
    run(two_warpgroups, 1, schedule, block=256)


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


@cuda.jit
def readers_of_one_input(out, address, cured):
    i = cuda.grid(1)
    out[512 + i] = out[0] + out[1 + i % 2] + simt.load("global", address + 16, 16).view(np.float32)[0]


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
    run(pipeline, 1, schedule)
    run(readers_of_one_input, 1, schedule, grid=2)
    assert (run(own_cells, 1, schedule)[:64] == 9).all()


# ---- drawn programs

Step = tuple[str, int, int]
"""("read" | "write", lane, cell), ("block", 0, 0), or ("warp", warp, 0)"""
ACCESS = st.tuples(st.sampled_from(["read", "write"]), st.sampled_from([0, 1, 32, 33]), st.integers(0, 1))
BARRIER = st.sampled_from([("block", 0, 0), ("warp", 0, 0), ("warp", 1, 0)])
STEPS = st.lists(st.one_of(ACCESS, ACCESS, ACCESS, BARRIER), max_size=8)


@cuda.jit
def interpreter(program, width):
    t = cuda.threadIdx.x
    for i in range(t, 128, 64):
        simt.store("shared", simt.shared_base() + 4 * i, Z4)
    cuda.syncthreads()
    for what, who, cell in program:
        if what == "block":
            cuda.syncthreads()
        elif what == "warp":
            if t // 32 == who:
                cuda.syncwarp()
        elif t == who:
            for at in range(cell * width, (cell + 1) * width, 4):
                if what == "read":
                    simt.load("shared", simt.shared_base() + at, 4)
                else:
                    simt.store("shared", simt.shared_base() + at, Z4)


def races(program: list[Step]) -> bool:
    """Compares all pairs of accesses: (cell, writes, lane, interval of the block, interval of the warp)."""
    accesses, block, warp = [], 0, [0, 0]
    for what, who, cell in program:
        if what == "block":
            block += 1
        elif what == "warp":
            warp[who] += 1
        else:
            accesses.append((cell, what == "write", who, block, warp[who // 32]))
    return any(
        a[0] == b[0] and (a[1] or b[1]) and a[2] != b[2] and a[3] == b[3] and (a[2] // 32 != b[2] // 32 or a[4] == b[4])
        for a, b in combinations(accesses, 2)
    )


@given(STEPS, st.sampled_from([4, 16]))
def test_drawn_programs(program: list[Step], width: int) -> None:
    expected = races(program)
    for schedule in ("first", "last", 0, 1):
        try:
            simt.run(interpreter, 1, 64, 512, [program, width], [], schedule)
            found = False
        except simt.Race:
            found = True
        assert found == expected, schedule
