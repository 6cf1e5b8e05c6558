"""Reads of what nobody wrote, exceptions of a kernel's own, and launches that a device refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda, float32, int32  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import ptx, simt  # noqa: E402
from tests.gpu_provoked import refused, zeros  # noqa: E402


@cuda.jit
def unset_local(out):
    a = cuda.local.array(4, float32)
    a[0] = 1
    if cuda.threadIdx.x == 37:
        a[0] += a[1]  # here
    out[0] = a[0]


@cuda.jit
def unset_local_stored(out):
    a = cuda.local.array(4, float32)
    out[0] = a[2]  # here


@cuda.jit
def unset_local_in_shuffle(out):
    a = cuda.local.array(4, int32)
    out[0] = cuda.shfl_xor_sync(0xFFFFFFFF, a[2], 1)  # here


@cuda.jit
def unset_shared(out):
    s = cuda.shared.array(65, float32)
    s[cuda.threadIdx.x] = 1
    cuda.syncthreads()
    out[cuda.grid(1)] = s[cuda.threadIdx.x + 1]  # here


@cuda.jit
def unset_shared_half(out):
    simt.store("shared", simt.shared_base(), np.zeros(2, np.uint8))
    simt.load("shared", simt.shared_base(), 4)  # here


@cuda.jit
def unset_rows(out):
    ptx.ldmatrix_x4(simt.shared_base())  # here


@pytest.mark.parametrize(
    "kernel", [unset_local, unset_local_stored, unset_local_in_shuffle, unset_shared, unset_shared_half, unset_rows]
)
def test_uninitialised(kernel: Any) -> None:
    threads = 1 if kernel is unset_shared_half else 32 if kernel is unset_rows else 64
    text = refused(simt.UninitialisedRead, kernel, zeros(128), grid=1, block=threads)
    assert kernel is not unset_local or "block (0, 0, 0), warp 1, lane 5," in text
    assert kernel is not unset_shared or "block (0, 0, 0), warp 1, lane 31," in text


@cuda.jit
def set_in_first_block(out):
    s = cuda.shared.array(1, float32)
    if cuda.blockIdx.x == 0:
        s[0] = 1
    out[cuda.blockIdx.x] = s[0]  # here


def test_shared_memory_does_not_outlive_its_block() -> None:
    refused(simt.UninitialisedRead, set_in_first_block, zeros(), block=1)


# ---- other errors


@cuda.jit
def divides_by_zero(out):
    if cuda.grid(1) == 97:
        out[0] = 1 // (cuda.threadIdx.x - 33)  # here


def test_an_exception_of_the_kernel_is_located() -> None:
    text = refused(simt.LaneError, divides_by_zero, zeros())
    assert "ZeroDivisionError" in text and "block (1, 0, 0), warp 1, lane 1," in text


@cuda.jit
def calls_a_broken_model(out, lanes):
    simt.collective(np.linalg.inv, 1.0, lanes)  # here


@pytest.mark.parametrize("lanes", [32, 128])
def test_an_exception_of_a_model_is_located(lanes: int) -> None:
    text = refused(simt.LaneError, calls_a_broken_model, zeros(), lanes, block=128)
    assert "LinAlgError: 1-dimensional" in text


@cuda.jit
def assigns_a_part(out):
    out[cuda.threadIdx.x] = 1  # here


def test_parts_of_arrays_are_not_assigned() -> None:
    assert "assign its elements" in refused(simt.SimtError, assigns_a_part, np.zeros((64, 2)), grid=1)


@cuda.jit
def adds_atomically(out):
    cuda.atomic.add(out, 0, 1)  # here


def test_atomics_are_refused() -> None:
    assert "atomic" in refused(simt.SimtError, adds_atomically, zeros())


@cuda.jit
def nothing(out):
    pass


@pytest.mark.parametrize(
    ("grid", "block", "shared", "text"),
    [
        (0, 32, 0, "grid=0"),
        (1, (32, 0), 0, "block=(32, 0)"),
        (1, 1025, 0, "1024 threads"),
        (1, 32, 232449, "shared_bytes=232449"),
        ((1, 1, 1, 1), 32, 0, "grid="),
    ],
)
def test_launches_that_a_device_refuses(grid: Any, block: Any, shared: int, text: str) -> None:
    with pytest.raises(simt.InvalidLaunch, match=text.replace("(", r"\(").replace(")", r"\)")):
        simt.run(nothing, grid, block, shared, [zeros()], [])


@cuda.jit
def large_static(out):
    s = cuda.shared.array(12289, float32)  # here
    s[0] = 1


def test_static_arrays_are_limited() -> None:
    assert "49156" in refused(simt.InvalidLaunch, large_static, zeros())


def test_the_executor_works_after_an_error() -> None:
    refused(simt.LaneError, divides_by_zero, zeros())
    simt.run(divides_by_zero, 1, 64, 0, [zeros()], [])
