"""`refattn.flash` through the suite: cases and laws, the oracle's float64, narrower vectors, and what it refuses."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apriori import bounds, random_problem, worst_ratio
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'refattn[cpu]'")

from refattn import flash, laws, oracle
from refattn.case import BiasSpec, Cache, Case, Paged
from refattn.cases import CASES, FULL
from refattn.conform import run
from refattn.flash.implementation import attention
from refattn.judge import Verdict
from refattn.masks import Causal, Dilated, Visibility, Window
from refattn.precision import Precision, preset
from refattn.quantise import Quant
from refattn.rotary import Rotary

WEEK = datetime.date.today().isocalendar()[1]
ABLE = [case for case in CASES if case.chapter not in FULL and attention.supports(case) is None]
EACH = 4
"""one case of so many is tried here, other ones each week; `refattn check` tries all"""
SHORT = [base for base in laws.BASES if base.chapter != "long" and attention.supports(base) is None]
LAWS = laws.rows(None, SHORT)
OPTIONS = ("mask", "bias", "scale", "softcap", "sinks")


def sample(cases: Any, part: int = EACH) -> list[Case]:
    return list(cases)[WEEK % part :: part]


def check(cases: list[Case]) -> list[Verdict]:
    verdicts = run(attention, cases).verdicts
    assert [v.case.id for v in verdicts] == [case.id for case in cases]
    failed = [v for v in verdicts if v.status not in ("passed", "unsupported")]
    assert not failed, [(v.case.id, v.status, v.reasons, v.outputs) for v in failed]
    return verdicts


@pytest.mark.parametrize("chapter", dict.fromkeys(case.chapter for case in ABLE))
def test_cases(chapter: str) -> None:
    verdicts = check(sample(case for case in ABLE if case.chapter == chapter))
    assert all(v.status == "passed" for v in verdicts)
    assert all(v.loosened.keys() <= {"flush_subnormal"} for v in verdicts)  # by an instruction for bfloat16


def test_most_cases_are_supported() -> None:
    assert len(ABLE) > 500
    assert {case.dtype for case in ABLE} == {"float64", "float32", "float16", "bfloat16"}
    assert {type(case.storage).__name__ for case in ABLE} == {"Dense", "Strided", "Shared", "Packed", "Paged", "Cache"}


@pytest.mark.parametrize("law", dict.fromkeys(row.chapter for row in LAWS))
def test_laws(law: str) -> None:
    check(sample((row for row in LAWS if row.chapter == law), 8))


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=300)
def test_float64_equals_the_oracle(seed: int) -> None:
    x = random_problem(seed) | dict.fromkeys(("score_mod", "dropout", "keep"))
    got, expected, bound = solve(flash, x), solve(oracle, x), bounds(x)
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].shape == expected[name].shape and got[name].dtype == np.float64, name
        assert worst_ratio(got[name], expected[name], bound[name]) <= 1, name


def solve(module: Any, x: dict[str, Any]) -> dict[str, Any]:
    options = {name: x[name] for name in OPTIONS}
    found = module.attention(x["q"], x["k"], x["v"], **options)._asdict()
    found |= module.attention_grad(x["q"], x["k"], x["v"], x["dout"], x["dlse"], **options)._asdict()
    return {name: y for name, y in found.items() if y is not None}


def test_float64_can_fail() -> None:
    x = next(x for x in map(random_problem, itertools.count()) if x["q"].size and x["k"].shape[2] > 3)
    x |= dict.fromkeys(("score_mod", "dropout", "keep"))
    out = solve(oracle, x)["out"]
    assert worst_ratio(out * (1 + 1e-11), out, bounds(x)["out"]) > 1


def test_nothing_is_rounded_to_float16_on_the_way() -> None:
    """The contract that is declared is narrower than the dtype's preset."""
    contract = attention.precision(Case("x", "narrow", dtype="float16"))
    assert contract == Precision("float16", "float16") and preset("float16").looser_than(contract)


SMALL = Case("small", "an example", B=2, H=2, Hkv=1, Lq=3, Lk=5, D=32, Dv=32)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"score_mod": "parabola"}, "score_mod"),
        ({"dropout": 0.5}, "dropout"),
        ({"rotary": Rotary(4, False)}, "rotary"),
        ({"quant": Quant("int8", "head")}, "quant"),
        ({"dtype": "bfloat16", "out_dtype": "float32"}, "out_dtype=float32"),
        ({"want": {"out", "weights", "scores"}}, "returns no scores weights"),
        ({"want": {"out", "k_cache"}, "storage": Cache(), "Lk": 7}, "returns no k_cache"),
        ({"storage": Paged(2), "k_lens": (5, 2)}, None),
        ({"bias": BiasSpec("HK", "float64"), "want": {"dbias"}}, None),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, dict) else str(x),
)
def test_what_is_refused(changes: dict[str, Any], reason: str | None) -> None:
    assert attention.supports(replace(SMALL, **changes)) == reason


@pytest.mark.parametrize("name", ["score_mod", "dropout", "keep"])
def test_what_the_functions_have_not_is_refused_by_name(name: str) -> None:
    x = np.zeros((1, 1, 2, 4))
    for function, arrays in ((flash.attention, (x, x, x)), (flash.attention_grad, (x, x, x, x))):
        with pytest.raises(TypeError, match=name):
            function(*arrays, **{name: None})


WIDE = {"B": 1, "H": 2, "Hkv": 1, "Lq": 75, "Lk": 141, "D": 20, "Dv": 7, "family": "peaked"}
EVERY = frozenset({"out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dscale", "dsoftcap"})
WIDTHS = [
    Case("plain", "products", want=EVERY - {"dbias", "dsinks", "dsoftcap"}, **WIDE),
    Case("causal", "tiles that are hidden in part", mask=Causal("bottom_right"), **WIDE),
    Case("bits", "no intervals", mask=Dilated(9, 3, "bottom_right"), scale=-0.3, **WIDE),
    Case(
        "all", "every option", mask=Window(50, 3, "top_left"), softcap=3.0, bias=BiasSpec("HQK"), sinks="normal",
        want=EVERY, **WIDE,
    ),
    *sample((case for case in ABLE if not case.backward and case.chapter in ("shapes", "masks", "scores")), 20),
]  # fmt: skip
CHILD = """
import json, sys
from refattn.case import Case
from refattn.conform import run
from refattn.flash import vectors
from refattn.flash.implementation import attention

cases = [Case.from_json(case) for case in json.load(sys.stdin)]
failed = [(v.case.id, v.status, v.reasons, v.outputs) for v in run(attention, cases).verdicts if v.status != "passed"]
print(vectors.BITS, len(cases), *failed)
"""


def test_geometry_that_is_kept_is_that_of_the_mask() -> None:
    """Calls that differ in one thing, thrice in turn: a mask, a length, the heads, the shape, whether rows see keys."""
    rng = np.random.default_rng(7)
    masks = (None, Causal("top_left"), Causal("bottom_right"), Window(1, 0, "top_left"), Window(0, 1, "top_left"))
    calls = []
    for B, H, Lq, Lk in ((1, 2, 20, 30), (2, 1, 20, 30), (1, 2, 30, 20)):
        q, k, v = (rng.standard_normal((B, H, n, 8)) for n in (Lq, Lk, Lk))
        for mask, lens in itertools.product(masks, (None, (7,) * B, (0,) * B)):
            calls.append((q, k, v, Visibility(mask, B, H, Lq, Lk, k_lens=lens)))
    for _ in range(3):
        for q, k, v, seen in calls:
            wanted = oracle.attention(q, k, v, mask=seen)
            got = flash.attention(q, k, v, mask=seen)
            np.testing.assert_allclose(got.out, wanted.out, rtol=0, atol=1e-12)


def dtype_of(bits: int) -> str:
    """Each width in one of the two dtypes, the other one next week: each is compiled anew."""
    return ("float32", "float64")[(bits // 128 + WEEK) % 2]


@pytest.mark.parametrize("bits", [128, 256])
def test_narrower_vectors(bits: int) -> None:
    dtype = dtype_of(bits)
    cases = [replace(case, dtype=dtype, out_dtype=dtype).to_json() for case in WIDTHS]
    assert in_child(CHILD, json.dumps(cases), REFATTN_FLASH_BITS=str(bits)) == f"{bits} {len(cases)}\n"


def in_child(code: str, text: str = "", **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, cwd=Path(__file__).parent.parent,
        env=os.environ | environment, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
