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
from refattn.dtypes import FORMATS
from refattn.honest import Trial, answer, ratios_of
from refattn.inputs import Problem, make
from refattn.precision import Precision, preset
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
