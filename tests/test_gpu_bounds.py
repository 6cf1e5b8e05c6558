"""Accesses outside arrays, buffers and shared memory, and misaligned ones: refused, naming the lane at fault."""

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
from tests.gpu_provoked import by_address, refused, zeros  # noqa: E402


@cuda.jit
def beyond_array(out):
    i = cuda.grid(1)
    out[i + 27] = 1  # here


@cuda.jit
def before_array(out):
    out[cuda.grid(1) - 1] = 1  # here


@cuda.jit
def read_before_array(out):
    out[cuda.grid(1)] = out[-1]  # here


@cuda.jit
def beyond_in_one_dimension(out):
    out[0, cuda.threadIdx.x // 8] = 1  # here


@cuda.jit
def beyond_shared_array(out):
    s = cuda.shared.array((2, 32), float32)
    s[1, cuda.threadIdx.x] = 1  # here


@cuda.jit
def beyond_dynamic_array(out):
    s = cuda.shared.array(0, float32)
    s[cuda.threadIdx.x + 1] = 1  # here


@cuda.jit
def beyond_local_array(out):
    a = cuda.local.array(4, float32)
    for i in range(5):
        a[i] = 1  # here


@cuda.jit
def store_before_local_array(out):
    a = cuda.local.array(4, float32)
    a[cuda.threadIdx.x - 1] = 1  # here


@cuda.jit
def before_local_array(out):
    a = cuda.local.array(4, float32)
    for i in range(4):
        a[i] = 1
    out[0] = a[int32(-1)]  # here


@cuda.jit
def read_beyond_local_array(out):
    a = cuda.local.array(4, float32)
    for i in range(4):
        a[i] = 1
    out[0] = a[4] + a[3]  # here


@cuda.jit
def read_far_beyond_local_array(out):
    a = cuda.local.array(4, float32)
    out[0] = a[9]  # here


@by_address
@cuda.jit
def load_beyond(out):
    simt.load("global", out + 4 * cuda.threadIdx.x + 16, 4)  # here


@by_address
@cuda.jit
def store_before(out):
    simt.store("global", out - 4, np.zeros(4, np.uint8))  # here


@by_address
@cuda.jit
def copy_beyond(out):
    simt.copy_async(simt.shared_base(), out + 256, 4)  # here


@cuda.jit
def shared_store_beyond(out):
    simt.store("shared", simt.shared_base() + 4 * cuda.threadIdx.x + 4, np.zeros(4, np.uint8))  # here


@cuda.jit
def shared_store_before(out):
    simt.store("shared", simt.shared_base() - 16, np.zeros(16, np.uint8))  # here


@cuda.jit
def shared_copy_beyond(out):
    simt.copy_async(simt.shared_base() + 256, 0, 0)  # here


@cuda.jit
def gather_beyond(out):
    ptx.ldmatrix_x4(simt.shared_base() + 16 * cuda.threadIdx.x)  # here


SIZES = {beyond_array: 75, load_beyond: 98, beyond_shared_array: 33, store_before_local_array: 2}
"""Threads: one more than there is room for."""


@pytest.mark.parametrize(
    ("kernel", "place"),
    [
        (beyond_array, "index 101 of an array of shape (101,)"),
        (before_array, "index -1 "),
        (read_before_array, "index -1 "),
        (beyond_shared_array, "index (1, 32) of an array of shape (2, 32)"),
        (beyond_dynamic_array, "index 64 of an array of shape (64,)"),
        (beyond_local_array, "index 4 of a local array of 4"),
        (store_before_local_array, "index -1 of a local array of 4"),
        (before_local_array, "outside a local array of 4 float32"),
        (read_beyond_local_array, "outside a local array of 4 float32"),
        (read_far_beyond_local_array, "IndexError"),
        (load_beyond, "of the nearest buffer, which has 404 bytes"),
        (store_before, "offset -4 of the nearest buffer"),
        (shared_store_beyond, "shared offset 256"),
        (shared_store_before, "shared offset -16"),
        (shared_copy_beyond, "shared offset 256"),
    ],
)  # fmt: skip
def test_out_of_bounds(kernel: Any, place: str) -> None:
    assert place in refused(simt.OutOfBounds, kernel, zeros(101), grid=1, block=SIZES.get(kernel, 64))


def test_lane_at_fault_is_named() -> None:
    assert "block (0, 0, 0), warp 2, lane 10," in refused(simt.OutOfBounds, beyond_array, zeros(101), grid=1, block=75)
    assert "block (1, 0, 0), warp 1, lane 31," in refused(simt.OutOfBounds, beyond_array, zeros(154), grid=2)
    text = refused(simt.OutOfBounds, gather_beyond, zeros(), shared=512 - 16, grid=1, block=32)
    assert "shared offset 496" in text and "warp 0, lane 31," in text


def test_bounds_of_each_dimension() -> None:
    assert "(0, 4)" in refused(simt.OutOfBounds, beyond_in_one_dimension, np.zeros((9, 4), np.float32))
    assert "(0, 4)" in refused(simt.OutOfBounds, beyond_in_one_dimension, np.zeros((4, 9), np.float32).T[:, :4])


def test_copy_is_held_to_its_source() -> None:
    assert "cp.async of 4 bytes" in refused(simt.OutOfBounds, copy_beyond, zeros(64))


@by_address
@cuda.jit
def second_column(out):
    simt.load("global", out + 4, 4)  # here


def test_gaps_between_elements_are_out_of_bounds() -> None:
    every = np.zeros((64, 2), np.float32)
    text = refused(simt.OutOfBounds, second_column, every[:, 0])
    assert "between elements" in text
    simt.run(second_column, 1, 32, 0, [every.ctypes.data], [every])
    simt.run(second_column, 1, 32, 0, [every.ctypes.data], [every[:, 0], every[:, 1]])  # the other array owns them


@pytest.mark.parametrize("step", [2, 3000])
def test_sparse_arrays(step: int) -> None:
    """Rows that lie far apart are books of their own: 3 GB are not."""
    every = np.zeros((64, 2 * step), np.float32)
    out = every[:, step - 2 : step]
    assert "between elements" in refused(simt.OutOfBounds, row_and_more, out, grid=1, block=1)
    assert "across blocks" in refused(simt.Race, row_in_each_block, out, block=1)
    assert "across blocks" in refused(simt.Race, elements_in_each_block, out, block=1)


@by_address
@cuda.jit
def row_and_more(out):
    simt.load("global", out, 8)
    simt.load("global", out + 8, 4)  # here


@by_address
@cuda.jit
def row_in_each_block(out):
    simt.load("global", out, 4)  # here
    simt.store("global", out, np.zeros(4, np.uint8))  # here


@cuda.jit
def elements_in_each_block(out):
    out[5, 1] += 1  # here


def test_vast_arrays() -> None:
    every = np.empty((2**10, 2**20), np.float32)  # not touched, so not there
    simt.run(beyond_array, 2, 1, 0, [every[::-8, 77]], [])
    assert (every[::-8, 77][27:29] == 1).all()


@by_address
@cuda.jit
def store_below(out):
    simt.store("global", out, np.zeros(4, np.uint8))  # here


def test_read_only_arrays_are_not_written() -> None:
    out = zeros(256)
    out.flags.writeable = False
    assert "read-only" in refused(simt.OutOfBounds, beyond_array, out)
    assert "read-only" in refused(simt.OutOfBounds, store_below, out)


@pytest.mark.parametrize("count", [-1, 17])
def test_copies_are_of_a_group_at_most(count: int) -> None:
    refused(simt.SimtError, copy_of, zeros(), count, block=1)


@by_address
@cuda.jit
def copy_of(out, count):
    simt.copy_async(simt.shared_base(), out, count)  # here


@by_address
@cuda.jit
def odd_load(out):
    simt.load("global", out + 2, 4)  # here


@by_address
@cuda.jit
def odd_copy(out):
    simt.copy_async(simt.shared_base(), out + 8, 16)  # here


@cuda.jit
def odd_shared_store(out):
    simt.store("shared", simt.shared_base() + 8, np.zeros(16, np.uint8))  # here


@cuda.jit
def odd_shared_copy(out):
    simt.copy_async(simt.shared_base() + 8, 0, 0)  # here


@cuda.jit
def odd_gather(out):
    ptx.ldmatrix_x4(simt.shared_base() + (8 if cuda.threadIdx.x == 7 else 0))  # here


@pytest.mark.parametrize("kernel", [odd_load, odd_copy, odd_shared_store, odd_shared_copy, odd_gather])
def test_misaligned(kernel: Any) -> None:
    text = refused(simt.Misaligned, kernel, zeros(), block=32)
    assert "not a multiple of " + ("4" if kernel is odd_load else "16") in text
    assert kernel is not odd_gather or "warp 0, lane 7," in text


def test_shared_base_is_not_better_aligned_than_a_device_promises() -> None:
    assert simt.shared_base() % 16 == 0 and simt.shared_base() % 32 != 0
