"""Formats and rounding, against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.dtypes import FORMATS, exact64, format_of, round_to

quick = settings(max_examples=400, deadline=None, derandomize=True, database=None)
NARROW = [name for name in FORMATS if name != "float64"]


def _largest_exponent(name: str) -> int:
    return math.frexp(FORMATS[name].max)[1]


@st.composite
def near_the_grid(draw: st.DrawFn, name: str) -> float:
    """A float64 on the format's grid, half-way between two of its numbers, or one float64 beside either."""
    f = FORMATS[name]
    n = draw(st.integers(-(2 ** (f.bits + 2)), 2 ** (f.bits + 2)))
    x = math.ldexp(n, draw(st.integers(f.emin - f.bits - 3, _largest_exponent(name) - f.bits + 1)))
    toward = draw(st.sampled_from([x, -math.inf, math.inf]))
    return math.nextafter(x, toward)


def numbers(name: str) -> st.SearchStrategy[float]:
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, FORMATS[name].max, FORMATS[name].eta, FORMATS[name].eta / 2]
    return near_the_grid(name) | st.floats() | st.floats(width=16) | st.sampled_from(edges)


def exactly(x: float, name: str) -> float:
    """Round to nearest, ties to even, in rational arithmetic: by the definition in IEEE 754-2019, section 4.3.1."""
    f = FORMATS[name]
    overflow = math.nan if f.overflow == "nan" else math.copysign(math.inf, x)
    if math.isnan(x) or x == 0:
        return x
    if math.isinf(x):
        return overflow
    exponent = f.emin
    while Fraction(2) ** (exponent + 1) <= abs(Fraction(x)):
        exponent += 1
    step = Fraction(2) ** (exponent - f.bits + 1)
    y = round(Fraction(x) / step) * step  # round() of a Fraction takes ties to even
    if abs(y) > Fraction(f.max):
        return overflow
    return math.copysign(float(y), x)


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@pytest.mark.parametrize("name", NARROW)
def test_round_to_is_exact(name: str) -> None:
    @quick
    @given(numbers(name))
    def check(x: float) -> None:
        got = float(round_to(x, name))
        assert same(got, exactly(x, name)), f"{x.hex()} became {got.hex()}, should be {exactly(x, name).hex()}"

    check()


@pytest.mark.parametrize("name", NARROW)
def test_round_to_is_monotone_and_lands_in_the_format(name: str) -> None:
    @quick
    @given(st.tuples(numbers(name), numbers(name)))
    def check(pair: tuple[float, float]) -> None:
        y = round_to(np.array(sorted(pair)), name)
        assert np.isnan(y).any() or y[0] <= y[1]
        np.testing.assert_array_equal(y.astype(FORMATS[name].numpy).astype(np.float64), y)
        np.testing.assert_array_equal(round_to(y, name), y)

    check()


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_round_to_is_numpys_cast(name: str) -> None:
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal(100_000), rng.integers(-160, 130, 100_000))
    with np.errstate(over="ignore"):
        cast = x.astype(FORMATS[name].numpy).astype(np.float64)
    np.testing.assert_array_equal(round_to(x, name), cast)


@pytest.mark.parametrize("name", [name for name in NARROW if name not in ("float32", "float16")])
def test_round_to_is_the_cast_of_ml_dtypes_from_float32(name: str) -> None:
    """From float32 those casts round once; so overflow, NaN and signed zero are as ml_dtypes has them."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    edges = [np.inf, -np.inf, np.nan, 0.0, -0.0, 448, 464, 465, 57344, 61440, 61441]
    x = np.concatenate([x, np.array(edges, dtype=np.float32)])
    with np.errstate(invalid="ignore", over="ignore"):
        expected = x.astype(FORMATS[name].numpy).astype(np.float64)
    got = round_to(x, name)
    np.testing.assert_array_equal(got, expected)
    finite = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(expected[finite]))


def test_rounding_twice_is_wrong() -> None:
    """1 + 2**-8 is a tie of bfloat16, which a float32 in between forgets to have been exceeded by 2**-40."""
    x = 1 + 2.0**-8 + 2.0**-40
    assert round_to(x, "bfloat16") == 1 + 2.0**-7
    assert round_to(round_to(x, "float32"), "bfloat16") == 1


def test_overflow_by_format() -> None:
    """The largest number stays; half a step above it rounds away: to inf, or to NaN in float8_e4m3fn."""
    assert round_to([448.0, 464.0], "float8_e4m3fn").tolist() == [448, 448]
    assert np.isnan(round_to([465.0, -465.0, np.inf], "float8_e4m3fn")).all()
    assert round_to([57344.0, -61439.0, 61440.0, -61440.0], "float8_e5m2").tolist() == [57344, -57344, np.inf, -np.inf]
    assert round_to([65519.9, 65520.0], "float16").tolist() == [65504, np.inf]
    assert round_to(1e308, "float64") == 1e308


@pytest.mark.parametrize("name", FORMATS)
def test_the_table(name: str) -> None:
    """Each row against what NumPy and ml_dtypes say of the type."""
    f = FORMATS[name]
    info: Any = ml_dtypes.finfo(f.numpy) if f.dtype.kind != "f" or f.dtype.itemsize < 2 else np.finfo(f.numpy)
    assert f.name == name == f.dtype.name
    assert f.max == float(info.max) and f.smallest_normal == float(info.smallest_normal)
    assert f.eta == float(info.smallest_subnormal) and 2 * f.u == float(info.eps)


def test_format_of() -> None:
    for name, f in FORMATS.items():
        assert format_of(name) is format_of(f.numpy) is format_of(f.dtype) is f
    for wrong in ("float8", "int64", "f4", None, np.int32, np.longdouble, object, "complex64"):
        with pytest.raises(TypeError, match="x.dtype=.* is not a supported dtype; use one of float64, float32"):
            format_of(wrong, "x.dtype")
    with pytest.raises(TypeError, match=r"has the other byte order; pass x.astype\('float32'\)"):
        format_of(np.dtype(np.float32).newbyteorder())
    with pytest.raises(TypeError, match="dtype=half is not a supported dtype"):
        round_to(1.0, "half")


@pytest.mark.parametrize("name", NARROW)
def test_exact64_keeps_every_number(name: str) -> None:
    """All numbers of the 8- and 16-bit formats, and random bits of float32, survive the way there and back."""
    f = FORMATS[name]
    unsigned = np.dtype(f"u{f.dtype.itemsize}")
    if f.dtype.itemsize <= 2:
        bits = np.arange(2 ** (8 * f.dtype.itemsize)).astype(unsigned)
    else:
        bits = np.random.default_rng(2).integers(0, 2**32, 100_000, dtype=np.uint32)
    x = bits.view(f.numpy)
    wide = exact64(x, "x")
    assert wide.dtype == np.float64
    ordinary = ~np.isnan(wide)
    np.testing.assert_array_equal(wide[ordinary].astype(f.numpy).view(unsigned), bits[ordinary])
    np.testing.assert_array_equal(round_to(wide, name), wide)
