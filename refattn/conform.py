"""The run: an implementation against the truth, case by case, and against the laws."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .calling import Description, Local
from .case import Case
from .examine import BadContract, examine, examined
from .implementation import Implementation
from .judge import Output, Verdict, judge
from .judges import Judges
from .laws import law_of
from .probes import Convention, probes
from .said import cleaned
from .shrink import as_test, kind_of, shrink
from .worker import Worker

if TYPE_CHECKING:
    from .diagnose import Suspects

__all__ = ["BadContract", "Journal", "Output", "Report", "Verdict", "examine", "judge", "run"]


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
    stale_fails: bool = True
    """whether one that is expected to fail and passes is a failure; not where the list is not the user's own"""
    probed: tuple[Convention, ...] = ()
    """what was found of the implementation's conventions, and of what it does when it is asked for them"""
    diagnosis: tuple[str, ...] = ()
    """which bug explains the failures that are not expected, in words"""
    smallest: str = ""
    """a test of the smallest problem found that fails, as Python"""
    date: str = ""
    """the day on which a recorded run began"""
    recorded: int = 0
    """how many of the verdicts are those of an earlier run"""
    again: int = 0
    """how many of these, failures, were run again for the diagnosis"""
    remarks: tuple[str, ...] = ()
    """of one that was read from a record: what has changed since, or is missing"""

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


class Journal:
    """What a run writes down as it goes, and finds again when it goes on; this one keeps nothing."""

    complete = False
    """whether all was written down, the diagnosis too"""

    def begin(self, report: Report, cases: Sequence[Case]) -> Mapping[Case, Verdict]:
        """The verdicts that are there already; fills what else is there into the report."""
        return {}

    def keep_probed(self, rows: Sequence[Convention]) -> None: ...

    def keep(self, verdict: Verdict) -> None:
        """A verdict as soon as it is there, and again if it has changed."""

    def end(self, report: Report) -> None: ...


def run(
    spec: str | Implementation,
    cases: Sequence[Case],
    *,
    jobs: int = 1,
    timeout: float = 60.0,
    memory: float | None = None,
    seed: int = 0,
    expected: Mapping[str, str] | None = None,
    on_start: Callable[[Report], object] = lambda report: None,
    on_verdict: Callable[[Verdict], bool | None] = lambda verdict: None,
    probing: bool = False,
    shrinking: bool = False,
    journal: Journal | None = None,
) -> Report:
    """Examine all cases; `seed` is added to each case's.  Stops when `on_verdict` returns True.

    With `probing` it is asked for its conventions first; with `shrinking` a failing case is made as small as
    may be in the end.  `jobs` cases at a time, each with a candidate of its own; `memory` in GB for each.

    A spec is loaded in a process of its own, an implementation runs in this one.  Ctrl-C ends the
    run and returns the report so far.  Raises `CannotLoad` and `BadContract`.
    """
    if jobs < 1 or (jobs > 1 and not isinstance(spec, str)):
        raise ValueError(f"jobs={jobs} must be >= 1, and 1 for an implementation in this process")
    journal = journal or Journal()
    cases = [dataclasses.replace(case, seed=case.seed + seed) for case in cases]
    candidate = Worker(spec, timeout, memory) if isinstance(spec, str) else Local(spec)
    report = Report(spec if isinstance(spec, str) else spec.name, candidate.description, seed, len(cases))
    report.expected = expected or {}
    try:
        known = dict(journal.begin(report, cases))
        again = [] if journal.complete else _to_be_asked_again(cases, known, report)
        report.recorded, report.again = len(known), len(again)
        if probing and not report.probed:
            report.probed = probes(candidate).rows
            journal.keep_probed(report.probed)
        on_start(report)
        for case in again:
            verdict = cleaned(examine(candidate, case))
            if verdict.status == "failed":
                known[case] = dataclasses.replace(verdict, seconds=known[case].seconds, picture=known[case].picture)
        watch = _Watch(report)
        with closing(_in_order(candidate, cases, known, jobs, journal)) as verdicts:
            for verdict in verdicts:
                if not journal.complete:
                    verdict = watch.notes(verdict)
                    journal.keep(verdict)
                report.verdicts.append(dataclasses.replace(verdict, evidence=None))
                if on_verdict(verdict):
                    break
        if not journal.complete:
            report.diagnosis = watch.diagnosis()
            if shrinking:
                report.smallest = _smallest(candidate, report.failures(), report.spec)
            if len(report.verdicts) == len(cases):
                journal.end(report)
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        candidate.close()
    return report


def _to_be_asked_again(cases: Sequence[Case], known: Mapping[Case, Verdict], report: Report) -> list[Case]:
    """Those that failed in an earlier run and whose arrays the diagnosis needs, which no record has."""
    failed = [case for case in cases if case in known and known[case].status == "failed"]
    if not failed:
        return []
    from .diagnose.suspects import KEPT, SCORES

    return [
        case
        for case in failed
        if case.id not in report.expected
        and law_of(case) is None
        and any(not o.passed for o in known[case].outputs)
        and not any(note.startswith("undeclared") for note in known[case].notes)
        and case.scores <= SCORES
    ][:KEPT]


def _in_order(
    candidate: Worker | Local, cases: Sequence[Case], known: Mapping[Case, Verdict], jobs: int, journal: Journal
) -> Generator[Verdict, None, None]:  # fmt: skip
    """The verdicts of all cases in their order; each is kept as soon as it is there."""
    todo = [(n, case) for n, case in enumerate(cases) if case not in known]
    waiting: dict[int, Verdict] = {}
    with ExitStack() as stack:
        if isinstance(candidate, Local) or min(jobs, len(todo)) <= 1:
            arriving = examined(candidate, todo)
        else:
            candidate.rest()
            judges = Judges(min(jobs, len(todo)), candidate.spec, candidate.timeout, candidate.memory)
            arriving = stack.enter_context(judges).verdicts(todo)
        for n, case in enumerate(cases):
            while case not in known and n not in waiting:
                number, verdict = next(arriving)
                verdict = cleaned(verdict)
                if verdict.evidence is not None:
                    from .picture import picture

                    verdict = dataclasses.replace(verdict, picture=picture(verdict.evidence, verdict.contract))
                journal.keep(verdict)
                waiting[number] = verdict
            yield known[case] if case in known else waiting.pop(n)


class _Watch:
    """What failures look like; `refattn.diagnose` is loaded at the first one."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.suspects: Suspects | None = None

    def notes(self, verdict: Verdict) -> Verdict:
        """The verdict with what it looks like; one that is expected to fail is not looked at."""
        expected = self.report.expected
        if verdict.case.id in expected or (self.suspects is None and verdict.status != "failed"):
            return verdict
        if self.suspects is None:
            from .diagnose import Suspects

            self.suspects = Suspects()
            for before in (v for v in self.report.verdicts if v.case.id not in expected):
                self.suspects.watch(before)
        return dataclasses.replace(verdict, notes=verdict.notes + self.suspects.watch(verdict))

    def diagnosis(self) -> tuple[str, ...]:
        return () if self.suspects is None else self.suspects.lines()


def _way(verdict: Verdict) -> tuple[bool, str | None]:
    """How a case failed: whether a convention or another contract would explain it, and its kind."""
    known = ("undeclared", "within the bound of another")
    return any(note.startswith(known) for note in verdict.notes), kind_of(verdict)


def _smallest(candidate: Worker | Local, failed: Sequence[Verdict], spec: str) -> str:
    """The smallest of those that fail as most do, made smaller as long as it fails in this way, as a test to paste."""
    shrinkable = [v for v in failed if law_of(v.case) is None and kind_of(v) is not None]
    if not shrinkable:
        return ""
    usual = Counter(map(_way, shrinkable)).most_common(1)[0][0]
    first = min(shrinkable, key=lambda v: (_way(v) != usual, v.case.scores))
    return as_test(shrink(candidate, first), spec, apart=kind_of(first) in ("crashed", "timed out"))
