"""ALiBi: the published slopes, both distances, and the families of bias made from them; additive finite masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.alibi import alibi, slopes
from refattn.case import BiasSpec, Case
from refattn.inputs import make
from refattn.masks import Causal
from refattn.oracle import attention

PLAIN = Case("plain", "", B=2, H=3, Hkv=3, Lq=16, Lk=24, D=8, Dv=8)
lengths = st.integers(0, 7)


def test_published_slopes() -> None:
    """Press et al. 2021, section 3: 1/2 to 1/256 for 8 heads, and from 16 on the geometric mean of neighbours too."""
    assert slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    np.testing.assert_allclose(slopes(16), [2 ** -(n / 2) for n in range(1, 17)], rtol=1e-15)
    assert slopes(0).shape == (0,)


@pytest.mark.parametrize("heads", range(1, 21))
def test_slopes(heads: int) -> None:
    got, power = slopes(heads), 1
    while 2 * power <= heads:
        power *= 2
    assert got.shape == (heads,) and got.dtype == np.float64
    assert len(set(got)) == heads and (got > 0).all() and (got < 1).all()
    np.testing.assert_array_equal(got[:power], slopes(power))
    np.testing.assert_array_equal(got[power:], slopes(2 * power)[::2][: heads - power])
    ratio = 2 ** (-8 / power)
    np.testing.assert_allclose(got[:power], [ratio * ratio**n for n in range(power)], rtol=1e-13)
    one_sequence = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    assert np.array_equal(got, one_sequence) == (heads == power), "the formula for powers of two is for these alone"


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(lengths, lengths, st.sampled_from(["absolute", "signed"]), st.sampled_from(["top_left", "bottom_right"]))
def test_alibi_by_its_definition(Lq: int, Lk: int, distance: Any, align: Any) -> None:
    got = alibi(slopes(5), Lq, Lk, distance, align)
    assert got.shape == (5, Lq, Lk)
    for h, i, j in np.ndindex(got.shape):
        steps = j - i if align == "top_left" else (j - Lk) - (i - Lq)
        expected = slopes(5)[h] * (steps if distance == "signed" else -max(steps, -steps))
        assert got[h, i, j] == expected


def test_conventions_of_alibi_differ_in_lse_alone_under_a_causal_mask() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 3, n, 4)) for n in (3, 7, 7))
    options = {"mask": Causal("bottom_right")}
    one = attention(q, k, v, bias=alibi(slopes(3), 3, 7), **options)
    other = attention(q, k, v, bias=alibi(slopes(3), 3, 7, "signed", "top_left"), **options)
    np.testing.assert_allclose(one.out, other.out, rtol=1e-13)
    np.testing.assert_allclose(other.lse - one.lse, np.broadcast_to(4 * slopes(3)[:, None], (1, 3, 3)), rtol=1e-12)
    both = [attention(q, k, v, bias=alibi(slopes(3), 3, 7, distance)).out for distance in ("absolute", "signed")]
    assert np.abs(both[0] - both[1]).max() > 0.01, "without a mask they are two functions"


@pytest.mark.parametrize("family", ["alibi", "alibi_signed", "minus_1e9", "minus_10000"])
@pytest.mark.parametrize("dims", ["B", "H", "Q", "K", "HK", "BQ", "BHQK"])
def test_bias_families_have_the_case_s_shape(dims: str, family: str) -> None:
    """Of a dimension that the bias lacks it has the first entry, also where the case has none."""
    full = make(replace(PLAIN, bias=BiasSpec("BHQK", "float64", family))).logical["bias"]
    for sizes in ({}, {"Lq": 0}, {"Lk": 0}, {"B": 0}):
        case = replace(PLAIN, bias=BiasSpec(dims, "float64", family), **sizes)
        got = make(case).logical["bias"]
        assert got.shape == case.bias_shape
        if family.startswith("alibi") and not sizes:
            np.testing.assert_array_equal(got, full[tuple(slice(n) for n in got.shape)])


@pytest.mark.parametrize(("family", "value"), [("minus_1e9", -1e9), ("minus_10000", -1e4)])
def test_a_finite_mask_does_not_hide(family: str, value: float) -> None:
    case = replace(PLAIN, dtype="float64", out_dtype="", bias=BiasSpec("QK", "float64", family))
    x = make(case).logical
    low = x["bias"][0, 0] == value
    assert low[4].all() and low[:, 18:].all() and not low[:4, :18].any() and (x["bias"][0, 0, :4, :18] > -20).all()
    got, free = attention(x["q"], x["k"], x["v"], bias=x["bias"]), attention(x["q"], x["k"], x["v"])
    np.testing.assert_allclose(got.out[:, :, 4::5], free.out[:, :, 4::5], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got.lse[:, :, 4::5], free.lse[:, :, 4::5] + value, rtol=1e-15)


BAD: list[tuple[Any, str]] = [
    (lambda: slopes(-1), r"H=-1 must be an int >= 0"),
    (lambda: alibi([[1.0]], 1, 1), r"slopes of shape \(1, 1\) must be finite, \(H,\)"),
    (lambda: alibi([np.inf], 1, 1), r"slopes of shape \(1,\) must be finite"),
    (lambda: alibi([1.0], -1, 1), r"Lq=-1 must be an int >= 0"),
    (lambda: alibi([1.0], 1, 1.5), r"Lk=1.5 must be an int >= 0"),  # type: ignore[arg-type]
    (lambda: alibi([1.0], 1, 1, "squared"), r"distance='squared' must be 'absolute' or 'signed'"),  # type: ignore[arg-type]
    (lambda: alibi([1.0], 1, 1, align="left"), r"align='left' must be"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=lambda x: x if isinstance(x, str) else "")
def test_bad_arguments(bad: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bad()
