"""The truth under conventions, where memory does not exist, and where inputs are not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn import attention, attention_grad, oracle, streaming
from refattn.case import BiasSpec, Case
from refattn.inputs import Problem, make
from refattn.masks import Causal, Dense, Padding
from refattn.precision import Conventions, preset
from refattn.truth import solver, truth

EMPTY_ROW = Dense(("xx.x", "....", "x..."))


def problem(**fields: Any) -> Problem:
    sizes = {"B": 2, "H": 2, "Hkv": 1, "Lq": 3, "Lk": 4, "D": 8, "Dv": 5}
    return make(Case("t", "a test", **(sizes | fields)))


def solved(p: Problem, **conventions: Any) -> Any:
    return truth(p, preset(p.case.dtype, p.case.out_dtype), Conventions(**conventions))


def test_values_are_the_oracles() -> None:
    want = {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dscale", "dsoftcap"}
    p = problem(mask=Causal("bottom_right"), bias=BiasSpec("HK"), sinks="normal", softcap=2.0, want=want)
    x, options = p.logical, {"mask": p.case.mask, "softcap": 2.0}
    options |= {"bias": x_bias} if (x_bias := x["bias"]) is not None else {}
    out = attention(x["q"], x["k"], x["v"], sinks=x["sinks"], **options)
    grad = attention_grad(x["q"], x["k"], x["v"], x["dout"], x["dlse"], sinks=x["sinks"], **options)
    e = solved(p)
    for name, value in (out._asdict() | grad._asdict()).items():
        assert np.array_equal(e[name].value, value), name


def test_values_beyond_the_dense_size_come_from_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(dtype="float64", Lq=20, Lk=33, mask=Causal("bottom_right"), want={"out", "lse", "dq", "dk", "dv"})
    dense = solved(p)
    monkeypatch.setattr(solver, "DENSE", 0)
    monkeypatch.setattr(oracle, "attention", None)  # it would raise
    for name, e in solved(p).items():
        inside = (dense[name].rigorous_lo <= e.value) & (e.value <= dense[name].rigorous_hi)
        assert inside.all(), name
        assert np.abs(e.value - dense[name].value).max() <= 1e-13 * (1 + np.abs(e.value).max()), name


def test_empty_rows() -> None:
    p = problem(mask=EMPTY_ROW, want={"out", "lse", "dq", "dv"})
    zero = solved(p)
    assert (zero["out"].lo[:, :, 1] == 0).all() and (zero["out"].hi[:, :, 1] == 0).all()
    assert np.isneginf(zero["lse"].hi[:, :, 1]).all() and (zero["dq"].hi[:, :, 1] == 0).all()
    nan = solved(p, empty_rows="nan", empty_lse="nan")
    assert np.isnan(nan["out"].lo[:, :, 1]).all() and nan["out"].nonfinite[:, :, 1].all()
    assert not nan["out"].nonfinite[:, :, 0].any()
    assert nan["dv"].ignored.all()  # gradients of such a case are not judged
    mean = solved(p, empty_rows="mean_all", empty_lse="any")
    v = np.asarray(p.logical["v"], dtype=np.float64)
    assert np.allclose(mean["out"].value[:, 0, 1], v[:, 0].mean(1), rtol=1e-12)
    assert (mean["out"].lo <= mean["out"].value + 1e-6).all() and (mean["out"].hi > mean["out"].lo)[:, :, 1].any()
    assert mean["lse"].ignored[:, :, 1].all() and not mean["lse"].ignored[:, :, 0].any()
    assert np.isposinf(solved(p, empty_lse="+inf")["lse"].lo[:, :, 1]).all()


def test_lse_in_base_2_and_without_sinks() -> None:
    p = problem(sinks="normal")
    e, two, bare = solved(p), solved(p, lse_base="2"), solved(p, lse_sinks="excluded")
    assert np.allclose(two["lse"].value * np.log(2), e["lse"].value, rtol=1e-12)
    assert (two["lse"].lo < two["lse"].value).all() and (two["lse"].value < two["lse"].hi).all()
    x = p.logical
    assert np.array_equal(bare["lse"].value, attention(x["q"], x["k"], x["v"]).lse)
    assert np.array_equal(bare["out"].value, e["out"].value)


def test_what_leaks_is_the_poisoned_row_and_column_only() -> None:
    p = problem(mask=Padding((3, 4)), want={"out"})
    v = p.logical["v"].copy()
    v[0, 0, 3, 2] = np.nan  # hidden from batch entry 0
    p = replace(p, logical={**p.logical, "v": v})
    hidden, leaks = solved(p)["out"], solved(p, masked_nan_v="leaks")["out"]
    assert np.isfinite(hidden.value).all() and not hidden.nonfinite.any()
    assert leaks.nonfinite[0, :, :, 2].all() and leaks.nonfinite.sum() == 2 * 3
    assert np.array_equal(leaks.lo, hidden.lo)


def test_a_visible_infinity_frees_the_rows_that_see_it() -> None:
    p = problem(mask=EMPTY_ROW, want={"out", "lse", "dq", "dk", "dv"}, Hkv=2)
    v = p.logical["v"].copy()
    v[1, 0, 1, 4] = np.inf  # row 0 alone sees key 1
    e = solved(replace(p, logical={**p.logical, "v": v}))
    assert e["out"].nonfinite.sum() == 1 and e["out"].nonfinite[1, 0, 0, 4]
    assert not e["lse"].nonfinite.any()
    assert e["dq"].nonfinite[1, 0, 0].all() and e["dq"].nonfinite.sum() == 8
    assert not e["dv"].nonfinite.any()
    clean = solved(p)
    assert np.array_equal(e["out"].lo[0], clean["out"].lo[0])


def test_memory_that_does_not_exist_is_not_judged() -> None:
    want = {"out", "lse", "dq", "dk", "dv", "dbias"}
    e = solved(problem(q_lens=(2, 3), k_lens=(4, 1), bias=BiasSpec("BHQK"), want=want))
    assert e["out"].ignored[0, :, 2].all() and e["out"].ignored.sum() == 2 * 5
    assert e["lse"].ignored.sum() == 2 and e["dq"].ignored.sum() == 2 * 8
    assert e["dk"].ignored[1, :, 1:].all() and e["dk"].ignored.sum() == 3 * 8
    assert e["dbias"].ignored.sum() == 2 * (4 + 3 * 3)


@pytest.mark.parametrize("numba", [True, False])
def test_who_solves_the_largest_cases(numba: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = object()
    monkeypatch.setattr(solver, "_flash", lambda: compiled if numba else None)
    sizes = {"B": 1, "H": 1, "Hkv": 1, "D": 8, "Dv": 8}
    of = lambda **fields: solver._solver(Case("t", "a test", **(sizes | {"Lq": 1 << 15, "Lk": 1 << 15} | fields)))  # noqa: E731
    assert of() is (compiled if numba else streaming)
    assert of(dropout=0.5) is of(score_mod="relative") is of(Lq=1 << 10) is streaming
    assert of(Lq=1 << 5) is oracle
