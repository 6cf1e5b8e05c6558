"""The rows of the benchmark, and who is measured in them."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from typing import Any

from refattn.report import suite_version

from .ceilings import CEILINGS, Ceiling
from .peers import PEERS
from .timing import Job, Plan, Timing, interleaved
from .work import Work, cores

__all__ = ["Bench", "is_ours", "rows_of", "works"]

Row = dict[str, Any]
Pools = dict[str, ProcessPoolExecutor]


def works(quick: bool) -> Iterator[Work]:
    """By size, so that the slow ones are known before they are slow."""
    kinds = [(dtype, causal) for dtype in ("float32", "float64", "bfloat16") for causal in (False, True)]
    if not quick:
        for dtype, D in (("float32", 64), ("float32", 128), ("float64", 64), ("bfloat16", 64)):
            for heads in (8, 2):
                yield Work("forward", dtype, False, 32768, D, Hkv=heads, Lq=1)
    for N in (512, 2048) if quick else (64, 512, 1024, 2048, 4096, 8192, 16384):
        for D in (64,) if quick or N < 2048 else (64, 128):
            for dtype, causal in kinds:
                yield Work("forward", dtype, causal, N, D)
                if 512 <= N <= 4096 and not (quick and (causal or dtype == "bfloat16")):
                    yield Work("backward", dtype, causal, N, D)
                    if not (quick and N > 512):
                        yield Work("both", dtype, causal, N, D)


def is_ours(name: str) -> bool:
    return name.startswith("refattn.")


def rows_of(work: Work, found: Mapping[str, Timing], versions: Mapping[str, str], matmul: Timing | None) -> list[Row]:
    """A row for each implementation; `of_best_peer` and `of_matmul` are its rate over theirs in the same rounds."""
    rates = {name: work.flops / timing.seconds / 1e9 for name, timing in found.items()}
    best = max((rate for name, rate in rates.items() if not is_ours(name)), default=None)
    product = Ceiling("matmul", work.dtype).flops / matmul.seconds / 1e9 if matmul else None
    return [
        {
            "implementation": name, "version": versions[name], "dtype": work.dtype, "direction": work.direction,
            "causal": work.causal, "B": work.B, "H": work.H, "Hkv": work.Hkv, "Lq": work.rows, "N": work.N, "D": work.D,
            "gflops": rates[name], "seconds": timing.seconds, "repeats": timing.repeats,
            "of_best_peer": rates[name] / best if best else None,
            "of_matmul": rates[name] / product if product else None,
        }
        for name, timing in found.items()
    ]  # fmt: skip


class Bench:
    """What was measured, and what was not: `missing` implementations and what they need, `left_out` jobs and why."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        absent = {name: [m for m in peer.needs if importlib.util.find_spec(m) is None] for name, peer in PEERS.items()}
        self.missing = {name: modules for name, modules in absent.items() if modules}
        self.versions = {name: _version(name) for name in PEERS if name not in self.missing}
        self.rows: list[Row] = []
        self.ceilings: list[Row] = []
        self.left_out: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.done: list[str] = []
        self._rates: dict[tuple[str, str], float] = {}

    @property
    def state(self) -> Row:
        """All of it, for JSON."""
        left_out = [{"implementation": n, "reason": r, "works": jobs} for (n, r), jobs in self.left_out.items()]
        return {
            "versions": self.versions, "missing": self.missing, "ceilings": self.ceilings, "rows": self.rows,
            "left_out": left_out, "done": self.done,
        }  # fmt: skip

    def resume(self, state: Row) -> None:
        """Go on from the `state` of a run of the same versions."""
        if state["versions"] != self.versions:
            raise ValueError(f"versions={state['versions']} must be those of today, {self.versions}; begin anew")
        self.rows, self.ceilings, self.done = state["rows"], state["ceilings"], state["done"]
        for entry in state["left_out"]:
            self.left_out[entry["implementation"], entry["reason"]] = entry["works"]
        self._rates = {(row["implementation"], row["dtype"]): row["gflops"] * 1e9 for row in self.rows}

    def measure_ceilings(self, pools: Pools) -> None:
        jobs: list[Job] = [(name, limit) for name in pools for limit in CEILINGS.get(name, ())]
        for (name, limit), timing in interleaved(pools, jobs, self.plan, self._leave_out).items():
            assert isinstance(limit, Ceiling)
            unit = "GB/s" if limit.what == "read" else "GFLOP/s"
            self.ceilings.append({
                "ceiling": limit.what, "by": name, "dtype": limit.dtype, "rate": limit.flops / timing.least / 1e9,
                "unit": unit, "cores": cores(), "seconds": timing.least, "repeats": timing.repeats,
            })  # fmt: skip

    def measure(self, pools: Pools, work: Work) -> list[Row]:
        """Everybody's row of one problem, with the fastest matrix product of the dtype in the same rounds."""
        jobs: list[Job] = []
        for name in pools:
            patience = self.plan.patience / (8 if PEERS[name].reference else 1)
            if work.flops > patience * self._rates.get((name, work.dtype), math.inf):
                self._leave_out((name, work), "too slow")
            else:
                jobs.append((name, work))
        products = [c for c in self.ceilings if c["ceiling"] == "matmul" and c["dtype"] == work.dtype]
        limits: list[Job] = [
            (c["by"], Ceiling("matmul", work.dtype)) for c in sorted(products, key=lambda c: c["rate"])[-1:]
        ]
        timings = interleaved(pools, jobs + limits, self.plan, self._leave_out)
        found = {name: timings[name, work] for name in pools if (name, work) in timings}
        self._rates.update({(name, work.dtype): work.flops / timing.seconds for name, timing in found.items()})
        rows = rows_of(work, found, self.versions, timings.get(limits[0]) if limits else None)
        self.rows += rows
        self.done.append(str(work))
        return rows

    def _leave_out(self, job: Job, reason: str) -> None:
        self.left_out[job[0], reason].append(str(job[1]))


def _version(name: str) -> str:
    if is_ours(name):
        return " ".join([suite_version(), *(f"{module} {metadata.version(module)}" for module in PEERS[name].needs)])
    return metadata.version(PEERS[name].needs[0])
