"""What an implementation does is found by name, and what it declares is held against it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from refattn.calling import Answer, Local
from refattn.case import Case
from refattn.implementation import Function, implementation
from refattn.mutants import MUTANTS
from refattn.precision import Conventions, Unsupported
from refattn.probes import Convention, Found, probes
from refattn.probes.questions import NEAR, _distance, questions
from refattn.streaming import implementation as honest

USUAL = {
    "default scale": "D**-0.5", "scale": "as given", "causal top_left": "top_left",
    "causal bottom_right": "bottom_right", "window of 2 to the left": "inclusive", "boolean mask": "True = may attend",
    "empty rows": "zero", "lse of empty rows": "-inf", "lse base": "e", "sinks": "in the denominator",
    "lse with sinks": "included", "NaN in a hidden key": "hidden", "NaN in a hidden value": "hidden",
}  # fmt: skip


def table(found: Found) -> dict[str, str]:
    return {row.name: row.found for row in found.rows}


def changed(change: Any = None, conventions: Conventions = Conventions(), **about: Any) -> Function:  # noqa: B008
    """Our kernel under a change of its answer, change(case, given, answer)."""

    @implementation("changed", outputs=("out", "lse"), conventions=conventions, **about)
    def attention(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        answer = dict(honest(case, given))
        return answer if change is None else change(case, given, answer)  # type: ignore[no-any-return]

    return attention


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("D", [8, 16, 32, 64, 128])
def test_all_alternatives_are_far_apart(dtype: str, D: int) -> None:
    for probe in questions(dtype, D):
        assert probe.field or probe.asked in probe.alternatives
        for a, b in permutations(probe.alternatives, 2):
            x, y = probe.alternatives[a], probe.alternatives[b]
            if x.size:
                assert _distance(x, y) > 2.5 * NEAR, (probe.name, a, b)
                whole = probe.rows == probe.case.Lq
                assert not whole or probe.named(x) == a.partition(", in base 2")[0]


def only(dtype: str, D: int) -> Any:
    return lambda case: None if (case.dtype, case.D, case.Dv) == (dtype, D, D) else f"no {case.dtype}, D={case.D}"


@pytest.mark.parametrize("dtype, D", [("float32", 64), ("bfloat16", 128), ("float16", 64), ("float64", 8)])
def test_an_honest_kernel_does_what_it_declares(dtype: str, D: int) -> None:
    begin = time.process_time()
    found = probes(Local(changed(supports=only(dtype, D))))
    assert time.process_time() - begin < 2  # 0.05 on a quiet machine
    assert table(found) == USUAL and not found.mismatches
    assert found.lines()[0].split() == ["default", "scale", "D**-0.5"] and len(found.lines()) == len(USUAL)


def empties(**to: float) -> Any:
    def change(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        empty = ~case.visibility.tile().any(-1)
        for name in answer.keys() & to.keys():
            answer[name][empty] = to[name]
        return answer

    return change


def mean_all(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    empty = ~case.visibility.tile().any(-1)
    answer["out"][empty] = given["v"][0].mean(1)
    return empties(lse=-1e4)(case, given, answer)  # type: ignore[no-any-return]


def base_2(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    return {n: x * np.float32(np.log2(np.e)) if n == "lse" else x for n, x in answer.items()}


def no_sinks(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    plain = honest(replace(case, sinks=None), {n: x for n, x in given.items() if n != "sinks"})
    return {**answer, **{n: x for n, x in plain.items() if n == "lse"}}


def leaks(name: str) -> Any:
    def change(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if not np.isfinite(given[name]).all():
            answer["out"] = answer["out"] * np.float32(np.nan)
        return answer

    return change


@pytest.mark.parametrize(
    "change, declared, name, found",
    [
        (empties(out=np.nan), {"empty_rows": "nan"}, "empty rows", "nan"),
        (mean_all, {"empty_rows": "mean_all", "empty_lse": "any"}, "empty rows", "mean_all"),
        (mean_all, {"empty_rows": "mean_all", "empty_lse": "any"}, "lse of empty rows", "finite"),
        (empties(lse=np.inf), {"empty_lse": "+inf"}, "lse of empty rows", "+inf"),
        (empties(lse=np.nan), {"empty_lse": "nan"}, "lse of empty rows", "nan"),
        (base_2, {"lse_base": "2"}, "lse base", "2"),
        (base_2, {"lse_base": "2"}, "lse with sinks", "included"),
        (no_sinks, {"lse_sinks": "excluded"}, "lse with sinks", "excluded"),
        (leaks("k"), {"masked_nan_k": "leaks"}, "NaN in a hidden key", "leaks"),
        (leaks("v"), {"masked_nan_v": "leaks"}, "NaN in a hidden value", "leaks"),
    ],
)
def test_conventions_are_found_and_fail_undeclared(
    change: Any, declared: dict[str, Any], name: str, found: str
) -> None:  # fmt: skip
    fits = probes(Local(changed(change, Conventions(**declared))))
    assert table(fits)[name] == found and not fits.mismatches
    undeclared = probes(Local(changed(change)))
    assert table(undeclared)[name] == found and undeclared.mismatches
    field = next(iter(declared))
    assert any(f"declare Conventions({field}=" in text for text in undeclared.mismatches)
    assert any(line.startswith("MISMATCH ") for line in undeclared.lines())


def test_what_is_declared_and_not_done_fails_too() -> None:
    found = probes(Local(changed(conventions=Conventions(lse_base="2", empty_rows="nan", masked_nan_v="leaks"))))
    assert [x.split(":")[0] for x in found.mismatches] == ["empty rows", "lse base"]  # what leaks may as well hide


@pytest.mark.parametrize(
    "mutant, name, found",
    [
        ("causal_top_left", "causal bottom_right", "top_left"),
        ("causal_bottom_right", "causal top_left", "bottom_right"),
        ("causal_ignored", "causal top_left", "not causal"),
        ("causal_off_by_one", "causal top_left", "the own key hidden"),
        ("window_off_by_one", "window of 2 to the left", "one key too many"),
        ("window_both_sides", "window of 2 to the left", "both sides"),
        ("mask_inverted", "boolean mask", "True = hidden"),
        ("mask_transposed", "boolean mask", "transposed"),
        ("sinks_dropped", "sinks", "ignored"),
        ("exp2_for_exp", "default scale", "D**-0.5 in base 2"),
        ("scale_ignored", "scale", "ignored"),
    ],
)
def test_geometry_polarity_and_scale_fail_by_name(mutant: str, name: str, found: str) -> None:
    about = probes(Local(MUTANTS[mutant].implementation))
    assert table(about)[name] == found
    assert any(x.startswith(f"{name}: asked for ") and "a bug" in x for x in about.mismatches)


@pytest.mark.parametrize("mutant", ["causal_top_left", "mean_of_v", "returns_nan", "sinks_dropped"])
def test_a_bug_elsewhere_is_not_taken_for_a_convention(mutant: str) -> None:
    about = probes(Local(MUTANTS[mutant].implementation))
    assert not any("declare " in text for text in about.mismatches)


def plain(q: Any, k: Any, v: Any) -> Any:
    case = Case("x", "y", Lq=q.shape[2], Lk=k.shape[2], D=64, Dv=64)
    return honest(case, {"q": q, "k": k, "v": v})["out"]


def test_what_is_not_supported() -> None:
    found = probes(Local(Function(plain, "plain")))
    assert table(found) == {name: "unsupported" for name in USUAL} | {"default scale": "D**-0.5"}
    assert not found.mismatches

    def refuses(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        raise Unsupported("not today")

    assert set(table(probes(Local(changed(refuses)))).values()) == {"unsupported"}


def test_empty_rows_are_also_asked_of_a_causal_mask() -> None:
    drawn = changed(supports=lambda case: "drawn masks" if "Dense(" in repr(case.mask) else None)
    assert table(probes(Local(drawn))) == {**USUAL, "boolean mask": "unsupported"}


def test_exceptions_and_wrong_shapes() -> None:
    def fails(case: Case, given: Mapping[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if case.scale is not None:
            raise KeyError("scale")
        return {**answer, "out": answer["out"][..., :3]} if case.mask is None else answer

    found = table(probes(Local(changed(fails))))
    assert found["scale"] == "raised KeyError" and found["default scale"] == "neither"


class Lost(Local):
    """Crashes at the first question that has a scale."""

    calls = 0

    def result(self) -> Answer:
        self.calls += 1
        return Answer("crash", text="died") if self.calls == 2 else super().result()


def test_after_a_crash_no_more_is_asked() -> None:
    candidate = Lost(changed())
    found = table(probes(candidate))
    assert candidate.calls == 2 and found["scale"] == "crashed"
    assert found["lse base"] == "not asked, for it crashed before"


def test_rows() -> None:
    assert Convention("x", "neither", "zero", "empty_rows", False).fits
    assert str(Convention("lse of empty rows", "finite", "-inf", "empty_lse")).endswith(
        "declare Conventions(empty_lse='any'), or mend it"
    )
