"""The command: see `python -m gpu.conformance --help`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gpu.implementation as door  # first: it decides whether kernels run in the executor


def main(given: Sequence[str] | None = None) -> int:
    """0 if no job failed, 1 if one did, 2 if there was nothing to run."""
    arguments = _parser().parse_args(given)
    from .jobs import KERNELS, Job, covering, every
    from .results import Log, summary
    from .workers import run_all, serve

    if arguments.serve:
        serve()
        return 0
    unknown = set(arguments.kernels.split(",")) - set(KERNELS) if arguments.kernels else set()
    if unknown:
        raise SystemExit(f"--kernels has {', '.join(sorted(unknown))}; known are {', '.join(KERNELS)}")
    from gpu.target import SIMULATED

    schedules = arguments.schedules.split(",") if SIMULATED else ["device"]
    chosen = arguments.kernels.split(",") if arguments.kernels else KERNELS
    jobs = every(schedules, chosen, arguments.chapter)
    if arguments.quick:
        jobs = covering(jobs)
    log = Log(arguments.out, door.attention.version.partition(", schedule")[0])
    left = [job for job in jobs if job not in log.found]
    known = f"{len(jobs) - len(left)} done, {log.stale} lines of other sources"
    print(f"{door.attention.version}: {len(jobs)} jobs, {known}", flush=True)
    began, finished = time.monotonic(), 0

    def done(job: Job, result: Mapping[str, Any]) -> None:
        nonlocal finished
        finished += 1
        log.add(job, result)
        worst = max(result["ratios"].values(), default=0.0)
        place = f"[{finished}/{len(left)}, {time.monotonic() - began:.0f} s]"
        print(f"{place} {' '.join(job)}: {result['status']} {worst:.3g}", file=sys.stderr, flush=True)

    run_all(left, arguments.jobs, arguments.timeout, done)
    here = {job: log.found[job] for job in jobs if job in log.found}
    print("\n".join(summary(here)))
    bad = sum(row["status"] in ("failed", "crash", "timeout") for row in here.values())
    good = sum(row["status"] in ("passed", "acceptable") for row in here.values())
    print(f"{good} of {len(jobs)} passed, {bad} failed, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0 if good else 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m gpu.conformance", description="The suite by every kernel and schedule.")
    parser.add_argument("--quick", action="store_true", help="few jobs, by rule: kernel x feature x schedule")
    parser.add_argument("--kernels", metavar="K,K", help="some of the kernels, the door's names")
    parser.add_argument("--schedules", metavar="S,S", default="first,last,1", help="of the executor (first,last,1)")
    parser.add_argument("--chapter", metavar="C", action="append", default=[], help="a chapter; may be repeated")
    parser.add_argument("--jobs", type=int, metavar="N", default=2, help="processes (2)")
    parser.add_argument("--timeout", type=float, metavar="S", default=300.0, help="seconds for one job (300)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results as JSON lines; what it has is not run again")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
