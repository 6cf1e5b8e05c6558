"""The run: an implementation against the truth, case by case, and against the laws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .calling import Description, Local
from .case import Case
from .diagnose import Suspects
from .implementation import Implementation
from .inputs import make
from .judge import Output, Verdict, failed_call, judge
from .laws import examine as examine_law
from .laws import law_of
from .precision import Precision, preset
from .probes import Convention, probes
from .shrink import as_test, kind_of, shrink
from .tolerance.blas import one_thread_each
from .truth import quick_truth
from .worker import Worker

__all__ = ["BadContract", "Output", "Report", "Verdict", "examine", "judge", "run"]


class BadContract(ValueError):
    """An implementation declares a contract that it may not: a mistake of its author, not a failure."""


@dataclass
class Report:
    """The verdicts of a run, in the order of its cases, and what they are about."""

    spec: str
    description: Description
    seed: int = 0
    selected: int = 0
    verdicts: list[Verdict] = field(default_factory=list)
    interrupted: bool = False
    expected: Mapping[str, str] = field(default_factory=dict)
    """ids of the cases that are expected to fail, and why"""
    probed: tuple[Convention, ...] = ()
    """what was found of the implementation's conventions, and of what it does when it is asked for them"""
    diagnosis: tuple[str, ...] = ()
    """which bug explains the failures that are not expected, in words"""
    smallest: str = ""
    """a test of the smallest problem found that fails, as Python"""

    def failures(self) -> list[Verdict]:
        """The failures that are not expected."""
        return [v for v in self.verdicts if v.status == "failed" and v.case.id not in self.expected]

    def stale(self) -> list[Verdict]:
        """The cases that were expected to fail, and do not."""
        return [v for v in self.verdicts if v.status in ("passed", "acceptable") and v.case.id in self.expected]

    def broken_promises(self) -> list[Convention]:
        """Conventions that it declares and does not have: failures, whatever the cases say."""
        declared = self.description.conventions.declared()
        return [row for row in self.probed if not row.fits and row.field in declared]

    def counts(self) -> dict[str, int]:
        counts = {"passed": 0, "acceptable": 0, "unsupported": 0, "failed": 0}
        for verdict in self.verdicts:
            counts[verdict.status] += 1
        return counts


def examine(candidate: Worker | Local, case: Case) -> Verdict:
    """Run one case and judge it; the truth is computed while the candidate works.

    A case in the chapter of a law, as `refattn.laws.rows` makes it, is what that law is asked of.
    """
    law = law_of(case)
    if law is not None:
        return examine_law(candidate, case, law, _check_contract)
    plan = candidate.plan(case)
    description = candidate.description
    if plan.failure is not None:
        return Verdict(case, "failed", reasons=(failed_call(plan.failure),))
    if plan.reason is None and description.outputs.isdisjoint(case.want):
        plan = dataclasses.replace(plan, reason=f"returns no {' '.join(sorted(case.want))}")
    if plan.reason is not None or plan.precision is None:
        return Verdict(case, "unsupported", reasons=(plan.reason or "",))
    _check_contract(plan.precision, case, description.name)
    problem = make(case)
    candidate.start(problem)
    with one_thread_each():
        expected = quick_truth(problem, plan.precision)
    return judge(
        problem, candidate.result(), plan.precision, description.conventions,
        outputs=description.outputs, expected=expected,
    )  # fmt: skip


def _check_contract(precision: Precision, case: Case, name: str) -> None:
    for what, said, given in (("inputs", precision.inputs, case.dtype), ("out", precision.out, case.out_dtype)):
        if said != given:
            raise BadContract(f"{name}: precision({case.id}) says {what}={said}, but the case has {given}")
    loosened = precision.looser_than(preset(case.dtype, case.out_dtype))
    if loosened and not precision.source:
        fields = ", ".join(f"{field}={value!r}" for field, value in loosened.items())
        raise BadContract(
            f"{name}: precision({case.id}) is looser than preset({case.dtype!r}) in {fields}; "
            "say in source= where that is documented or measured"
        )


def run(
    spec: str | Implementation,
    cases: Sequence[Case],
    *,
    timeout: float = 60.0,
    seed: int = 0,
    expected: Mapping[str, str] | None = None,
    on_start: Callable[[Report], object] = lambda report: None,
    on_verdict: Callable[[Verdict], bool | None] = lambda verdict: None,
    probing: bool = False,
    shrinking: bool = False,
) -> Report:
    """Examine all cases; `seed` is added to each case's.  Stops when `on_verdict` returns True.

    With `probing` it is asked for its conventions first; with `shrinking` a failing case is made as small as
    may be in the end.

    A spec is loaded in a process of its own, an implementation runs in this one.  Ctrl-C ends the
    run and returns the report so far.  Raises `CannotLoad` and `BadContract`.
    """
    candidate = Worker(spec, timeout) if isinstance(spec, str) else Local(spec)
    suspects = Suspects()
    report = Report(spec if isinstance(spec, str) else spec.name, candidate.description, seed, len(cases))
    report.expected = expected or {}
    try:
        if probing:
            report.probed = probes(candidate).rows
        on_start(report)
        for case in cases:
            verdict = examine(candidate, dataclasses.replace(case, seed=case.seed + seed) if seed else case)
            if case.id not in report.expected:
                verdict = dataclasses.replace(verdict, notes=verdict.notes + suspects.watch(verdict))
            report.verdicts.append(dataclasses.replace(verdict, evidence=None))
            if on_verdict(verdict):
                break
        report.diagnosis = suspects.lines()
        if shrinking:
            report.smallest = _smallest(candidate, report.failures(), report.spec)
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        candidate.close()
    return report


def _smallest(candidate: Worker | Local, failed: Sequence[Verdict], spec: str) -> str:
    """The smallest of the failing cases, made smaller as long as it fails in the same way, as a test to paste."""
    shrinkable = [v for v in failed if law_of(v.case) is None and kind_of(v) is not None]
    if not shrinkable:
        return ""
    first = min(shrinkable, key=lambda v: v.case.B * v.case.H * v.case.Lq * v.case.Lk)
    return as_test(shrink(candidate, first), spec, apart=kind_of(first) in ("crashed", "timed out"))
