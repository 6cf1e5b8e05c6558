"""Shuffles, votes, barriers and collectives agree with NumPy, under every schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")
pytest.importorskip("hypothesis", reason="no hypothesis; pip install 'refattn[test]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from numba import cuda  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import simt  # noqa: E402

FULL = 0xFFFFFFFF
SCHEDULES = ["first", "last", 0, 1]
LANES = np.arange(32)
VALUES = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=64, max_size=64).map(lambda x: np.array(x, np.int32))
schedules = st.sampled_from(SCHEDULES)


def by_warp(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 32)


@cuda.jit
def shuffles(x, by, out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.shfl_sync(FULL, x[t], by[t])
    out[1, t] = cuda.shfl_up_sync(FULL, x[t], by[t])
    out[2, t] = cuda.shfl_down_sync(FULL, x[t], by[t])
    out[3, t] = cuda.shfl_xor_sync(-1, x[t], by[t])


@settings(max_examples=30)
@given(VALUES, st.lists(st.integers(0, 31), min_size=64, max_size=64).map(np.array), schedules)
def test_shuffles(x: np.ndarray, by: np.ndarray, schedule: Any) -> None:
    out = np.zeros((4, 64), np.int32)
    simt.run(shuffles, 1, 64, 0, [x, by, out], [], schedule)
    own, n = by_warp(x), by_warp(by)
    sources = [n, np.where(LANES >= n, LANES - n, LANES), np.where(LANES + n < 32, LANES + n, LANES), LANES ^ n]
    for found, source in zip(out, sources, strict=True):
        assert (by_warp(found) == np.take_along_axis(own, source, 1)).all()


@cuda.jit
def votes(x, out):
    t = cuda.threadIdx.x
    out[0, t] = cuda.ballot_sync(FULL, x[t] > 0)
    out[1, t] = cuda.any_sync(FULL, x[t] > 0)
    out[2, t] = cuda.all_sync(FULL, x[t] > 0)
    out[3, t] = cuda.syncthreads_count(x[t] > 0)
    out[4, t] = cuda.syncthreads_or(x[t] > 0)
    out[5, t] = cuda.syncthreads_and(x[t] > 0)


@settings(max_examples=30)
@given(st.one_of(VALUES, st.sampled_from([0, 1]).map(lambda v: np.full(64, v, np.int32))), schedules)
def test_votes(x: np.ndarray, schedule: Any) -> None:
    out = np.zeros((6, 64), np.int32)
    simt.run(votes, 1, 64, 0, [x, out], [], schedule)
    p = by_warp(x > 0)
    ballots = (p.astype(np.uint64) << LANES.astype(np.uint64)).sum(1).astype(np.uint32).view(np.int32)
    for i, rows in enumerate((ballots, p.any(1), p.all(1))):
        assert (by_warp(out[i]) == rows[:, None]).all()
    assert (out[3] == p.sum()).all() and (out[4] == p.any()).all() and (out[5] == p.all()).all()


def reversed_order(payloads: list[Any]) -> list[Any]:
    return payloads[::-1]


@cuda.jit
def turned_round(out):
    t = cuda.threadIdx.x
    for _ in range(3):
        out[0, t] = simt.collective(reversed_order, t)
        out[1, t] = simt.collective(reversed_order, t, 128)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_payloads_are_in_order_of_lanes(schedule: Any) -> None:
    out = np.zeros((2, 256), np.int32)
    simt.run(turned_round, 1, 256, 0, [out], [], schedule)
    t = np.arange(256)
    assert (out[0] == t ^ 31).all() and (out[1] == t ^ 127).all()


def nothing(payloads: list[Any]) -> list[Any]:
    calls.append(len(payloads))
    return payloads


calls: list[int] = []


@cuda.jit
def some_warps(out):
    t = cuda.threadIdx.x
    if t < 32:
        for _ in range(2):
            simt.collective(nothing, None)
    if t >= 128:
        simt.collective(nothing, None, 128)
    cuda.syncthreads()
    out[t] = 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_collective_is_executed_once(schedule: Any) -> None:
    calls.clear()
    out = np.zeros(256, np.int32)
    simt.run(some_warps, 1, 256, 0, [out], [], schedule)
    assert sorted(calls) == [32, 32, 128] and out.all()


@cuda.jit
def uneven_work(out):
    t = cuda.threadIdx.x
    x = t % 32
    for _ in range(1 + t // 32):
        x += cuda.shfl_xor_sync(FULL, x, 1)
    cuda.syncthreads()
    out[t] = x


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_warps_do_not_wait_for_each_other(schedule: Any) -> None:
    out = np.zeros(96, np.int32)
    simt.run(uneven_work, 1, 96, 0, [out], [], schedule)
    pair = LANES + (LANES ^ 1)
    assert (by_warp(out) == np.stack([pair, 2 * pair, 4 * pair])).all()


@cuda.jit
def partial_warp(x, out):
    s = cuda.shared.array(40, np.int32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    out[t] = s[39 - t] + cuda.syncthreads_count(t >= 32)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_blocks_of_any_size_have_barriers(schedule: Any) -> None:
    x, out = np.arange(40, dtype=np.int32), np.zeros(40, np.int32)
    simt.run(partial_warp, 1, 40, 0, [x, out], [], schedule)
    assert (out == 39 - x + 8).all()
