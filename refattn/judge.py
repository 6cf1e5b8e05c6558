"""The judge: one answer against the truth of its problem.

The pass rule of the whole suite is `ratios`: an element passes if lo <= got <= hi, and its ratio,
which is at most 1 exactly then, says how much of the way from the true value to that end it used.
What an implementation declares as a convention is applied only to what fails without it; such a
case is acceptable.  An undeclared convention that explains a failure is named, and fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from .aggregate import suspicions
from .calling import Answer
from .case import GRADIENTS, NAMES, Cache, Case, Packed
from .dropout import fraction_is_plausible
from .dtypes import round_to
from .inputs import Problem
from .memory import answer_shape, take_answer
from .precision import Conventions, Precision, eager, preset
from .truth import Expected, quick_truth, truth

__all__ = ["Evidence", "Output", "Verdict", "failed_call", "judge", "ratios"]

Array = np.ndarray[Any, Any]
Status = Literal["passed", "acceptable", "unsupported", "failed"]

_ABOVE_ONE = float(np.nextafter(1.0, 2.0))
_JUDGED = ("masked_nan_k", "masked_nan_v", "empty_rows", "empty_lse", "lse_base", "lse_sinks")
"""the conventions that change the truth"""


@dataclass(frozen=True)
class Output:
    """How one output did: its worst element, and how many of those judged failed."""

    name: str
    passed: bool
    ratio: float
    rigorous_ratio: float
    failing: int
    elements: int
    index: tuple[int, ...] = ()
    got: float = 0.0
    value: float = 0.0
    lo: float = 0.0
    hi: float = 0.0


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


def ratios(got: Array, value: Array, lo: Array, hi: Array) -> Array:
    """The ratio of each element, <= 1 exactly where lo <= got <= hi; all arguments float64.

    (got - value) / (hi - value) above the value, (value - got) / (value - lo) below it, 0 where
    equal, 1 where got is an infinite end, infinite where the denominator is not positive or got
    is NaN.
    """
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        above = got > value
        used = np.where(above, got - value, value - got)
        whole = np.where(above, hi - value, value - lo)
        ratio = np.where((whole > 0) & ~np.isnan(got), used / whole, np.inf)
        ratio = np.where(np.isinf(got) & ((got == hi) | (got == lo)), 1.0, ratio)
        ratio = np.where(got == value, 0.0, ratio)
        inside = (lo <= got) & (got <= hi)
        # rounding of the differences, or a value that is itself outside, must not change the verdict
        return np.where(inside, np.fmin(ratio, 1.0), np.fmax(ratio, _ABOVE_ONE))


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

    judged = tuple(_output(name, x, expected[name]) for name, x in got.items())
    failing = [o.name for o in judged if not o.passed]
    if failing and any(e.narrow for e in expected.values()):
        expected = truth(problem, precision)
        judged = tuple(_output(name, x, expected[name]) for name, x in got.items())
        failing = [o.name for o in judged if not o.passed]
    declared = {name: value for name, value in conventions.declared().items() if name in _JUDGED}
    if failing and declared:
        under = truth(problem, precision, Conventions(**declared))
        expected, judged = under, tuple(_output(name, x, under[name]) for name, x in got.items())
        if all(o.passed for o in judged) and not reasons:
            needed = {n: v for n, v in declared.items() if _relevant(problem, n, failing)}
            return verdict("acceptable", judged, conventions=needed or declared)
        failing = [o.name for o in judged if not o.passed]
    if not failing and not reasons:
        if _free(expected, got):
            return verdict("unsupported", judged, ("nothing to judge: every element comes of what is not finite",))
        suspected = tuple(s.text for s in suspicions(problem, got, expected, precision))
        return verdict("passed", judged, suspicions=suspected)
    notes = _undeclared(problem, got, expected, failing, precision, declared)
    if failing and not notes:
        notes = _other_contract(problem, got, precision, declared)
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


def _output(name: str, got: Array, expected: Expected) -> Output:
    """Judge the elements of one output that has the right shape."""
    free = expected.ignored | (expected.nonfinite & ~np.isfinite(got))
    ratio = np.where(free, 0.0, ratios(got, expected.value, expected.lo, expected.hi))
    rigorous = np.where(free, 0.0, ratios(got, expected.value, expected.rigorous_lo, expected.rigorous_hi))
    elements = int(ratio.size - np.count_nonzero(expected.ignored))
    if not elements:
        return Output(name, True, 0.0, 0.0, 0, 0)
    worst = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return Output(
        name,
        bool(ratio[worst] <= 1),
        float(ratio[worst]),
        float(rigorous.max()),
        int(np.count_nonzero(~(ratio <= 1))),
        elements,
        tuple(map(int, worst)),
        *(float(x[worst]) for x in (got, expected.value, expected.lo, expected.hi)),
    )


def _free(expected: Mapping[str, Expected], got: Mapping[str, Array]) -> bool:
    """Whether NaN everywhere would pass too, and not for want of memory alone."""
    found = [expected[name] for name in got]
    return all((e.nonfinite | e.ignored).all() for e in found) and any((e.nonfinite & ~e.ignored).any() for e in found)


def _relevant(problem: Problem, convention: str, failing: Sequence[str]) -> bool:
    """Whether a convention can change what is expected of the failing outputs."""
    case = problem.case
    if convention.startswith("masked_nan"):
        return not np.isfinite(np.asarray(problem.logical[convention[-1]], dtype=np.float64)).all()
    if convention == "lse_base":
        return "lse" in failing
    if convention == "lse_sinks":
        return "lse" in failing and case.sinks is not None
    if convention == "empty_lse" and "lse" not in failing:
        return False
    return _has_empty_row(problem)


def _has_empty_row(problem: Problem) -> bool:
    case, bias = problem.case, problem.logical.get("bias")
    hidden = None if bias is None else np.isneginf(np.asarray(bias, dtype=np.float64))
    step = max(1, 2**22 // max(case.B * case.H * case.Lk, 1))
    for first in range(0, case.Lq, step):
        rows = slice(first, first + step)
        seen = case.visibility.tile(rows)
        if hidden is not None:
            seen = seen & ~(hidden[:, :, rows] if hidden.shape[2] > 1 else hidden)
        if not seen.any(-1).all():
            return True
    return False


def _alternatives() -> Iterator[dict[str, str]]:
    """The most specific first: what says which number is returned, then what excuses NaN."""
    for rows in ("nan", "mean_all"):
        yield {"empty_rows": rows}
    for lse in ("+inf", "nan"):
        yield {"empty_lse": lse}
    yield {"lse_base": "2"}
    yield {"lse_sinks": "excluded"}
    for kind in ("masked_nan_v", "masked_nan_k"):  # a key that leaks excuses more
        yield {kind: "leaks"}
    yield {"masked_nan_k": "leaks", "masked_nan_v": "leaks"}


def _undeclared(
    problem: Problem,
    got: Mapping[str, Array],
    expected: Mapping[str, Expected],
    failing: Sequence[str],
    precision: Precision,
    declared: Mapping[str, Any],
) -> tuple[str, ...]:
    """Name the conventions each of which explains a failing output in full, if together they explain all.

    What leaks is NaN, and what comes of a row that is NaN: no other number is excused by it.
    """
    left = list(failing)
    found: dict[str, str] = {}
    for change in _alternatives():
        if not left or not all(_relevant(problem, name, left) for name in change):
            continue
        under = truth(problem, precision, Conventions(**{**declared, **change}))
        explained = [name for name in left if _output(name, got[name], under[name]).passed]
        spreads = NAMES if any(n.startswith("masked") for n in change) else GRADIENTS
        if "leaks" in change.values() or "nan" in change.values():
            explained = [n for n in explained if n not in spreads or _nan_alone(got[n], expected[n])]
        if "mean_all" in change.values() and set(explained) <= set(GRADIENTS):
            continue  # under it these are not judged
        if explained:
            found.update(change)
            left = [name for name in left if name not in explained]
    if left or not found:
        return ()
    case = problem.case
    lengths = (case.q_lens, case.k_lens) != (None, None)
    beyond = ", unless it reads beyond the lengths, which is a bug" if lengths else ""
    more = {name: beyond + _infinite(problem, name) for name in found if name.startswith("masked")}
    return tuple(f"undeclared convention: {name}={value!r}{more.get(name, '')}" for name, value in found.items())


def _nan_alone(got: Array, expected: Expected) -> bool:
    """Whether all that is out of bounds is NaN."""
    finite = ~np.isnan(got) & ~expected.ignored & ~(expected.nonfinite & ~np.isfinite(got))
    return bool(((expected.lo <= got) & (got <= expected.hi))[finite].all())


def _infinite(problem: Problem, convention: str) -> str:
    """Says what leaks where it is no NaN."""
    name = convention[-1]
    only = not np.isnan(np.asarray(problem.logical[name], dtype=np.float64)).any()
    return f" ({name} holds no NaN but infinity, and 0 times infinity is NaN)" if only else ""


def _other_contract(
    problem: Problem, got: Mapping[str, Array], precision: Precision, declared: Mapping[str, Any]
) -> tuple[str, ...]:
    """Name a usual contract under which all is within bound, where the one judged by is the preset."""
    case = problem.case
    usual = preset(case.dtype, case.out_dtype)
    others = {}
    if case.dtype in ("float16", "bfloat16"):
        eager_way = "the eager one: precision=lambda case: replace(eager(case.dtype), source=...)"
        others[eager_way] = replace(eager(case.dtype), out=case.out_dtype)
    if case.dtype == "float64":
        others["float32's: it computes in float32"] = replace(usual, accumulate="float32")
    if case.dtype == "float32":
        others["exp(score - lse): weights_from_lse=True"] = replace(usual, weights_from_lse=True)
    for name, contract in others.items() if precision == usual else ():
        expected = truth(problem, contract, Conventions(**declared))
        if all(_output(n, x, expected[n]).passed for n, x in got.items()):
            return (f"within the bound of another contract, {name}",)
    return ()
