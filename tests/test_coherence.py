"""Bounds of the variants on inputs whose rows, keys, heads or levels repeat, so that errors add coherently.

The honest kernel under every contract and schedule; sums over all pairs (dscale, dsoftcap) most of all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.dtypes import FORMATS, round_to
from refattn.honest import Trial, answer, ratios_of
from refattn.inputs import Problem, make
from refattn.inputs.transforms import rotated
from refattn.precision import Precision, eager, preset
from refattn.rotary import Rotary
from refattn.streaming import Schedule
from refattn.truth import truth

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


def _levels(x: Arrays, rng: np.random.Generator) -> None:
    """Three distinct keys, values that depend on which."""
    level = rng.integers(0, 3, x["k"].shape[:3])
    x["k"][:] = np.take(x["k"][0, 0, :3], level, axis=0)
    x["v"][:] = np.where(level[..., None] == 1, 1.0, -0.37)
    x["q"][:] = x["q"][:, :, :1]


def _signs(x: Arrays, rng: np.random.Generator) -> None:
    x["q"][:] = 8 * np.sign(x["q"].astype(np.float64))
    x["v"][:] = 1 / 3


def _same(names: str, axis: int) -> Callable[[Arrays, np.random.Generator], None]:
    def repeat(x: Arrays, rng: np.random.Generator) -> None:
        for name in names.split():
            x[name][:] = np.take(x[name], [0], axis)

    return repeat


STRUCTURES = {
    "equal rows": _same("q dout", 2),
    "equal heads": _same("q k v dout", 1),
    "equal keys": _same("k", 2),
    "one coordinate": _same("q k", 3),
    "levels": _levels,
    "signs": _signs,
}
DTYPES = ("float32", "bfloat16", "float16", "float64")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_structured_inputs_with_variants(structure: str) -> None:
    rng = np.random.default_rng(sorted(STRUCTURES).index(structure))
    for n in range(32):
        dtype, softcap, dropout = DTYPES[n % 4], (None, 5.0)[n // 4 % 2], (None, 0.3)[n // 8 % 2]
        want = {"out", "lse", "dq", "dk", "dv", "dscale"} | ({"dsoftcap"} if softcap else set())
        case = Case(
            "t", "a test", H=2, Hkv=2, Lq=int(rng.choice([8, 40])), Lk=int(rng.choice([7, 64])),
            D=int(rng.choice([4, 16])), Dv=5, dtype=dtype, softcap=softcap, dropout=dropout, want=frozenset(want),
            score_mod=(None, "tilt", "softsign", "parabola")[int(rng.integers(4))], seed=n,
        )  # fmt: skip
        made = make(case)
        x = {name: np.array(array) for name, array in made.logical.items()}
        STRUCTURES[structure](x, rng)
        problem = Problem(case, x)
        contract = _contract(dtype, n)
        tile, splits = int(rng.choice([16, 48])), int(rng.choice([1, 2]))
        schedule = Schedule(16, tile, splits=splits, exp="exp2" if n % 2 else "exp")
        got = answer(Trial(problem, "", contract, schedule))
        for name, r in ratios_of(got, truth(problem, contract)).items():
            assert r.sharp <= 1 and r.rigorous <= 1, f"{name} {r} {case}"


def _contract(dtype: str, n: int) -> Precision:
    usual = preset(dtype)
    changes: list[dict[str, Any]] = [{}, {"sum_rounded_weights": True}, {"weights": None}, {"scaled_q": dtype}]
    return replace(usual, **changes[n // 4 % 4]) if FORMATS[dtype].bits in (8, 11) else usual


def test_copies_of_a_head_err_alike_in_sums_over_heads() -> None:
    rng = np.random.default_rng(58)
    shape = (16, 64, 16, 16)
    case = Case(
        "t", "a test", B=16, H=64, Hkv=64, Lq=16, Lk=16, D=16, Dv=16, dtype="bfloat16", softcap=5.0,
        want=frozenset({"dscale", "dsoftcap"}),
    )  # fmt: skip
    x = {n: round_to(np.broadcast_to(rng.standard_normal((1, 1, 16, 16)), shape), "bfloat16") for n in ("q", "k", "v")}
    x["dout"] = x["q"][..., ::-1]
    problem = Problem(case, {n: a.astype(FORMATS["bfloat16"].dtype) for n, a in x.items()})
    contract = preset("bfloat16")
    got = answer(Trial(problem, "", contract, Schedule()))
    for name, r in ratios_of(got, truth(problem, contract)).items():
        assert r.sharp <= 1, f"{name} {r}"


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16"))
def test_rotated_inputs_that_repeat(dtype: str) -> None:
    """Among them values chosen by the sign of the error that rounding a rotated key makes."""
    rng = np.random.default_rng(7)
    for n in range(24):
        case = Case(
            "t", "a test", H=2, Hkv=2, Lq=8, Lk=33, D=16, Dv=4, dtype=dtype, seed=n, family=("normal", "ties")[n % 2],
            rotary=Rotary((16, 8)[n // 2 % 2], n % 3 == 0, (1e2, 1e6)[n // 4 % 2]),
        )  # fmt: skip
        made = make(case)
        x = {name: np.array(made.stored.get(name, made.logical[name])) for name in made.logical}
        if n % 4 == 1:
            x["k"][:] = x["k"][:, :, :1]
        elif n % 4 == 2:
            x["k"][:] = np.abs(x["k"][..., :1])
        elif n % 4 == 3:
            turned = dict(x)
            rotated(case, turned)
            exact = turned["k"][..., 0]
            x["v"][:] = np.sign(exact - round_to(exact, dtype))[..., None]
        logical = dict(x)
        problem = Problem(case, logical, rotated(case, logical))
        contract, schedule = preset(dtype), Schedule(4, int(rng.choice([16, 17])))
        got = answer(Trial(problem, "", contract, schedule))
        for name, r in ratios_of(got, truth(problem, contract)).items():
            assert r.sharp <= 1 and r.rigorous <= 1, f"{name} {r} {case}"


def test_one_minus_dropout_may_be_had_in_float32() -> None:
    for x in np.linspace(1, 2, 50, dtype=np.float32):
        one = {name: np.full((1, 1, 1, 1), x) for name in "qkv"}
        problem = Problem(Case("t", "a test", D=1, Dv=1, dropout=0.99), {**one, "keep": np.ones((1, 1, 1, 1), bool)})
        e = truth(problem, preset("float32"))["out"]
        assert e.lo <= x / (np.float32(1) - np.float32(0.99)) <= e.hi


def test_eager_scores_stored_low_enter_dscale() -> None:
    case = Case("t", "a test", Lq=1, Lk=2, D=1, Dv=1, dtype="float16", scale=1.0, want=frozenset({"dscale"}))
    q, k, v = (np.array(x, np.float16).reshape(1, 1, -1, 1) for x in ([1e-4], [3e-4, -2e-4], [1, -1]))
    problem = Problem(case, {"q": q, "k": k, "v": v, "dout": np.ones((1, 1, 1, 1), np.float16)})
    x = (q[0, 0].astype(np.float32) @ k[0, 0].astype(np.float32).T).astype(np.float16).astype(np.float32)
    P = np.exp(x - x.max())
    P /= P.sum()
    dP = v[0, 0].astype(np.float32).T
    e = truth(problem, eager("float16"))["dscale"]
    assert e.lo <= (P * (dP - (P * dP).sum()) * x).sum() <= e.hi
