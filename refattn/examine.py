"""One case, or one law, asked of a candidate, and the verdict on its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from .calling import Local
from .case import Case
from .inputs import make
from .judge import Verdict, failed_call, judge
from .laws import examine as examine_law
from .laws import law_of
from .precision import Precision, preset
from .tolerance.blas import one_thread_each
from .truth import quick_truth
from .worker import Worker

__all__ = ["BadContract", "examine", "examined"]


class BadContract(ValueError):
    """An implementation declares a contract that it may not: a mistake of its author, not a failure."""


def examine(candidate: Worker | Local, case: Case) -> Verdict:
    """Run one case and judge it; the truth is computed while the candidate works.

    A case in the chapter of a law, as `refattn.laws.rows` makes it, is what that law is asked of.
    """
    asked = _Asked(candidate, case)
    asked.wait()
    return asked.verdict()


def examined(candidate: Worker | Local, cases: Iterable[tuple[int, Case]]) -> Iterator[tuple[int, Verdict]]:
    """The same of many, numbered: the candidate has the next case before an answer is judged."""
    before: tuple[int, _Asked] | None = None
    for number, case in cases:
        asked = _Asked(candidate, case)
        if before is not None:
            yield before[0], before[1].verdict()
            before = None  # its arrays
        asked.wait()
        before = number, asked
    if before is not None:
        yield before[0], before[1].verdict()


class _Asked:
    """A case on its way: handed to the candidate; `wait` for its answer; then it is judged by `verdict`."""

    def __init__(self, candidate: Worker | Local, case: Case) -> None:
        self.candidate, self.case = candidate, case
        self.law = law_of(case)
        self.found: Verdict | None = None
        if self.law is not None:
            return
        plan, outputs = candidate.plan(case), candidate.description.outputs
        if plan.reason is None and plan.failure is None and outputs.isdisjoint(case.want):
            plan = dataclasses.replace(plan, reason=f"returns no {' '.join(sorted(case.want))}")
        if plan.failure is not None:
            self.found = Verdict(case, "failed", reasons=(failed_call(plan.failure),))
        elif plan.reason is not None or plan.precision is None:
            self.found = Verdict(case, "unsupported", reasons=(plan.reason or "",))
        else:
            self.precision, self.problem = plan.precision, make(case)
            candidate.start(self.problem)

    def wait(self) -> None:
        """Compute the truth while the candidate works, and take its answer; a law is asked here."""
        if self.law is not None:
            self.found = examine_law(self.candidate, self.case, self.law, _check_contract)
        if self.found is not None:
            return
        _check_contract(self.precision, self.case, self.candidate.description.name)
        with one_thread_each():
            self.expected = quick_truth(self.problem, self.precision)
        self.answer = self.candidate.result()

    def verdict(self) -> Verdict:
        if self.found is not None:
            return self.found
        about = self.candidate.description
        return judge(
            self.problem, self.answer, self.precision, about.conventions, outputs=about.outputs, expected=self.expected
        )


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
