"""The command `refattn teeth`: does the suite kill its mutants, and what do the rules of others kill?

Exit code 0 if every mutant that can be killed is, and no honest kernel is rejected; 1 if not; 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CannotBite", "add_parser", "command", "gathered", "load", "quick_tasks"]

SAMPLE = 8
"""a quick run makes one full row, and one of false alarms, of so many"""


class CannotBite(Exception):
    """A mistake of the caller, in one line."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        "teeth", help="the kill matrix: mutants against this suite and the rules of others",
        description="Each mutant is asked what kills it, what kills the others, and what each rule of others usually "
        "asks; honest kernels are asked the same, and small errors are planted, unless --only is given. Takes some "
        "minutes; with --out it can be killed and started again.",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="each mutant on its killer, and a sample of the rest")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a mutant or glob; may be repeated")
    parser.add_argument("--seed", type=int, default=None, metavar="N", help="of --quick's sample (the day of the year)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="rows as they come, JSON lines; what is there is kept")
    parser.add_argument("--read", type=Path, metavar="FILE", help="run nothing: results that --json wrote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the same as Markdown")
    return parser


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Run them, print the table and what is wrong; `arguments` are those of `add_parser`."""
    from .pages import as_html, as_markdown
    from .results import faults

    if arguments.read is not None:
        if arguments.only or arguments.quick or arguments.out is not None:
            raise CannotBite("--read: runs nothing; leave --only, --quick and --out out")
        results = load(arguments.read)
    else:
        results = _run(arguments)
    _print(console, results)
    pages = (
        (arguments.json, lambda r: json.dumps(r, indent=0, ensure_ascii=False) + "\n"),
        (arguments.html, as_html), (arguments.markdown, as_markdown),
    )  # fmt: skip
    try:
        for path, write in pages:
            if path is not None:
                path.write_text(write(results), encoding="utf-8")
    except OSError as error:
        raise CannotBite(str(error)) from None
    return 1 if faults(results) else 0


def load(path: Path) -> dict[str, Any]:
    """Results that a run wrote."""
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"header", "mutants", "honest", "power"} <= set(results):
            return results
        raise ValueError("no results of refattn teeth --json")
    except (OSError, ValueError, TypeError) as error:
        raise CannotBite(f"--read: {path}: {error}") from None


def _header() -> dict[str, str]:
    import numpy

    from ..report import suite_version
    from .matrix import catalogue

    return {
        "refattn": suite_version(), "numpy": numpy.__version__, "python": platform.python_version(),
        "machine": platform.machine(), "catalogue": catalogue(), "date": datetime.date.today().isoformat(),
    }  # fmt: skip


def quick_tasks(mutants: Sequence[str], seed: int) -> list[str]:
    """Each mutant on its killer, and of every SAMPLE full rows and honest cases the one that `seed` chooses."""
    from .runs import inputs

    tasks = [f"quick:{name}" for name in mutants]
    first = seed % SAMPLE
    return tasks + [f"mutant:{n}" for n in mutants[first::SAMPLE]] + [f"honest:{n}" for n in inputs()[first::SAMPLE]]


def gathered(rows: Sequence[dict[str, Any]], header: dict[str, str]) -> dict[str, Any]:
    """The results of rows; a full row of a mutant stands for its quick one."""
    of_kind: dict[str, list[dict[str, Any]]] = {"mutant": [], "quick": [], "honest": [], "power": []}
    for row in rows:
        kind, _, name = row["task"].partition(":")
        of_kind[kind].append({"name": name, **{k: v for k, v in row.items() if k not in ("task", "seconds")}})
    full = {row["name"]: row for row in of_kind["mutant"]}
    mutants = [full.get(row["name"], row) for row in of_kind["quick"]] or of_kind["mutant"]
    lines = [line for row in of_kind["power"] for line in row["lines"]]
    order = [line["what"] for line in lines if line["dtype"] == "bfloat16"]
    lines.sort(key=lambda line: order.index(line["what"]))
    return {"header": header, "mutants": mutants, "honest": of_kind["honest"], "power": lines}


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    """All tasks, with a bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..mutants import MUTANTS
    from .runs import every_task, run

    mutants = [n for n in MUTANTS if not arguments.only or any(fnmatchcase(n, p) for p in arguments.only)]
    for pattern in arguments.only:
        if not any(fnmatchcase(name, pattern) for name in MUTANTS):
            raise CannotBite(f"--only: {pattern!r} matches no mutant; refattn.mutants.MUTANTS has them")
    if arguments.jobs < 1:
        raise CannotBite(f"--jobs: {arguments.jobs} must be >= 1")
    today = datetime.date.today().timetuple().tm_yday
    seed = today if arguments.seed is None else arguments.seed
    tasks = quick_tasks(mutants, seed) if arguments.quick else every_task(mutants)
    if arguments.only and not arguments.quick:
        tasks = [task for task in tasks if task.startswith("mutant:")]
    terminal = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    header = _header()
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=len(tasks))
        try:
            rows = run(
                tasks, jobs=arguments.jobs, out=arguments.out, header=header,
                on_row=lambda row: progress.update(task, advance=1, description=row["task"]),
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise CannotBite(str(error)) from None
    return gathered(rows, header)


def _print(console: Console, results: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from .pages import sections
    from .results import faults

    first = sections(results)[0]
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for n, name in enumerate(first.heads):
        shown.add_column(name, justify="right" if n else "left", no_wrap=not n)
    for row in first.rows:
        shown.add_row(*row)
    console.print(shown)
    for fault in faults(results):
        console.print(fault, soft_wrap=True)
    killed = sum(bool(row["by"]) for row in results["mutants"])
    console.print(f"{killed} of {len(results['mutants'])} mutants killed; {', '.join(results['header'].values())}")
