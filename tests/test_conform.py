"""The judge and the run: the pass rule, what must be there, conventions, contracts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import candidates
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refattn.calling import Answer, Local
from refattn.case import Case
from refattn.cases import CASES
from refattn.conform import BadContract, examine, run
from refattn.dtypes import FORMATS
from refattn.implementation import DEFAULT, implementation
from refattn.inputs import Problem, make
from refattn.judge import Verdict, judge, ratios
from refattn.masks import Causal
from refattn.precision import Conventions, preset
from refattn.truth import Expected, truth

SMALL = Case("small", "an example", B=2, H=3, Hkv=1, Lq=4, Lk=7, D=5, Dv=6, mask=Causal("top_left"))
TALL = Case("tall", "rows that see nothing", H=2, Hkv=2, Lq=5, Lk=3, D=4, Dv=4, mask=Causal("bottom_right"))
GRAD = dataclasses.replace(SMALL, id="grad", want=frozenset({"out", "lse", "dq", "dk", "dv"}))

EXTREMES = [0.0, -0.0, 1.0, -1.0, 1e-300, 5e-324, -5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan]
numbers = st.floats() | st.sampled_from(EXTREMES)


def one(got: float, value: float, lo: float, hi: float) -> float:
    return float(ratios(*(np.array([x]) for x in (got, value, lo, hi)))[0])


@settings(max_examples=600, deadline=None)
@given(numbers, numbers, numbers, numbers)
def test_ratio_is_at_most_one_exactly_inside(got: float, value: float, lo: float, hi: float) -> None:
    ratio = one(got, value, lo, hi)
    assert (ratio <= 1) == (lo <= got <= hi)
    assert ratio >= 0


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e3, 1e3), st.floats(0, 1e-9), st.integers(-3, 3))
def test_ratio_inside_and_out_of_a_narrow_interval(value: float, half: float, steps: int) -> None:
    lo, hi = value - half, value + half
    for end in (lo, hi):
        got = end
        for _ in range(abs(steps)):
            got = float(np.nextafter(got, math.copysign(math.inf, steps)))
        assert (one(got, value, lo, hi) <= 1) == (lo <= got <= hi)


@pytest.mark.parametrize(
    ("got", "value", "lo", "hi", "ratio"),
    [
        (1.5, 1.0, 0.0, 2.0, 0.5),
        (0.75, 1.0, 0.0, 2.0, 0.25),
        (4.0, 1.0, 0.0, 2.0, 3.0),
        (-2.0, 1.0, 0.0, 2.0, 3.0),
        (1.0, 1.0, 1.0, 1.0, 0.0),
        (1.5, 1.0, 1.0, 1.0, math.inf),
        (math.nan, 1.0, 0.0, 2.0, math.inf),
        (math.nan, math.nan, math.nan, math.nan, math.inf),
        (math.inf, 6e4, 5e4, math.inf, 1.0),
        (6.5e4, 6e4, 5e4, math.inf, 0.0),
        (-math.inf, 6e4, 5e4, math.inf, math.inf),
        (-math.inf, -math.inf, -math.inf, -math.inf, 0.0),
        (0.0, -math.inf, -math.inf, -math.inf, math.inf),
        # RN(value) is below the value and the only number that passes
        (0.25, 0.2501, 0.25, 0.25, 1.0),
        (0.2502, 0.2501, 0.25, 0.25, math.inf),
    ],
)
def test_ratio_examples(got: float, value: float, lo: float, hi: float, ratio: float) -> None:
    assert one(got, value, lo, hi) == pytest.approx(ratio)


def test_rounding_of_the_difference_changes_no_verdict() -> None:
    assert 2e-20 - -1.0 == 1e-20 - -1.0
    assert one(2e-20, -1.0, -2.0, 1e-20) > 1


def solved(case: Case) -> tuple[Problem, dict[str, Any]]:
    problem = make(case)
    return problem, candidates.solve(case, problem.fresh())


def verdict_on(case: Case, **changes: Any) -> Verdict:
    problem, found = solved(case)
    found = {name: x for name, x in (found | changes).items() if x is not None}
    return judge(problem, found, preset(case.dtype, case.out_dtype), Conventions())


@pytest.mark.parametrize("case", [SMALL, TALL, GRAD], ids=lambda case: case.id)
@pytest.mark.parametrize("dtype", [d for d, f in FORMATS.items() if f.bits > 4])
def test_the_truth_passes(case: Case, dtype: str) -> None:
    case = dataclasses.replace(case, dtype=dtype, out_dtype=dtype)
    verdict = verdict_on(case)
    assert verdict.status == "passed" and verdict.ratio <= 1 and verdict.reasons == () == verdict.notes
    assert {o.name for o in verdict.outputs} == case.want
    assert all(o.elements == math.prod(truth(make(case), preset(dtype))[o.name].value.shape) for o in verdict.outputs)


@pytest.mark.parametrize("name", sorted(GRAD.want))
def test_one_wrong_element_of_any_output_fails_and_is_found(name: str) -> None:
    problem, found = solved(GRAD)
    index = tuple(n - 1 for n in found[name].shape)
    found[name][index] += 0.01
    verdict = judge(problem, found, preset("float32"), Conventions())
    assert verdict.status == "failed"
    (bad,) = (o for o in verdict.outputs if not o.passed)
    assert (bad.name, bad.index, bad.failing) == (name, index, 1)
    assert bad.lo <= bad.value <= bad.hi < bad.got and bad.ratio > 100 and bad.rigorous_ratio > 10
    assert verdict.evidence is not None and verdict.evidence.problem is problem


def test_nan_fails() -> None:
    problem, found = solved(SMALL)
    found["out"][1, 2, 3, 4] = np.nan
    verdict = judge(problem, found, preset("float32"), Conventions())
    assert verdict.status == "failed" and verdict.outputs[0].index == (1, 2, 3, 4) and verdict.ratio == math.inf


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"out": np.zeros((2, 3, 4, 5), "f4")}, "out.shape=(2, 3, 4, 5) should be (2, 3, 4, 6)"),
        ({"out": np.zeros((2, 3, 4, 6), "f8")}, "out.dtype=float64 should be float32"),
        ({"lse": np.zeros((2, 3, 4), "f2")}, "lse.dtype=float16 should be float32"),
        ({"out": None}, "out is missing; the case wants lse out"),
    ],
)
def test_form(change: Mapping[str, Any], reason: str) -> None:
    verdict = verdict_on(SMALL, **change)
    assert verdict.status == "failed" and reason in verdict.reasons


def test_lse_may_be_float64_and_is_rounded_first() -> None:
    problem, found = solved(SMALL)
    exact = truth(problem, preset("float64"))["lse"].value
    between = exact + np.abs(np.spacing(exact.astype("f4"))) / 4  # rounds to the float32 of the truth or its neighbour
    for lse in (exact, between):
        verdict = judge(problem, found | {"lse": lse}, preset("float32"), Conventions())
        assert verdict.status == "passed", verdict.outputs
    assert judge(problem, found | {"lse": exact + 1e-3}, preset("float32"), Conventions()).status == "failed"


def test_gradients_have_the_dtype_of_the_inputs_and_out_that_of_out() -> None:
    case = dataclasses.replace(GRAD, dtype="float16", out_dtype="float32")
    assert verdict_on(case).status == "passed"
    problem, found = solved(case)
    verdict = judge(problem, found | {"dq": found["dq"].astype("f4")}, preset("float16", "float32"), Conventions())
    assert verdict.reasons == ("dq.dtype=float32 should be float16",)


def test_what_is_not_promised_is_judged_only_if_it_is_there() -> None:
    problem, found = solved(SMALL)
    only_out = {"out": found["out"]}
    assert judge(problem, only_out, preset("float32"), Conventions()).status == "passed"
    with_wrong_lse = only_out | {"lse": found["lse"] + 1, "dq": "not wanted"}
    verdict = judge(problem, with_wrong_lse, preset("float32"), Conventions())
    assert verdict.status == "failed" and verdict.reasons == ()
    promised = judge(problem, only_out, preset("float32"), Conventions(), outputs=frozenset({"out", "lse"}))
    assert promised.status == "failed" and promised.reasons == ("lse is missing; the case wants lse out",)
    nothing = judge(problem, {}, preset("float32"), Conventions(), outputs=frozenset())
    assert nothing.status == "unsupported"


def test_findings_fail_though_the_values_are_right() -> None:
    problem, found = solved(SMALL)
    verdict = judge(problem, Answer("answer", found, ("q was modified in place",)), preset("float32"), Conventions())
    assert verdict.status == "failed" and verdict.reasons == ("q was modified in place",)


@pytest.mark.parametrize("kind", ["error", "crash", "timeout"])
def test_no_answer_fails(kind: Any) -> None:
    verdict = judge(make(SMALL), Answer(kind, text="because"), preset("float32"), Conventions())
    assert verdict.status == "failed" and "because" in verdict.reasons[0]


def test_ignored_and_nonfinite_elements() -> None:
    value = np.zeros((1, 1, 3))
    ignored, nonfinite = np.array([[[1, 0, 0]], [[0, 1, 0]]], dtype=bool)[:, None]
    expected = Expected(value, value, value, value, value, "float32", ignored, nonfinite)
    problem = make(Case("three", "x", Lq=3, Lk=1, Dv=1, want=frozenset({"lse"})))

    def status(*got: float) -> str:
        x = np.array([[got]], "f4")
        return judge(problem, {"lse": x}, preset("float32"), Conventions(), expected={"lse": expected}).status

    assert status(7, 0, 0) == status(np.nan, np.inf, 0) == status(0, np.nan, 0) == "passed"
    assert status(0, 7, 0) == status(0, 0, np.nan) == status(0, 0, 7) == "failed"


def nan_rows(case: Case) -> dict[str, Any]:
    problem, found = solved(case)
    empty = ~case.visibility.tile().any(-1)
    found["out"][empty], found["lse"][empty] = np.nan, np.nan
    return found


def test_a_declared_convention_is_acceptable_an_undeclared_one_is_named() -> None:
    found = nan_rows(TALL)
    problem = make(TALL)
    contract = preset("float32")
    undeclared = judge(problem, found, contract, Conventions())
    assert undeclared.status == "failed"
    assert undeclared.notes == ("undeclared convention: empty_rows='nan'", "undeclared convention: empty_lse='nan'")
    both = Conventions(empty_rows="nan", empty_lse="nan", masked_nan_v="leaks")
    declared = judge(problem, found, contract, both)
    assert declared.status == "acceptable" and declared.conventions == {"empty_rows": "nan", "empty_lse": "nan"}
    half = judge(problem, found, contract, Conventions(empty_rows="nan"))
    assert half.status == "failed" and half.notes == ("undeclared convention: empty_lse='nan'",)
    assert judge(problem, solved(TALL)[1], contract, both).status == "passed", "a convention is a permission, no duty"


def test_where_a_convention_leaves_nothing_to_judge() -> None:
    case = dataclasses.replace(TALL, k_lens=(0,))
    found = {"out": np.full(case.shape_of("out"), np.nan, "f4")}
    verdict = judge(make(case), found, preset("float32"), Conventions(empty_rows="nan"))
    assert verdict.status == "unsupported"
    assert verdict.reasons == ("nothing to judge under empty_rows='nan': every element may be NaN",)
    with_lse = found | {"lse": solved(case)[1]["lse"]}
    assert judge(make(case), with_lse, preset("float32"), Conventions(empty_rows="nan")).status == "acceptable"


def test_conventions_excuse_nothing_else() -> None:
    everything = Conventions("leaks", "leaks", "nan", "any", "e", "included")
    problem, found = solved(SMALL)
    found["out"][0, 0, 0, 0] = np.nan
    assert judge(problem, found, preset("float32"), everything).status == "failed"
    found = nan_rows(TALL)
    found["out"][0, 0, 4, 0] += 0.1
    verdict = judge(make(TALL), found, preset("float32"), Conventions())
    assert verdict.status == "failed" and verdict.notes == ()


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"lse": lambda lse: lse / np.log(np.float32(2))}, "undeclared convention: lse_base='2'"),
        ({"out": lambda out: out + 0.5}, None),
    ],
)
def test_probe_of_a_case_without_empty_rows(change: Mapping[str, Any], note: str | None) -> None:
    problem, found = solved(SMALL)
    found |= {name: f(found[name]) for name, f in change.items()}
    verdict = judge(problem, found, preset("float32"), Conventions())
    assert verdict.status == "failed" and verdict.notes == ((note,) if note else ())


def test_probe_of_sinks_left_out_of_lse() -> None:
    case = dataclasses.replace(SMALL, sinks="normal")
    problem, found = solved(case)
    lse = solved(dataclasses.replace(case, sinks=None))[1]["lse"]
    verdict = judge(problem, found | {"lse": lse}, preset("float32"), Conventions())
    assert verdict.notes == ("undeclared convention: lse_sinks='excluded'",)


@pytest.mark.parametrize("leaking", [["k"], ["v"], ["k", "v"]], ids="+".join)
def test_probe_of_leaking_nan(leaking: list[str]) -> None:
    """As most libraries do it: a weight of 0 times whatever the masked value is."""
    case = dataclasses.replace(SMALL, family="poisoned")
    problem, found = solved(case)
    bad = {n: ~np.isfinite(np.asarray(problem.logical[n], dtype="f8")).all(-1) for n in "kv"}
    assert bad["k"].any() and bad["v"].any()
    out = found["out"]
    for n in leaking:
        rows = np.broadcast_to(np.repeat(bad[n], 3, 1).any(-1)[..., None], out.shape[:3])
        out = np.where(rows[..., None], np.float32(np.nan), out)
    verdict = judge(problem, {"out": out}, preset("float32"), Conventions())
    assert verdict.status == "failed" and verdict.notes, verdict
    assert all(note.startswith("undeclared convention: masked_nan_") for note in verdict.notes)
    declared = Conventions(**{f"masked_nan_{n}": "leaks" for n in leaking})
    alone = judge(problem, {"out": out}, preset("float32"), declared)
    assert alone.status == "unsupported" and alone.reasons[0].startswith("nothing to judge under masked_nan_")
    if leaking == ["v"]:
        with_lse = judge(problem, {"out": out, "lse": found["lse"]}, preset("float32"), declared)
        assert with_lse.status == "acceptable" and with_lse.conventions == {"masked_nan_v": "leaks"}


def test_loosened_contract_is_told() -> None:
    verdict = examine(Local(candidates.loose), SMALL)
    assert verdict.status == "passed" and verdict.loosened == {"exp_ulp": 64.0}


def test_contract_without_source_or_for_another_dtype_is_refused() -> None:
    with pytest.raises(BadContract, match=r"looser than preset\('float32'\) in exp_ulp=64.0; say in source="):
        examine(Local(candidates.sourceless), SMALL)
    mistaken = implementation(name="mistaken", precision=lambda case: preset("float16"))(candidates.plain)
    with pytest.raises(BadContract, match="says inputs=float16, but the case has float32"):
        examine(Local(mistaken), SMALL)


def test_unsupported() -> None:
    grad_only = dataclasses.replace(GRAD, want=frozenset({"dq"}))
    plain = Local(implementation(name="plain")(candidates.plain))
    assert examine(plain, SMALL).status == "passed"
    assert examine(plain, grad_only).reasons == ("declares no dq; see @implementation(outputs=...)",)
    assert examine(plain, dataclasses.replace(SMALL, softcap=1.0)).reasons == ("takes no softcap",)
    refuses = Local(implementation(name="refuses")(candidates.refuses_all))
    assert examine(refuses, SMALL).status == "unsupported" and examine(refuses, SMALL).reasons == ("not today",)


def test_run_counts_stops_and_shifts_seeds() -> None:
    cases = [SMALL, dataclasses.replace(SMALL, id="second"), dataclasses.replace(TALL, id="third")]
    seeds: list[int] = []

    def stop(verdict: Verdict) -> bool:
        seeds.append(verdict.case.seed)
        return verdict.case.id == "second"

    report = run(candidates.honest, cases, seed=5, on_verdict=stop)
    assert seeds == [5, 5] and report.counts()["passed"] == 2 and report.selected == 3
    assert [v.case.id for v in run(candidates.honest, cases).verdicts] == ["small", "second", "third"]
    assert make(dataclasses.replace(SMALL, seed=5)).logical["q"][0, 0, 0, 0] != make(SMALL).logical["q"][0, 0, 0, 0]


def test_run_ends_with_a_report_when_interrupted() -> None:
    def interrupt(verdict: Verdict) -> None:
        raise KeyboardInterrupt

    report = run(candidates.honest, [SMALL, TALL], on_verdict=interrupt)
    assert report.interrupted and len(report.verdicts) == 1


def test_expected_failures_and_stale_ones() -> None:
    report = run(candidates.ignores_masks, [SMALL, TALL], expected={"small": "known", "other": "x"})
    assert [v.case.id for v in report.failures()] == ["tall"] and report.stale() == []
    report = run(candidates.honest, [SMALL, TALL], expected={"small": "known"})
    assert report.failures() == [] and [v.case.id for v in report.stale()] == ["small"]


def test_our_own_kernel_passes_the_basics_and_a_kernel_that_ignores_masks_does_not() -> None:
    basics = [case for case in CASES if case.chapter == "basics"]
    assert basics
    report = run(DEFAULT, basics)
    assert report.counts()["passed"] == len(basics), report.verdicts
    report = run(candidates.ignores_masks, basics)
    masked = {case.id for case in basics if case.mask is not None}
    assert {v.case.id for v in report.failures()} == masked


def test_each_chapter_has_a_case_that_passes_and_each_dtype() -> None:
    first = {}
    for case in CASES:
        if case.Lk <= 300:
            first.setdefault(case.chapter, case)
            first.setdefault(case.dtype, case)
    report = run(candidates.honest, list(first.values()))
    assert report.counts()["passed"] == len(first), [v for v in report.verdicts if v.status != "passed"]
    assert len(set(itertools.chain.from_iterable(v.case.want for v in report.verdicts))) >= 5
