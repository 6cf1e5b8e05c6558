"""Rotary embedding against complex numbers of 60 digits, and the properties that define it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.rotary import Rotary, _angles, rotate, tables, unrotate

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)
U = 2.0**-53

dims = st.integers(1, 9).map(lambda n: 2 * n)
bases = st.sampled_from([10000.0, 500000.0, 1e6, 2.5, 1.0])
positions = st.integers(-(2**53), 2**53) | st.integers(-1_100_000, 1_100_000) | st.integers(0, 300)


def angle(m: float, i: int, rotary_dim: int, base: float) -> Any:
    return mpmath.mpf(m) * mpmath.mpf(base) ** (mpmath.mpf(-2 * i) / rotary_dim)


@quick
@given(st.lists(positions | st.floats(-1e6, 1e6), min_size=1, max_size=4), dims, bases)
def test_tables_against_60_digits(at: list[float], rotary_dim: int, base: float) -> None:
    cos, sin = tables(np.array(at, dtype=np.float64), rotary_dim, base)
    assert cos.dtype == sin.dtype == np.float64 and cos.shape == sin.shape == (len(at), rotary_dim // 2)
    with mpmath.workdps(60):
        for row, m in enumerate(at):
            for i in range(rotary_dim // 2):
                phi = angle(m, i, rotary_dim, base)
                for got, true in ((cos[row, i], mpmath.cos(phi)), (sin[row, i], mpmath.sin(phi))):
                    off = float(abs(mpmath.mpf(float(got)) - true) / U)
                    assert off <= 4, f"position {m}, pair {i} of {rotary_dim}, base {base}: {off:.2f} units of 2**-53"


@quick
@given(positions, dims, bases)
def test_angles_have_twice_the_digits(m: int, rotary_dim: int, base: float) -> None:
    """What is left of the angle without whole turns, before cos and sin are taken."""
    high, low = _angles(np.array([m], dtype=np.float64), rotary_dim, base)
    with mpmath.workdps(60):
        for i in range(rotary_dim // 2):
            left = mpmath.mpf(float(high[0, i])) + mpmath.mpf(float(low[0, i])) - angle(m, i, rotary_dim, base)
            off = abs(left - 2 * mpmath.pi * mpmath.nint(left / (2 * mpmath.pi)))
            assert float(off) <= max(1, abs(m)) * 2.0**-104, f"position {m}, pair {i} of {rotary_dim}, base {base}"


def test_position_1e6_needs_more_than_float64() -> None:
    """What the test above would not forgive: theta rounded to float64 before it is multiplied."""
    at = np.arange(1_000_000, 1_000_064)
    theta = 10000.0 ** (-2 * np.arange(64) / 128)
    worst = np.abs(np.cos(at[:, None] * theta) - tables(at, 128)[0]).max() / U
    assert worst > 1000


def test_position_zero_is_the_identity_and_small_angles_keep_their_digits() -> None:
    cos, sin = tables(np.array([0, 1]), 128, 1e6)
    assert (cos[0] == 1).all() and (sin[0] == 0).all()
    with mpmath.workdps(60):
        for i in range(64):
            true = mpmath.sin(angle(1, i, 128, 1e6))
            assert abs(mpmath.mpf(float(sin[1, i])) / true - 1) <= 4 * U


def test_tables_take_positions_of_any_shape() -> None:
    cos, sin = tables(np.array([[0, 1, 2], [7, 8, 9]]), 6)
    assert cos.shape == (2, 3, 3)
    np.testing.assert_array_equal(cos[1], tables([7, 8, 9], 6)[0])
    np.testing.assert_array_equal(sin[1], tables(np.array([7, 8, 9], dtype=np.uint8), 6)[1])
    assert tables(np.zeros(0, dtype=int), 4)[0].shape == (0, 2)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotation_is_a_complex_product(interleaved: bool) -> None:
    rng = np.random.default_rng(0)
    x, (cos, sin) = rng.standard_normal((2, 3, 5, 11)), tables(np.arange(5) + 40, 6)
    y = rotate(x, cos, sin, interleaved)
    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    for i, (a, b) in enumerate(pairs):
        z = (x[..., a] + 1j * x[..., b]) * (cos[:, i] + 1j * sin[:, i])
        np.testing.assert_allclose(y[..., a], z.real, atol=1e-15)
        np.testing.assert_allclose(y[..., b], z.imag, atol=1e-15)
    np.testing.assert_array_equal(y[..., 6:], x[..., 6:])


def test_the_equation_by_hand() -> None:
    """Equation 34, d = 4, m = 1, base = 16: theta = 1, 1/4."""
    cos, sin = tables([1], 4, 16.0)
    c1, c2, s1, s2 = np.cos(1), np.cos(0.25), np.sin(1), np.sin(0.25)
    x = np.array([[2.0, 3.0, 5.0, 7.0]])
    expected = [2 * c1 - 3 * s1, 3 * c1 + 2 * s1, 5 * c2 - 7 * s2, 7 * c2 + 5 * s2]
    np.testing.assert_allclose(rotate(x, cos, sin, True)[0], expected, rtol=1e-15)
    expected = [2 * c1 - 5 * s1, 3 * c2 - 7 * s2, 5 * c1 + 2 * s1, 7 * c2 + 3 * s2]
    np.testing.assert_allclose(rotate(x, cos, sin, False)[0], expected, rtol=1e-15)


@quick
@given(
    st.integers(0, 10**6), st.integers(-40, 40), st.integers(0, 10**6), dims, st.booleans(), bases,
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_scores_depend_on_the_difference_of_positions(
    n: int, difference: int, shift: int, dim: int, interleaved: bool, base: float, seed: int
) -> None:
    """<rotate(q, m), rotate(k, n)> = <rotate(q, m - n), k>, at any common shift."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, 1, dim))
    scores = [
        rotate(q, *tables([m], dim, base), interleaved) @ rotate(k, *tables([n], dim, base), interleaved).T
        for m, n in ((n + difference, n), (n + difference + shift, n + shift), (difference, 0))
    ]
    # each product of a rotated pair: 4 units for each table entry, 2 for the arithmetic, on either side
    bound = 40 * U * dim * np.abs(q).max() * np.abs(k).max()
    assert np.ptp(np.array(scores)) <= bound


@quick
@given(dims, st.integers(0, 5), st.booleans(), st.sampled_from(["float32", "float64"]), st.integers(0, 2**32 - 1))
def test_unrotate_is_transpose_and_inverse(dim: int, rest: int, interleaved: bool, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, 2, 3, 4, dim + rest)).astype(dtype)
    cos, sin = tables(rng.integers(0, 10**6, (2, 1, 4)), dim)
    u = np.finfo(dtype).eps / 2
    turned = rotate(x, cos, sin, interleaved)
    assert turned.dtype == x.dtype
    left = np.sum(turned.astype(np.float64) * y, axis=-1)
    right = np.sum(x.astype(np.float64) * unrotate(y, cos, sin, interleaved), axis=-1)
    size = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    assert (np.abs(left - right) <= 20 * u * size).all()
    back = unrotate(turned, cos, sin, interleaved)
    assert (np.abs(back - x) <= 10 * u * np.linalg.norm(x, axis=-1, keepdims=True)).all()


def test_unrotate_is_the_gradient_by_matrix() -> None:
    """The matrix of rotate, column by column; unrotate is its transpose, entry for entry."""
    cos, sin = tables([3], 4)
    for interleaved in (True, False):
        matrix = np.stack([rotate(e[None], cos, sin, interleaved)[0] for e in np.eye(5)], axis=1)
        back = np.stack([unrotate(e[None], cos, sin, interleaved)[0] for e in np.eye(5)], axis=1)
        np.testing.assert_array_equal(back, matrix.T)
        assert np.abs(matrix - np.eye(5)).max() > 0.1


def test_input_is_left_alone_and_float32_is_computed_as_such() -> None:
    rng = np.random.default_rng(1)
    x, (cos, sin) = rng.standard_normal((7, 8)).astype(np.float32), tables(np.arange(7) * 1000, 8)
    before = x.copy()
    y = rotate(x, cos, sin, True)
    np.testing.assert_array_equal(x, before)
    c, s = cos.astype(np.float32), sin.astype(np.float32)
    np.testing.assert_array_equal(y[:, ::2], x[:, ::2] * c - x[:, 1::2] * s)
    np.testing.assert_array_equal(y, rotate(x, c, s, True))


def test_nan_stays_in_its_pair() -> None:
    x = np.zeros((1, 6))
    x[0, 1] = np.nan
    assert np.isnan(rotate(x, *tables([5], 4), True)).tolist() == [[True, True, False, False, False, False]]
    assert np.isnan(rotate(x, *tables([5], 4), False)).tolist() == [[False, True, False, True, False, False]]


def test_rotary_is_a_value_and_goes_to_json() -> None:
    rotary = Rotary(8, True, 500000)
    assert Rotary(**json.loads(json.dumps(dataclasses.asdict(rotary)))) == rotary
    assert hash(rotary) == hash(Rotary(8, True, 500000.0)) and rotary != Rotary(8, False, 500000.0)
    assert Rotary(64, False).base == 10000.0


X, (COS, SIN) = np.ones((2, 3, 8)), tables(np.arange(3), 4)
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: Rotary(0, True), ValueError, r"dim=0 must be an even int > 0; pass no rotary"),
    (lambda: Rotary(-2, True), ValueError, r"dim=-2 must be an even int > 0"),
    (lambda: Rotary(7, True), ValueError, r"dim=7 must be an even int > 0"),
    (lambda: Rotary(True, True), ValueError, r"dim=True must be an even int > 0"),
    (lambda: Rotary(4.0, True), ValueError, r"dim=4.0 must be an even int > 0"),
    (lambda: Rotary(4, 1), ValueError, r"interleaved=1 must be True \(pairs 2i, 2i\+1\)"),
    (lambda: Rotary(4, True, 0.5), ValueError, r"base=0.5 must be a finite number >= 1; RoFormer has 10000"),
    (lambda: Rotary(4, True, float("nan")), ValueError, r"base=nan must be a finite number >= 1"),
    (lambda: Rotary(4, True, float("inf")), ValueError, r"base=inf must be a finite number >= 1"),
    (lambda: Rotary(4, True, True), ValueError, r"base=True must be a finite number >= 1"),
    (lambda: Rotary(4, True, "1e4"), ValueError, r"base='1e4' must be a finite number >= 1"),
    (lambda: tables([0], 3), ValueError, r"rotary_dim=3 must be an even int > 0"),
    (lambda: tables([0], 4, -1.0), ValueError, r"base=-1.0 must be a finite number >= 1"),
    (lambda: tables([True], 4), TypeError, r"positions.dtype=bool must be an integer or float dtype; pass np.arange"),
    (lambda: tables([0, np.nan], 4), ValueError, r"positions must be finite and at most 2\*\*53 in size; take off"),
    (lambda: tables([2**54], 4), ValueError, r"positions must be finite and at most 2\*\*53"),
    (lambda: tables([-np.inf], 4), ValueError, r"positions must be finite"),
    (lambda: rotate(X.astype(np.float16), COS, SIN, True), TypeError, r"x.dtype=float16 must .*astype\('float32'\)"),
    (lambda: rotate(X, COS.astype(int), SIN, True), TypeError, r"cos.dtype=int64 must be float32 or float64; use tab"),
    (lambda: rotate(X, COS, SIN.astype(int), True), TypeError, r"sin.dtype=int64 must be float32 or float64"),
    (lambda: rotate(X, COS, SIN, None), TypeError, r"interleaved=None must be True"),
    (lambda: rotate(X[0, 0], COS, SIN, True), ValueError, r"x.shape=\(8,\) must be \(\.\.\., L, D\)"),
    (lambda: rotate(X, COS, SIN[:, :1], True), ValueError, r"cos.shape=\(3, 2\) and sin.shape=\(3, 1\) must be one"),
    (lambda: rotate(X, COS[0, 0], SIN[0, 0], True), ValueError, r"cos.shape=\(\) and sin.shape=\(\) must be one"),
    (lambda: rotate(X[..., :3], COS, SIN, True), ValueError, r"rotates R=4 coordinates, more than D=3"),
    (lambda: rotate(X[:, :2], COS, SIN, True), ValueError, r"cos.shape=\(3, 2\) must broadcast .*\(2, 2, 8\); add"),
    (lambda: rotate(X, COS[None, None], SIN[None, None], True), ValueError, r"cos.shape=\(1, 1, 3, 2\) must"),
    (lambda: unrotate(X[:, :2], COS, SIN, True), ValueError, r"cos.shape=\(3, 2\) must broadcast"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[r[2][:30] for r in REFUSED])
def test_refusals(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
