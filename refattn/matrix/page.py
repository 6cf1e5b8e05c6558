"""The matrix as one HTML page that needs nothing but itself: no network, no script.

What a click opens is a section that the style sheet shows when a link leads to it (:target), with <details> inside;
read without style it is all there, one section after the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..judge import Verdict
from ..report import as_fields, failure, suite_version, totals
from . import drawing
from .table import Cell, Column, Kind, Table

__all__ = ["MARKS", "NeedsJinja", "as_html", "short", "words"]

MARKS: Mapping[Kind, str] = {
    "passed": "✓", "acceptable": "≈", "known": "!", "failed": "✗", "unsupported": "–", "not run": "·",
}  # fmt: skip
TOLD, DRAWN = 720, 300
"""failing cases of all implementations together of which the whole text and the pictures are on the page"""
MANY = 300
"""failing cases from which on a cell shows one of them itself, not three; the others it leads to"""


class NeedsJinja(Exception):
    """The template engine is missing; says how to get it."""


@dataclass(frozen=True)
class Failure:
    """A failing case on the page: where it stands, what is said of it, and whether its pictures are there."""

    anchor: str
    verdict: Verdict
    text: str
    known: str
    drawn: bool


@dataclass(frozen=True)
class Head:
    """A column on the page: its anchor, its failing cases, and what stands at its head."""

    anchor: str
    column: Column
    failures: Mapping[str, Failure]
    counts: Mapping[str, int]

    @property
    def good(self) -> int:
        return self.counts.get("passed", 0) + self.counts.get("acceptable", 0)

    @property
    def judged(self) -> int:
        return self.good + self.counts.get("failed", 0)

    def loosened(self) -> Mapping[str, tuple[str, int]]:
        """The contracts looser than their presets, the source of each, and in how many cases."""
        found: dict[str, tuple[str, int]] = {}
        for v in self.column.by_id.values():
            if v.loosened and v.contract is not None:
                fields = as_fields(v.loosened)
                found[fields] = (v.contract.source, found.get(fields, ("", 0))[1] + 1)
        return found

    def loosened_fields(self) -> frozenset[str]:
        """The names of all fields that are looser than a preset."""
        return frozenset(field for v in self.column.by_id.values() for field in v.loosened)

    def whole(self) -> Cell:
        """All of its cases as one cell."""
        report = self.column.report
        return Cell(tuple(self.column.by_id.values()), 0, frozenset(report.expected if report else ()))


def as_html(table: Table) -> str:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise NeedsJinja("--html needs jinja2: python -m pip install jinja2") from None
    environment = Environment(
        loader=PackageLoader("refattn.matrix"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"ratio": short_ratio, "short": short, "fields": as_fields}
    environment.filters |= {"words": words, "breakable": _breakable}
    heads = _heads(table.columns)
    text = environment.get_template("page.html").render(
        table=table, heads=heads, marks=MARKS, drawing=drawing, suite=suite_version(), totals=totals, days=days(table),
        chapters=_chapters(table), first=3 if sum(len(head.failures) for head in heads) < MANY else 1,
    )  # fmt: skip
    return re.sub(r"\s*\n\s*\n+", "\n", text)


def _heads(columns: Sequence[Column]) -> list[Head]:
    heads: list[Head] = []
    share = max(1, sum(1 for column in columns if column.failures()))
    for column in columns:
        anchor = re.sub(r"[^A-Za-z0-9_-]+", "-", column.spec)
        while any(anchor == head.anchor for head in heads):
            anchor += "-"
        report = column.report
        failures = _failures(column, anchor, TOLD // share, DRAWN // share)
        heads.append(Head(anchor, column, failures, report.counts() if report else {}))
    return heads


def _failures(column: Column, anchor: str, told: int, drawn: int) -> dict[str, Failure]:
    report, found = column.report, dict[str, Failure]()
    for n, v in enumerate(column.failures()):
        known = report.expected.get(v.case.id, "") if report else ""
        text = failure(_without_frames(v), column.spec, report.seed if report else 0) if n < told else ""
        found[v.case.id] = Failure(f"{anchor}.{v.case.id}", v, text, known, n < drawn and v.picture is not None)
    return found


def _without_frames(verdict: Verdict) -> Verdict:
    """Of an exception what it says, without the way that led there."""
    return replace(verdict, reasons=tuple(map(_last_words, verdict.reasons)))


def _last_words(reason: str) -> str:
    head, traceback, rest = reason.partition("Traceback (most recent call last):\n")
    lines = rest.split("\n")
    frames = [n for n, line in enumerate(lines) if line.startswith("  ")]
    return head + "\n".join(lines[frames[-1] + 1 :] or lines[-1:]) if traceback and frames else reason


def _chapters(table: Table) -> dict[str, list[tuple[str, str]]]:
    """The ids of all cases and what they are for, by chapter."""
    chapters: dict[str, list[tuple[str, str]]] = {}
    for case in table.cases:
        chapters.setdefault(case.chapter, []).append((case.id, case.why))
    return chapters


def words(name: str) -> str:
    """What a probe found, or its name, as text for people."""
    return "–" if name == "unsupported" else name.replace("_", " ").replace("D**-0.5", "D^-½")


def _breakable(name: str) -> str:
    """The name with places where a line may end: zero-width spaces."""
    return re.sub(r"([_.:])", "\\1\u200b", name)


def days(table: Table) -> str:
    """When the runs were made: a day, or the first and the last."""
    found = sorted({column.when for column in table.columns if column.when})
    return " to ".join(dict.fromkeys((found[0], found[-1]))) if found else ""


def short_ratio(x: float) -> str:
    """In four characters or five.

    >>> [short_ratio(x) for x in (0.0, 0.834, 57.3, 123456.0, float("inf"))]
    ['0.00', '0.83', '57', '1e5', '∞']
    """
    if not x < float("inf"):
        return "∞"
    return f"{x:.2f}" if x < 10 else f"{x:.0f}" if x < 9999.5 else f"{x:.0e}".replace("e+0", "e").replace("e+", "e")


def short(verdict: Verdict) -> str:
    """A failure in a word or a number: how it ended, or its largest ratio."""
    worst = max((o.ratio for o in verdict.outputs if not o.passed), default=None)
    if worst is not None:
        return short_ratio(worst)
    first = verdict.reasons[0] if verdict.reasons else "failed"
    return next((word for word in ("raised", "crashed", "timed out") if first.startswith(word)), first.split(" ")[0])
