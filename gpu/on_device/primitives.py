"""Each primitive on a device against its definition: what the executor's models assume of the hardware."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from gpu import ptx
from gpu.target import SIMULATED

__all__ = ["rows"]

LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4


def rows() -> Iterator[dict[str, Any]]:
    """Largest errors; products and moves must be exact on these numbers."""
    for dtype in ("bfloat16", "float16"):
        yield {"primitive": f"mma {dtype}"} | _exact(*_mma(dtype))
    for transposed in (False, True):
        yield {"primitive": f"ldmatrix_x4{'_trans' if transposed else ''}"} | _exact(*_ldmatrix(transposed))
    yield {"primitive": "shuffle_xor"} | _exact(*_shuffle())
    for name in ("pack_bf16", "pack_f16"):
        yield {"primitive": name} | _exact(*_pack(name))
    for name in ("ex2", "lg2"):
        yield {"primitive": name} | _relative(*_function(name))


def _exact(found: Any, expected: Any) -> dict[str, Any]:
    wrong = int((found != expected).sum())
    return {"ok": wrong == 0, "wrong": wrong, "of": found.size}


def _relative(found: Any, expected: Any) -> dict[str, Any]:
    error = float(np.max(np.abs(found - expected) / np.maximum(np.abs(expected), 2.0**-126)))
    return {"ok": error <= 2.0**-22, "largest relative error": f"2**{np.log2(error):.2f}", "of": found.size}


def _run(kernel: Any, threads: int, shared: int, *arrays: Any) -> list[Any]:
    """The arrays after a launch of one block."""
    there = [cuda.to_device(a) for a in arrays]
    kernel[1, threads, 0, shared](*there)
    return [a.copy_to_host() for a in there]


def _mma(dtype: str) -> tuple[Any, Any]:
    """Fragments by the formulas of the PTX ISA, "Matrix Fragments for mma.m16n8k16"."""
    rng = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    mma = ptx.mma_bf16 if dtype == "bfloat16" else ptx.mma_f16
    A, B = (rng.integers(-8, 9, shape).astype(kind) for shape in ((16, 16), (16, 8)))
    C = rng.integers(-8, 9, (16, 8)).astype(np.float32)
    a = [A[GROUP + (8 if 2 <= i < 4 or i >= 6 else 0), THREAD * 2 + (i & 1) + (8 if i >= 4 else 0)] for i in range(8)]
    b = [B[THREAD * 2 + (i & 1) + (8 if i >= 2 else 0), GROUP] for i in range(4)]
    pairs = [np.ascontiguousarray(np.stack(x, 1)).view(np.int32) for x in (a, b)]

    def c_of(matrix: Any) -> Any:
        return np.stack([matrix[GROUP + (8 if i >= 2 else 0), THREAD * 2 + (i & 1)] for i in range(4)], 1)

    @cuda.jit
    def kernel(a, b, c, d):  # type: ignore[no-untyped-def]
        i = cuda.threadIdx.x
        x = mma(a[i, 0], a[i, 1], a[i, 2], a[i, 3], b[i, 0], b[i, 1], c[i, 0], c[i, 1], c[i, 2], c[i, 3])
        d[i, 0], d[i, 1], d[i, 2], d[i, 3] = x[0], x[1], x[2], x[3]

    found = _run(kernel, 32, 0, *pairs, c_of(C), np.zeros((32, 4), np.float32))[3]
    return found, c_of(C + A.astype(np.float32) @ B.astype(np.float32))


def _ldmatrix(transposed: bool) -> tuple[Any, Any]:
    matrices = np.random.default_rng(1).integers(0, 2**15, (4, 8, 8)).astype(np.uint16)
    words = matrices.view(np.int32).reshape(32, 4)
    load = ptx.ldmatrix_x4_trans if transposed else ptx.ldmatrix_x4

    @cuda.jit
    def kernel(words, found):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, np.uint8))
        i = np.int32(cuda.threadIdx.x)
        own = memory + (i * np.int32(5) & np.int32(31)) * np.int32(32)
        for e in range(4):
            ptx.store_shared_b32(own + np.int32(4 * e), words[i, e])
        cuda.syncthreads()
        x = load(own)
        found[i, 0], found[i, 1], found[i, 2], found[i, 3] = x[0], x[1], x[2], x[3]

    found = _run(kernel, 32, 1024, words, np.zeros((32, 4), np.int32))[1]
    expected = [
        np.ascontiguousarray(np.stack([m[GROUP, THREAD * 2], m[GROUP, THREAD * 2 + 1]], 1)).view(np.int32)[:, 0]
        for m in (x.T if transposed else x for x in matrices)
    ]
    return found, np.stack(expected, 1)


def _shuffle() -> tuple[Any, Any]:
    masks = (1, 2, 3, 16, 31)

    @cuda.jit
    def kernel(masks, found):  # type: ignore[no-untyped-def]
        i = cuda.threadIdx.x
        for n in range(found.shape[0]):
            found[n, i] = ptx.shuffle_xor(np.float32(i), masks[n])

    found = _run(kernel, 32, 0, np.array(masks, np.int32), np.zeros((len(masks), 32), np.float32))[1]
    return found, np.stack([LANES ^ m for m in masks]).astype(np.float32)


def _numbers() -> Any:
    """Floats of all sizes, among them ties between neighbouring 16-bit numbers."""
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(4096) * 2.0 ** rng.integers(-30, 30, 4096)).astype(np.float32)
    ties = (x.view(np.uint32) & 0xFFFF0000 | 0x8000).view(np.float32)
    return np.concatenate([x, ties])


def _pack(name: str) -> tuple[Any, Any]:
    pack, kind = getattr(ptx, name), ml_dtypes.bfloat16 if name == "pack_bf16" else np.float16
    x = _numbers()[: 64 if SIMULATED else None]

    @cuda.jit
    def kernel(x, found):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        for n in range(i, found.size, 32):
            found[n] = pack(x[2 * n], x[2 * n + 1])

    found = _run(kernel, 32, 0, x, np.zeros(x.size // 2, np.int32))[1]
    with np.errstate(over="ignore"):
        return found, x.astype(kind).view(np.int32)


def _function(name: str) -> tuple[Any, Any]:
    function, definition = getattr(ptx, name), np.exp2 if name == "ex2" else np.log2
    x = np.linspace(-125, 125, 64 if SIMULATED else 100_000).astype(np.float32)
    if name == "lg2":
        x = np.concatenate([np.exp2(x[np.abs(x) >= 1]), np.linspace(2, 1000, 1000, dtype=np.float32)])

    @cuda.jit
    def kernel(x, found):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        for n in range(i, x.size, 32):
            found[n] = function(x[n])

    return _run(kernel, 32, 0, x, np.zeros_like(x))[1].astype(np.float64), definition(x.astype(np.float64))
