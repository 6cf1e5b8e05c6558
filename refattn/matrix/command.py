"""The command `refattn matrix`: many implementations through the suite, and one page of what came of it."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import selection
from ..check_command import at_least_one, natural, positive

if TYPE_CHECKING:
    from ..case import Case
    from .table import Column, Table

__all__ = ["FILES", "CannotDraw", "add_parser", "command"]

FILES = {
    "html": "one page that needs no network and no script; needs jinja2",
    "markdown": "the table alone, for a README",
    "json": "all cells, for machines",
    "junit": "JUnit XML, a testsuite for each implementation",
}


class CannotDraw(Exception):
    """A mistake of the caller, in one line."""


def add_parser(commands: Any, parents: Sequence[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """`parents` bring the options of `refattn.selection`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "matrix", parents=list(parents), help="many implementations, and a page of what works where",
        description="Exit code 0 if nothing failed but what is known to, 1 if something did, or nothing was judged.",
    )  # fmt: skip
    parser.add_argument("implementations", nargs="*", metavar="IMPL", help="as of check; none: what is in --runs")
    parser.add_argument(
        "--runs", type=Path, metavar="DIR",
        help="a file for each run: a run that was stopped goes on, one that is complete is not run again",
    )  # fmt: skip
    parser.add_argument("--jobs", type=at_least_one, default=1, metavar="N", help="implementations at a time (1)")
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="shift the seed of every case by N")
    parser.add_argument("--timeout", type=positive, default=60.0, metavar="S", help="seconds for one call (60)")
    parser.add_argument("--memory", type=positive, metavar="GB", help="GB of memory for each; needs psutil (no limit)")
    parser.add_argument(
        "--row", action="append", default=[], metavar="A+B",
        help="one more row: cases with all of these features, such as gqa+causal-br+softcap; may be repeated",
    )  # fmt: skip
    for name, what in FILES.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {what}")
    return parser


def command(arguments: argparse.Namespace) -> int:
    """Run what is not there yet, write the files, say the totals; the exit code."""
    from ..record import BadRecord
    from ..said import plain
    from .columns import CannotMeasure
    from .table import made
    from .variants import joined

    try:
        cases = selection.selected(arguments)
        for words in arguments.row:
            joined(words)
    except ValueError as error:
        raise CannotDraw(str(error)) from None
    try:
        found = _columns(arguments, cases)
    except (BadRecord, CannotMeasure) as error:
        raise CannotDraw(str(error)) from None
    table = made(found, arguments.row)
    _write(arguments, table)
    for column in found:
        judged = "no success: no case was judged: " if column.vacuous else ""
        told = "; ".join((f"{judged}{column.not_run or _counts(column)}", *column.remarks))
        print(f"{column.spec}: {plain(f'{column.name}: {told}')}")
    return 1 if table.bad() else 0


def _columns(arguments: argparse.Namespace, cases: Sequence[Case]) -> list[Column]:
    from .columns import columns, measure

    specs = list(dict.fromkeys(arguments.implementations))
    if not specs and arguments.runs is None:
        raise CannotDraw("name implementations, such as torch jax onnx, or --runs DIR with runs in it")
    if arguments.runs is not None and arguments.runs.exists() and not arguments.runs.is_dir():
        raise CannotDraw(f"--runs {arguments.runs} is a file; it must be a folder")
    if not specs:
        found = columns(arguments.runs)
        if not found:
            raise CannotDraw(f"--runs {arguments.runs}: no run is there; name implementations")
        return found
    options = {name: getattr(arguments, name) for name in ("timeout", "memory", "seed")}
    with tempfile.TemporaryDirectory(prefix="refattn-") as temporary:
        folder = arguments.runs or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure(specs, cases, folder, arguments.jobs, options, probing=not arguments.case)
        return columns(folder, specs)


def _write(arguments: argparse.Namespace, table: Table) -> None:
    from . import exports
    from .page import NeedsJinja, as_html

    page = arguments.html.name if arguments.html else ""
    makers = {
        "html": as_html,
        "markdown": lambda table: exports.as_markdown(table, page),
        "json": lambda table: json.dumps(exports.as_json(table), indent=1) + "\n",
        "junit": exports.as_junit_xml,
    }
    try:
        for name, make in makers.items():
            path = getattr(arguments, name)
            if path is not None:
                path.write_text(make(table), encoding="utf-8", errors="backslashreplace")
    except (NeedsJinja, OSError) as error:
        raise CannotDraw(str(error)) from None


def _counts(column: Column) -> str:
    counts = column.report.counts() if column.report else {}
    known = len(column.failures()) - len(column.report.failures()) if column.report else 0
    return ", ".join(f"{n} {status}" for status, n in counts.items()) + (f" ({known} known)" if known else "")
