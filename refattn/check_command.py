"""The command `refattn check`: runs the cases, prints failures as they come, and what all of them have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .case import Case

if TYPE_CHECKING:
    from rich.console import Console

    from .conform import Report
    from .judge import Verdict

__all__ = ["exit_code", "run", "stdout"]


def run(arguments: argparse.Namespace, cases: Sequence[Case], expected: dict[str, str]) -> Report:
    """Run with a bar on stderr, if that is a terminal, and failures on stdout as they come."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from . import conform
    from .dump import dump
    from .report import header, print_failure, print_summary

    console, terminal = stdout(), Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    progress = Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal, redirect_stdout=False
    )
    task = progress.add_task("", total=len(cases))
    spec = arguments.implementation

    def on_start(report: Report) -> None:
        for line in header(report):
            console.print(line, soft_wrap=True)
        progress.start()

    def on_verdict(verdict: Verdict) -> bool:
        progress.update(task, advance=1, description=verdict.case.id)
        if progress.finished:
            progress.update(task, description="looking for the bug, if a case failed")
        unexpected = verdict.case.id not in expected
        if verdict.status == "failed":
            progress.stop()  # so that the bar does not mix with stdout
            print_failure(console, verdict, spec, arguments.seed, expected.get(verdict.case.id, ""))
            if arguments.dump is not None and verdict.evidence is not None:
                try:
                    where = str(dump(verdict.evidence, arguments.dump, spec))
                except Exception as error:  # the report must not be lost for it
                    where = f"not written: {error}"
                console.print(f"     tensors: {where}", soft_wrap=True)
            progress.start()
        return bool(arguments.exitfirst and unexpected and verdict.status == "failed")

    try:
        report = conform.run(
            spec, cases,
            timeout=arguments.timeout, seed=arguments.seed, expected=expected, on_start=on_start, on_verdict=on_verdict,
            probing=not (arguments.laws or arguments.law or arguments.case or arguments.case_json), shrinking=True,
        )  # fmt: skip
    finally:
        progress.stop()
    print_summary(console, report)
    return report


def stdout() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def exit_code(report: Report) -> int:
    if report.interrupted:
        return 130
    refused = [v.case.id for v in report.verdicts if v.case.chapter == "basics" and v.status == "unsupported"]
    counts = report.counts()
    if refused:
        print(f"no success: basics refused: {' '.join(refused)} (--dtype judges what it is for)")
    elif not counts["passed"] + counts["acceptable"]:
        print("no success: no case passed" if counts["failed"] else "no success: no case was judged")
        return 1
    return 1 if refused or report.broken_promises() or report.failures() or report.stale() else 0
