"""Lanes, warps or blocks that part before a barrier or a collective: refused, and told who is where."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import simt  # noqa: E402
from tests.gpu_provoked import refused, zeros  # noqa: E402


@cuda.jit
def some_lanes_at_barrier(out):
    if cuda.threadIdx.x % 32 < 5:
        cuda.syncthreads()  # here


@cuda.jit
def one_warp_at_barrier(out):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads()  # here


@cuda.jit
def two_barriers(out):
    if cuda.threadIdx.x % 32 < 16:
        cuda.syncthreads()  # here
    else:
        cuda.syncthreads()  # here


@cuda.jit
def barriers_of_two_warps(out):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads()  # here
    else:
        cuda.syncthreads()  # here


@cuda.jit
def different_barriers(out):
    if cuda.threadIdx.x < 32:
        cuda.syncthreads_or(1)  # here
    else:
        cuda.syncthreads_and(1)  # here


@cuda.jit
def returned_before_barrier(out):
    if cuda.threadIdx.x == 63:
        return
    cuda.syncthreads()  # here


@cuda.jit
def shuffle_in_branch(out):
    x = out[0]
    if cuda.threadIdx.x % 4 == 0:
        x += cuda.shfl_xor_sync(0xFFFFFFFF, x, 1)  # here
    out[cuda.grid(1)] = x


@cuda.jit
def shuffles_of_two_places(out):
    if cuda.laneid < 16:
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)  # here
    else:
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)  # here


@cuda.jit
def shuffle_against_barrier(out):
    if cuda.laneid < 16:
        cuda.shfl_xor_sync(0xFFFFFFFF, 1, 1)  # here
    else:
        cuda.syncthreads()  # here


@cuda.jit
def loop_of_unequal_length(out):
    for _ in range(1 + cuda.threadIdx.x // 32):
        cuda.syncthreads()  # here


@cuda.jit
def half_a_warp(out):
    cuda.syncwarp()  # here


@cuda.jit
def partial_mask(out):
    cuda.shfl_sync(0xFFFF, 1, 0)  # here


@cuda.jit
def part_of_a_warpgroup(out):
    if cuda.threadIdx.x < 96:
        simt.commit_reads()  # here


@pytest.mark.parametrize(
    ("kernel", "block", "parts"),
    [
        (some_lanes_at_barrier, 64, ("lanes 5-31 have returned", "lanes 0-4 are at syncthreads")),
        (one_warp_at_barrier, 64, ("warp 1 has returned", "warp 0 is at syncthreads")),
        (two_barriers, 64, ("lanes 0-15 are at syncthreads", "lanes 16-31 are at syncthreads")),
        (barriers_of_two_warps, 64, ("warp 0 is at syncthreads", "warp 1 is at syncthreads")),
        (different_barriers, 64, ("warp 0 is at syncthreads_or", "warp 1 is at syncthreads_and")),
        (returned_before_barrier, 64, ("lanes 31 have returned", "lanes 0-30 are at syncthreads", "warp 1")),
        (shuffle_in_branch, 64, ("are at shfl_xor", "lanes 0, 4, 8, 12, 16, 20, 24, 28 are")),
        (shuffles_of_two_places, 64, ("lanes 0-15 are at shfl_xor", "lanes 16-31 are at shfl_xor")),
        (shuffle_against_barrier, 64, ("lanes 0-15 are at shfl_xor", "lanes 16-31 are at syncthreads")),
        (loop_of_unequal_length, 64, ("warp 0 has returned", "warp 1 is at syncthreads")),
        (half_a_warp, 16, ("16 threads",)),
        (partial_mask, 32, ("mask 0xffff",)),
        (part_of_a_warpgroup, 128, ("warp 3 has returned", "warp 0 is at")),
        (part_of_a_warpgroup, 96, ("warpgroup of 3 warps",)),
    ],
)  # fmt: skip
def test_divergence(kernel: Any, block: int, parts: tuple[str, ...]) -> None:
    text = refused(simt.Divergence, kernel, zeros(256), block=block)
    for part in parts:
        assert part in text
