"""The matrix as Markdown for a README, as JSON for machines, and as JUnit for CI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

from ..report import as_finite, as_junit, suite_version
from .page import MARKS, days, short, words
from .table import Cell, Column, Table

__all__ = ["as_json", "as_junit_xml", "as_markdown"]

LEGEND = (
    "✓ all pass, ≈ pass by a convention that is declared, ✗ something fails, ! fails as is known, – refused, · not "
    "run; passed/judged cases, and how many times its bound the worst failure is off."
)


def as_markdown(table: Table, page: str = "") -> str:
    """A table of features and implementations; `page` is the address of the HTML page, if there is one."""
    shown = [c for c in table.columns if not c.not_run]
    when, text = days(table), [f"{len(table.cases):,} cases, refattn {suite_version()}"]
    text += [f"measured {when}"] if when else []
    lines = ["# Which attention is right", "", f"{', '.join(text)}. {LEGEND}"]
    lines += [f"What is behind each: [{page}]({page})."] if page else []
    lines += ["", f"| | {' | '.join(_cell(c.label) for c in shown)} |", "|---|" + "---|" * len(shown)]
    lines.append(f"| version | {' | '.join(_cell(_version(c)) for c in shown)} |")
    for group, rows in table.groups():
        lines.append(f"| **{_cell(group)}** |" + " |" * len(shown))
        for row, ids in rows:
            lines.append(f"| {_cell(row.title)} | {' | '.join(_said(table.cell(row, ids, c)) for c in shown)} |")
    lines.append("| **Conventions found** |" + " |" * len(shown))
    for name in table.probed():
        found = [words(row.found) if row else "·" for row in (c.found(name) for c in shown)]
        if len(set(found) - {"·"}) > 1:
            lines.append(f"| {_cell(words(name))} | {' | '.join(map(_cell, found))} |")
    lines += ["", *(f"- {_cell(c.spec)}: {_cell(c.not_run)}" for c in table.columns if c.not_run)]
    lines += [f"- {_cell(c.spec)}: {_cell('; '.join(c.remarks))}" for c in table.columns if c.remarks]
    return "\n".join(lines).rstrip() + "\n"


def _version(column: Column) -> str:
    return column.report.description.version if column.report else ""


def _said(cell: Cell) -> str:
    mark = MARKS[cell.kind]
    if cell.failed:
        return f"{mark} {cell.good}/{cell.judged}, {short(cell.worst)}"
    return f"{mark} {cell.good}/{cell.judged}" if cell.judged else mark


def _cell(text: str) -> str:
    """The text as a cell: nothing in it ends the cell or is markup."""
    for sign in "\\|*_<>[]`":
        text = text.replace(sign, "\\" + sign)
    return text.replace("\n", " ")


def as_json(table: Table) -> dict[str, Any]:
    """Rows with their cells by implementation; of each implementation what it is and how it did."""
    return as_finite(
        {
            "suite": suite_version(),
            "measured": days(table),
            "cases": len(table.cases),
            "implementations": {c.spec: _column(c) for c in table.columns},
            "rows": [
                {
                    "row": row.word, "title": row.title, "group": row.group, "cases": sorted(ids),
                    "cells": {c.spec: _numbers(table.cell(row, ids, c)) for c in table.columns},
                }
                for row, ids in table.rows
            ],
        }
    )  # fmt: skip


def _column(column: Column) -> dict[str, Any]:
    report = column.report
    if report is None:
        return {"not_run": column.not_run, "said": column.said}
    return {
        "name": report.description.name,
        "version": report.description.version,
        "not_run": column.not_run,
        "remarks": list(column.remarks),
        "counts": report.counts(),
        "found": {row.name: row.found for row in report.probed},
        "conventions": report.description.conventions.declared(),
        "diagnosis": list(report.diagnosis),
        "failed": {v.case.id: report.expected.get(v.case.id) for v in column.failures()},
    }


def _numbers(cell: Cell) -> dict[str, Any]:
    reasons = {why: len(ids) for why, ids in cell.reasons()}
    return {
        "kind": cell.kind, "passed": cell.good, "judged": cell.judged, "ratio": cell.ratio, "missing": cell.missing,
        "unsupported": reasons, "failed": [v.case.id for v in cell.failed],
    }  # fmt: skip


def as_junit_xml(table: Table) -> str:
    """A testsuite for each implementation; of one that was not run, a single test that is skipped, or an error."""
    root = ElementTree.Element("testsuites")
    for column in table.columns:
        root.extend(_suites(column))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suites(column: Column) -> Iterator[ElementTree.Element]:
    if column.report is not None:
        yield from ElementTree.fromstring(as_junit(column.report))
        return
    absent = not column.bad()
    suite = ElementTree.Element(
        "testsuite", name=f"refattn {column.spec}", tests="1", failures="0", errors=str(int(not absent)),
        skipped=str(int(absent)), time="0",
    )  # fmt: skip
    test = ElementTree.SubElement(suite, "testcase", classname="refattn", name="load", time="0")
    ElementTree.SubElement(test, "skipped" if absent else "error", message=column.why).text = column.said
    yield suite
