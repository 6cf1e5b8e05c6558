"""What all proofs share: a run with its options, findings, the command line and the table.

A proof is a script with a docstring, a function `prove(run)` that yields findings, the worlds in
which its claim is false, and a picture:

    if __name__ == "__main__":
        raise SystemExit(main(__doc__, prove, WORLDS, picture))
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .decisions import Decision, whole
from .moments import stream

__all__ = ["Finding", "Run", "exact", "largest", "main", "within"]

EXIT = {Decision.HOLDS: 0, Decision.REFUTED: 1, Decision.UNDECIDED: 3}
TRUE = "ours"
CRASHED = 4


@dataclass(frozen=True)
class Finding:
    """One line of a proof's table."""

    what: str
    got: float | str
    expected: float | str
    decision: Decision
    samples: int = 0
    note: str = ""


@dataclass
class Run:
    """The options of a run; `world` may be asked only where data is drawn or a kernel is called."""

    quick: bool = False
    seed: int = 0
    samples: int | None = None
    world: str = TRUE
    findings: list[Finding] = field(default_factory=list)
    tick: Callable[[str], None] = lambda text: None

    def rng(self, name: str) -> np.random.Generator:
        return stream(self.seed, name)

    def budget(self, full: int, quick: int) -> int:
        """The number of samples to use at most."""
        return self.samples if self.samples is not None else quick if self.quick else full

    def batches(self, total: int, batch: int) -> Iterable[int]:
        """Sizes of batches that add up to `total`, telling progress as they are asked for."""
        done = 0
        while done < total:
            size = min(batch, total - done)
            yield size
            done += size
            self.tick(f"{done:,} of at most {total:,}")


Prove = Callable[[Run], Iterable[Finding]]
Picture = Callable[[Any, Run], None]


def exact(what: str, got: Any, expected: Any, note: str = "") -> Finding:
    """A finding without chance: holds exactly if the two are equal."""
    return Finding(what, got, expected, Decision.HOLDS if got == expected else Decision.REFUTED, note=note)


def largest(*values: Any) -> float:
    """The largest of numbers and arrays, 0 at least; NaN if there is one, which max() would lose."""
    return float(np.max([0.0, *(np.max(v, initial=0.0) for v in values)]))


def within(what: str, got: float, lo: float, hi: float, note: str = "", samples: int = 0) -> Finding:
    """A finding that holds if lo <= got <= hi, so that NaN does not; limits that cross decide nothing."""
    decision = Decision.HOLDS if lo <= got <= hi else Decision.REFUTED if lo <= hi else Decision.UNDECIDED
    return Finding(what, got, f"{lo:.6g} to {hi:.6g}", decision, samples, note)


def main(
    document: str | None, prove: Prove, worlds: Mapping[str, str], picture: Picture | None = None,
    arguments: list[str] | None = None,
) -> int:  # fmt: skip
    """Run a proof as a command; returns its exit status."""
    text = (document or "").strip()
    parser = argparse.ArgumentParser(
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="exit status: 0 holds, 1 refuted, 2 bad arguments, 3 undecided within the budget, 4 it crashed",
    )
    parser.add_argument("--quick", action="store_true", help="a few seconds, wider margins")
    parser.add_argument("--seed", type=_count, default=0)
    parser.add_argument("--samples", type=_positive, help="the most samples for each statistic")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the findings")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="draw the picture (.png or .svg); needs matplotlib")
    parser.add_argument("-x", "--exitfirst", action="store_true", help="stop at the first finding that is refuted")
    known = {TRUE: "the claim as it is", **worlds}
    falsely = "; ".join(f"{name}: {what}" for name, what in worlds.items()).replace("%", "%%")
    parser.add_argument(
        "--world", choices=list(known), default=TRUE,
        help=f"draw from a world in which the claim is false: {falsely}",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    if options.plot is not None:
        if picture is None:
            parser.error("--plot: this proof has no picture")
        if options.plot.suffix not in (".png", ".svg"):
            parser.error(f"--plot {options.plot}: the name must end in .png or .svg")
        try:
            import matplotlib
        except ImportError:
            parser.error("--plot needs matplotlib: python -m pip install -e '.[plot]'")
        matplotlib.use("agg")
    for path in (options.json, options.plot):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"{path} cannot be written; it must be a file in a folder that exists")
    run = Run(options.quick, options.seed, options.samples, options.world)
    try:
        return EXIT[_carry_out(prove, run, text.split("\n")[0], options, picture)]
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # of `... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT[whole([f.decision for f in run.findings])]
    except ModuleNotFoundError as error:
        parser.error(f"this proof needs {error.name}: python -m pip install -e '.[test]'")
    except Exception:
        traceback.print_exc()  # the status must not be that of a refuted claim
        return CRASHED


def _carry_out(
    prove: Prove, run: Run, title: str, options: argparse.Namespace, picture: Picture | None
) -> Decision:  # fmt: skip
    start = time.perf_counter()
    for finding in _shown(prove(run), run, title):
        run.findings.append(finding)
        if options.exitfirst and finding.decision is Decision.REFUTED:
            break
    seconds = time.perf_counter() - start
    decision = whole([f.decision for f in run.findings])
    if options.json is not None:
        options.json.write_text(json.dumps(_as_json(title, run, decision, seconds), indent=1) + "\n")
    if options.plot is not None and picture is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 5), layout="constrained")
        picture(figure, run)
        figure.savefig(options.plot, dpi=150)
    _print(title, run, decision, seconds)
    return decision


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be >= 0")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be >= 1")
    return value


def _shown(findings: Iterable[Finding], run: Run, title: str) -> Iterable[Finding]:
    """The findings as they come, with a spinner where a person watches."""
    if not sys.stderr.isatty():
        yield from findings
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as status:
        run.tick = lambda text: status.update(f"{title}: {text}")
        yield from findings


def _print(title: str, run: Run, decision: Decision, seconds: float) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column("statistic", overflow="fold")
    for column in ("got", "expected", "samples"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("decision")
    styles = {Decision.HOLDS: "green", Decision.REFUTED: "bold red", Decision.UNDECIDED: "yellow"}
    for f in run.findings:
        samples = f"{f.samples:,}" if f.samples else ""
        cells = (f.what, _number(f.got), _number(f.expected), samples)
        table.add_row(*map(escape, cells), f"[{styles[f.decision]}]{f.decision.value}[/]")
    console = Console(highlight=False)
    console.print(table)
    for note in dict.fromkeys(f.note for f in run.findings if f.note):
        console.print(note, markup=False)
    world = "" if run.world == TRUE else f" in the world '{run.world}'"
    console.print(f"{decision.value}{world}: {len(run.findings)} findings, {seconds:.1f} s, seed {run.seed}")


def _number(x: float | str) -> str:
    return x if isinstance(x, str) else f"{x:.6g}"


def _as_json(title: str, run: Run, decision: Decision, seconds: float) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, Decision):
            return value.value
        if isinstance(value, np.generic):
            value = value.item()
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    findings = [{name: plain(value) for name, value in asdict(f).items()} for f in run.findings]
    about = {"claim": title, "decision": decision.value, "world": run.world, "seed": run.seed, "quick": run.quick}
    return {**about, "seconds": round(seconds, 3), "findings": findings}
