"""The matrix as data: rows of cases, columns of implementations, and what came of each.

A cell is what the cases of its row came to in its column: "failed" where something failed unexpectedly, "known" where
only that failed which is known to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

from ..case import Case
from ..conform import Report
from ..judge import Verdict
from ..probes import Convention
from ..report import as_fields
from .variants import Variant, rows_of

__all__ = ["Cell", "Column", "Kind", "Table", "made", "reason"]

K = TypeVar("K")
V = TypeVar("V")
Kind = Literal["passed", "acceptable", "known", "failed", "unsupported", "not run"]


@dataclass(frozen=True)
class Column:
    """An implementation, by what it was called with: its report, or why there is none and what was said.

    `why` is "not installed", "cannot be loaded", or "bad contract".
    """

    spec: str
    report: Report | None = None
    why: str = ""
    said: str = ""

    @property
    def label(self) -> str:
        """What stands at the head of the column: a bare name, or the last module and the callable."""
        last = self.spec.rpartition(".")[2]
        return last if ":" in last else self.spec

    @property
    def name(self) -> str:
        """Name and version as it says them itself."""
        about = self.report.description if self.report else None
        return f"{about.name} {about.version}".strip() if about else self.spec

    @property
    def when(self) -> str:
        """The day on which the run began, if that is known."""
        return self.report.date if self.report else ""

    @cached_property
    def not_run(self) -> str:
        """Why nothing of it was judged: not installed, what it needs, or why it refused all; "" if something was."""
        verdicts = self.report.verdicts if self.report else []
        reasons = sorted({reason(v) for v in verdicts})
        if self.why or any(v.status != "unsupported" for v in verdicts):
            return self.why
        needed = [why for why in reasons if why.startswith("needs ")] or reasons
        return f"not run: {needed[0]}" if len(needed) == 1 else ""

    @property
    def vacuous(self) -> bool:
        """Whether it was run, and nothing was judged, though nothing is missing that it needs."""
        if self.report is None:
            return False
        return all(
            v.status == "unsupported" and not reason(v).startswith("needs ") for v in self.report.verdicts
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is to be known of its run besides the verdicts."""
        return self.report.remarks if self.report else ()

    @cached_property
    def by_id(self) -> dict[str, Verdict]:
        return {v.case.id: v for v in self.report.verdicts} if self.report else {}

    def found(self, name: str) -> Convention | None:
        """What was found of a convention."""
        return next((row for row in self.report.probed if row.name == name), None) if self.report else None

    def failures(self) -> list[Verdict]:
        """All that failed, the unexpected first."""
        known = self.report.expected if self.report else {}
        return sorted((v for v in self.by_id.values() if v.status == "failed"), key=lambda v: v.case.id in known)

    def bad(self) -> bool:
        """Whether something is wrong that was not expected: a failure, a broken promise, an error when it is loaded,
        or that nothing was judged.
        """
        if self.report is None:
            return self.why != "not installed"
        return bool(self.report.failures() or self.report.broken_promises() or self.vacuous)


@dataclass(frozen=True)
class Cell:
    """The verdicts of a row in a column, and of how many cases there is none."""

    verdicts: tuple[Verdict, ...]
    missing: int
    known: frozenset[str]
    """ids of failures that are expected"""

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(v.status for v in self.verdicts)

    @property
    def judged(self) -> int:
        return len(self.verdicts) - self.counts["unsupported"]

    @property
    def good(self) -> int:
        """How many passed, by the definition or by a convention that is declared."""
        return self.judged - self.counts["failed"]

    @cached_property
    def failed(self) -> tuple[Verdict, ...]:
        """What failed: the unexpected first, then what shows most, then the smallest problem."""

        def rank(v: Verdict) -> tuple[bool, bool, int]:
            told_apart = v.picture is not None and v.picture["of"] == "weight"
            return v.case.id in self.known, not told_apart, v.case.scores

        return tuple(sorted((v for v in self.verdicts if v.status == "failed"), key=rank))

    @property
    def worst(self) -> Verdict:
        """Of what failed, of the unexpected if there is any, the one that is furthest off."""

        def off(v: Verdict) -> float:
            return max((o.ratio for o in v.outputs if not o.passed), default=-1.0)

        return max([v for v in self.failed if v.case.id not in self.known] or self.failed, key=off)

    @property
    def kind(self) -> Kind:
        if self.failed:
            return "known" if self.failed[0].case.id in self.known else "failed"
        if self.judged:
            return "acceptable" if self.counts["acceptable"] else "passed"
        return "unsupported" if self.verdicts else "not run"

    @property
    def ratio(self) -> float:
        """The largest that passed."""
        return max((v.ratio for v in self.verdicts if v.status in ("passed", "acceptable")), default=0.0)

    def reasons(self) -> list[tuple[str, list[str]]]:
        """Why cases are unsupported, the most frequent first, with the ids of the cases."""
        groups = _grouped((reason(v), v.case.id) for v in self.verdicts if v.status == "unsupported")
        return sorted(groups, key=lambda group: -len(group[1]))

    def conventions(self) -> list[tuple[str, list[str]]]:
        """The declared conventions without which cases would have failed, with the ids of the cases."""
        return _grouped((as_fields(v.conventions), v.case.id) for v in self.verdicts if v.status == "acceptable")

    def shared(self) -> list[str]:
        """The features that all failing cases have, and some case that passed has not."""
        failed, passed = self.failed, [v for v in self.verdicts if v.status in ("passed", "acceptable")]
        if len(failed) < 2:
            return []
        common = frozenset.intersection(*(v.case.features() for v in failed))
        return sorted(word for word in common if any(word not in v.case.features() for v in passed))


@dataclass(frozen=True)
class Table:
    """Rows with the ids of their cases, and columns."""

    cases: tuple[Case, ...]
    rows: tuple[tuple[Variant, frozenset[str]], ...]
    columns: tuple[Column, ...]

    def cell(self, row: Variant, ids: frozenset[str], column: Column) -> Cell:
        report = column.report
        if report is None:
            return Cell((), len(ids), frozenset())
        returned = report.description.outputs
        found = tuple(_of_row(row, v, returned) for name, v in column.by_id.items() if name in ids)
        return Cell(found, len(ids) - len(found), frozenset(report.expected) & ids)

    def groups(self) -> list[tuple[str, list[tuple[Variant, frozenset[str]]]]]:
        """The rows by group, in their order."""
        return _grouped((row.group, (row, ids)) for row, ids in self.rows)

    def probed(self) -> list[str]:
        """The conventions that were looked for in some column."""
        return list(dict.fromkeys(found.name for c in self.columns if c.report for found in c.report.probed))

    def bad(self) -> bool:
        return any(column.bad() for column in self.columns)


def made(columns: Sequence[Column], more: Sequence[str] = ()) -> Table:
    """The table of some columns; its cases are those that any of them was asked."""
    cases = tuple({v.case.id: v.case for c in columns for v in c.by_id.values()}.values())
    return Table(cases, tuple(rows_of(cases, more)), tuple(columns))


def _of_row(row: Variant, verdict: Verdict, returned: frozenset[str]) -> Verdict:
    """The verdict, or that it is none on this row: what that is about was not returned, and so not judged."""
    judged = {o.name for o in verdict.outputs} or returned
    lacking = [names for names in row.outputs if judged.isdisjoint(names)] if verdict.status != "unsupported" else []
    if not lacking:
        return verdict
    why = f"returns no {' '.join(sorted(lacking[0] & verdict.case.want))}"
    return replace(verdict, status="unsupported", reasons=(why,), outputs=(), conventions={})


def reason(verdict: Verdict) -> str:
    return " ".join(verdict.reasons) or "no reason given"


def _grouped(pairs: Iterable[tuple[K, V]]) -> list[tuple[K, list[V]]]:
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return list(groups.items())
