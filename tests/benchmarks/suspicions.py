"""Aggregate statistics: false alarms, power and cost.

    python -m tests.benchmarks.suspicions alarms [--problems 3000] [--seed 0]    random and awkward honest problems
    python -m tests.benchmarks.suspicions suite                                  every case: streaming, torch
    python -m tests.benchmarks.suspicions power [--seeds 4] [--dtypes float16]   smallest errors that are noticed
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.aggregate import Suspicion, suspicions
from refattn.aggregate.filters import Filters
from refattn.aggregate.keys import Keys
from refattn.cases import CASES
from refattn.honest import Trial, answer
from refattn.inputs import Problem, make
from refattn.judge import ratios
from refattn.memory import take_answer
from refattn.precision import Precision, Unsupported, preset
from refattn.streaming import Rules, implementation
from refattn.truth import Expected, quick_truth, truth

from ..systematic import (
    SCHEDULES,
    SPLITS,
    TILES,
    MergeIn16Bits,
    ScoresIn16Bits,
    TensorCores,
    TileIn16Bits,
    Truncated,
    Upward,
    awkward,
    drawn,
    grown,
    kernel,
    normal,
    scaled,
)

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float16", "bfloat16")
BARE = {"float32": 1e-7, "float16": 1e-6, "bfloat16": 1e-5}
"""where the ladder of relative errors begins"""


class Tally:
    """What came of honest answers: how many were judged, looked at, and suspected; the largest statistics."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.largest: dict[str, float] = defaultdict(float)
        self.truth = self.statistics = 0.0
        self._watch()

    def _watch(self) -> None:
        """Has the sums of filters and keys tell their statistics."""
        mean_square, found = Filters.mean_square, Keys.found
        self.seen: dict[str, float] = {}

        def of_filters(sums: Filters) -> Iterator[Suspicion]:
            squares = np.concatenate([*sums.squares, np.zeros(0)])
            self.seen = {name: s.statistic for name, s in sums.sums.items()} | self.seen
            self.seen |= {"rows": len(squares), "mean square": float(squares.mean()) if len(squares) else 0.0}
            return mean_square(sums)

        def of_keys(keys: Keys) -> Any:
            part = float((keys._beyond(keys.total) / keys.limit).max(initial=0.0))
            self.seen["key, of its limit"] = max(part, self.seen.get("key, of its limit", 0.0))
            return found(keys)

        Filters.mean_square, Keys.found = of_filters, of_keys  # type: ignore[method-assign]

    def add(self, what: str, problem: Problem, got: Array, e: Expected, precision: Precision) -> None:
        free = e.ignored | (e.nonfinite & ~np.isfinite(got))
        if not np.where(free, 0.0, ratios(got, e.value, e.lo, e.hi)).max(initial=0.0) <= 1:
            self.counts["failed"] += 1
            return
        self.counts["judged"] += 1
        self.seen = {}
        start = time.process_time()
        found = suspicions(problem, {"out": got}, {"out": e}, precision)
        self.statistics += time.process_time() - start
        if self.seen.pop("rows", 0) >= 43:
            self.counts["looked at"] += 1
            for name, x in self.seen.items():
                self.largest[name] = max(self.largest[name], x)
        for s in found:
            self.counts["alarms"] += 1
            print(f"ALARM {what}: {s.name} {s.statistic:.1f} > {s.limit:.1f}: {s.text}", flush=True)

    def timed(self, make_truth: Callable[..., dict[str, Expected]], p: Problem, contract: Precision) -> Expected:
        start = time.process_time()
        found = make_truth(p, contract)["out"]
        self.truth += time.process_time() - start
        return found

    def report(self) -> None:
        print(dict(self.counts), "largest:", {name: round(x, 2) for name, x in self.largest.items()})
        print(f"truth {self.truth:.1f} s, statistics {self.statistics:.1f} s")


def alarms(problems: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tally = Tally()

    def one(what: str, trial: Trial, e: Expected | None = None) -> Expected:
        quick = rng.random() < 0.3
        e = e or tally.timed(quick_truth if quick else truth, trial.problem, trial.precision)
        with np.errstate(all="ignore"):
            got = np.asarray(answer(trial)["out"], dtype=np.float64)
        case = trial.problem.case
        what += f" {case.dtype} {case.family} {trial.contract} {trial.schedule} seed={case.seed}"
        tally.add(what, trial.problem, got, e, trial.precision)
        return e

    print("random")
    for trial, _ in zip(drawn(rng), range(problems), strict=False):
        one("random", trial)
    tally.report()
    print("awkward, besides")
    for dtype in DTYPES:
        for n, N in ((120, 300), (250, 1000)):
            last: tuple[str, Any, Any] = ("", None, None)
            for name, trial in awkward(rng, dtype, n, N):
                e = last[2] if last[:2] == (name, trial.precision) else None
                last = name, trial.precision, one(name, trial, e)
    tally.report()
    print("tensor cores, besides")
    for dtype in ("float16", "bfloat16"):
        for N in (1024, 4096, 16384):
            p = normal(dtype, Lk=N, seed=seed)
            e = tally.timed(quick_truth, p, preset(dtype))
            tally.add("tensor cores", p, kernel(p, TensorCores, replace(TILES, tile_k=128)), e, preset(dtype))
    tally.report()


def suite() -> None:
    from refattn.adapters import torch

    streams: list[Any] = [replace(implementation, name=str(s), schedule=s) for s in SCHEDULES]
    for kind, implementations in (("streaming", streams), ("torch", [torch.default, torch.flash, torch.math])):
        tally = Tally()
        for case in CASES:
            if case.chapter == "huge" or "out" not in case.want:
                continue
            p, known = make(case), {}
            for implementation_ in implementations:
                if implementation_.supports(case):
                    continue
                contract = implementation_.precision(case)
                try:
                    with np.errstate(all="ignore"):
                        out = np.asarray(implementation_(case, p.fresh())["out"])
                except Unsupported:
                    continue
                if contract not in known:
                    known[contract] = tally.timed(quick_truth, p, contract)
                got = np.asarray(take_answer(case, "out", out), dtype=np.float64)
                tally.add(f"{case.id} {implementation_.name}", p, got, known[contract], contract)
        print(kind)
        tally.report()


def power(seeds: int, dtypes: list[str]) -> None:
    for dtype in dtypes:
        problems = [normal(dtype, seed=seed) for seed in range(seeds)]
        contract = preset(dtype)
        expected = [truth(p, contract) for p in problems]

        def noticed(error: Callable[[Problem], Array], problems: Any = problems, expected: Any = expected) -> str:
            names: Counter[str] = Counter()
            failed = 0
            for p, e in zip(problems, expected, strict=True):
                got = error(p)
                failed += not ratios(got, e["out"].value, e["out"].lo, e["out"].hi).max() <= 1
                names.update(s.name for s in suspicions(p, {"out": got}, e, preset(p.case.dtype)))  # noqa: B023
            found = ", ".join(f"{name} {n}" for name, n in names.items())
            return f"failed {failed}, suspicious: {found or 'never'} (of {len(problems)})"

        print(dtype)
        bugs: dict[str, tuple[type[Rules], Any]] = {
            "honest": (Rules, TILES), "honest, 4 splits": (Rules, SPLITS), "scale +0.1 %": (scaled(1e-3), TILES),
            "log2(e) rounded to float16": (scaled(1.442382812 / np.log2(np.e) - 1), TILES),
            "out truncated": (Truncated, TILES), "out rounded up": (Upward, TILES),
            "bfloat16 output per tile": (TileIn16Bits, TILES), "bfloat16 output per split": (MergeIn16Bits, SPLITS),
            "S stored in bfloat16": (ScoresIn16Bits, TILES),
        }  # fmt: skip
        for name, (rules, schedule) in bugs.items():
            if "bfloat16" in name or dtype != "float32" or "out" not in name:
                print(f"  {name}: {noticed(lambda p: kernel(p, rules, schedule))}")  # noqa: B023
        print(f"  one key of 4096 dropped: {noticed(lambda p: kernel(p, without=1234))}")
        for what, wrong in (("scale", scaled), ("size", grown)):
            for step in range(24):
                error = BARE[dtype] * 10 ** (step / 4)
                text = noticed(lambda p: kernel(p, wrong(error)))  # noqa: B023
                if f"{what} {seeds}" in text:
                    print(f"  {what}, first noticed in all: {error:.2g}; {text}")
                    break
        for N in (16384, 65536, 262144):
            p = normal(dtype, Lq=256 if N < 100000 else 96, Lk=N)
            e = quick_truth(p, contract)
            print(f"  one key of {N} dropped: {noticed(lambda p: kernel(p, without=77), [p], [e])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("alarms", "suite", "power"))
    parser.add_argument("--problems", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    given = parser.parse_args()
    if given.what == "alarms":
        alarms(given.problems, given.seed)
    elif given.what == "suite":
        suite()
    else:
        power(given.seeds, given.dtypes)


if __name__ == "__main__":
    main()
