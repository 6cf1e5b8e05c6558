"""A cost model on paper: what the main loop of each kernel asks of an H200's units, and which of them binds.

`python -m gpu.cost` prints it as Markdown from the instruction mixes in `gpu/sass.json`.  Nothing here was measured
by this project; it predicts a ceiling, that is, a speed which a kernel of this mix cannot exceed.

One iteration of the loop (a tile of keys that is whole, or of queries in the backward) by one block asks

    tensor   FLOP of its products / 4096 (wgmma), or / (4096 MMA_SHARE) (mma.sync)
    mufu     exp2 and conversions of all lanes / 16
    fma      FP32 operations and IMAD / 128, but IMAD / 64 alone, since half of the pipe cannot do it
    alu      integer, compare, max, select, pack / 64
    issue    instructions of all warps / 4
    shared   bytes / 128, no bank conflicts assumed
    l2       bytes read from global memory / L2, all of them found in L2

clocks of a multiprocessor.  The largest binds.  The ceiling is FLOP / 4096 over it: all units overlap, as they may
when blocks or warps in different phases share the multiprocessor.  "In turn" is FLOP / 4096 over tensor plus the
largest of mufu, fma, alu, issue: products and softmax alternate, as in a lone warp.  Latency, barriers, the first
and last tile, masked tiles and the clock's fall under load are left out; they push a kernel below both.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpu.sass.table import load

__all__ = ["H200", "MMA_SHARE", "Cost", "Rates", "cost", "main", "together"]


class Rates(NamedTuple):
    """Of one multiprocessor and one clock, unless said otherwise."""

    multiprocessors: int
    clock: float
    tensor: float
    mufu: float
    fp32: float
    alu: float
    issue: float
    shared: float
    l2: float


H200 = Rates(
    multiprocessors=132,
    clock=1.83e9,
    tensor=4096.0,
    mufu=16.0,
    fp32=128.0,
    alu=64.0,
    issue=4.0,
    shared=128.0,
    l2=6.65e12 / 132 / 1.83e9,
)
"""NVIDIA H200 SXM; the compute die is the H100's.

multiprocessors, tensor, clock: 132 x 4096 FLOP x 1.83 GHz = 989.4 TFLOP/s, the dense bf16 peak of the data sheet
    (H100 white paper, tables 2 and 3: 1830 MHz is the boost clock for tensor cores; the same product in
    github.com/NVIDIA/cudnn-frontend/pull/650).
mufu, shared: 16 operations and 128 bytes (FlashAttention-4, arXiv 2603.05451, section 2: unchanged since Hopper).
fp32, alu: 128 and 64 results (CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions", 9.0).
issue: one instruction for each of four schedulers (H100 white paper).
l2: 6.65 TB/s, measured on an H100 within one partition of L2 by the authors of XLA
    (github.com/openxla/xla, xla/service/gpu/model/gpu_dot_fusion_cost_model.cc).  NVIDIA states no figure; that an
    H200 has the same, and that both partitions serve alike, are assumptions.
The two papers and the guide are cited from secondary texts or memory; their tables could not be opened.
"""

MMA_SHARE = 0.63
"""The part of the tensor cores' peak that mma.sync reaches on Hopper, by others' measurements.

About 63 %: "GPUs Go Brrr" (hazyresearch.stanford.edu/blog/2024-05-12-tk), by which XLA's model (see `H200`) derates
tiles too small for wgmma.  62.9 % on average, from memory: arXiv 2402.13499, "Benchmarking and Dissecting the Nvidia
Hopper GPU Architecture".  wgmma is taken to reach the peak.
"""

PUBLISHED = (
    ("FlashAttention-2 forward, H100", 0.35, "arXiv 2407.08608, abstract: 35 % utilisation"),
    ("FlashAttention-3 forward, H100, fp16", 0.75, "arXiv 2407.08608, abstract: up to 740 TFLOP/s, 75 %"),
)
"""Measured by their authors, as a fraction of 989.4 TFLOP/s."""

_UNITS = ("tensor", "mufu", "fma", "alu", "issue", "shared", "l2")


class Cost(NamedTuple):
    """Clocks of each unit for one iteration of one block; fractions of the tensor peak, see the module's text."""

    clocks: dict[str, float]
    binds: str
    ceiling: float
    in_turn: float


def cost(loop: Mapping[str, float], threads: int, wgmma: bool, rates: Rates = H200) -> Cost:
    """The cost of a loop whose instruction mix, for one warp, is `loop` (as `gpu.sass.mix.Mix`)."""
    if not loop.get("flop") or loop.get("nested"):
        raise ValueError(
            f"flop={loop.get('flop', 0)}, nested={loop.get('nested', 0)} of the loop: it must have matrix products, "
            "and no loop with more of them within; unroll that loop"
        )
    warps, lanes = threads // 32, threads
    peak = warps * loop["flop"] / rates.tensor
    clocks = {
        "tensor": peak / (1.0 if wgmma else MMA_SHARE),
        "mufu": lanes * loop["xu"] / rates.mufu,
        "fma": lanes * max((loop["fma"] + loop["heavy"]) / rates.fp32, loop["heavy"] / (rates.fp32 / 2)),
        "alu": lanes * loop["alu"] / rates.alu,
        "issue": warps * loop["issue"] / rates.issue,
        "shared": warps * loop["shared"] / rates.shared,
        "l2": warps * loop["global"] / rates.l2,
    }
    binds = max(_UNITS, key=lambda unit: clocks[unit])
    alternating = clocks["tensor"] + max(clocks[unit] for unit in ("mufu", "fma", "alu", "issue"))
    slowest = max(alternating, clocks["shared"], clocks["l2"])
    return Cost(clocks, binds, peak / clocks[binds], peak / slowest)


def together(parts: Sequence[tuple[float, int]], counted: int) -> float:
    """Fraction of the peak of kernels that run one after the other, each (its fraction, products that it does).

    The backward is counted as 5 products; dk/dv (4) and dq (3) do 7, since both make the scores and dp again.
    """
    return counted / sum(products / fraction for fraction, products in parts)


def main(given: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser("python -m gpu.cost", description="Cost model on paper, from gpu/sass.json.")
    parser.add_argument("--only", metavar="TEXT", action="append", default=[], help="rows whose key holds TEXT")
    wanted = parser.parse_args(given)
    _, rows = load()
    print("| kernel | " + " | ".join(_UNITS) + " | binds | in turn | ceiling | TFLOP/s at the ceiling |")
    print("|---|" + "--:|" * len(_UNITS) + "---|--:|--:|--:|")
    peak = H200.multiprocessors * H200.clock * H200.tensor / 1e12
    for key, row in rows.items():
        if key.endswith("sm_80") or not row["loop"] or not all(text in key for text in wanted.only):
            continue
        print(_line(key, row, peak))
    for name, fraction, source in PUBLISHED:
        print(f"| {name} |" + " |" * len(_UNITS) + f" measured | | {fraction:.0%} | {fraction * peak:.0f} ({source}) |")
    return 0


def _line(key: str, row: Mapping[str, Any], peak: float) -> str:
    if row["loop"]["nested"]:
        return f"| {key} |" + " |" * len(_UNITS) + " unknown: a loop within | | | |"
    found = cost(row["loop"], row["threads"], "sm_90a" in key)
    cells = [f"{found.clocks[unit]:.0f}" for unit in _UNITS]
    cells += [found.binds, f"{found.in_turn:.0%}", f"{found.ceiling:.0%}", f"{found.ceiling * peak:.0f}"]
    return f"| {key} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    raise SystemExit(main())
