"""How often keys count, solved from a row: planted times are found again or not known, and other bugs tell none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.case import Case
from refattn.diagnose.dense import Inputs
from refattn.diagnose.model import Model
from refattn.dtypes import round_to
from refattn.inputs import make
from refattn.localise.key_changes import rows_of
from refattn.localise.participation import times_of_keys
from refattn.masks import Causal, Window
from refattn.precision import preset
from refattn.truth import truth

MASKS = (None, Causal("bottom_right"), Window(5, 2, "bottom_right"))


def case_of(keys: int, dtype: str, sinks: bool, mask: Any, seed: int) -> Case:
    return Case("x", "Planted.", H=2, Lq=7, Lk=keys, D=16, Dv=32, dtype=dtype, out_dtype=dtype, seed=seed, mask=mask,
                sinks="normal" if sinks else None, want=frozenset({"out", "lse"}))  # fmt: skip


def solved(case: Case, wrong: type[Model], with_lse: bool = True) -> tuple[np.ndarray[Any, Any], ...]:
    """Of head 1: the times found, and the truth's mask."""
    problem, contract = make(case), preset(case.dtype, case.out_dtype)
    y, e = wrong(Inputs(problem)).solve(case.want), truth(problem, contract)
    got, rows, seen = round_to(y["out"], case.out_dtype).astype(np.float64), np.arange(case.Lq), case.visibility.tile()
    inside = [(e[n].lo <= x) & (x <= e[n].hi) for n, x in (("out", got), ("lse", y["lse"]))]
    right = (inside[0].all(-1) & inside[1])[0, 1]
    with np.errstate(invalid="ignore"):
        sums = np.exp(y["lse"] - e["lse"].value)[0, 1] if with_lse else None
    found = times_of_keys(rows_of(problem, contract, 0, 1, rows, got, e["out"], seen), sums, right)
    return found, np.asarray(seen[0, 1]), right


def counting(times: np.ndarray[Any, Any]) -> type[Model]:
    class counted(Model):
        def visible(self) -> Any:
            return np.broadcast_to(times > 0, super().visible().shape)

        def hide(self, t: Any) -> Any:
            return super().hide(t + np.log(np.maximum(times, 1)))

    return counted


@settings(max_examples=60, deadline=None)
@given(
    keys=st.integers(3, 40), dtype=st.sampled_from(["float32", "float64", "float16"]), sinks=st.booleans(),
    mask=st.sampled_from(MASKS), with_lse=st.booleans(), seed=st.integers(0, 99),
    how=st.sampled_from([0, 2, 1]), begin=st.integers(0, 30), size=st.sampled_from([1, 2, 8, 16]),
)  # fmt: skip
def test_planted_times_are_found_or_not_known(
    keys: int, dtype: str, sinks: bool, mask: Any, with_lse: bool, seed: int, how: int, begin: int, size: int
) -> None:
    case = case_of(keys, dtype, sinks, mask, seed)
    planted = np.broadcast_to(case.visibility.tile(), (1, 2, 7, keys)).astype(np.float64)
    some = planted[..., begin : begin + size]
    some[...] = np.maximum(some, how) if how == 1 else some * how  # seen, left out, or twice
    found, _, _ = solved(case, counting(planted), with_lse or not sinks)  # up to a factor without both
    known = ~np.isnan(found)
    np.testing.assert_array_equal(found[known], planted[0, 1][known])


def test_most_keys_are_known() -> None:
    case = case_of(24, "float32", True, None, 0)
    planted = np.ones((1, 2, 7, 24))
    planted[..., 16:] = 0
    found, _, right = solved(case, counting(planted))
    assert not right.any() and np.isnan(found).mean() < 0.1


class hot(Model):
    def factor(self) -> float:
        return 1.2 * super().factor()


class turned(Model):
    def arrays(self) -> Any:
        x = super().arrays()
        return x | {"v": x["v"][..., ::-1]}


class noisy(Model):
    def told(self, y: Any) -> Any:
        return y | {"out": y["out"] + 0.1 * np.random.default_rng(0).standard_normal(y["out"].shape)}


class larger(Model):
    def told(self, y: Any) -> Any:
        return y | {"out": 1.3 * y["out"]}


@pytest.mark.parametrize("wrong", [hot, turned, noisy, larger])
@pytest.mark.parametrize("keys", [9, 24, 60])
def test_other_bugs_tell_no_times(wrong: type[Model], keys: int) -> None:
    found, _, right = solved(case_of(keys, "float32", True, None, 3), wrong)
    assert not right.any() and np.isnan(found).all()
