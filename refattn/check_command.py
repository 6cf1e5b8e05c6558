"""The command `refattn check`: runs the cases, prints failures as they come, and what all of them have in common."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .case import Case
from .check_cases import CannotCheck, chosen, known_to_fail

if TYPE_CHECKING:
    from rich.console import Console

    from .conform import Report
    from .judge import Verdict

__all__ = ["CannotCheck", "add_parser", "command", "exit_code", "natural", "positive", "stdout"]

SECONDS = 10.0
"""between two lines that say how far it is, where stderr is no terminal"""


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """`parents` bring the implementation, --seed, --timeout, and the options of `refattn.selection`."""
    check: argparse.ArgumentParser = commands.add_parser(
        "check", parents=list(parents), help="judge an implementation case by case"
    )
    check.add_argument("--case-json", metavar="JSON", help="a case as JSON, or a file of one case or of a list")
    check.add_argument(
        "--captured", type=Path, metavar="FILE",
        help="q k v of a model, .safetensors or .npz, in place of the cases: docs/HOWTO.md says how they are captured",
    )  # fmt: skip
    check.add_argument(
        "--laws", action="store_true",
        help="in place of the cases the laws, which relate answers to each other (with --case-json: on those cases)",
    )  # fmt: skip
    check.add_argument("--law", action="append", default=[], metavar="L", help="a law or glob; may be repeated")
    check.add_argument(
        "--jobs", type=at_least_one, default=1, metavar="N",
        help="so many cases at a time, each with a process of the implementation (1)",
    )  # fmt: skip
    check.add_argument(
        "--memory", type=positive, metavar="GB", help="GB of memory for the implementation; needs psutil (no limit)"
    )
    check.add_argument(
        "--record", type=Path, metavar="FILE",
        help="write each verdict as it comes; a run that was stopped goes on from there",
    )  # fmt: skip
    check.add_argument(
        "--expected-failures", type=Path, metavar="FILE",
        help="lines `ID-or-glob  # reason`; one that passes is an error (in place of the list for torch and the like "
        "that comes with refattn)",
    )  # fmt: skip
    check.add_argument("--dump", type=Path, metavar="DIR", help="write the tensors of failing cases as safetensors")
    check.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    check.add_argument("--junit", type=Path, metavar="FILE", help="write the report as JUnit XML")
    check.add_argument("-v", "--verbose", action="store_true", help="list all that is unsupported, and why")
    check.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first failure")
    return check


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} must be a number > 0")
    return value


def natural(text: str) -> int:
    return _integer(text, 0)


def at_least_one(text: str) -> int:
    return _integer(text, 1)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} must be an int >= {least}")
    return value


def command(arguments: argparse.Namespace) -> int:
    """Run, print, write the files; the exit code."""
    cases = chosen(arguments)
    expected = known_to_fail(arguments, cases)
    if arguments.dump is not None:
        try:
            arguments.dump.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotCheck(f"--dump: {error}") from None

    from .record import BadRecord
    from .report import as_json, as_junit, print_summary

    try:
        report = _run(arguments, cases, expected)
    except BadRecord as error:
        raise CannotCheck(f"--record: {error}") from None
    report.stale_fails = arguments.expected_failures is not None
    print_summary(stdout(), report, arguments.verbose)
    try:
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(as_json(report), indent=1) + "\n")
        if arguments.junit is not None:
            arguments.junit.write_text(as_junit(report), encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise CannotCheck(str(error)) from None
    return exit_code(report)


def _run(arguments: argparse.Namespace, cases: Sequence[Case], expected: dict[str, str]) -> Report:
    """Run with a bar on stderr, if that is a terminal, and failures on stdout as they come."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from .conform import run
    from .dump import dump
    from .record import recorded_run
    from .report import header, print_failure

    console, terminal = stdout(), Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    progress = Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal, redirect_stdout=False
    )
    task = progress.add_task("", total=len(cases))
    tell = (lambda verdict: None) if terminal.is_terminal else progress_lines(len(cases))
    spec = arguments.implementation

    def on_start(report: Report) -> None:
        for line in header(report):
            console.print(line, soft_wrap=True)
        progress.start()

    def on_verdict(verdict: Verdict) -> bool:
        tell(verdict)
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

    options: dict[str, Any] = dict(
        jobs=arguments.jobs, timeout=arguments.timeout, memory=arguments.memory, seed=arguments.seed,
        expected=expected, on_start=on_start, on_verdict=on_verdict, shrinking=True,
        probing=not (arguments.laws or arguments.law or arguments.case or arguments.case_json),
    )  # fmt: skip
    try:
        if arguments.record is None:
            return run(spec, cases, **options)
        return recorded_run(spec, cases, arguments.record, **options)
    finally:
        progress.stop()


def progress_lines(total: int, seconds: float = SECONDS) -> Callable[[Verdict], None]:
    """What is to be told each verdict: says on stderr, no more often than that, "120 of 893, 3 failed, 41 s"."""
    begin = last = time.monotonic()
    done = failed = 0

    def tell(verdict: Verdict) -> None:
        nonlocal last, done, failed
        done += 1
        failed += verdict.status == "failed"
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            print(f"{done} of {total}, {failed} failed, {now - begin:.0f} s", file=sys.stderr, flush=True)

    return tell


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
    stale = report.stale_fails and report.stale()
    return 1 if refused or report.broken_promises() or report.failures() or stale else 0
