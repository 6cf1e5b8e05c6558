"""Scores so large that their rounding errors decide which key leads: what is judged all the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn import streaming
from refattn.case import Case
from refattn.dtypes import FORMATS, round_to
from refattn.inputs import Problem
from refattn.judge import judge
from refattn.masks import Causal
from refattn.precision import Conventions, preset
from refattn.tolerance.leading import leading

Array = np.ndarray[Any, Any]
SIZES: dict[str, Any] = {"B": 1, "H": 2, "Hkv": 2, "Lq": 24, "Lk": 24, "D": 16, "Dv": 8, "want": frozenset({"out"})}


def problem(dtype: str, factor: float, mask: Causal | None, sinks: bool) -> Problem:
    rng = np.random.default_rng(7)
    case = Case("large", "large scores", dtype=dtype, mask=mask, sinks="normal" if sinks else None, **SIZES)
    kind = FORMATS[dtype]
    q, k, v = (rng.standard_normal(case.shape_of(n)) for n in "qkv")
    arrays = {"q": q * factor, "k": k * min(factor, 1000.0), "v": v, "sinks": 3 * factor * rng.standard_normal(2)}
    names = "qkv" if not sinks else ("q", "k", "v", "sinks")
    return Problem(case, {n: round_to(arrays[n], dtype).astype(kind.numpy) for n in names})


def solved(x: Problem, factor: float = 1.0) -> Array:
    """By the honest kernel, with scores `factor` times as large."""
    case = x.case
    scale = factor * case.D**-0.5
    given = [x.logical[n] for n in "qkv"]
    sinks = x.logical.get("sinks")
    out = streaming.attention(*given, mask=case.mask, scale=scale, sinks=sinks, precision=preset(case.dtype)).out
    return np.asarray(out)


def status(x: Problem, out: Array) -> str:
    return judge(x, {"out": out}, preset(x.case.dtype), Conventions(), outputs=frozenset({"out"})).status


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("factor", [300.0, 1e3, 3e3, 1e6, 1e9])
@pytest.mark.parametrize("mask", [None, Causal("top_left")], ids=["all", "causal"])
@pytest.mark.parametrize("sinks", [False, True], ids=["plain", "sinks"])
def test_the_key_that_leads_is_judged(dtype: str, factor: float, mask: Causal | None, sinks: bool) -> None:
    if dtype == "float16" and factor > 3e3:
        pytest.skip("beyond float16")
    x = problem(dtype, factor, mask, sinks)
    assert status(x, solved(x)) == "passed"
    assert status(x, solved(x, 1e-3 / factor**2)) == "failed"
    out = solved(x)
    out[0, 0, 0] = out[0, 0, 1:].astype(np.float64).mean(0).astype(out.dtype)  # of values that row 0 may not see
    assert status(x, out) == "failed"


def test_by_hand() -> None:
    """Two keys may lead, 3 +- 2 and 4 +- 1; the third weighs at most exp(1 - 3)."""
    t, error, v = np.array([[3.0, 4.0, 0.0]]), np.array([[2.0, 1.0, 1.0]]), np.array([[1.0], [2.0], [10.0]])
    away, size = leading(t, error, np.ones((1, 3), bool), v, np.array([[1.5]]), None)
    rest = np.exp(-2)
    np.testing.assert_allclose((away, size), ([[0.5 + rest * 12]], [[2 + rest * 10]]))
    hidden, _ = leading(t, error, np.array([[True, True, False]]), v, np.array([[1.5]]), None)
    np.testing.assert_allclose(hidden, [[0.5]])
    sunk, _ = leading(t, error, np.array([[True, True, False]]), v, np.array([[1.5]]), 2.0)
    np.testing.assert_allclose(sunk, [[1.5]])
