"""The command `refattn prove`: all proofs of a checkout, one table, and a page with their pictures."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .page import as_html, as_markdown
from .proofs import Outcome, Proof, discover, exit_code, missing, prove, statistic, totals

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["CannotProve", "as_json", "command", "table"]


class CannotProve(Exception):
    """A mistake of the caller, or a package that is not there; in one line."""


def command(arguments: argparse.Namespace, console: Console) -> int:
    """Run them; the exit status is 0 if all hold, 1 if one is refuted or failed, else 3.

    `arguments` has proofs, only, quick, seed, jobs, json, html, markdown.
    """
    pictures = not (arguments.html is arguments.markdown is None)
    proofs = _chosen(arguments, pictures)
    outcomes = _run(proofs, arguments, pictures)
    settings = f"seed {arguments.seed}" + (", quick" if arguments.quick else "")
    console.print(table(outcomes))
    for outcome in outcomes:
        if outcome.message:
            console.print(f"{outcome.proof.name}: {outcome.message}", soft_wrap=True)
    console.print(f"{totals(outcomes)}; {settings}", soft_wrap=True)
    try:
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(as_json(outcomes, arguments.seed, arguments.quick), indent=1) + "\n")
        if arguments.html is not None:
            arguments.html.write_text(as_html(outcomes, settings), encoding="utf-8")
        if arguments.markdown is not None:
            as_markdown(outcomes, settings, arguments.markdown)
    except OSError as error:
        raise CannotProve(str(error)) from None
    return exit_code(outcomes)


def _chosen(arguments: argparse.Namespace, pictures: bool) -> list[Proof]:
    """The proofs to run; refused at once, before any of them, if something is not there."""
    if pictures and importlib.util.find_spec("matplotlib") is None:
        raise CannotProve("the pictures of --html and --markdown need matplotlib: python -m pip install matplotlib")
    try:
        proofs = discover(arguments.proofs, arguments.only)
    except ValueError as error:
        raise CannotProve(str(error)) from None
    for package, names in missing(proofs).items():
        raise CannotProve(
            f"{', '.join(names)} cannot run without {package}: python -m pip install {package}, or choose with --only"
        )
    return proofs


def _run(proofs: Sequence[Proof], arguments: argparse.Namespace, pictures: bool) -> list[Outcome]:
    """Run them with a bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    terminal = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=len(proofs))

        def on_outcome(outcome: Outcome) -> None:
            progress.update(task, advance=1, description=f"{outcome.proof.name} {outcome.decision}")

        return prove(
            proofs,
            quick=arguments.quick,
            seed=arguments.seed,
            jobs=arguments.jobs or _cores(),
            pictures=pictures,
            on_outcome=on_outcome,
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table(outcomes: Sequence[Outcome]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("claim", "decisive statistic"):
        shown.add_column(name, overflow="fold")
    shown.add_column("decision")
    for name in ("samples", "s"):
        shown.add_column(name, justify="right")
    styles = {"holds": "green", "undecided": "yellow"}
    for outcome in outcomes:
        decision = Text(outcome.decision, styles.get(outcome.decision, "bold red"))
        samples = f"{outcome.samples:,}" if outcome.samples else ""
        what = "" if outcome.message else statistic(outcome)
        shown.add_row(outcome.proof.name, what, decision, samples, f"{outcome.seconds:.1f}")
    return shown


def as_json(outcomes: Sequence[Outcome], seed: int, quick: bool) -> dict[str, Any]:
    proofs = [
        {
            "name": o.proof.name,
            "claim": o.proof.claim,
            "decision": o.decision,
            "seconds": o.seconds,
            "samples": o.samples,
            "message": o.message,
            "findings": list(o.findings),
        }
        for o in outcomes
    ]
    return {"seed": seed, "quick": quick, "exit": exit_code(outcomes), "proofs": proofs}
