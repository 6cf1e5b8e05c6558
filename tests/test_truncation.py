"""Accumulators that truncate: honest kernels stay within the declared bound, others do not, and it is not idle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn import honest
from refattn.case import Case
from refattn.cases import by_id
from refattn.honest import Trial, ratios_of
from refattn.inputs import FAMILIES, make
from refattn.precision import Precision, preset
from refattn.streaming import Rules, Schedule
from refattn.truth import truth
from tests.honest_sums import Summed, TruncatedEach, TruncatedEight

Array = np.ndarray[Any, Any]


class FewerBits(Summed):
    """Not honest: sums of eight products truncated to 18 bits of 24."""

    def matmul(self, w: Array, x: Array) -> Array:
        y = np.zeros((len(w), x.shape[1]))
        for n in range(0, len(x), 8):
            m, e = np.frexp(y + w[:, n : n + 8].astype(np.float64) @ x[n : n + 8])
            y = np.ldexp(np.trunc(np.ldexp(m, 18)), e - 18)
        return y.astype(w.dtype)


def contract(dtype: str, rounding: Any = "truncate", **changes: Any) -> Precision:
    return replace(preset(dtype, "float32"), accumulate_rounding=rounding, **changes)


def trial(dtype: str, family: str, precision: Precision, **sizes: int) -> Trial:
    names = frozenset({"out", "lse", "dq", "dk", "dv"})
    case = Case(
        "long", "sums of many terms", dtype=dtype, out_dtype="float32", family=family, want=names,
        **({"Lq": 16, "Lk": 900, "D": 64, "Dv": 32} | sizes),
    )  # fmt: skip
    return Trial(make(case), "", precision, Schedule(64, 64))


def ratios(trial: Trial, rules: type[Rules]) -> dict[str, float]:
    """The largest ratio of each output."""
    with np.errstate(all="ignore"):
        got = honest.answer(trial, rules)
    return {name: r.sharp for name, r in ratios_of(got, truth(trial.problem, trial.precision)).items()}


@settings(max_examples=60)
@given(
    st.integers(0, 2**32), st.sampled_from(["float32", "float16", "bfloat16", "float8_e4m3fn"]),
    st.sampled_from([Rules, TruncatedEight, TruncatedEach]),
)  # fmt: skip
def test_honest_kernels_pass(seed: int, dtype: str, rules: type[Rules]) -> None:
    """All features, families and contracts."""
    drawn = honest.draw(np.random.default_rng(seed), dtype)
    drawn = replace(drawn, precision=replace(drawn.precision, accumulate_rounding="truncate"))
    with np.errstate(all="ignore"):
        got = honest.answer(drawn, rules)
    for name, r in ratios_of(got, truth(drawn.problem, drawn.precision)).items():
        assert r.sharp <= 1 and r.rigorous <= 1, (name, r)


@pytest.mark.parametrize("family", sorted(f for f in FAMILIES if not f.startswith(("poisoned", "finite"))))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_sums_pass(dtype: str, family: str) -> None:
    """Nothing but the accumulators is rounded below float32: the drift decides."""
    t = trial(dtype, family, contract(dtype, weights=None))
    for name, ratio in ratios(t, TruncatedEach).items():
        assert ratio <= 1, name


LSE = [("huge_offset", "lse"), ("rising", "lse"), ("outliers", "lse"), ("falling", "dv")]


@pytest.mark.parametrize(("family", "name"), LSE)
def test_fewer_bits_fail(family: str, name: str) -> None:
    assert not ratios(trial("float32", family, contract("float32"), Lk=1500), FewerBits)[name] <= 1


@pytest.mark.parametrize("family", ["outliers", "falling"])
def test_it_must_be_declared(family: str) -> None:
    """Each output has a drift, beyond the sharp bound of rounding to nearest, and within its own by not much."""
    t = trial("float32", family, contract("float32"), D=256, Dv=256, Lk=300)
    declared, usual = (ratios(x, TruncatedEach) for x in (t, replace(t, precision=contract("float32", "nearest"))))
    assert all(1 < usual[name] < 100 * declared[name] <= 100 for name in t.problem.case.want)


def test_eight_at_a_time_may_want_it_too() -> None:
    t = trial("bfloat16", "huge_offset", contract("bfloat16", "nearest"), D=128, Dv=128)
    assert ratios(t, TruncatedEight)["lse"] > 1 >= ratios(replace(t, precision=contract("bfloat16")), Rules)["lse"]


@pytest.mark.parametrize("id", ["offset-bf16", "grad-bias-padding-bf16", "dscale-gqa-f16", "normal-e4m3"])
def test_it_is_looser(id: str) -> None:
    case = by_id(id)
    usual = preset(case.dtype, case.out_dtype)
    declared = replace(usual, accumulate_rounding="truncate")
    near, far = (truth(make(case), precision) for precision in (usual, declared))
    for name, e in near.items():
        for one, other in ((far[name].lo, e.lo), (far[name].rigorous_lo, e.rigorous_lo)):
            assert (one <= other)[~e.ignored].all(), name
        for one, other in ((far[name].hi, e.hi), (far[name].rigorous_hi, e.rigorous_hi)):
            assert (one >= other)[~e.ignored].all(), name
    assert declared.looser_than(usual) == {"accumulate_rounding": "truncate"} and not usual.looser_than(declared)
