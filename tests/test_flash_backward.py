"""`refattn.flash.attention_grad` against the truth's intervals, its tasks, and its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'refattn[cpu]'")

import numba

from refattn import streaming
from refattn.case import BiasSpec, Case
from refattn.draw import DIMS, NARROW
from refattn.dtypes import FORMATS, round_to
from refattn.flash import geometry, problem
from refattn.flash.backward import BLOCK
from refattn.flash.backward_tasks import Layout
from refattn.flash.gradients import attention_grad
from refattn.flash.problem import Problem
from refattn.inputs import make
from refattn.judge import ratios
from refattn.masks import Causal, Dilated, Documents, Window
from refattn.truth import truth

Array = np.ndarray[Any, Any]
Call = dict[str, Any]
DTYPES = ("float32", "float64", "bfloat16", "float16")


def wants(bias: Any = None, sinks: Any = None, softcap: Any = None) -> frozenset[str]:
    given = {"dbias": bias, "dsinks": sinks, "dsoftcap": softcap}
    return frozenset({"dq", "dk", "dv", "dscale"} | {name for name, value in given.items() if value is not None})


def case(dtype: str = "float32", **fields: Any) -> Case:
    want = wants(**{name: fields.get(name) for name in ("bias", "sinks", "softcap")})
    return Case("gradients", "drawn", dtype=dtype, want=want, **fields)


def worst(case: Case) -> dict[str, float]:
    """The largest ratio of each gradient; <= 1 is right."""
    drawn = make(case)
    x = drawn.logical
    options: Call = {"mask": case.visibility, "scale": case.scale, "softcap": case.softcap}
    options |= {name: x.get(name) for name in ("bias", "sinks")}
    got = attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options)
    contract = Problem(x["q"], x["k"], x["v"], **options).contract
    found = {}
    for name, e in truth(drawn, contract).items():
        y = getattr(got, name)
        assert y.shape == e.value.shape
        assert y.dtype == (FORMATS[case.dtype].dtype if name in ("dq", "dk", "dv") else drawn_in(case.dtype)), name
        y = round_to(np.asarray(y, np.float64), e.dtype)
        fine = e.ignored | (e.nonfinite & ~np.isfinite(y))
        found[name] = float(np.where(fine, 0, ratios(y, e.value, e.lo, e.hi)).max(initial=0))
    return found


def drawn_in(dtype: str) -> Any:
    return np.float64 if dtype == "float64" else np.float32


lengths = st.sampled_from((5, 1, 17, 64, 65, 130, 0))
sizes = st.sampled_from((8, 1, 3, 16, 20, 33, 64, 80))
masks = st.none() | st.sampled_from(
    (
        Causal("bottom_right"), Causal("top_left"), Window(9, 3, "top_left"), Window(20, 0, "bottom_right"),
        Dilated(9, 3, "bottom_right"), Dilated(2, 7, "top_left") | Window(1, 1, "top_left"),
    )
)  # fmt: skip
anything = st.fixed_dictionaries(
    {
        "B": st.integers(1, 2), "Hkv": st.integers(1, 2), "Lq": lengths, "Lk": lengths, "D": sizes, "Dv": sizes,
        "mask": masks, "softcap": st.none() | st.just(2.0), "scale": st.none() | st.sampled_from((0.0, -0.3, 2.0)),
        "bias": st.none() | st.builds(BiasSpec, st.sampled_from(DIMS)), "sinks": st.none() | st.just("normal"),
        "dtype": st.sampled_from(DTYPES), "family": st.sampled_from(NARROW), "seed": st.integers(0, 99),
    }
)  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(anything, st.integers(1, 3))
def test_within_the_bounds(fields: Call, group: int) -> None:
    found = worst(case(**fields, H=fields["Hkv"] * group))
    assert all(ratio <= 1 for ratio in found.values()), found


LONG = {"H": 2, "Lq": 70, "Lk": 2200, "D": 24, "Dv": 16}
"""five blocks of keys, of which the first part has two"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mask": Causal("bottom_right"), "bias": BiasSpec("H"), "softcap": 2.0, "sinks": "normal"},
        {"mask": Window(700, 100, "bottom_right"), "bias": BiasSpec("Q")},
        {"mask": Dilated(900, 7, "bottom_right"), "bias": BiasSpec("QK"), "scale": -0.2},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_parts_of_the_keys(dtype: str, fields: Call) -> None:
    found = worst(case(dtype, **LONG, **fields))
    assert all(ratio <= 1 for ratio in found.values()), found


def test_strips_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that is asked a few rows at a time: each strip adds to the gradients of the same keys."""
    monkeypatch.setattr(problem, "strips", lambda x: geometry.strips(x, 1))
    fields: Call = {"H": 4, "Hkv": 2, "Lq": 200, "Lk": 600, "mask": Dilated(300, 3, "bottom_right")}
    found = worst(case("float32", **fields, bias=BiasSpec("QK"), softcap=2.0))
    assert all(ratio <= 1 for ratio in found.values()), found


# ---- tasks


def call(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0, **options: Any) -> Call:
    """Arrays of (B, H, Hkv, Lq, Lk, D, Dv)."""
    B, H, Hkv, Lq, Lk, D, Dv = shape
    rng = np.random.default_rng(seed)
    rows, keys = (B, H, Lq), (B, Hkv, Lk)
    shapes = {"q": (*rows, D), "k": (*keys, D), "v": (*keys, Dv), "dout": (*rows, Dv), "dlse": rows}
    return {name: rng.standard_normal(s).astype(dtype) for name, s in shapes.items()} | options


def bits(x: Call) -> dict[str, bytes]:
    return {name: y.tobytes() for name, y in attention_grad(**x)._asdict().items() if y is not None}


def places(layout: Layout, task: Array, x: Any) -> set[tuple[Any, ...]]:
    """Every sum that a task adds to."""
    b0, b1, h0, h1, row0, row1, part, place = map(int, task)
    found: set[tuple[Any, ...]] = {("dsoftcap", place)}
    for b in range(b0, b1):
        for h in range(h0, h1):
            found |= {("dq", part, b, h, i) for i in range(row0, row1)}
            for j in (j for j in range(x.Lk) if j // BLOCK % layout.parts == part):
                found.add(("dkv", b, h // x.group, j))
                if x.bias is not None:
                    at = sum(n * s for n, s in zip((part, b, h, 0, j), layout.onto, strict=True))
                    found |= {("dbias", at + i * layout.onto[3]) for i in range(row0, row1)}
    return found


@pytest.mark.parametrize("mask", [None, Causal("top_left"), Dilated(2, 2, "top_left")], ids=repr)
@pytest.mark.parametrize(
    "shape",
    [
        (), (1,), (3, 1), (1100,), (3, 1100), (1, 1, 3, 1), (4, 1, 1), (4, 3, 1100), (2, 1, 3, 1100), (2, 4, 1, 1100),
        (2, 4, 3, 1100),
    ],
    ids=str,
)
def test_no_two_tasks_add_to_the_same_number(shape: tuple[int, ...], mask: Any) -> None:
    x = call((2, 4, 2, 3, 1100, 1, 1))
    options: Call = {"mask": mask, "bias": np.zeros(shape, np.float32), "scale": None, "softcap": None, "sinks": None}
    given = Problem(x["q"], x["k"], x["v"], **options)
    layout, everything = Layout(given), set()
    for launch in given.launches():
        tasks, pairs = layout.tasks(given, launch)
        assert len(tasks) == len(pairs) and len(tasks) >= layout.parts == 3
        owned = [places(layout, task, given.x) for task in tasks]
        assert sum(map(len, owned)) == len(set().union(*owned))
        everything |= set().union(*owned)
    assert len({p for p in everything if p[0] == "dq"}) == 3 * 2 * 4 * 3
    assert len({p for p in everything if p[0] == "dkv"}) == 2 * 2 * 1100
    assert {p[1] for p in everything if p[0] == "dbias"} == set(range(layout.dbias.size))


@pytest.mark.parametrize("mask", [None, Causal("bottom_right"), Window(300, 9, "top_left")], ids=repr)
def test_costs_are_the_pairs_that_are_seen(mask: Any) -> None:
    x = call((2, 4, 2, 700, 600, 1, 1))
    options: Call = {"mask": mask, "bias": None, "scale": None, "softcap": None, "sinks": None}
    given = Problem(x["q"], x["k"], x["v"], **options)
    (launch,) = given.launches()
    layout = Layout(given)
    tasks, pairs = layout.tasks(given, launch)
    dense = np.ones((2, 4, 700, 600), bool) if mask is None else mask.dense(2, 4, 700, 600)
    for (b0, b1, h0, h1, _, _, part, _), n in zip(tasks, pairs, strict=True):
        keys = np.arange(600) // BLOCK % layout.parts == part
        assert n == dense[b0:b1, h0:h1, :, keys].sum()


# ---- bits


@pytest.mark.parametrize(
    "options",
    [
        {"mask": Causal("bottom_right"), "bias": np.linspace(-1, 1, 700 * 900).reshape(700, 900)},
        {"mask": Dilated(300, 2, "top_left"), "bias": np.linspace(-1, 1, 700).reshape(700, 1), "softcap": 1.5},
    ],
    ids=["interval", "bits"],
)
def test_the_same_bits_for_any_number_of_threads(options: Call) -> None:
    x = call((2, 4, 2, 700, 900, 24, 24), **options)
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        alone = bits(x)
        numba.set_num_threads(before)
        assert all(bits(x) == alone for _ in range(3))
    finally:
        numba.set_num_threads(before)


def test_a_batch_does_not_depend_on_the_others() -> None:
    x = call((3, 4, 2, 70, 2200, 24, 24), mask=Causal("bottom_right"))
    whole = attention_grad(**x)
    for b in range(3):
        alone: Call = {n: y[b : b + 1] if isinstance(y, np.ndarray) else y for n, y in x.items()}
        one = attention_grad(**alone)
        for name in ("dq", "dk", "dv"):
            assert getattr(one, name).tobytes() == getattr(whole, name)[b].tobytes(), name


# ---- what is not finite


@pytest.mark.parametrize("name", ["q", "k", "v", "dout", "dlse"])
def test_what_is_not_finite_is_left_to_streaming(name: str) -> None:
    x = call((1, 2, 1, 9, 12, 4, 4), np.float64, mask=Causal("top_left"))
    x[name][0, 0, -1] = np.nan
    expected = streaming.attention_grad(**x)
    for got, wanted in zip(attention_grad(**x), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_scores_that_overflow_stay_in_their_rows(softcap: float | None) -> None:
    """The second half of the rows and keys, which the first does not see, in the same tile."""
    x = call((1, 1, 1, 8, 8, 4, 4), mask=Documents((0,) * 4 + (1,) * 4), softcap=softcap)
    x["q"][..., 4:, :], x["k"][..., 4:, :] = 1e30, -1e30
    got = attention_grad(**x)
    few: Call = {n: y[:, :, :4] if isinstance(y, np.ndarray) else y for n, y in x.items()} | {"mask": None}
    for name in ("dq", "dk", "dv"):
        wanted = getattr(attention_grad(**few), name)
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(getattr(got, name)[:, :, :4], wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_gradients_by_sinks_of_rows_that_see_nothing_else() -> None:
    x = call((1, 2, 1, 3, 2, 4, 4), np.float64, mask=np.zeros((3, 2), bool), sinks=np.array([0.5, -np.inf]))
    got = attention_grad(**x)
    assert got.dsinks is not None
    np.testing.assert_allclose(got.dsinks, [x["dlse"][0, 0].sum(), 0], rtol=1e-14)
    assert not any(getattr(got, name).any() for name in ("dq", "dk", "dv"))
