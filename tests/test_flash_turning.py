"""Tiles turned against NumPy's transposition, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba", reason="no numba: pip install 'refattn[cpu]'")

from numba import njit

from refattn.flash import turning
from refattn.flash.vectors import ACROSS, lanes

Array = np.ndarray[Any, Any]
SIZES = (0, 1, 7, 8, 16, 17, 32, 64, 67)


@njit(nogil=True)
def _pack(x, first, rows, size, sign, wide, into, at):  # type: ignore[no-untyped-def]
    turning.pack(x, first, rows, size, sign, wide, into, at)


@njit(nogil=True)
def _unpack(x, at, rows, size, wide, factor, first, into):  # type: ignore[no-untyped-def]
    turning.unpack(x, at, rows, size, wide, factor, first, into)


def wide(dtype: Any) -> int:
    return ACROSS * lanes(dtype)


def bits(rng: np.random.Generator, n: int, dtype: Any) -> Array:
    """Any numbers, NaN and subnormal ones too."""
    return rng.integers(0, 256, n * np.dtype(dtype).itemsize, np.uint8).view(dtype)


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.int32))
@pytest.mark.parametrize("negative", (False, True))
def test_packed(dtype: Any, negative: bool) -> None:
    rng = np.random.default_rng(0)
    w, first, at = wide(dtype), 3, 5
    kind = np.float32 if dtype is np.int32 else dtype
    ints: Any = np.uint64 if dtype is np.float64 else np.uint32
    signs = {np.float32: 1 << 31, np.float64: 1 << 63, np.int32: 0x80008000}[dtype] if negative else 0
    for size in SIZES:
        for rows in (1, 2, max(1, w // 4 - 1), w // 4, w // 2 + 1, w - 1, w, w + 3):
            x = bits(rng, (first + max(rows, w)) * size, dtype)
            into = bits(rng, at + size * w + 2, dtype)
            wanted = into.view(ints).copy()
            own = x.view(ints).reshape(first + max(rows, w), size)[first + np.minimum(np.arange(w), rows - 1)]
            wanted[at : at + size * w] = (own ^ ints(signs)).T.reshape(-1)
            _pack(x, first, rows, size, kind(-1 if negative else 1), w, into, at)
            assert np.array_equal(into.view(ints), wanted), (size, rows)


@pytest.mark.parametrize("dtype", (np.float32, np.float64, "bfloat16"))
def test_unpacked(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    kind: Any = np.float32 if dtype == "bfloat16" else dtype
    w, first, at = wide(kind), 2, 3
    for size in SIZES:
        for rows in (1, max(1, w // 4 - 1), w // 4, w // 2 + 1, w):
            x = rng.standard_normal(at + size * w).astype(kind)
            factor = rng.standard_normal(first + rows).astype(kind)
            if size:  # ties, what overflows, a subnormal, NaN, infinities
                x[at : at + size * w : w] = np.resize([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 2e-39, np.nan, np.inf], size)
                factor[first] = -1
            if size and dtype == "bfloat16":  # a NaN that rounding would carry over into the sign
                x[at : at + 1].view(np.uint32)[0] = 0x7FFFFFFF
            own = (x[at:].reshape(size, w).T[:rows] * factor[first:, None]).reshape(-1)
            into = np.zeros((first + rows + 1) * size, np.uint16 if dtype == "bfloat16" else kind)
            _unpack(x, at, rows, size, w, factor, first, into)
            with np.errstate(over="ignore"):
                wanted = own.astype(ml_dtypes.bfloat16) if dtype == "bfloat16" else own
            got = into.view(ml_dtypes.bfloat16) if dtype == "bfloat16" else into
            place = slice(first * size, (first + rows) * size)
            assert np.array_equal(got[place].astype(float), wanted.astype(float), equal_nan=True), (size, rows)
            assert not into[: place.start].any() and not into[place.stop :].any()
