"""`refattn.flash` where things go wrong: numbers that are not finite or huge, odd memory, other dtypes, no elements."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from apriori import bounds, worst_ratio

pytest.importorskip("numba", reason="needs numba: pip install 'refattn[cpu]'")

from flash_calls import DTYPES, bits, problem, solve

from refattn import flash, oracle
from refattn.case import BiasSpec, Case
from refattn.flash.geometry import strip_rows
from refattn.flash.implementation import attention
from refattn.inputs import Problem, make
from refattn.judge import Verdict, judge
from refattn.masks import Causal, Dilated, Padding, Window

Array = np.ndarray[Any, Any]
FEW_AND_MANY = (2, 40)
"""queries: few are computed in another way"""


# ---- numbers

EVERY = frozenset({"out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dscale"})
ROWS_THAT_SEE_NOTHING = Case(
    "poisoned", "rows 0 to 2 and the last keys see nothing", B=2, H=4, Hkv=2, Lq=12, Lk=9, D=5, Dv=6,
    mask=Window(2, 0, "bottom_right") & Padding((6, 4)), bias=BiasSpec("BHQK"), sinks="normal", want=EVERY,
)  # fmt: skip
SEEN = {"q": (0, 1, 5), "k": (0, 0, 2), "v": (0, 0, 2, 3), "dout": (0, 1, 5, 1), "dlse": (0, 1, 5), "sinks": (1,)}
HIDDEN = {"q": (0, 1, 0), "k": (1, 1, 8), "v": (1, 1, 4), "dout": (1, 3, 2), "bias": (1, 2, 0, 0)}


def verdict(case: Case, changed: dict[str, Any]) -> Verdict:
    """How the answer is judged once the problem's arrays were changed: arrays, or (index, value)."""
    x = {name: a.copy() for name, a in make(case).logical.items()}
    for name, change in changed.items():
        if isinstance(change, tuple):
            x[name][change[0]] = change[1]
        else:
            x[name] = np.asarray(change).astype(x[name].dtype)
    p = Problem(case, x)
    return judge(p, attention(case, p.fresh()), attention.precision(case), attention.conventions)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_only_what_sees_it(dtype: str, value: float) -> None:
    case = replace(ROWS_THAT_SEE_NOTHING, dtype=dtype, out_dtype=dtype)
    plain = replace(case, mask=None, bias=None, sinks=None, want=EVERY - {"dbias", "dsinks"})
    tries = [(case, {name: (at, value)}) for name, at in (*SEEN.items(), *HIDDEN.items())]
    tries += [(plain, {name: (SEEN[name], value)}) for name in "qkv"]
    tries += [(case, {name: (at, value) for name, at in HIDDEN.items()}), (case, {name: ((), value) for name in "qk"})]
    few = replace(plain, Lq=2, mask=Window(2, 0, "bottom_right"), D=1, want=frozenset({"out", "lse"}))
    tries += [(few, {name: ((0, 0, at), value)}) for name, at in (("q", 0), ("k", 0), ("v", 0), ("k", 8), ("v", 8))]
    tries += [(replace(few, Lq=12), {"k": ((0, 0, 8), value)}), (replace(few, sinks="normal"), {"sinks": (1, value)})]
    for one, changed in tries:
        if not (changed.keys() == {"bias"} and value == -np.inf):  # which only hides what is hidden
            found = verdict(one, changed)
            assert found.status == "passed", (changed, found.reasons, found.outputs)


def test_a_nan_that_is_seen_is_no_number_of_the_answer() -> None:
    case = replace(ROWS_THAT_SEE_NOTHING, bias=None, want=frozenset({"out", "lse", "dq"}))
    x = {**make(case).logical}
    x["q"] = x["q"].copy()
    x["q"][SEEN["q"]] = np.nan
    answer = attention(case, x)
    assert all(np.isnan(answer[name][SEEN["q"]]).all() for name in ("out", "lse", "dq"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("names", [("v",), ("q",), ("q", "k", "v"), ("dout", "dlse"), ("q", "k", "v", "dout", "dlse")])
def test_subnormals(dtype: str, names: tuple[str, ...]) -> None:
    case = replace(ROWS_THAT_SEE_NOTHING, dtype=dtype, out_dtype=dtype, Lk=150, Lq=70, mask=Causal("bottom_right"))
    tiny = {name: a.astype(float) * 2.0**-8 * float(smallest_normal(dtype)) for name, a in make(case).logical.items()}
    found = verdict(case, {name: tiny[name] for name in names})
    assert found.status == "passed", (found.reasons, found.outputs)


def smallest_normal(dtype: str) -> Any:
    return ml_dtypes.finfo(DTYPES[dtype]).smallest_normal


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("way", ["scale", "inputs", "bias", "sinks"])
def test_logits_of_1e30_and_less_than_minus_1e30(dtype: str, way: str) -> None:
    case = replace(ROWS_THAT_SEE_NOTHING, dtype=dtype, out_dtype=dtype, Lk=150, Lq=70, mask=Causal("bottom_right"))
    case = replace(case, want=EVERY - {"dscale"}, scale=1e30 if way == "scale" else None)
    for sign in (1.0, -1.0):
        x = {name: a.astype(float) for name, a in make(case).logical.items()}
        changed = {
            "scale": {}, "inputs": {"q": sign * 1e15 * np.abs(x["q"]), "k": 1e15 * np.abs(x["k"])},
            "bias": {"bias": sign * 1e30 * np.abs(x["bias"])}, "sinks": {"sinks": sign * 1e30 * np.abs(x["sinks"])},
        }[way]  # fmt: skip
        found = verdict(replace(case, scale=case.scale and sign * case.scale), changed)
        assert found.status == "passed", (sign, found.reasons, found.outputs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("Lq", FEW_AND_MANY)
def test_gradients_of_logits_whose_roundings_are_larger_than_1(dtype: str, Lq: int) -> None:
    """The backward has the forward's scores bit for bit: weights from others would be 0, or infinite."""
    x = problem(dtype, Lq=Lq) | {"mask": None, "scale": -1e30}
    dv, expected = (solve(x, module)["dv"].astype(float) for module in (flash, oracle))
    assert np.allclose(dv, expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("softcap", [1e-310, 1e-60, 1e60, 1e300])
def test_softcaps_that_float32_does_not_hold(dtype: str, softcap: float) -> None:
    for Lq in FEW_AND_MANY:
        x = problem(dtype, Lq=Lq) | {"softcap": softcap}
        near = x | ({"softcap": None} if softcap > 1 else {"softcap": None, "scale": 0.0})
        for name, y in solve(x).items():
            if name not in ("dscale", "dsoftcap"):
                expected = solve(near, oracle)[name].astype(float)
                assert np.allclose(y.astype(float), expected, rtol=0.02, atol=0.03), name


@pytest.mark.parametrize("Lq", FEW_AND_MANY)
def test_a_bias_below_the_range_of_float32_is_no_mask(Lq: int) -> None:
    x = problem("float32", Lq=Lq) | {"mask": None, "sinks": None, "bias": np.full((1, 1, 1, 70), -1e300)}
    found, expected = (solve(x, module) for module in (flash, oracle))
    assert all(np.allclose(found[name], expected[name], atol=1e-4) for name in ("out", "dq", "dk", "dv"))
    hidden = solve(x | {"bias": np.full((1, 1, 1, 70), -np.inf)})
    assert not hidden["out"].any() and np.isneginf(hidden["lse"]).all()


# ---- memory

def misaligned(x: Array) -> Array:
    y = np.ndarray(x.shape, x.dtype, bytearray(x.nbytes + 1), 1)
    y[...] = x
    return y


def backwards(x: Array) -> Array:
    return np.flip(np.ascontiguousarray(np.flip(x)))


def apart(x: Array) -> Array:
    y = np.zeros([2 * n for n in x.shape], x.dtype)[(slice(1, None, 2),) * x.ndim]
    y[...] = x
    return y


def read_only(x: Array) -> Array:
    y = x.copy()
    y.flags.writeable = False
    return y


def swapped(x: Array) -> Array:
    return x if x.ndim < 3 else np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("change", [misaligned, backwards, apart, np.asfortranarray, swapped, read_only])
def test_the_bits_do_not_depend_on_where_inputs_lie(dtype: str, change: Any) -> None:
    for Lq in FEW_AND_MANY:
        x = problem(dtype, 2, Lq=Lq)
        y = {name: change(a) if isinstance(a, np.ndarray) else a for name, a in x.items()}
        before = {name: a.tobytes() for name, a in y.items()}
        assert change in (read_only, misaligned) or y["k"].strides != x["k"].strides
        assert bits(y) == bits(x)
        assert before == {name: a.tobytes() for name, a in y.items()}, "an input was changed"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_repeated_along_a_dimension(dtype: str) -> None:
    for axis, Lq in product(range(4), FEW_AND_MANY):
        x = problem(dtype, 2, Lq=Lq)
        y = {n: np.broadcast_to(a.take([0], axis), a.shape) if a.ndim == 4 else a for n, a in x.items()}
        assert all(a.strides[axis] == 0 for a in y.values() if a.ndim == 4)
        assert bits(y) == bits({name: a.copy() for name, a in y.items()})


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_bits_do_not_depend_on_how_a_mask_is_described(dtype: str) -> None:
    """~~mask is not known to be intervals: it goes by strips of bits."""
    for Lq, seed in product(FEW_AND_MANY, range(2)):
        x = problem(dtype, seed, Lq=Lq, Lk=600)
        mask = Window(150, 9, "bottom_right") if seed == 0 else Causal("top_left")
        dense = mask.dense(*x["q"].shape[:3], 600)
        assert bits(x | {"mask": mask}) == bits(x | {"mask": ~~mask}) == bits(x | {"mask": dense})


def test_the_bits_are_the_same_in_several_strips() -> None:
    x = problem("float32", 0, 1, 2, Lq=130, Lk=300_000, D=3)
    assert strip_rows(300_000) == 64
    assert bits(x) == bits(x | {"mask": ~~x["mask"]})


def test_answers_are_arrays_of_their_own() -> None:
    for dtype in ("float64", "float32"):
        x = problem(dtype, 0, Lk=64, D=9)
        x["v"] = x["k"]
        x["dout"] = x["q"]
        given = [a for a in x.values() if isinstance(a, np.ndarray)]
        for name, y in solve(x).items():
            assert y.flags.writeable and not any(np.may_share_memory(y, a) for a in given), name
            assert y.dtype == (np.float64 if dtype == "float64" else np.float32), name


@pytest.mark.parametrize("change", [">", int, np.int8, bool, complex, np.ma.masked_array], ids=str)
def test_other_dtypes_are_refused_by_name(change: Any) -> None:
    x = problem("float64", 0, Lq=4, Lk=5)
    for name in ("q", "k", "v", "bias", "sinks", "dout", "dlse"):
        made = change(x[name]) if change is np.ma.masked_array else x[name].astype(">f8" if change == ">" else change)
        with pytest.raises(TypeError, match=rf"^{name}(\.dtype=\S| is a masked array)"):
            solve(x | {name: made})


def test_float8_is_refused() -> None:
    x = {name: a.astype(ml_dtypes.float8_e4m3fn) if name in "qkv" else a for name, a in problem("float32").items()}
    with pytest.raises(TypeError, match="q.dtype=float8_e4m3fn must have 16 bits"):
        solve(x)


def test_q_k_and_v_are_of_one_dtype() -> None:
    x = problem("float64")
    with pytest.raises(TypeError, match="q, k and v of float32, float64 must have one dtype"):
        solve(x | {"v": x["v"].astype(np.float32)})


SIZES = {"B": 2, "H": 4, "Lq": 3, "Lk": 5, "D": 6, "Dv": 7}


@pytest.mark.parametrize("nothing", ["B", "H", "Lq", "Lk", "D", "Dv", "Lq Lk", "D Dv"])
@pytest.mark.parametrize("mask", [None, Causal("bottom_right"), Dilated(1, 2, "top_left"), "array"], ids=str)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("Lq", FEW_AND_MANY)
def test_sizes_of_zero(nothing: str, mask: Any, sinks: bool, Lq: int) -> None:
    B, H, Lq, Lk, D, Dv = (0 if name in nothing.split() else n for name, n in (SIZES | {"Lq": Lq}).items())
    rng = np.random.default_rng(0)
    shapes = {"q": (B, H, Lq, D), "k": (B, H // 2, Lk, D), "v": (B, H // 2, Lk, Dv), "dout": (B, H, Lq, Dv)}
    x: dict[str, Any] = {name: rng.standard_normal(shape) for name, shape in (shapes | {"dlse": (B, H, Lq)}).items()}
    x |= {"bias": rng.standard_normal((H, Lq, Lk)), "sinks": rng.standard_normal(H) if sinks else None}
    x |= {"mask": rng.random((Lq, Lk)) < 0.5 if mask == "array" else mask, "softcap": 2.0, "scale": None}
    got, expected = solve(x), solve(x, oracle)
    bound = bounds(x | {"score_mod": None, "dropout": None}) if H else dict.fromkeys(expected, 0.0)
    assert got.keys() == expected.keys()
    for name, y in got.items():
        assert y.shape == expected[name].shape and worst_ratio(y, expected[name], bound[name]) <= 1, name
    for dtype in ("float32", "bfloat16"):
        low = {name: a.astype(DTYPES[dtype]) if name in shapes else a for name, a in x.items()}
        assert {name: y.shape for name, y in solve(low).items()} == {name: y.shape for name, y in got.items()}
