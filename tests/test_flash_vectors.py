"""The inner loops of the CPU kernel, each against NumPy: functions by their stated error, products exactly."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

pytest.importorskip("numba", reason="no numba: pip install 'refattn[cpu]'")

from numba import njit, types
from numba.extending import intrinsic

from refattn.flash import products
from refattn.flash.products import ROWS
from refattn.flash.vectors import ACROSS, BITS, EXP_ULP, PAIRS, Vectors, array_data, lanes

Array = np.ndarray[Any, Any]
TANH_ULP = 4.0
DTYPES = (np.float32, np.float64)
needs_pairs = pytest.mark.skipif(not PAIRS, reason="this machine multiplies no bfloat16")


def wide(dtype: Any) -> int:
    return ACROSS * lanes(dtype)


@njit(nogil=True)
def _softmax(S, n, c, largest, m, l, factor, P):  # type: ignore[no-untyped-def]  # noqa: E741
    products.softmax(S, n, c, largest, m, l, factor, P)


@njit(nogil=True)
def _cap(S, n, scale, softcap):  # type: ignore[no-untyped-def]
    products.cap(S, n, scale, softcap)


@njit(nogil=True)
def _keep(S, n, start, stop, largest):  # type: ignore[no-untyped-def]
    products.keep(S, n, start, stop, largest)


@intrinsic
def _pairs(typing: Any, x: Any, y: Any, P: Any) -> Any:
    """One vector of P from one of x and one of y."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x, y, P = (array_data(context, builder, signature.args[i], args[i]) for i in range(3))
        v = Vectors(builder, signature.args[0].dtype)
        v.store(v.to_pairs(v.load(x, 0), v.load(y, 0)), P, 0)
        return context.get_dummy_value()

    return types.void(x, y, P), code


@njit(nogil=True)
def _pair(x, y, P):  # type: ignore[no-untyped-def]
    _pairs(x, y, P)


@njit(nogil=True)
def _product(a, row, step, M, T, b, c, more, kind):  # type: ignore[no-untyped-def]
    ldb = more.size
    if kind == 0:
        products.product(a, 0, row, step, M, T, b, 0, ldb, c, 0, ldb, more)
    elif kind == 1:
        products.product_added(a, 0, row, step, M, T, b, 0, ldb, c, 0, ldb, more)
    elif kind == 2:
        products.product_rescaled(a, 0, row, step, M, T, b, 0, ldb, c, 0, ldb, more)
    else:
        products.scores(a, 0, row, step, M, T, b, 0, ldb, c, 0, ldb, more)


@njit(nogil=True)
def _take(counter, n, taken):  # type: ignore[no-untyped-def]
    for _ in range(n):
        taken[products.take(counter)] += 1


def exp2(t: Array) -> Array:
    """2**t, by the softmax of a largest that is 0."""
    w = wide(t.dtype)
    S = np.full(-(-t.size // w) * w, 0, t.dtype)
    S[: t.size] = t
    rows, zero = S.size // w, np.zeros(w, t.dtype)
    _softmax(S, rows, t.dtype.type(1), zero, zero.copy(), zero.copy(), zero.copy(), S)
    return S[: t.size]


def exp2_of_pairs(t: Array) -> tuple[Array, Array]:
    """2**t of rows t (n, wide) float32 by the softmax whose weights are pairs: its sum, and these weights."""
    n, w = t.shape
    zero, total, P = np.zeros(w, np.float32), np.zeros(w, np.float32), np.zeros(-(-n // 2) * w, np.int32)
    _softmax(t.reshape(-1).copy(), n, np.float32(1), zero, zero.copy(), total, zero.copy(), P)
    both = P.reshape(-1, w).view(ml_dtypes.bfloat16).reshape(-1, w, 2)
    return total, np.moveaxis(both, 2, 1).reshape(-1, w)


def in_units(got: Array, wanted: Any) -> float:
    """The largest relative error in roundings of the format."""
    u = np.finfo(got.dtype).eps / 2
    exact = [mpmath.mpf(w) for w in wanted]
    return max(float(abs((mpmath.mpf(float(g)) - w) / w)) / u for g, w in zip(got, exact, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp2_keeps_its_bound(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    lowest = -126 if dtype is np.float32 else -1022
    near = rng.uniform(-1, 0, 1500)
    t = np.concatenate([near, rng.uniform(lowest, 0, 1500), near / 2**20, np.arange(-40, 0) + 0.5]).astype(dtype)
    with mpmath.workprec(120):
        worst = in_units(exp2(t), [mpmath.power(2, mpmath.mpf(float(x))) for x in t])
    assert worst <= EXP_ULP
    assert worst >= 0.4  # the measure sees a rounding


@pytest.mark.parametrize("dtype", DTYPES)
def test_exp2_at_its_ends(dtype: Any) -> None:
    lowest = -126 if dtype is np.float32 else -1022
    t = np.array([0, -np.inf, lowest - 1, -1e30, np.nan, -1], dtype)
    assert np.array_equal(exp2(t), np.array([1, 0, 0, 0, np.nan, 0.5], dtype), equal_nan=True)


def test_every_float32_of_one_binade_keeps_the_bound() -> None:
    """2**23 numbers in [-1, -1/2): float64 is exact enough to judge float32."""
    t = -np.arange(0.5, 1, 2.0**-24).astype(np.float32)
    wanted = np.exp2(t.astype(np.float64))
    error = np.abs(exp2(t) / wanted - 1) * 2**24
    assert error.max() <= EXP_ULP


@pytest.mark.parametrize("dtype", DTYPES)
def test_tanh_keeps_its_bound(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-12, 12, 800), rng.uniform(-1, 1, 800) * 2.0 ** -rng.integers(0, 30, 800)])
    x = np.resize(x.astype(dtype), -(-x.size // wide(dtype)) * wide(dtype))
    S = x.copy()
    _cap(S, x.size // wide(dtype), dtype(1), dtype(1))
    with mpmath.workprec(120):
        assert in_units(S, [mpmath.tanh(mpmath.mpf(float(t))) for t in x]) <= TANH_ULP


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T", [0, 1, 3, 64])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_whole_numbers_are_exact(dtype: Any, T: int, turned: bool) -> None:
    rng = np.random.default_rng(T)
    M, w = 3 * ROWS, wide(dtype)
    a, b, c0 = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((M, T), (T, w), (M, w)))
    factor = rng.integers(1, 5, w).astype(dtype)
    flat = np.ascontiguousarray(a.T if turned else a).reshape(-1)
    row, step = (1, M) if turned else (T, 1)
    for kind, wanted in enumerate((a @ b, c0 + a @ b, c0 * factor + a @ b, a @ b)):
        c, more = c0.copy().reshape(-1), factor.copy()
        _product(flat, row, step, M, T, b.reshape(-1), c, more, kind)
        assert np.array_equal(c.reshape(M, w), wanted)
        assert np.array_equal(more, np.maximum(factor, wanted.max(0)) if kind == 3 else factor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keep_hides_and_finds_the_largest(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    n, w = 13, wide(dtype)
    S, largest = rng.standard_normal((n, w)).astype(dtype), rng.standard_normal(w).astype(dtype)
    start, stop = rng.integers(0, n, w), rng.integers(0, n + 1, w)
    j = np.arange(n)[:, None]
    wanted = np.where((j >= start) & (j < stop), S, -np.inf)
    got, found = S.copy().reshape(-1), largest.copy()
    _keep(got, n, start.astype(dtype), stop.astype(dtype), found)
    assert np.array_equal(got.reshape(n, w), wanted)
    assert np.array_equal(found, np.maximum(largest, wanted.max(0)))


@needs_pairs
def test_pairs_are_rounded_as_ml_dtypes_rounds() -> None:
    rng = np.random.default_rng(3)
    w = lanes(np.float32)
    for _ in range(20):
        x, y = (rng.standard_normal((2, w)) * 2.0 ** rng.integers(-120, 20, (2, w))).astype(np.float32)
        x[:4] = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-8 + 2.0**-20, 0]  # ties, and just above one
        P = np.zeros(w, np.int32)
        _pair(x, y, P)
        assert np.array_equal(P.view(ml_dtypes.bfloat16), np.stack([x, y], 1).reshape(-1).astype(ml_dtypes.bfloat16))


@needs_pairs
def test_exp2_of_pairs_keeps_its_bound() -> None:
    """A sum of one row is its weights before they were rounded."""
    w = wide(np.float32)
    rng = np.random.default_rng(0)
    near = rng.uniform(-1, 0, 8 * w)
    t = np.concatenate([near, rng.uniform(-126, 0, 8 * w), near / 2**20]).astype(np.float32).reshape(-1, w)
    t[0, :40] = np.arange(-40, 0) + 0.5
    got = np.concatenate([exp2_of_pairs(row[None])[0] for row in t])
    wanted = np.exp2(t.astype(np.float64)).ravel()  # exact enough to judge float32
    error = np.abs(got / wanted - 1).max() * 2**24
    assert 0.4 <= error <= EXP_ULP


@needs_pairs
@pytest.mark.parametrize("n", (1, 2, 3, 64))
def test_softmax_of_pairs(n: int) -> None:
    w = wide(np.float32)
    rng = np.random.default_rng(n)
    t = rng.uniform(-20, 0, (n, w)).astype(np.float32)
    t[0, :6] = [0, -np.inf, -127, -1e30, -126.4, -126.6]
    total, P = exp2_of_pairs(t)
    exact = np.exp2(t.astype(np.float64))
    assert P.shape == (n + n % 2, w) and not P[n:].any()
    assert np.array_equal(P[0, :6].astype(float), [1, 0, 0, 0, 0, 0])
    exact[0, 1:6] = 0
    assert (np.abs(P[:n].astype(float) - exact) <= exact * (2.0**-8 + EXP_ULP * 2.0**-24)).all()
    assert (np.abs(total - exact.sum(0)) <= exact.sum(0) * (EXP_ULP + n) * 2.0**-24 + n * 2.0**-126).all()
    assert np.isnan(exp2_of_pairs(np.full((n, w), np.nan, np.float32))[1][:n].astype(float)).all()


def test_each_number_is_taken_once_by_many_threads() -> None:
    n, many = 2000, 8
    counter, taken = np.zeros(1, np.int64), np.zeros(many * n, np.int64)
    _take(counter, 0, taken)
    threads = [threading.Thread(target=_take, args=(counter, n, taken)) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter[0] == many * n
    assert (taken == 1).all()


@pytest.mark.parametrize("forced", [b for b in ("128", "256") if int(b) < BITS])
def test_narrower_vectors_do_the_same(forced: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", __file__, "-k", "exact or keeps or hides"]
    done = subprocess.run(command, env=_with(REFATTN_FLASH_BITS=forced), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_width_that_no_machine_has_is_refused() -> None:
    command, environment = [sys.executable, "-c", "import refattn.flash"], _with(REFATTN_FLASH_BITS="96")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "REFATTN_FLASH_BITS=96 must be 128, 256 or 512" in done.stderr


def _with(**more: str) -> dict[str, str]:
    return os.environ | more
