"""What a failing case leaves for the page, against what is wrong in it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import candidates
import numpy as np
import pytest

from refattn.calling import Local
from refattn.case import Case
from refattn.cases import CASES
from refattn.conform import run
from refattn.examine import examine
from refattn.implementation import implementation, load
from refattn.inputs import make
from refattn.judge import judge
from refattn.masks import Causal, Visibility
from refattn.matrix import drawing
from refattn.mutants import MUTANTS
from refattn.oracle import attention
from refattn.picture import FIRST, LAST, MOST_ACROSS, MOST_DOWN, picture
from refattn.precision import preset
from refattn.truth import truth

WIDE = Case("wide", "fewer keys than columns", B=2, H=2, Hkv=2, Lq=6, Lk=11, D=16, Dv=24, mask=Causal("bottom_right"))


def drawn(case: Case, change: Any) -> dict[str, Any]:
    """The picture of what is true, once `change` has had its way with out."""
    problem = make(case)
    expected = truth(problem, preset(case.dtype))
    out = expected["out"].value.astype(case.dtype)
    lse = expected["lse"].value.astype("float32")
    verdict = judge(problem, {"out": change(out), "lse": lse}, preset(case.dtype), candidates.honest.conventions)
    found = picture(verdict.evidence, verdict.contract)
    assert verdict.status == "failed" and found is not None
    return found


def test_keys_that_are_missing_are_where_the_alignments_differ() -> None:
    """Bottom right done top left, float64: each key that only the former sees is missing, and no other is off."""
    case = replace(WIDE, dtype="float64", out_dtype="float64")
    problem = make(case)
    x = problem.logical
    wrong = attention(x["q"], x["k"], x["v"], mask=Visibility(Causal("top_left"), 2, 2, 6, 11)).out
    found = drawn(case, lambda out: wrong)
    assert (found["of"], found["down"], found["across"]) == ("weight", ["row", 6], ["key", 11])
    right, left = (Visibility(Causal(a), 2, 2, 6, 11).tile(b=0, h=0) for a in ("bottom_right", "top_left"))  # type: ignore[arg-type]
    signs = np.array([list(line) for line in found["map"]])
    assert np.isin(signs[right & ~left], list("123")).all()
    assert (signs[left] == "0").all() and (signs[~right] == "-").all()


def test_a_key_that_must_be_hidden_is_a_letter() -> None:
    case = replace(WIDE, dtype="float64", out_dtype="float64")
    x = make(case).logical
    seen = case.visibility.tile().copy()
    seen[:, :, 2, 9] = True
    found = drawn(case, lambda out: attention(x["q"], x["k"], x["v"], mask=seen).out)
    assert found["of"] == "weight" and found["map"][2][9] in "ABC"
    assert {line for i, line in enumerate(found["map"]) if i != 2} == {"." * 11}


def test_where_keys_are_more_than_columns_rows_and_columns_are_drawn() -> None:
    case = Case("tall", "more keys than columns", H=3, Hkv=3, Lq=50, Lk=70, D=16, Dv=60)

    def spoiled(out: Any) -> Any:
        out[0, 1, 7, 31] += 1e-5
        out[0, 1, 8, 31] = np.nan
        return out

    found = drawn(case, spoiled)
    assert found["of"] == "ratio" and found["at"] == {"entry": 0, "head": 1}
    assert (found["down"], found["across"]) == (["row", 50], ["column", 60])
    assert len(found["map"]) <= MOST_DOWN and len(found["map"][0]) <= MOST_ACROSS
    assert sum(line.count("0") for line in found["map"]) == sum(map(len, found["map"])) - 2
    assert sorted("".join(found["map"]).replace("0", "")) in (["2", "5"], ["3", "5"])
    assert sum(found["histogram"]) == 3 * 50 * 60 and sum(found["histogram"][1 - FIRST :]) == 2
    assert len(found["histogram"]) == LAST + 2 - FIRST and found["histogram"][-1] == 1


def test_no_picture_without_numbers_that_fail() -> None:
    assert picture(None) is None
    cases = [replace(WIDE, id="a"), replace(WIDE, id="b", mask=None)]

    @implementation("raises")
    def raises(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        raise ValueError("no")

    assert [v.picture for v in run(raises, cases).verdicts] == [None, None]
    assert [v.picture for v in run(candidates.honest, cases).verdicts] == [None, None]


@pytest.mark.parametrize("name", list(MUTANTS)[::20])
def test_every_picture_is_small_plain_and_can_be_drawn(name: str) -> None:
    candidate = Local(load(f"refattn.mutants:{name}"))
    for case in [c for c in CASES if c.scores < 4000][::40]:
        verdict = examine(candidate, case)
        found = picture(verdict.evidence, verdict.contract)
        if found is None:
            continue
        text = json.dumps(found, allow_nan=False)
        assert json.loads(text) == found and len(text) < 3000
        signs = set("".join(found["map"]))
        assert signs <= {".", *drawing.CLASSES[found["of"]]} and signs - {".", "0", "-"}, found
        assert len({len(line) for line in found["map"]}) == 1 and sum(found["histogram"][1 - FIRST :]) > 0
        assert drawing.heat_map(found).startswith("<path") and drawing.bars(found) and drawing.said(found)


def test_heat_map_covers_each_field_once() -> None:
    p = {"map": ["0012", "..05"], "of": "ratio"}
    assert drawing.heat_map(p) == (
        '<path class="ok" d="m0 0h2m0 1h1"/><path class="a1" d="m2 0h1"/><path class="a2" d="m3 0h1"/>'
        '<path class="a5" d="m3 1h1"/>'
    )
