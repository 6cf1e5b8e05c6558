"""`refattn.strategies` draws what was asked for, all of it, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from hypothesis import HealthCheck, find, given, settings  # noqa: E402
from hypothesis.errors import NoSuchExample  # noqa: E402

from refattn import assert_attention, attention  # noqa: E402
from refattn.case import Case  # noqa: E402
from refattn.draw import MASKS  # noqa: E402
from refattn.inputs import Problem  # noqa: E402
from refattn.masks import Causal  # noqa: E402
from refattn.strategies import WORDS, cases, problems  # noqa: E402

QUIET = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
ONCE = settings(max_examples=40, **QUIET)
NEEDS = {"dlse": ("backward",), "dscale": ("backward",), "dsoftcap": ("backward", "softcap")}


def drawn(n: int, **filters: Any) -> list[Case]:
    found: list[Case] = []

    @settings(max_examples=n, **QUIET)
    @given(cases(**filters))
    def collect(case: Case) -> None:
        found.append(case)

    collect()
    return found


def words(found: list[Case]) -> set[str]:
    return {word for case in found for word in case.features() if not word.startswith("dtype=")}


def stems(names: set[str]) -> set[str]:
    return {word.partition("=")[0] if not word.startswith(("D!", "Lq!")) else word for word in names}


@pytest.mark.parametrize("word", WORDS)
def test_each_feature_alone(word: str) -> None:
    """Asked for alone it is drawn, and with it only what it cannot be without."""
    asked = (word, *NEEDS.get(word, ()))
    seen = words(drawn(50, features=asked, dtypes=["float32"]))
    expected = {*asked, "mask", *MASKS} if word == "mask" else {*asked, "mask"} if word in MASKS else set(asked)
    expected |= {word.partition("=")[0]} if word.startswith("bias=") else set()
    assert word in seen or word == "mask" and seen & set(MASKS)
    assert seen <= expected


def test_nothing_asked_for_is_the_plain_case() -> None:
    assert words(drawn(50, features=[])) == set()


def test_without() -> None:
    seen = words(drawn(300, without=["quant", "tree", "score_mod", "dropout"]))
    assert not seen & {"tree", "dropout"} and not {"quant", "score_mod"} & stems(seen)
    assert {"causal", "softcap", "bias", "rotary"} <= seen
    assert "mask" not in words(drawn(100, without=["mask"]))


def test_a_stem_stands_for_all_its_variants() -> None:
    assert {w for w in words(drawn(200, features=["bias"])) if "=" in w} > {"bias=normal", "bias=minus_inf"}


def test_alignment_sizes_families_and_dtypes() -> None:
    found = drawn(
        100, features=["causal", "window", "gqa", "Lq!=Lk"], align="bottom_right", lengths=(64, 65), D=(64, 128),
        B=(2,), Hkv=(3,), groups=(1, 4), families=["peaked"], dtypes=["float16", "bfloat16"],
    )  # fmt: skip
    assert {case.mask.align for case in found if case.mask is not None} == {"bottom_right"}  # type: ignore[attr-defined]
    for name, expected in {
        "Lq": {64, 65}, "Lk": {64, 65}, "D": {64, 128}, "Dv": {64, 128}, "B": {2}, "Hkv": {3}, "H": {3, 12},
        "family": {"peaked"}, "dtype": {"float16", "bfloat16"},
    }.items():  # fmt: skip
        assert {getattr(case, name) for case in found} == expected, name
    assert all(case.D == case.Dv for case in found)


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"features": ["casual"]}, "features: 'casual' is no feature; use causal"),
        ({"without": "soft_cap"}, "without: 'soft_cap' is no feature; use softcap"),
        ({"dtypes": ["int8"]}, "dtype=int8 is not a supported dtype"),
        ({"align": "left"}, "align='left' must be 'top_left' or 'bottom_right'"),
        ({"families": ["spiky"]}, "has 'spiky', which is not one of uniform"),
    ],
)
def test_what_stands_for_nothing_is_refused(filters: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        cases(**filters)


def mine(problem: Problem, align: str) -> Any:
    """A kernel that knows one alignment."""
    q, k, v = (problem.fresh()[name] for name in "qkv")
    mask = None if problem.case.mask is None else Causal(align)  # type: ignore[arg-type]
    return attention(q, k, v, mask=mask).out.astype(q.dtype), q, k, v


FILTERS: dict[str, Any] = {
    "features": ["causal", "gqa", "Lq!=Lk"], "dtypes": ["float32"], "align": "bottom_right", "lengths": (1, 2, 3, 5),
}  # fmt: skip


@settings(max_examples=25, **QUIET)
@given(problems(**FILTERS))
def test_in_a_test_of_ones_own(problem: Problem) -> None:
    out, q, k, v = mine(problem, "bottom_right")
    assert_attention(out, q, k, v, mask=problem.case.mask)


def test_a_wrong_kernel_is_found_and_shrunk() -> None:
    def wrong(problem: Problem) -> bool:
        out, q, k, v = mine(problem, "top_left")
        try:
            assert_attention(out, q, k, v, mask=problem.case.mask)
        except AssertionError:
            return True
        return False

    smallest = find(problems(**FILTERS), wrong, settings=ONCE).case
    assert (smallest.B, smallest.H, smallest.Lq, smallest.Lk) in {(1, 1, 1, 2), (1, 1, 2, 1)}
    with pytest.raises(NoSuchExample):
        find(problems(**{**FILTERS, "align": "top_left"}), wrong, settings=ONCE)


def test_arrays_are_the_cases_own() -> None:
    problem = find(problems(features=["softcap"]), lambda found: found.case.softcap is not None, settings=ONCE)
    assert np.asarray(problem.logical["q"]).shape == problem.case.shape_of("q")
