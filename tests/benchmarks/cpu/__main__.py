"""Attention on a CPU, measured side by side: refattn.flash, the oracle, and each public library that is installed.

GFLOP/s are 4 B H N^2 D (a backward 2.5 times that) over the median time, half of it when causal.  Each
implementation runs in a process of its own, and these take turns; a matrix product of the same dtype takes its
turn in the same rounds.  FILE of --json is written after each problem; --resume goes on from there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from .rows import Bench, works
from .scaling import scaling, truth_of
from .show import draw, machine, tables
from .timing import FULL, QUICK, processes

INSTALL = {"onnxruntime": "onnxruntime onnx", "refattn.flash": "'refattn[cpu]'"}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="N = 512 and 2048, under a minute")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, ceilings, scaling, machine and versions")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the forwards (.png or .svg); needs matplotlib")
    words = "float32, 'backward float64', causal, N=512, D=128, decode, scaling, truth"
    parser.add_argument("--only", metavar="WORD", default="", help=f"only what has this in its name: {words}")
    parser.add_argument("--resume", action="store_true", help="do only what FILE of --json has not yet")
    parser.add_argument("--minutes", type=float, metavar="M", default=float("inf"), help="begin no problem after that")
    options = parser.parse_args(arguments)
    if options.plot is not None and options.plot.suffix not in (".png", ".svg"):
        parser.error(f"--plot {options.plot}: the name must end in .png or .svg")
    for path in (options.json, options.plot):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"{path} cannot be written; it must be a file in a folder that exists")
    if options.resume and (options.json is None or not options.json.is_file()):
        parser.error(f"--resume: --json {options.json} must be the file of the run to go on from")
    options.works = [work for work in works(options.quick) if options.only in str(work)]
    options.scaling, options.truth = options.only in "scaling", options.only in "truth" and not options.quick
    if not (options.works or options.scaling or options.truth):
        parser.error(f"--only {options.only} is in no name; one is '{next(works(options.quick))}'")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    end = time.monotonic() + 60 * options.minutes
    screen = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    aside = Console(stderr=True, highlight=False)
    bench = Bench(QUICK if options.quick else FULL)
    result: dict[str, Any] = {"date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "machine": machine()}
    if options.resume:
        result = json.loads(options.json.read_text())
        bench.resume(result)

    def save() -> None:
        result.update(bench.state)
        if options.json is not None:
            part = options.json.with_name(options.json.name + ".part")
            part.write_text(json.dumps(result, indent=1) + "\n")
            part.replace(options.json)

    if result["machine"]["load"] > 1:
        screen.print(f"load {result['machine']['load']:.1f}: other processes are running, the figures are too low")
    for name, modules in bench.missing.items():
        screen.print(escape(f"not installed: {name} (pip install {INSTALL.get(name, ' '.join(modules))})"))
    flash = "refattn.flash" in bench.versions
    if options.scaling and flash and "scaling" not in result:
        sizes = [1024 << i for i in range(4 if options.quick else 7)]
        dtypes = ("float32",) if options.quick else ("float32", "float64")
        result["scaling"] = [scaling(dtype, sizes, 2048 if options.quick else 4096) for dtype in dtypes]
        save()
    for found in result.get("scaling", ()):
        screen.print(
            f"scaling, {found['dtype']}, N = {found['N'][0]} to {found['N'][-1]}: time N^{found['time_slope']:.2f}, "
            f"memory N^{found['memory_slope']:.2f} ({found['bytes'][-1] / 1e6:.1f} MB), "
            f"2 threads {found['two_threads']:.2f} times as fast as 1"
        )  # fmt: skip
    if options.truth and "truth" not in result:
        result["truth"] = truth_of(32768)
        save()
    if "truth" in result:
        found = result["truth"]
        screen.print(
            f"truth and bound of one causal head, N = {found['N']}, D = 64: "
            f"{found['seconds']:.1f} s, {found['bytes'] / 1e6:.0f} MB"
        )
    works = [work for work in options.works if str(work) not in bench.done]
    if works:
        with processes(bench.versions) as pools:
            if not bench.ceilings:
                bench.measure_ceilings(pools)
            for i, work in enumerate(works):
                if time.monotonic() > end:
                    screen.print(f"--minutes {options.minutes:g}: {len(works) - i} problems not begun, from {work} on")
                    break
                rows = bench.measure(pools, work)
                save()
                rates = ", ".join(f"{row['implementation']} {row['gflops']:.1f}" for row in rows)
                aside.print(f"{i + 1}/{len(works)} {work}: {rates}", style="dim", soft_wrap=True)
    save()
    for table in tables(bench.rows):
        screen.print(table)
    for row in bench.ceilings:
        ceiling = f"{row['ceiling']} {row['dtype']} by {row['by']}, {row['cores']} cores"
        screen.print(f"ceiling: {ceiling}: {row['rate']:.1f} {row['unit']}")
    for name in dict.fromkeys(name for name, _ in bench.left_out):
        reasons = [f"{why} ({len(jobs)})" for (other, why), jobs in bench.left_out.items() if other == name]
        screen.print(escape(f"left out: {name}: {', '.join(reasons)}"), soft_wrap=True)
    if options.plot is not None:
        if importlib.util.find_spec("matplotlib") is None:
            sys.exit("--plot: matplotlib is not installed, no picture was drawn: pip install 'refattn[plot]'")
        from matplotlib.figure import Figure

        figure = Figure(figsize=(12, 6), layout="constrained")
        draw(figure, bench.rows, bench.ceilings)
        figure.savefig(options.plot, dpi=150)


if __name__ == "__main__":
    main()
