"""Kernels that use nothing beyond stock Numba CUDA run in the executor, launched in the usual way or by `simt.run`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda, float32, float64, int32  # noqa: E402
from numba import types as numba_types  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import simt  # noqa: E402

D, KEYS, THREADS = 8, 5, 16


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@cuda.jit(device=True)
def scaled(x, scale):
    return x * scale


@cuda.jit
def attention(q, k, v, out, lse, scale):
    """Tiled online softmax, a thread for each row."""
    t = cuda.threadIdx.x
    row = cuda.blockIdx.x * THREADS + t
    keys = cuda.shared.array((KEYS, D), float32)
    values = cuda.shared.array((KEYS, D), float32)
    own = cuda.local.array(D, float32)
    o = cuda.local.array(D, float32)
    s = cuda.local.array(KEYS, float32)
    for d in range(D):
        own[d] = scaled(q[row, d], scale) if row < q.shape[0] else float32(0)
        o[d] = float32(0)
    m, total = float32(-math.inf), float32(0)
    for first in range(0, k.shape[0], KEYS):
        cuda.syncthreads()
        for i in range(t, KEYS * D, THREADS):
            r, c = i // D, i % D
            keys[r, c] = k[first + r, c] if first + r < k.shape[0] else float32(0)
            values[r, c] = v[first + r, c] if first + r < k.shape[0] else float32(0)
        cuda.syncthreads()
        best = m
        for j in range(KEYS):
            x = float32(0)
            for d in range(D):
                x += own[d] * keys[j, d]
            s[j] = x if first + j < k.shape[0] else float32(-math.inf)
            best = max(best, s[j])
        shrink = math.exp(m - best)
        total *= shrink
        m = best
        for d in range(D):
            o[d] *= shrink
        for j in range(KEYS):
            p = math.exp(s[j] - m)
            total += p
            for d in range(D):
                o[d] += p * values[j, d]
    if row < q.shape[0]:
        for d in range(D):
            out[row, d] = o[d] / total
        lse[row] = m + math.log(total)


@pytest.mark.parametrize("schedule", ["first", "last", 1])
@pytest.mark.parametrize("by_brackets", [True, False])
def test_tiled_attention(by_brackets: bool, schedule: Any) -> None:
    q, k, v = (rng().standard_normal((n, D)).astype(np.float32) for n in (19, 13, 13))
    q, v = np.asfortranarray(q), v[::-1]  # strides of all kinds
    out, lse = np.zeros((19, 2 * D), np.float32)[:, ::2], np.zeros(19, np.float32)
    if by_brackets:
        with simt.scheduled(schedule):
            attention[2, THREADS](q, k, v, out, lse, np.float32(0.5))
    else:
        simt.run(attention, 2, THREADS, 0, [q, k, v, out, lse, np.float32(0.5)], [], schedule)
    s = 0.5 * q.astype(float) @ k.T.astype(float)
    p = np.exp(s)
    assert np.allclose(out, p @ v / p.sum(1, keepdims=True), atol=1e-6)
    assert np.allclose(lse, np.log(p.sum(1)), atol=1e-6)


@cuda.jit
def grid_stride(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        out[i] = math.sqrt(x[i]) + cuda.blockDim.x + cuda.gridDim.x + cuda.warpsize


def test_grid_stride() -> None:
    x = rng().random(1000)
    out = np.zeros(1000)
    grid_stride[3, 32](x, out)
    assert (out == np.sqrt(x) + 32 + 3 + 32).all()


@cuda.jit
def three_dimensions(out):
    x, y, z = cuda.grid(3)
    out[x, y, z] += 100 * cuda.threadIdx.x + 10 * cuda.blockIdx.y + cuda.threadIdx.z + 1000 * (cuda.laneid == 7)


def test_three_dimensions() -> None:
    out = np.zeros((4, 6, 6), np.int32)
    three_dimensions[(2, 3, 2), (2, 2, 3)](out)
    x, y, z = np.indices(out.shape)
    lane = x % 2 + 2 * (y % 2) + 4 * (z % 3)
    assert (out == 100 * (x % 2) + 10 * (y // 2) + z % 3 + 1000 * (lane == 7)).all()


@cuda.jit
def parts(q, out):
    own = q[cuda.blockIdx.x]
    row = own[cuda.threadIdx.x, 1:3]
    out[cuda.blockIdx.x, cuda.threadIdx.x] = row[0] * row[1] + len(own) + own.shape[1] + q.ndim + row.size
    row[0] = own.itemsize


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.int64])
def test_parts_of_arrays(dtype: Any) -> None:
    q = np.arange(24).reshape(2, 3, 4).astype(dtype)
    was, out = q.copy(), np.zeros((2, 3))
    parts[2, 3](q, out)
    assert (out == was[:, :, 1] * was[:, :, 2] + 3 + 4 + 3 + 2).all()
    assert (q[:, :, 1] == q.itemsize).all() and (q[:, :, 0] == was[:, :, 0]).all()


@cuda.jit
def converts(out):
    a = cuda.local.array(3, int32)
    s = cuda.shared.array(3, numba_types.int16)
    d = cuda.local.array(2, float64)
    a[0] = 2**31 + 5
    a[1] = -1.75
    a[2] = np.int64(2**32 + 7)
    s[0] = 2**15
    s[1] = a[1]
    s[2] = 70000
    d[0] = float32(0.1)
    d[1] = 0.1
    for i in range(3):
        out[i] = a[i]
        out[3 + i] = s[i]
    out[6] = d[0]
    out[7] = d[1]


def test_stores_convert_as_a_device_does() -> None:
    out = np.zeros(8)
    converts[1, 1](out)
    assert out.tolist() == [5 - 2**31, -1, 7, -(2**15), -1, 70000 - 65536, float(np.float32(0.1)), 0.1]


@cuda.jit
def rounds(out):
    a = cuda.local.array(1, float32)
    a[0] = 0.1
    out[0] = a[0]
    a[0] += 1e-9
    out[1] = a[0]
    out[2] = a[0] * a[0]


def test_local_arrays_keep_their_precision() -> None:
    out = np.zeros(3)
    rounds[1, 1](out)
    x = np.float32(0.1)
    assert out.tolist() == [x, x, x * x]


@cuda.jit
def dynamic(x, out):
    s = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    out[0] = s.shape[0]
    s[t] = x[t]
    cuda.syncthreads()
    out[1 + t] = s[cuda.blockDim.x - 1 - t]


def test_dynamic_shared_memory() -> None:
    x, out = rng().random(8).astype(np.float32), np.zeros(9, np.float32)
    dynamic[1, 8, 0, 35](x, out)
    assert out[0] == 8 and (out[1:] == x[::-1]).all()


@cuda.jit(device=True)
def scratch(t):
    s = cuda.shared.array(8, int32)
    s[t] = t
    cuda.syncthreads()
    return s[7 - t]


@cuda.jit
def arrays_of_places(out):
    t = cuda.threadIdx.x
    a = cuda.shared.array(8, int32), cuda.shared.array(8, int32)  # two arrays in one line
    a[0][t] = 10 * t
    a[1][t] = 100 * t
    out[t] = a[0][t] + a[1][t] + scratch(t)


def test_static_arrays_are_one_for_each_place() -> None:
    out = np.zeros(8, np.int64)
    arrays_of_places[1, 8](out)
    t = np.arange(8)
    assert (out == 110 * t + 7 - t).all()


@cuda.jit
def infinities(out):
    a = cuda.local.array(2, float32)
    a[0] = np.float32(3e38)
    a[1] = -a[0] * a[0]
    out[0] = a[0] + a[0]
    out[1] = a[1] - a[1]
    out[2] = np.exp(a[1])


@pytest.mark.filterwarnings("error")
def test_overflow_is_silent() -> None:
    out = np.ones(3)
    infinities[1, 1](out)
    assert out[0] == np.inf and np.isnan(out[1]) and out[2] == 0


def test_empty_arrays() -> None:
    out = np.zeros(0)
    grid_stride[1, 32](np.zeros(0), out)
    with pytest.raises(simt.OutOfBounds, match="index 0 of an array of shape \\(0,\\)"):
        rounds[1, 1](out)


def test_device_functions_are_called_in_kernels_as_they_are() -> None:
    assert scaled.py_func is scaled and scaled(3, 2) == 6


def test_arrays_of_the_simulated_device() -> None:
    x = np.arange(8, dtype=np.float32)
    on_device, out = cuda.to_device(x), cuda.device_array(9, np.float32)
    dynamic[1, 8, 0, 32](on_device, out)
    assert (out.copy_to_host()[1:] == x[::-1]).all()
