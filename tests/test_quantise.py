"""Codes and scales: half a step in rational arithmetic, exact products, ggml's layout byte by byte."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.dtypes import FORMATS
from refattn.quantise import BLOCK, KINDS, Kind, Quant, dequantise, ggml_blocks, quantise

Array = np.ndarray[Any, Any]
quick = settings(max_examples=40, deadline=None, derandomize=True, database=None)
GGML = ("q8_0", "q4_0")
PLAIN: list[Kind] = [kind for kind in KINDS if kind not in GGML]
CODES = {"int8": np.int8, "q8_0": np.int8, "q4_0": np.uint8}
WAYS = [(kind, g) for kind in KINDS for g in (["block"] if kind in GGML else ["tensor", "head", "block"])]


def draw(seed: int, shape: tuple[int, ...], spread: float) -> Array:
    """Normal entries, whose size varies from token to token by factors of e**spread; some are 0 or on a grid."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp(spread * rng.standard_normal((*shape[:3], 1)))
    kind = rng.integers(0, 12, shape)
    x = np.where(kind == 0, 0.0, np.where(kind == 1, np.round(2 * x) / 2, x))
    return np.where(rng.integers(0, 6, (*shape[:2], 1, 1)) == 0, 0.0, x)


def signed_codes(codes: Array, kind: str) -> Array:
    """The codes as float64 in the shape of x, q4_0's by the definition of its layout, entry by entry."""
    if kind != "q4_0":
        return codes.astype(np.float64)
    B, heads, L, half = codes.shape
    out = np.zeros((B, heads, L, 2 * half))
    for d in range(2 * half):
        block, entry = divmod(d, 32)
        byte = codes[..., 16 * block + entry % 16].astype(int)
        out[..., d] = (byte // 16 if entry >= 16 else byte % 16) - 8
    return out


def scale_of(scale: Array, granularity: str, kind: str, at: tuple[int, ...], block: int) -> float:
    b, h, token, d = at
    if kind in GGML:
        return float(scale[b, h, token, d // 32])
    index = {"tensor": (0, 0, 0, 0), "head": (b, h, 0, 0), "block": (b, h, token // block, 0)}[granularity]
    return float(scale[index])


def step(code: float, kind: str) -> Fraction:
    """The spacing of codes about a code, the larger of the two where they differ."""
    if kind in ("int8", *GGML):
        return Fraction(1)
    f = FORMATS[kind]
    exponent = max(f.emin, math.frexp(code)[1] - 1)
    return Fraction(2) ** (exponent - f.bits + 1)


@pytest.mark.parametrize(("kind", "granularity"), WAYS)
def test_round_trip(kind: Kind, granularity: Any) -> None:
    """Half a step of each entry, by rational numbers, and the exact product, in one sweep."""

    @settings(quick, max_examples=15)
    @given(
        st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 7)),
        st.sampled_from([0.0, 1.0, 3.0]), st.integers(1, 5),
    )  # fmt: skip
    def check(seed: int, sizes: tuple[int, int, int], spread: float, block: int) -> None:
        x = draw(seed, (*sizes, 64 if kind in GGML else 5), spread)
        codes, scale = quantise(x, kind, granularity, block)
        value = dequantise(codes, scale, kind, block)
        assert value.shape == x.shape and value.dtype == np.float64
        assert codes.dtype == CODES.get(kind, FORMATS.get(kind) and FORMATS[kind].dtype)
        assert scale.dtype == (np.float16 if kind in GGML else np.float32)
        signed = signed_codes(codes, kind)
        for at in np.ndindex(x.shape):
            s, code = Fraction(scale_of(scale, granularity, kind, at, block)), Fraction(float(signed[at]))
            assert Fraction(float(value[at])) == s * code, (at, s, code)
            allowed = step(float(code), kind) / 2 * abs(s) + Fraction(2) ** -50 * abs(Fraction(float(x[at])))
            if kind in GGML:
                wanted = ggml_scale(x, kind, at)
                allowed = Fraction(1, 2) * abs(wanted) + abs(code) * abs(s - wanted)
                allowed += abs(wanted) * Fraction(2) ** -18  # ggml's float32 arithmetic
                if kind == "q4_0" and code == 7:
                    allowed += Fraction(1, 2) * abs(wanted)
            error = abs(Fraction(float(x[at])) - s * code)
            assert error <= allowed, f"{at}: {x[at]!r} became {value[at]!r}, {float(error / allowed):.3f} of the due"

    check()


def ggml_scale(x: Array, kind: str, at: tuple[int, ...]) -> Fraction:
    """The scale before it is rounded to float16."""
    row = x[at[:3]].astype(np.float32)[32 * (at[3] // 32) :][:32]
    peak = row[np.argmax(np.abs(row))]
    return Fraction(float(abs(peak))) / 127 if kind == "q8_0" else Fraction(float(peak)) / -8


@pytest.mark.parametrize("kind", PLAIN)
def test_codes_are_used_to_their_end(kind: Kind) -> None:
    """The largest entry of each block has the largest code, so nothing is lost and nothing overflows."""
    x = draw(3, (2, 3, 50, 8), 2.0)
    for granularity, axes in (("tensor", (0, 1, 2, 3)), ("head", (2, 3)), ("block", (3,))):
        codes, scale = quantise(x, kind, granularity, block=1)
        peak = np.abs(codes.astype(np.float64)).max(axis=axes)
        empty = np.abs(x).max(axis=axes) == 0
        assert (peak[~empty] == {"int8": 127.0}.get(kind, FORMATS.get(kind) and FORMATS[kind].max)).all()
        assert (peak[empty] == 0).all() and np.isfinite(scale).all() and (scale > 0).all()


@pytest.mark.parametrize("kind", PLAIN)
def test_no_scale_is_a_power_of_two(kind: Kind) -> None:
    """Even where the data are: a kernel that forgets a scale, or reads another, cannot be right."""
    x = draw(4, (2, 3, 300, 8), 1.0) + 0.25
    x[0] = np.where(np.arange(8) < 4, 1.0, -2.0)
    codes, scale = quantise(x, kind, "block")
    assert not (np.frexp(scale)[0] == 0.5).any()
    assert np.unique(scale[1]).size == scale[1].size > 1


def test_blocks_end_where_they_should() -> None:
    """64 keys by default, the last block short; an entry is scaled by its own block's scale only."""
    x = np.ones((1, 1, 2 * BLOCK + 3, 1))
    x[0, 0, BLOCK:] = 10.0
    x[0, 0, 2 * BLOCK :] = 100.0
    codes, scale = quantise(x, "int8", "block")
    assert BLOCK == 64 and scale.shape == (1, 1, 3, 1)
    np.testing.assert_array_equal(scale[0, 0, :, 0], np.float32([1 / 127, 10 / 127, 100 / 127]))
    assert (codes == 127).all()
    np.testing.assert_allclose(dequantise(codes, scale, "int8"), x, rtol=1e-7)


def test_shapes_of_scales() -> None:
    x = draw(5, (2, 3, 9, 4), 0.0)
    for granularity, shape in (("tensor", (1, 1, 1, 1)), ("head", (2, 3, 1, 1)), ("block", (2, 3, 3, 1))):
        assert quantise(x, "int8", granularity, block=4)[1].shape == shape
    codes, scale = quantise(np.zeros((2, 3, 9, 96)), "q4_0", "block")
    assert codes.shape == (2, 3, 9, 48) and scale.shape == (2, 3, 9, 3)


@pytest.mark.parametrize(("kind", "granularity"), WAYS)
@pytest.mark.parametrize("shape", [(0, 2, 3, 32), (2, 0, 3, 32), (2, 3, 0, 32), (2, 3, 4, 0), (0, 0, 0, 0)])
def test_nothing_to_quantise(kind: Kind, granularity: Any, shape: tuple[int, ...]) -> None:
    codes, scale = quantise(np.zeros(shape), kind, granularity)
    assert dequantise(codes, scale, kind).shape == shape


@pytest.mark.parametrize(("kind", "granularity"), WAYS)
def test_zeros(kind: Kind, granularity: Any) -> None:
    """All-zero blocks: scale 1, of ggml's formats 0; the value is 0 either way."""
    codes, scale = quantise(np.zeros((1, 2, 3, 32)), kind, granularity)
    assert (scale == (0 if kind in GGML else 1)).all()
    assert (dequantise(codes, scale, kind) == 0).all() and (signed_codes(codes, kind) == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_quantising_again_changes_nothing(kind: Kind) -> None:
    """Values that codes stand for get the same codes, where the scale is the same number again."""
    x = draw(6, (1, 2, 5, 32), 1.0)
    codes, scale = quantise(x, kind, "block", block=2)
    value = dequantise(codes, scale, kind, block=2)
    again = dequantise(*quantise(value, kind, "block", block=2), kind, block=2)
    np.testing.assert_allclose(again, value, rtol=2.0**-10 if kind in GGML else 2.0**-22, atol=0)


def test_ties() -> None:
    """int8 rounds ties to even; ggml's q8_0 away from zero; q4_0 towards the larger code."""
    x = np.zeros((1, 1, 1, 32))
    x[..., :6] = [127, 0.5, 1.5, 2.5, -0.5, -1.5]
    assert quantise(x, "int8", "tensor")[0][0, 0, 0, :6].tolist() == [127, 0, 2, 2, 0, -2]
    assert quantise(x, "q8_0", "block")[0][0, 0, 0, :6].tolist() == [127, 1, 2, 3, -1, -2]
    x[..., 1] = np.float32(0.5) - np.float32(2) ** -25
    assert quantise(x, "q8_0", "block")[0][0, 0, 0, 1] == 0, "0.5 - 2**-25 + 0.5 is 1 in float32"
    x[..., :7] = [-8, 0.5, 1.5, -0.5, -1.5, 7.5, 8]
    assert signed_codes(quantise(x, "q4_0", "block")[0], "q4_0")[0, 0, 0, :7].tolist() == [-8, 1, 2, 0, -1, 7, 7]


def test_float8_is_rounded_once() -> None:
    """1 + 2**-4 + 2**-40 of e4m3fn lies above a tie, which a float32 in between forgets."""
    x = np.array([448.0, 1 + 2.0**-4 + 2.0**-40, 1 + 2.0**-4]).reshape(1, 1, 1, 3)
    codes, scale = quantise(x, "float8_e4m3fn", "tensor")
    assert scale == 1 and codes.astype(np.float64).ravel().tolist() == [448, 1 + 2.0**-3, 1]


def test_ggml_layout_by_hand() -> None:
    """A block of -8 to 7, twice over: d = -8 / -8 = 1 (float16 0x3c00), byte t = low entry t, high entry t + 16."""
    entries = np.concatenate([np.arange(-8, 8), np.arange(7, -9, -1)]).astype(float)
    codes, scale = quantise(entries.reshape(1, 1, 1, 32), "q4_0", "block")
    assert scale.tolist() == [[[[1.0]]]]
    assert codes.ravel().tolist() == [t + 16 * (15 - t) for t in range(16)]
    expected = [0x00, 0x3C, *(t + 16 * (15 - t) for t in range(16))]
    assert ggml_blocks(codes, scale, "q4_0").tolist() == [[[[expected]]]]
    np.testing.assert_array_equal(dequantise(codes, scale, "q4_0").ravel(), entries)

    codes, scale = quantise(2 * entries.reshape(1, 1, 1, 32), "q8_0", "block")  # d = 16 / 127, float16 0x3008
    rounded = [int(math.copysign(math.floor(abs(n) * 127 / 8 + 0.5), n)) for n in entries]
    assert codes.ravel().tolist() == rounded
    expected = [0x08, 0x30, *(n % 256 for n in rounded)]
    assert ggml_blocks(codes, scale, "q8_0").tolist() == [[[[expected]]]]


@pytest.mark.parametrize(("kind", "crc"), [("q8_0", 0x2b9eefe8), ("q4_0", 0x9c61ced5)])
def test_ggml_bytes(kind: Kind, crc: int) -> None:
    """The bytes that gguf 0.19.0, ggml's own Python package, makes of the same 60 blocks, by their CRC-32."""
    n = np.arange(2 * 3 * 5 * 64)
    x = (n * 7919 % 4001 - 2000).astype(np.float32) / np.float32(977) * (1 + n // 32 % 7).astype(np.float32)
    codes, scale = quantise(x.reshape(2, 3, 5, 64), kind, "block")
    assert zlib.crc32(ggml_blocks(codes, scale, kind).tobytes()) == crc


def test_ggml_scale_has_the_sign_of_minus_the_largest_entry() -> None:
    """So that it gets the code -8: there is no 8."""
    x = np.zeros((1, 1, 2, 32))
    x[0, 0, 0, 5], x[0, 0, 1, 5] = 3.0, -3.0
    codes, scale = quantise(x, "q4_0", "block")
    assert scale.ravel().tolist() == [-0.375, 0.375]
    assert signed_codes(codes, "q4_0")[0, 0, :, 5].tolist() == [-8, -8]
    np.testing.assert_array_equal(dequantise(codes, scale, "q4_0"), x)


def test_ggml_tiny_blocks() -> None:
    """Where 1 / d overflows float32, or d is 0 in float16, the value is 0, without warnings."""
    for tiny in (1e-44, 1e-39, 1e-7):
        for kind in GGML:
            codes, scale = quantise(np.full((1, 1, 1, 32), tiny), kind, "block")
            value = dequantise(codes, scale, kind)
            assert (np.abs(value - tiny) <= tiny).all() and (np.abs(value) <= 2 * tiny).all()


def test_poison_goes_through() -> None:
    codes, scale = quantise(np.ones((1, 2, 5, 3)), "float8_e4m3fn", "block", block=2)
    scale[0, 0, 1] = np.nan
    codes[0, 1, 4] = np.nan
    value = dequantise(codes, scale, "float8_e4m3fn", block=2)
    bad = np.zeros((1, 2, 5, 3), dtype=bool)
    bad[0, 0, 2:4] = bad[0, 1, 4] = True
    np.testing.assert_array_equal(np.isnan(value), bad)


def test_any_supported_dtype_is_taken_exactly() -> None:
    x = draw(7, (1, 2, 4, 8), 0.0).astype(ml_dtypes.bfloat16)
    for a, b in zip(quantise(x, "int8", "head"), quantise(x.astype(np.float64), "int8", "head"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_quant_is_a_value_and_goes_to_json() -> None:
    quant = Quant("int8", "head", "qkv")
    assert Quant(**json.loads(json.dumps(dataclasses.asdict(quant)))) == quant
    assert hash(quant) == hash(Quant("int8", "head", "qkv")) and Quant("q4_0", "block").of == "kv"


X = np.ones((1, 2, 3, 32))
INT8, Q8, Q4 = (quantise(X, "int8", "head"), quantise(X, "q8_0", "block"), quantise(X, "q4_0", "block"))
REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: Quant("int4", "head"), ValueError, r"kind='int4' is not one of int8, float8_e4m3fn"),
    (lambda: Quant("int8", "row"), ValueError, r"granularity='row' is not one of tensor, head, b"),
    (lambda: Quant("int8", "head", "k"), ValueError, r"of='k' must be 'kv' or 'qkv'"),
    (lambda: Quant("q8_0", "head"), ValueError, r"granularity='head' must be 'block' for kind='q8_0': blocks of 32"),
    (lambda: Quant("q4_0", "block", "qkv"), ValueError, r"of='qkv' must be 'kv' for kind='q4_0', the format of a cac"),
    (lambda: quantise(X, "int4", "head"), ValueError, r"kind='int4' is not one of"),
    (lambda: quantise(X, "int8", "row"), ValueError, r"granularity='row' is not one of"),
    (lambda: quantise(X, "q4_0", "tensor"), ValueError, r"granularity='tensor' must be 'block'"),
    (lambda: quantise(X, "int8", "block", 0), ValueError, r"block=0 must be an int >= 1"),
    (lambda: quantise(X[0], "int8", "head"), ValueError, r"x.shape=\(2, 3, 32\) must have 4 dimensions \(B, heads"),
    (lambda: quantise(X.astype(int), "int8", "head"), TypeError, r"x.dtype=int64 is not a supported dtype"),
    (lambda: quantise(np.nan * X, "int8", "head"), ValueError, r"x holds nan, which has no code; poison"),
    (lambda: quantise(-np.inf * X, "q4_0", "block"), ValueError, r"x holds -inf, which has no code"),
    (lambda: quantise(1e-40 * X, "int8", "head"), ValueError, r"max\|x\|=1e-40 needs a scale .* multiply x by a cons"),
    (lambda: quantise(1e42 * X, "int8", "head"), ValueError, r"max\|x\|=1e\+42 needs a scale that is no"),
    (lambda: quantise(1e7 * X, "q8_0", "block"), ValueError, r"max\|x\|=1e\+07 needs a scale beyond float16, kind"),
    (lambda: quantise(1e60 * X, "q4_0", "block"), ValueError, r"max\|x\|=1e\+60 needs a scale beyond float16"),
    (lambda: quantise(X[..., :31], "q8_0", "block"), ValueError, r"must have D a multiple of 32, .*q8_0; pad"),
    (lambda: dequantise(*INT8, "int4"), ValueError, r"kind='int4' is not one of"),
    (lambda: dequantise(*INT8, "int8", 0), ValueError, r"block=0 must be an int >= 1"),
    (lambda: dequantise(INT8[0][0], INT8[1], "int8"), ValueError, r"codes.shape=\(2, 3, 32\) must have 4 dimensions"),
    (lambda: dequantise(INT8[0], np.float32(1), "int8"), ValueError, r"scale.shape=\(\) must have 4 dimensions"),
    (lambda: dequantise(*INT8, "float8_e5m2"), TypeError, r"codes.dtype=int8 must be float8_e5m2 for kind="),
    (lambda: dequantise(*Q8, "int8"), TypeError, r"scale.dtype=float16 must be float32 for kind='int8'; pass what"),
    (lambda: dequantise(Q4[0], Q4[1].astype(np.float32), "q4_0"), TypeError, r"scale.dtype=float32 must be float16"),
    (lambda: dequantise(INT8[0], INT8[1][:, :1].repeat(3, 1), "int8"), ValueError, r"scale.shape=\(1, 3, 1, 1\) must"),
    (lambda: dequantise(*quantise(X, "int8", "block", 2), "int8"), ValueError, r"scale.shape=\(1, 2, 2, 1\).*block=64"),
    (lambda: dequantise(Q8[0], Q8[1][:, :, :2], "q8_0"), ValueError, r"scale.shape=\(1, 2, 2, 1\) must be \(1, 2, 3"),
    (lambda: dequantise(Q8[0][..., :31], Q8[1], "q8_0"), ValueError, r"for codes \(1, 2, 3, 31\), kind='q8_0'"),
    (lambda: dequantise(Q4[0][..., :15], Q4[1], "q4_0"), ValueError, r"codes.shape=\(1, 2, 3, 15\) must hold 16 bytes"),
    (lambda: ggml_blocks(*INT8, "int8"), ValueError, r"kind='int8' must be one of q8_0, q4_0, the formats of ggml"),
    (lambda: ggml_blocks(Q8[0], Q8[1][:, :, :2], "q8_0"), ValueError, r"scale.shape=\(1, 2, 2, 1\) must be"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[r[2][:30] for r in REFUSED])
def test_refusals(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
