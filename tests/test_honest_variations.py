"""Honest kernels pass: a rotating sample of tests/honest_variations.py, and what shows that it can fail."""

from __future__ import annotations

import datetime
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.cases import by_id
from refattn.dtypes import FORMATS
from refattn.inputs import make
from refattn.streaming import Rules, Schedule
from refattn.streaming.rules import toward_zero
from tests import honest_variations
from tests.honest_rules import Lazy
from tests.honest_variations import ORDER, VARIATIONS, Kernel, Variation, bounds, judged, lines_of, scores_of, summary

RESULT = json.loads((Path(__file__).parent.parent / "docs" / "honest.json").read_text())
ALARMS = {(name, alarm.split(" ")[0]) for name, row in RESULT["rows"].items() for alarm in row["alarms"]}
WEEK = datetime.date.today().isocalendar()[:2]
SMALL = [case for case in ORDER if 100 < scores_of(case) <= 4000]
BY_NAME = {variation.name: variation for variation in VARIATIONS}


def sample() -> list[Case]:
    """Other ones each week, the same ones in all processes of a run."""
    return random.Random(f"{WEEK}").sample(SMALL, 40)


@pytest.mark.parametrize("case", sample(), ids=lambda case: case.id)
def test_no_alarm(case: Case) -> None:
    able = [v for v in VARIATIONS if v.applies(case) and (v.name, case.id) not in ALARMS]
    chosen = random.Random(f"{WEEK} {case.id}").sample(able, 5)
    for line in lines_of(case, chosen):
        assert line["status"] == "passed", line


def answers(variation: Variation, case: Case) -> dict[str, Any]:
    kernel = Kernel(rules=variation.rules, schedule=variation.schedule, variation=variation)
    with np.errstate(all="ignore"):
        return kernel(case, make(case).fresh())


DIFFERENT = (
    "paged-64-f32", "grad-bias-padding-bf16", "dscale-gqa-f16", "offset-e4m3", "rotary-base-1e6-bf16",
    "int8-out-f32-bf16", "dropout-softcap-grad-bf16", "biased-prefix-f16", "blocks-x-decode-f16",
    "some-rows-masked-bf16", "cache-decode-bf16", "first-x-k-lens-f16", "scores-softcap-bias-causal-f32",
    "longformer-k-lens-grad-f32", "q8-f16",
)  # fmt: skip


@pytest.mark.parametrize("name", [v.name for v in VARIATIONS if v.name != "whole"])
def test_a_variation_varies(name: str) -> None:
    """It gives other bits than the plain kernel: one that does not would be no variation."""
    variation, plain = BY_NAME[name], BY_NAME["whole"]
    for id in DIFFERENT:
        case = by_id(id)
        if variation.applies(case):
            one, other = answers(variation, case), answers(plain, case)
            if any(not np.array_equal(one[n].astype(float), other[n].astype(float), equal_nan=True) for n in one):
                return
    pytest.fail(f"{name} gives the bits of the plain kernel in all of {DIFFERENT}")


def test_there_are_enough() -> None:
    assert len(VARIATIONS) == len(BY_NAME) >= 50
    for variation in VARIATIONS:
        cases = [case for case in ORDER if variation.applies(case)]
        assert len(cases) >= 20, variation.name
        contracts = {case.dtype: variation.contract(case) for case in cases}
        assert all(bool(c.source) == bool(variation.changes) for c in contracts.values())


class Coarser(Rules):
    """Not honest: weights of 3 bits under a contract of 8 or 11."""

    def round(self, x: Any, name: str | None) -> Any:
        return super().round(x, "float8_e5m2" if name and name == self.precision.weights else name)


class HighByTwelve(Rules):
    """Not honest: every other exp 12 u too large."""

    def exp(self, x: Any, shift: Any) -> Any:
        y = super().exp(x, shift)
        return np.where(np.arange(y.size).reshape(y.shape) % 2, y, y * y.dtype.type(1 + 2.0**-13))


class StuckMaximum(Lazy):
    """Not honest: the maximum lags without limit."""

    behind = 1e9


@pytest.mark.parametrize(
    "variation, id",
    [
        (Variation("coarser", "", Coarser), "grad-bias-padding-bf16"),
        (Variation("coarser", "", Coarser), "dscale-gqa-f16"),
        (Variation("high", "", HighByTwelve), "paged-64-f32"),
        (Variation("stuck", "", StuckMaximum, Schedule(64, 16)), "shared-same-f16"),
        (replace(BY_NAME["exp_cubic"], changes=(), dtypes=("float32",)), "paged-64-f32"),
        (replace(BY_NAME["eager"], changes=(("weights", None),)), "dscale-gqa-f16"),
    ],
)
def test_what_is_not_honest_fails(variation: Variation, id: str) -> None:
    kernel = variation
    if variation.name == "eager":  # computes as an eager kernel does, and declares float32 weights
        class Eager(Rules):
            def contract(self, precision: Any) -> Any:
                return replace(precision, scores="float16", weights="float16", weights_normalised=True)

        kernel = replace(variation, rules=Eager)
    assert judged(kernel, make(by_id(id))).status == "failed"


def test_a_hole_that_was_found() -> None:
    """The bound of delta once left out that stored outputs may be flushed: dk was 27 times beyond it."""
    assert judged(BY_NAME["flushed"], make(by_id("gathered-x-dscale-f16"))).status == "passed"


def test_another_hole() -> None:
    """Blocks of queries were once counted over a whole group, three heads of nine rows as one: dv was 2.08 beyond."""
    case = replace(by_id("grad-gqa-4-bf16"), B=2, H=6)
    assert judged(BY_NAME["blocked_gradients"], make(case)).status == "passed"


def test_truncation() -> None:
    x = np.array([1 + 2.0**-24, 1 + 3 * 2.0**-24, -1 - 3 * 2.0**-24, 1 - 2.0**-26, 0.0])
    assert toward_zero(x, np.float32).tolist() == [1.0, 1 + 2.0**-23, -1 - 2.0**-23, 1 - 2.0**-24, 0.0]


def test_bounds_are_told_by_their_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    before, truth = bounds(), honest_variations.truth

    def wider(*asked: Any) -> Any:
        return {name: replace(e, hi=e.hi + 0.1 * (e.hi - e.lo)) for name, e in truth(*asked).items()}

    monkeypatch.setattr(honest_variations, "truth", wider)
    assert bounds() != before


def test_the_last_line_of_a_pair_counts() -> None:
    line = {"case": ORDER[0].id, "variation": "whole", "status": "failed", "ratio": 2.0}
    found = summary([line, line | {"status": "passed", "ratio": 0.5, "bounds": bounds()}])
    assert (found["pairs"], found["alarms"], found["by earlier bounds"]) == (1, 0, 0)
    assert summary([line])["by earlier bounds"] == summary([line])["alarms"] == 1


def test_the_committed_result() -> None:
    assert RESULT["variations"] == len(VARIATIONS)
    assert not ALARMS, "an alarm is a bug of the bound until it is shown to be none"
    assert RESULT["pairs"] - RESULT["by earlier bounds"] >= 0.8 * RESULT["of"]
    assert FORMATS["float16"].bits == 11
