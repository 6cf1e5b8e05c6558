"""The cheap bound is no looser than the full one, hardly sharper where no scores agree, and cheap."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from refattn import streaming
from refattn.case import BiasSpec, Case
from refattn.inputs import FAMILIES, Problem, make
from refattn.judge import judge
from refattn.masks import BlockSparse, Causal, Documents, Mask, Padding, Window
from refattn.precision import Conventions, Precision, preset
from refattn.quantise import Quant
from refattn.rotary import Rotary
from refattn.tolerance import lite
from refattn.tolerance.blas import one_thread_each
from refattn.truth import Expected, View, quick, quick_truth, truth

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
GRADIENTS = frozenset({"dq", "dk", "dv"})
SIZES = {"B": 2, "H": 4, "Hkv": 2, "Lq": 9, "Lk": 37, "D": 16, "Dv": 8}


def problem(**fields: Any) -> Problem:
    return make(Case("t", "a test", **(SIZES | fields)))


def within(narrow: dict[str, Expected], full: dict[str, Expected]) -> None:
    assert set(narrow) == set(full)
    for name, e in narrow.items():
        f = full[name]
        for lo, hi, f_lo, f_hi in (
            (e.lo, e.hi, f.lo, f.hi),
            (e.rigorous_lo, e.rigorous_hi, f.rigorous_lo, f.rigorous_hi),
        ):
            inside = (f_lo <= lo) & (hi <= f_hi) | np.isnan(f_lo) & np.isnan(lo) | np.broadcast_to(e.ignored, lo.shape)
            assert inside.all(), (name, np.argwhere(~inside)[0])
        assert np.array_equal(e.nonfinite, f.nonfinite), name


def compared(p: Problem, precision: Precision | None = None) -> tuple[dict[str, Expected], dict[str, Expected]]:
    """The cheap truth and the full one, after a look that it is within."""
    precision = precision or preset(p.case.dtype, p.case.out_dtype)
    narrow, full = quick_truth(p, precision), truth(p, precision)
    assert all(e.narrow for e in narrow.values())
    assert not any(e.narrow for e in full.values())
    within(narrow, full)
    return narrow, full


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_of_each_family(family: str, dtype: str) -> None:
    want = {"out", "lse"} | (set() if dtype.startswith("float8") else GRADIENTS)
    compared(problem(dtype=dtype, family=family, mask=Causal("bottom_right"), want=want, seed=3))


MASKS: tuple[Mask | None, ...] = (
    None, Causal("bottom_right"), Causal("top_left"), Window(2, 1, "bottom_right"), Padding((30, 0)),
    Documents((0,) * 4 + (1,) * 5, (0,) * 20 + (1,) * 17), BlockSparse(("x..", "..x"), 5, 13),
)  # fmt: skip
CONTRACTS: dict[str, Any] = {
    "preset": {}, "unrounded": {"weights": None}, "sum": {"sum_rounded_weights": True},
    "lse": {"weights_from_lse": True}, "flush": {"flush_subnormal": True}, "tile": {"tile": 16, "exp_ulp": 4.0},
    "tanh": {"tanh_error": 2.0**-11},
    "blocks": {"grad_q_block": 4, "grad_k_block": 16, "grad_per_head": True},
    "eager": {"scores": "inputs", "weights_normalised": True}, "scaled": {"scaled_q": "inputs"},
}  # fmt: skip


def contract(name: str, case: Case) -> Precision:
    fields: dict[str, Any] = {n: case.dtype if x == "inputs" else x for n, x in CONTRACTS[name].items()}
    return replace(preset(case.dtype, case.out_dtype), **fields, source="a test")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_of_all_features_and_contracts(data: st.DataObject) -> None:
    draw = data.draw
    dtype = draw(st.sampled_from(DTYPES))
    backward = not dtype.startswith("float8") and draw(st.booleans())
    fields: dict[str, Any] = {
        "dtype": dtype,
        "family": draw(st.sampled_from(sorted(FAMILIES))),
        "mask": draw(st.sampled_from(MASKS)),
        "softcap": draw(st.sampled_from((None, 3.0))),
        "scale": draw(st.sampled_from((None, 0.0, -0.7))),
        "sinks": draw(st.sampled_from((None, "normal", "minus_inf"))),
        "dropout": draw(st.sampled_from((None, 0.3, 1.0))),
        "score_mod": draw(st.sampled_from((None, "softsign", "tilt", "parabola"))),
        "bias": draw(st.sampled_from((None, BiasSpec("HK"), BiasSpec("BQ", "float32")))),
        "k_lens": draw(st.sampled_from((None, (37, 5), (0, 20)))),
        "seed": draw(st.integers(0, 9)),
    }
    fields |= draw(st.sampled_from(({}, {"H": 1, "Hkv": 1}, {"H": 3, "Hkv": 1}, {"Lk": 1}, {"Lq": 1, "Lk": 130})))
    if fields.get("Lk", 37) != 37:
        fields |= {"mask": None, "k_lens": None}
    elif fields.get("Lq", 9) != 9:
        fields["mask"] = None
    want = {"out", "lse"}
    if backward:
        want |= GRADIENTS | ({"dbias"} if fields["bias"] else set()) | ({"dsinks"} if fields["sinks"] else set())
    p = problem(**fields, want=want)
    compared(p, contract(draw(st.sampled_from(sorted(CONTRACTS))), p.case))


def test_what_was_found() -> None:
    """Dropped weights alone; one ulp of o in a bound of a few; and differences that are float64's roundings."""
    p = problem(dtype="float8_e4m3fn", family="all_negative_logits", dropout=1.0)
    compared(p, contract("eager", p.case))
    compared(problem(dtype="float64", family="constant_v", Lq=1, Lk=130))
    compared(problem(dtype="float64", family="far_below", score_mod="parabola"))
    compared(problem(dtype="bfloat16", family="constant_v", scale=-0.5, want=GRADIENTS))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("family", ["normal", "peaked", "large_logits", "ties", "one_hot_v", "sparse_q", "poisoned"])
def test_of_rotated_inputs(family: str, dtype: str) -> None:
    fields: dict[str, Any] = {"dtype": dtype, "family": family, "softcap": 5.0, "sinks": "normal", "k_lens": (37, 20)}
    compared(problem(rotary=Rotary(8, True), mask=Causal("bottom_right"), dropout=0.2, **fields))
    compared(problem(rotary=Rotary(16, False), score_mod="softsign", **fields))


def test_heads_of_which_some_are_rotated_alike() -> None:
    """One head's queries hold few sizes: its errors are dependent, the other's are not."""
    p = problem(dtype="float32", H=2, Hkv=1, rotary=Rotary(16, False))
    q = p.logical["q"].copy()
    q[0, 1] = 0.5
    p = replace(p, logical={**p.logical, "q": q})
    assert View(p, preset("float32")).independent.tolist() == [[True, False], [True, True]]
    compared(p)


@pytest.mark.parametrize("quant", [Quant("int8", "head"), Quant("int8", "block", of="qkv")])
def test_of_quantised_inputs(quant: Quant) -> None:
    compared(problem(dtype="bfloat16", D=32, Dv=32, quant=quant, mask=Causal("bottom_right")))


def test_it_is_hardly_sharper_where_no_scores_agree() -> None:
    for dtype in ("float64", "float32", "bfloat16"):
        narrow, full = compared(problem(dtype=dtype, Lq=40, Lk=150, D=64, mask=Causal("bottom_right"), family="normal"))
        for name, e in narrow.items():
            width = (e.hi - e.lo) / (full[name].hi - full[name].lo)
            assert np.median(width) > 0.92, (dtype, name)
        assert np.allclose(deviation(narrow), deviation(full), rtol=1e-6)


def deviation(e: dict[str, Expected]) -> Any:
    return e["out"].deviation


LONG: dict[str, Any] = {"B": 1, "H": 2, "Hkv": 1, "Lq": 70, "Lk": 300, "D": 16, "Dv": 8}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(
    "fields",
    [
        {"mask": Causal("bottom_right"), "sinks": "normal"},
        {"mask": Window(20, 3, "bottom_right"), "bias": BiasSpec("HQK"), "softcap": 2.0},
        {"mask": BlockSparse(("x.x", "...", "..x"), 25, 100), "score_mod": "softsign"},
        {"dropout": 0.3, "family": "far_below"},
        {"family": "huge_offset"},
    ],
)
def test_tile_by_tile(fields: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By tiles of 16 x 64 in threads as at once."""
    p = problem(**(LONG | {"dtype": dtype} | fields))
    at_once, full = compared(p)
    for name, value in {"HELD": 1 << 10, "THREADED": 0, "ROWS": 16, "KEYS": 64}.items():
        monkeypatch.setattr(lite, name, value)
    monkeypatch.setattr(quick, "TOGETHER", 0)
    by_tiles, _ = compared(p)
    for name, e in by_tiles.items():
        for mine, other in ((e.value, at_once[name].value), (e.lo, at_once[name].lo), (e.hi, at_once[name].hi)):
            assert np.allclose(mine, other, rtol=1e-6, atol=1e-9, equal_nan=True), name
    assert np.allclose(deviation(by_tiles), deviation(at_once), rtol=1e-6)


def test_threads_share_the_rows_and_pass_errors_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite, "_cores", lambda: 3)
    monkeypatch.setattr(lite, "THREADED", 0)
    monkeypatch.setattr(lite, "HELD", 1)
    monkeypatch.setattr(lite, "ROWS", 8)
    seen = set()
    bound = lite._Heads.bound

    def watched(self: Any, rows: slice) -> Any:
        seen.add(threading.get_ident())
        if next(calls) < 2:  # the first two meet
            gate.wait(10)
        return bound(self, rows)

    gate, calls = threading.Barrier(2), itertools.count()
    monkeypatch.setattr(lite._Heads, "bound", watched)
    p = problem(**(LONG | {"H": 1, "Lq": 64, "dtype": "float32"}))
    quick_truth(p, preset("float32"))
    assert len(seen) > 1 and threading.get_ident() not in seen
    monkeypatch.setattr(lite._Heads, "bound", lambda self, rows: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        quick_truth(p, preset("float32"))


def test_matrix_products_leave_threads_to_us_and_get_them_back() -> None:
    def threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    before = threads()
    with one_thread_each():
        with one_thread_each():
            pass
        assert threads() == {1}
    assert threads() == before


def test_memory_does_not_grow_with_the_scores() -> None:
    """1k x 16k: scores of one head would be 134 MB."""
    p = problem(**(LONG | {"H": 1, "Lq": 1024, "Lk": 16384, "dtype": "float32", "mask": Causal("top_left")}))
    tracemalloc.start()
    try:
        assert quick_truth(p, preset("float32"))["out"].narrow
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 60e6


def test_no_cheap_form_for_what_it_does_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    truncating = replace(preset("float32"), accumulate_rounding="truncate", source="a test")
    for fields, precision in (
        ({"rotary": Rotary(16, False), "want": {"dq"}}, None),
        ({"want": {"dq", "dscale"}}, None),
        ({"want": {"scores"}}, None),
        ({}, truncating),
        ({"want": {"dq"}}, truncating),
    ):
        p = problem(**({"dtype": "float32"} | fields))
        assert not any(e.narrow for e in quick_truth(p, precision or preset("float32")).values()), fields
    p = problem(dtype="float32", want={"out", "dq"})
    assert all(e.narrow for e in quick_truth(p, preset("float32")).values())
    monkeypatch.setattr(quick, "GROUP", 1)  # gradients of long heads
    assert not any(e.narrow for e in quick_truth(p, preset("float32")).values())


def test_the_full_form_decides_what_the_cheap_one_does_not_pass() -> None:
    """An answer between the two: narrow intervals exclude it, the verdict is still passed."""
    p = problem(dtype="float32", family="ties", want={"out"})
    contract = preset("float32")
    narrow, full = compared(p)
    assert (full["out"].hi > narrow["out"].hi).any()
    verdict = judge(p, {"out": full["out"].hi.astype(np.float32)}, contract, Conventions())
    assert verdict.status == "passed" and 0 < verdict.outputs[0].ratio <= 1
    hi = full["out"].hi
    beyond = (hi + np.abs(hi) / 50).astype(np.float32)
    assert judge(p, {"out": beyond}, contract, Conventions()).status == "failed"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_honest_kernels_of_long_rows_pass_it(dtype: str) -> None:
    """So that the full form, of ties by the thousand, is not asked."""
    p = problem(**(LONG | {"Lq": 8, "Lk": 8192, "D": 64, "dtype": dtype}))
    narrow = quick_truth(p, preset(dtype))
    x = p.logical
    got = streaming.attention(x["q"], x["k"], x["v"], precision=preset(dtype))
    for name, y in (("out", got.out), ("lse", got.lse)):
        y = y.astype(np.float64)
        assert ((narrow[name].lo <= y) & (y <= narrow[name].hi)).all(), name
