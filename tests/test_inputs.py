"""Input families: each does what its docstring says, fits its dtype, and is the same on every run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.case import GRADIENTS, BiasSpec, Case, Dense
from refattn.cases import CASES, select
from refattn.dtypes import FORMATS
from refattn.inputs import BIAS, FAMILIES, SINKS, make
from refattn.masks import Causal, Padding
from refattn.oracle import attention, attention_grad
from refattn.score_mods import SCORE_MODS

Array = np.ndarray[Any, Any]
FLAT = {"uniform", "constant_v"}  # controls
PLAIN = Case("plain", "", B=2, H=6, Hkv=3, Lq=33, Lk=65, D=32, Dv=24)


def _arrays(family: str, **changes: Any) -> dict[str, Array]:
    """Logical arrays of the plain case with that family, in float64."""
    problem = make(replace(PLAIN, family=family, **({"out_dtype": ""} | changes)))
    return {name: x.astype(np.float64) for name, x in problem.logical.items()}


def _logits(case: Case, x: dict[str, Array]) -> Array:
    scale = case.D**-0.5 if case.scale is None else case.scale
    return scale * (x["q"] @ np.repeat(x["k"], case.H // case.Hkv, 1).swapaxes(-1, -2))


def _weights(case: Case, x: dict[str, Array]) -> tuple[Array, Array]:
    """Softmax over what is visible, without sinks, and what is visible; rows that see nothing get 0."""
    visible = case.visibility.tile()
    with np.errstate(invalid="ignore"):
        t = _logits(case, x)
        t = t if case.softcap is None else case.softcap * np.tanh(t / case.softcap)
        t = t if case.score_mod is None else SCORE_MODS[case.score_mod](t, *np.ogrid[tuple(map(slice, t.shape))])
        if "bias" in x:
            visible = visible & ~np.isneginf(x["bias"])
            t = t + x["bias"]
    t = np.where(visible, t, -np.inf)
    top = t.max(-1, initial=-np.inf, keepdims=True)
    p = np.exp(t - np.where(np.isneginf(top), 0, top))
    return p / np.maximum(p.sum(-1, keepdims=True), 1), visible


def _digest() -> str:
    """Of all families and of everything else that is drawn."""
    digest = hashlib.sha256()
    for family in FAMILIES:
        features = {"mask": Causal("top_left"), "bias": BiasSpec("HQK"), "sinks": "normal", "softcap": 9.0}
        case = replace(PLAIN, family=family, want={"lse", *GRADIENTS}, **features)
        for name, x in sorted(make(case).logical.items()):
            digest.update(name.encode() + x.tobytes())
    return digest.hexdigest()


def test_deterministic() -> None:
    here = _digest()
    assert here == _digest()
    code = "from tests.test_inputs import _digest; print(_digest())"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    root = os.path.dirname(os.path.dirname(__file__))
    there = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True)
    assert there.stdout.strip() == here, there.stderr


def test_seed_matters_and_features_do_not() -> None:
    one, other = _arrays("peaked"), _arrays("peaked", seed=1)
    assert all((one[name] != other[name]).mean() > 0.9 for name in "qkv")
    more = _arrays("peaked", bias=BiasSpec(), sinks="normal", want={"dq"})
    assert all(np.array_equal(one[name], more[name]) for name in "qkv")


def test_at_least_14_families_all_used() -> None:
    assert len(FAMILIES) >= 14
    assert {case.family for case in CASES if case.chapter != "captured"} == set(FAMILIES)
    assert {case.bias.family for case in CASES if case.bias} == set(BIAS)
    assert {case.sinks for case in CASES if case.sinks} == set(SINKS)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_family_is_peaked_unless_a_control(family: str) -> None:
    case = replace(PLAIN, family=family)
    weights, _ = _weights(case, _arrays(family))
    peak = weights.max(-1).mean() * case.Lk
    assert peak <= 1.6 if family in FLAT else peak >= 2


@pytest.mark.parametrize("case", select(), ids=lambda case: case.id)
def test_cases_are_finite_where_visible_and_peaked(case: Case) -> None:
    problem = make(case)
    x = {name: array.astype(np.float64) for name, array in problem.logical.items() if name != "keep"}
    if case.family != "poisoned_pairs":
        options = {"mask": case.visibility, "bias": x.get("bias"), "sinks": x.get("sinks")}
        options |= {"scale": case.scale, "softcap": case.softcap, "score_mod": SCORE_MODS.get(case.score_mod or "")}
        options |= {"dropout": case.dropout, "keep": problem.logical.get("keep")}
        out = attention(x["q"], x["k"], x["v"], **options).out
        assert np.isfinite(out).all()
        if case.backward:
            gradients = attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options)
            assert all(np.isfinite(g).all() for g in gradients if g is not None)
        if case.family != "poisoned":
            assert all(np.isfinite(array).all() for name, array in x.items() if name != "bias")
    if case.family in FLAT or case.scale == 0 or case.D == 0:
        return
    weights, visible = _weights(case, x)
    seen = visible.sum(-1)
    if (seen >= 4).any():
        assert np.nanmean((weights.max(-1) * seen)[seen >= 4]) > 1.7


def test_large_logits() -> None:
    for dtype, finite in (("float32", 88), ("float64", 709)):
        case = replace(PLAIN, dtype=dtype)
        assert _logits(case, _arrays("large_logits", dtype=dtype)).max() > finite


def test_all_negative_logits_underflow() -> None:
    for dtype, lowest in (("float32", -104), ("bfloat16", -104), ("float8_e4m3fn", -104), ("float64", -746)):
        case = replace(PLAIN, dtype=dtype, out_dtype="")
        assert _logits(case, _arrays("all_negative_logits", dtype=dtype)).max() < lowest


def test_needle_takes_all_of_what_is_visible() -> None:
    case = replace(PLAIN, family="needle", mask=Causal("top_left"))
    weights, visible = _weights(case, _arrays("needle", mask=case.mask))
    assert np.mean(weights.max(-1) > 1 - 1e-6) > 0.9
    assert visible.sum() > 0 and weights[~visible].max() == 0


def test_rising_and_falling() -> None:
    for family, sign in (("rising", 1), ("falling", -1)):
        tiles = _logits(PLAIN, _arrays(family))[..., :64].reshape(2, 6, 33, 4, 16).max(-1)
        assert np.mean(sign * np.diff(tiles) > 0) > 0.99


def test_ties_and_score_levels() -> None:
    for family in ("ties", "sparse_q", "v_of_k"):
        rows = _logits(PLAIN, _arrays(family)).round(9).reshape(-1, PLAIN.Lk)
        assert max(len(set(row)) for row in rows) == 3
    x = _arrays("v_of_k")
    assert len(np.unique(x["v"].reshape(-1, PLAIN.Dv), axis=0)) == 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_near_ties_are_one_unit_apart(dtype: str) -> None:
    k = _arrays("near_ties", dtype=dtype)["k"]
    odd, even = k[:, :, 1::2], k[:, :, :64:2]
    assert np.array_equal(odd[..., 1:], even[..., 1:])
    gap, f = odd[..., 0] - even[..., 0], FORMATS[dtype]
    assert np.array_equal(gap, np.maximum(2 * f.u * 2.0 ** np.floor(np.log2(np.abs(even[..., 0]))), f.eta))


def test_one_hot_v_names_its_keys() -> None:
    v = _arrays("one_hot_v")["v"]
    assert ((v != 0).sum(-1) == 1).all()
    codes = {row.tobytes() for row in v.reshape(-1, PLAIN.Dv)}
    assert len(codes) > PLAIN.Lk
    assert len({v[b, g].tobytes() for b in range(2) for g in range(3)}) == 6


def test_constant_v_overflows_float16_before_division() -> None:
    case = replace(PLAIN, Lk=1024, family="constant_v", dtype="float16")
    x = _arrays("constant_v", Lk=1024, dtype="float16")
    t = _logits(case, x)
    assert (np.exp(t - t.max(-1, keepdims=True)).sum(-1) * x["v"].max() > 65504).mean() > 0.9
    assert (x["v"] == x["v"][:, :, :1]).all()


def test_cancelling_v_is_far_below_its_terms() -> None:
    x = _arrays("cancelling_v")
    got, terms = (np.abs(attention(x["q"], x["k"], v).out).mean() for v in (x["v"], np.abs(x["v"])))
    assert got < terms / 4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tiny_outputs_are_subnormal(dtype: str) -> None:
    x = _arrays("tiny", dtype=dtype)
    out = np.abs(attention(x["q"], x["k"], x["v"]).out)
    assert (out < FORMATS[dtype].smallest_normal).mean() > 0.1


@pytest.mark.parametrize(("dtype", "small"), [("float32", 1e-8), ("float16", 1e-2)])
def test_underflow_answer_is_in_small_weights(dtype: str, small: float) -> None:
    x = _arrays("underflow", dtype=dtype)
    weights, _ = _weights(replace(PLAIN, dtype=dtype), x)
    out = weights @ np.repeat(x["v"], 2, 1)
    rest = np.where(weights < small, weights, 0) @ np.repeat(x["v"], 2, 1)
    assert np.abs(rest).sum() > 0.8 * np.abs(out).sum()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_huge_offset_exceeds_float16_and_changes_nothing(dtype: str) -> None:
    case = replace(PLAIN, dtype=dtype, out_dtype="", scale=1.0)
    x = _arrays("huge_offset", dtype=dtype, scale=1.0)
    assert _logits(case, x).min() > 65504
    rest = x | {"k": np.where(np.arange(PLAIN.D) == 0, 0, x["k"])}
    np.testing.assert_allclose(_weights(case, x)[0], _weights(case, rest)[0], atol=1e-9)


def test_outliers() -> None:
    x = _arrays("outliers")
    size = np.abs(x["k"]).mean((0, 1, 2))
    assert size[:2].min() > 20 * size[2:].max() and np.abs(x["v"]).max() > 20


def test_peaked_hidden_key_would_win() -> None:
    case = replace(PLAIN, family="peaked", mask=Causal("top_left"))
    t, visible = _logits(case, _arrays("peaked", mask=case.mask)), case.visibility.tile()
    highest = [np.where(which, t, -np.inf).max(-1) for which in (~visible, visible)]
    assert np.mean(highest[0] > highest[1]) > 0.8


def _poisoned(**changes: Any) -> tuple[Case, dict[str, Array]]:
    features = {"mask": Causal("top_left"), "k_lens": (40, 0), "q_lens": (33, 20), "bias": BiasSpec("HQK")}
    case = replace(PLAIN, family="poisoned", want={"lse", "dq", "dk", "dv", "dbias"}, **(features | changes))
    return case, {name: x.astype(np.float64) for name, x in make(case).logical.items()}


def test_poison_is_wherever_nothing_may_be_read_and_nowhere_else() -> None:
    case, x = _poisoned()
    keys = case.visibility.tile().reshape(2, 3, -1, 65).any(2)
    rows = case.visibility.tile().any(-1)
    for name, used in (("k", keys), ("v", keys), ("q", rows), ("dout", rows)):
        assert np.isfinite(x[name][used]).all() and not np.isfinite(x[name][~used]).any()
    assert np.array_equal(np.isfinite(x["dlse"]), rows)
    assert np.array_equal(np.isfinite(x["bias"][0]), case.visibility.tile().any(0))
    assert (~keys).sum() > 65 and (~rows).any()


def test_poison_spoils_a_kernel_that_multiplies_it_by_zero() -> None:
    case, x = _poisoned(k_lens=(40, 20))
    clean = attention(x["q"], x["k"], x["v"], mask=case.visibility, bias=x["bias"])
    weights, _ = _weights(case, x)
    with np.errstate(invalid="ignore"):
        naive = weights @ np.repeat(x["v"], 2, 1)
    assert np.isfinite(clean.out).all() and np.isnan(naive).any(-1).all()


def test_poison_leaves_dlse_alone_where_a_sink_is() -> None:
    _, x = _poisoned(sinks="normal")
    assert np.isfinite(x["dlse"]).all() and np.isfinite(x["sinks"]).all()


def test_poisoned_keys_hidden_by_a_bias_of_minus_infinity() -> None:
    case = replace(PLAIN, family="poisoned", bias=BiasSpec("BK", "float32", "minus_inf"))
    x = {name: array.astype(np.float64) for name, array in make(case).logical.items()}
    hidden = np.isneginf(x["bias"][:, 0, 0])
    assert hidden.any() and not np.isfinite(x["v"].swapaxes(0, 1)[:, hidden]).any()
    assert np.isfinite(attention(x["q"], x["k"], x["v"], bias=x["bias"]).out).all()


@pytest.mark.parametrize("want", [{"out"}, {"dq", "dk", "dv"}])
def test_poisoned_pairs_reach_some_rows_only(want: set[str]) -> None:
    case = replace(PLAIN, family="poisoned_pairs", mask=Causal("top_left"), want=want)
    x = make(case).logical
    if case.backward:
        g = attention_grad(x["q"], x["k"], x["v"], x["dout"], mask=case.visibility)
        spoilt = [np.isnan(g.dk).any(-1), np.isnan(g.dv).any(-1), np.isnan(g.dq).any(-1)]
    else:
        out = attention(x["q"], x["k"], x["v"], mask=case.visibility).out
        spoilt = [~np.isfinite(out[..., -1]), np.isnan(out[..., 0])]
        assert np.isinf(x["v"]).sum() == case.B * case.Hkv
    assert all(0 < bad.mean() < 0.9 for bad in spoilt)


def test_where_nothing_is_hidden_one_value_of_a_head_is_infinite() -> None:
    case = replace(PLAIN, family="poisoned_pairs", mask=None, want={"out"})
    x = make(case).logical
    found = np.argwhere(~np.isfinite(x["v"].astype(np.float64)))
    assert np.isfinite(x["q"]).all() and np.isfinite(x["k"]).all()
    assert [tuple(at) for at in found[:, :2]] == list(np.ndindex(case.B, case.Hkv))
    assert (found[:, 3] == case.Dv - 1).all()


@pytest.mark.parametrize("layout", ["BHLD", "BLHD", "LBHD", "BHDL", "HBLD"])
def test_fresh_copies_in_memory_order(layout: str) -> None:
    problem = make(replace(PLAIN, storage=Dense(layout), want={"lse", "dq"}, bias=BiasSpec(), sinks="zero"))
    one, two = problem.fresh(), problem.fresh()
    assert list(one) == ["q", "k", "v", "bias", "sinks", "dout", "dlse"]
    for name, x in problem.logical.items():
        assert np.array_equal(one[name], x) and one[name].flags.writeable and not x.flags.writeable
        assert not np.shares_memory(one[name], x) and not np.shares_memory(one[name], two[name])
        if x.ndim == 4:
            order = ["BHLD".index(letter) for letter in layout]
            assert one[name].transpose(order).flags.c_contiguous
            assert layout == "BHLD" or not one[name].flags.c_contiguous


def test_names_follow_what_is_wanted() -> None:
    assert "dout" not in _arrays("normal")
    gradients = _arrays("normal", want={"dq"})
    assert "dout" in gradients and "dlse" not in gradients
    for dtype, expected in (("float64", "float64"), ("float32", "float32"), ("bfloat16", "float32")):
        problem = make(replace(PLAIN, dtype=dtype, out_dtype="", want={"dq", "lse"}))
        assert problem.logical["dlse"].dtype.name == expected and problem.logical["dout"].dtype.name == dtype


def test_bias_families() -> None:
    slopes = _arrays("normal", H=3, Hkv=3, bias=BiasSpec("HQK", "float64", "alibi"))["bias"]
    assert slopes.shape == (1, 3, 33, 65) and slopes[0, :, -1, -1].tolist() == [0, 0, 0]
    np.testing.assert_allclose(slopes[0, :, 0, 0], [-32 * 2.0**-4, -32 * 2.0**-8, -32 * 2.0**-2])
    signed = _arrays("normal", H=3, Hkv=3, bias=BiasSpec("HQK", "float64", "alibi_signed"))["bias"]
    np.testing.assert_array_equal(signed[0, 0, [0, 32]][:, [0, 64]], 2.0**-4 * np.array([[0, 64], [-32, 32]]))
    for family, lowest in (("minus_inf", -np.inf), ("finite_min", -FORMATS["bfloat16"].max)):
        bias = _arrays("normal", bias=BiasSpec("BQK", "bfloat16", family))["bias"]
        assert 0.2 < (bias == lowest).mean() < 0.4 and (bias[..., 0] > -100).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "nice"}, "family='nice' is not one of uniform"),
        ({"bias": BiasSpec(family="nice")}, "bias family='nice' is not one of normal"),
        ({"sinks": "nice"}, "sinks='nice' is not one of zero"),
        ({"dtype": "float16", "scale": 1e-6}, "family='normal' draws q up to .* beyond float16"),
    ],
)
def test_refusals_name_the_value(changes: dict[str, Any], message: str) -> None:
    changes = {"family": "normal", "out_dtype": ""} | changes
    with pytest.raises(ValueError, match=message):
        make(replace(PLAIN, **changes))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_shapes_and_dtypes_fit(data: st.DataObject) -> None:
    draw = data.draw
    B, Hkv, group = draw(st.integers(0, 3)), draw(st.integers(0, 3)), draw(st.integers(1, 3))
    Lq, Lk, D, Dv = (draw(st.integers(0, 9)) for _ in range(4))
    dtype = draw(st.sampled_from(sorted(FORMATS)))
    mask = draw(st.sampled_from([None, Causal("top_left"), Causal("bottom_right"), Padding((0,) * max(B, 1))]))
    backward = FORMATS[dtype].bits > 4 and draw(st.booleans())
    dims = st.sampled_from(["BHQK", "HQ", "K"])
    bias = draw(st.none() | st.builds(BiasSpec, dims, family=st.sampled_from(list(BIAS))))
    case = Case(
        "random", "", B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, D=D, Dv=Dv, dtype=dtype, mask=mask, bias=bias,
        family=draw(st.sampled_from(sorted(FAMILIES))), sinks=draw(st.sampled_from([None, *SINKS])),
        want={"lse", "dq"} if backward else {"out"}, seed=draw(st.integers(0, 2**64 - 1)),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            problem = make(case)
        except ValueError as error:
            assert "beyond" in str(error) and FORMATS[dtype].max < 1e9
            return
    shapes = {
        "q": (B, case.H, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv), "bias": case.bias_shape,
        "sinks": (case.H,), "dout": (B, case.H, Lq, Dv), "dlse": (B, case.H, Lq),
    }  # fmt: skip
    optional = {"bias": bias is not None, "sinks": case.sinks is not None, "dout": backward, "dlse": backward}
    assert set(problem.logical) == {name for name in shapes if optional.get(name, True)}
    dtypes = {"bias": "float32", "dlse": "float64" if dtype == "float64" else "float32"}
    for name, x in problem.fresh().items():
        assert (x.shape, x.dtype.name) == (shapes[name], dtypes.get(name, dtype))
