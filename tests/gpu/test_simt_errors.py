"""Each kind of error that the executor raises is provoked by a small kernel, and names who, where and in which line."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba.cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda, float32, int32  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import ptx, simt  # noqa: E402

SCHEDULES = ["first", "last", 0, 1]


def refused(kind: type[Exception], kernel: Any, *args: Any, grid: Any = 2, block: Any = 64, shared: int = 256) -> str:
    """What the error says; it is the same kind under every schedule, and tells the line that is marked `# here`."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    marked = [first + i for i, line in enumerate(lines) if "# here" in line]
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    addresses = [a.ctypes.data if isinstance(a, np.ndarray) and kernel in BY_ADDRESS else a for a in args]
    for schedule in SCHEDULES:
        with pytest.raises(kind) as caught:
            simt.run(kernel, grid, block, shared, addresses, arrays, schedule)
        text = str(caught.value)
        assert kernel.__name__ + ": block (" in text
        assert any(f"test_simt_errors.py:{line}, in " in text.splitlines()[-1] for line in marked), text
    return text


BY_ADDRESS: set[Any] = set()


def by_address(kernel: Any) -> Any:
    """A kernel whose arrays are handed over as addresses."""
    BY_ADDRESS.add(kernel)
    return kernel


def zeros(n: int = 64, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(n, dtype)


# ---- divergence


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


# ---- bounds and alignment


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


SIZES = {beyond_array: 75, load_beyond: 98, beyond_shared_array: 33}  # one thread more than there is room for


@pytest.mark.parametrize(
    ("kernel", "place"),
    [
        (beyond_array, "index 101 of an array of shape (101,)"),
        (before_array, "index -1 "),
        (read_before_array, "index -1 "),
        (beyond_shared_array, "index (1, 32) of an array of shape (2, 32)"),
        (beyond_dynamic_array, "index 64 of an array of shape (64,)"),
        (beyond_local_array, "index 4 of a local array of 4"),
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


def test_read_only_arrays_are_not_written() -> None:
    out = zeros(256)
    out.flags.writeable = False
    assert "read-only" in refused(simt.OutOfBounds, beyond_array, out)


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


# ---- uninitialised


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
    refused(simt.Divergence, some_lanes_at_barrier, zeros())
    out = zeros()
    simt.run(beyond_array, 1, 32, 0, [out], [])
    assert out.sum() == 32
