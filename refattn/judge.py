"""The judge: one answer against the truth of its problem.

The pass rule of the whole suite is `ratios`: an element passes if lo <= got <= hi, and its ratio,
which is at most 1 exactly then, says how much of the way from the true value to that end it used.
What an implementation declares as a convention is applied only to what fails without it; such a
case is acceptable, unless nothing is left to judge: it is unsupported then.  An undeclared convention that explains a
failure is named, and fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from .aggregate import suspicions
from .calling import Answer
from .case import NAMES, Cache, Case, Packed
from .dropout import fraction_is_plausible
from .dtypes import round_to
from .elements import Output, judged_output, ratios
from .inputs import Problem
from .memory import answer_shape, take_answer
from .precision import Conventions, Precision, preset
from .truth import Expected, quick_truth, truth
from .undeclared import other_contract, relevant, undeclared

__all__ = ["Evidence", "Output", "Verdict", "failed_call", "judge", "ratios"]

Array = np.ndarray[Any, Any]
Status = Literal["passed", "acceptable", "unsupported", "failed"]

_JUDGED = ("masked_nan_k", "masked_nan_v", "empty_rows", "empty_lse", "lse_base", "lse_sinks")
"""the conventions that change the truth"""


@dataclass(frozen=True)
class Evidence:
    """The arrays that a verdict rests on."""

    problem: Problem
    got: Mapping[str, Array]
    expected: Mapping[str, Expected]


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    `reasons` are the faults that are not a number out of bounds, `notes` what helps to understand,
    `conventions` the declared ones without which the case would have failed, `loosened` the fields
    in which the contract is looser than the preset of the dtype.
    """

    case: Case
    status: Status
    outputs: tuple[Output, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    conventions: Mapping[str, Any] = field(default_factory=dict)
    loosened: Mapping[str, Any] = field(default_factory=dict)
    contract: Precision | None = None
    seconds: float = 0.0
    suspicions: tuple[str, ...] = ()
    """of a case that passed: what is wrong with all of its elements together, by `refattn.aggregate`; no failure"""
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
    """of a failure; not kept in a report"""
    picture: Mapping[str, Any] | None = None
    """of a failure, what a report keeps of the evidence: `refattn.picture`"""

    @property
    def ratio(self) -> float:
        """The largest ratio of its outputs; 0 if none was judged."""
        return max((o.ratio for o in self.outputs), default=0.0)


def judge(
    problem: Problem,
    answer: Answer | Mapping[str, Array],
    precision: Precision,
    conventions: Conventions,
    *,
    outputs: frozenset[str] = frozenset({"out"}),
    expected: Mapping[str, Expected] | None = None,
) -> Verdict:
    """The verdict on one answer.

    `outputs` are the names that must be there when the case wants them; other wanted ones are
    judged when they are there.  `expected` is the truth under the default conventions, if the
    caller has it already.  The dtype of out is the case's out_dtype, of gradients the input's; lse
    may also be float64 where the contract says float32, and is then rounded to it first.
    """
    case = problem.case
    if not isinstance(answer, Answer):
        answer = Answer("answer", answer)
    loosened = precision.looser_than(preset(case.dtype, case.out_dtype))
    verdict = partial(Verdict, case, contract=precision, loosened=loosened, seconds=answer.seconds)
    if answer.kind == "unsupported":
        return verdict("unsupported", reasons=(answer.text,))
    if answer.kind != "answer":
        return verdict("failed", reasons=(failed_call(answer),))

    reasons = list(answer.findings)
    if case.dropout is not None and "keep" in answer.outputs:
        keep = answer.outputs["keep"]
        reasons += _implausible(keep, case)
        if not reasons:
            problem, expected = replace(problem, logical={**problem.logical, "keep": keep}), None
    if expected is None:
        expected = quick_truth(problem, precision)
    faulty = {reason.split(" ")[0].split(".")[0] for reason in reasons}
    got = {}
    for name in (n for n in NAMES if n in expected):
        if name in answer.outputs:
            wrong = _wrong_form(name, answer.outputs[name], expected[name], case)
            reasons += wrong
            if not wrong:
                got[name] = _rounded(take_answer(case, name, answer.outputs[name]), expected[name])
        elif name in outputs and name not in faulty:
            unknown = sorted(set(answer.outputs) - {*NAMES, "keep"})
            instead = f", and there is no output called {unknown[0]}" if unknown else ""
            reasons.append(f"{name} is missing; the case wants {' '.join(sorted(case.want))}{instead}")
    if not got and not reasons:
        return verdict("unsupported", reasons=(f"returned no {' '.join(sorted(case.want))}",))

    judged = tuple(judged_output(name, x, expected[name]) for name, x in got.items())
    failing = [o.name for o in judged if not o.passed]
    if failing and any(e.narrow for e in expected.values()):
        expected = truth(problem, precision)
        judged = tuple(judged_output(name, x, expected[name]) for name, x in got.items())
        failing = [o.name for o in judged if not o.passed]
    declared = {name: value for name, value in conventions.declared().items() if name in _JUDGED}
    if failing and declared:
        under = truth(problem, precision, Conventions(**declared))
        expected, judged = under, tuple(judged_output(name, x, under[name]) for name, x in got.items())
        if all(o.passed for o in judged) and not reasons:
            needed = {n: v for n, v in declared.items() if relevant(problem, n, failing)} or declared
            if _free(under, got):
                what = ", ".join(f"{n}={v!r}" for n, v in needed.items())
                return verdict("unsupported", judged, (f"nothing to judge under {what}: every element may be NaN",))
            return verdict("acceptable", judged, conventions=needed)
        failing = [o.name for o in judged if not o.passed]
    if not failing and not reasons:
        if _free(expected, got) and any(o.elements for o in judged):
            return verdict("unsupported", judged, ("nothing to judge: every element comes of what is not finite",))
        suspected = tuple(s.text for s in suspicions(problem, got, expected, precision))
        return verdict("passed", judged, suspicions=suspected)
    notes = undeclared(problem, got, expected, failing, precision, declared)
    if failing and not notes:
        notes = other_contract(problem, got, precision, declared)
    if failing and isinstance(case.storage, (Packed, Cache)):
        notes += ("indices are those of the dense form: b, h, i (or slot), d",)
    evidence = Evidence(problem, answer.outputs, expected)
    return verdict("failed", judged, tuple(reasons), notes, evidence=evidence)


def failed_call(answer: Answer) -> str:
    """What to say of a call that gave no answer."""
    what = {"error": "raised", "crash": "crashed", "timeout": "timed out"}[answer.kind]
    return f"{what}: {answer.text}"


def _implausible(keep: Array, case: Case) -> list[str]:
    """What is wrong with a mask that the implementation drew itself."""
    shape = (case.B, case.H, case.Lq, case.Lk)
    visible = case.visibility.tile()
    if keep.dtype != np.bool_ or keep.shape != shape:
        return [f"keep of {keep.dtype} {keep.shape} should be bool {shape}"]
    if not fraction_is_plausible(keep, case.dropout or 0.0, visible, margin=1 / 256):
        kept = f"{(keep & visible).sum()} of {visible.sum()}"
        return [f"keep has {kept} visible pairs, too far from 1 - dropout = {1 - (case.dropout or 0.0):g}"]
    return []


def _wrong_form(name: str, x: Array, expected: Expected, case: Case) -> list[str]:
    wrong = []
    allowed = {expected.dtype} | ({"float64"} if name == "lse" else set())
    if x.dtype.name not in allowed:
        wrong.append(f"{name}.dtype={x.dtype.name} should be {expected.dtype}")
    shape = answer_shape(case, name, expected.value.shape)
    if x.shape != shape:
        wrong.append(f"{name}.shape={x.shape} should be {shape}")
    return wrong


def _rounded(x: Array, expected: Expected) -> Array:
    exact = np.asarray(x, dtype=np.float64)
    return exact if x.dtype.name == expected.dtype else round_to(exact, expected.dtype)


def _free(expected: Mapping[str, Expected], got: Mapping[str, Array]) -> bool:
    """Whether NaN everywhere would pass too."""
    return all((expected[name].nonfinite | expected[name].ignored).all() for name in got)
