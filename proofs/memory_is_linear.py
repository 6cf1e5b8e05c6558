"""Standard attention takes O(N²) memory, tiled attention O(N), and both O(N²) arithmetic.

Setting: one head of N queries and N keys in float64, the repository's own implementations: `refattn.attention`
(dense, the oracle) and `refattn.streaming` (tiles of 256 x 1024, the default), forward and gradients.  Each
runs in a process of its own; counted is what it holds at its peak beyond what it was given, its output included.

Statistic: a peak a + b N + c N² at N, 2 N, 4 N.  Differences do away with a, so that

    slope = log2((peak(4N) - peak(2N)) / (peak(2N) - peak(N))),   1 if c = 0, 2 if b = 0,
    c = (peak(4N) - 3 peak(2N) + 2 peak(N)) / (6 N²)   bytes for each pair (i, j), whatever a and b.

Peaks are tracemalloc's, which sees each array of NumPy, to the byte; the inputs and whatever an import or
a first call leaves behind come before its baseline.  A second witness is the resident set: the
kernel's high-water mark of the process (VmHWM), set back just before the call.  (ru_maxrss would not do:
it cannot be set back, and a child starts with its parent's.)

Decision, without chance:
- tiled: |c| <= 1/8, so that not even one bit is kept for each pair; slope within 1 +- 0.1 (one bit for each
  pair would make it 1.2 or more at these sizes);
- standard: c >= 8, one float64 for each pair; slope within 2 +- 0.15: with at most 16 arrays of N x d beside
  at least one of N x N it is off by no more than 16 d / (6 N ln 2) = 0.12 at d = 32, N = 1024 (--quick, N = 512:
  0.24, and the margin 0.3);
- resident set at the largest N: tiled below N² bytes, standard above 8 N²;
- arithmetic: multiply-adds of every matrix product that the implementations' own lines execute, counted by arrays
  that count: N² (D + Dv) forward for both; with gradients 3 N² (D + Dv) for the oracle, and N² D more for the
  tiled one, which computes the scores once more.  (The elementwise work, of order N² too, is not counted.)

The Numba kernel, `refattn.flash`, is measured like the streaming one where Numba is installed.

Source: Dao et al. 2022, "FlashAttention", theorem 1 (O(N² d) FLOPs and O(N) additional memory) and section 2.2
(O(N²) of the standard one); appendix B.4 for the backward.
Time: 15 s; --quick 4 s.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import math
import os
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from refattn import streaming
from refattn.masks import Window
from refattn.montecarlo import Finding, Run, exact, main, stream, within
from refattn.oracle import arguments
from refattn.streaming.arguments import Arguments

Array = np.ndarray[Any, Any]

WORLDS = {
    "holds_scores": "a tiled kernel that keeps every tile of scores until it is done",
    "one_tile": "a tiled kernel whose one tile is as large as the whole",
    "frugal": "a standard attention that is tiled in secret",
    "band": "a tiled kernel that computes only a band of the scores",
}
STANDARD, TILED, NUMBA = "refattn.oracle", "refattn.streaming", "refattn.flash"
PASSES = ("forward", "gradients")
D = 32


class Hoarder(streaming.Rules):
    """Keeps the scores of each tile."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        self.kept: list[Array] = [*getattr(self, "kept", []), super().products(q, k, scale)]
        return self.kept[-1].copy()


def kernel(name: str, what: str, world: str) -> Callable[..., Any]:
    """The implementation's function, in the run's world."""
    if world == "frugal" and name == STANDARD:
        name = TILED
    function = getattr(importlib.import_module(name), "attention" if what == "forward" else "attention_grad")

    def call(*arrays: Array) -> Any:
        options: dict[str, Any] = {}
        N = arrays[0].shape[2]
        if name == TILED and world == "holds_scores":
            options["rules"] = Hoarder
        if name == TILED and world == "one_tile":
            options["schedule"] = streaming.Schedule(tile_q=N, tile_k=N)
        if name == TILED and world == "band":
            options["mask"] = Window(64, 0, "top_left")
            options["schedule"] = streaming.Schedule(tile_q=64, tile_k=64)
        return function(*arrays, **options)

    return call


def inputs(seed: int, N: int, what: str, Dv: int = D) -> list[Array]:
    """q, k, v, and for gradients dout: one head."""
    rng = stream(seed, f"memory {N}")
    return [rng.standard_normal((1, 1, N, d)) for d in (D, D, Dv, Dv)[: 3 if what == "forward" else 4]]


# memory, in a process of its own


def resident() -> dict[str, int] | None:
    """VmRSS and VmHWM in bytes; None where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    parts = (line.partition(":") for line in lines)
    return {key: int(rest.split()[0]) * 1024 for key, _, rest in parts if "kB" in rest}


def resident_peak(call: Callable[..., Any], arrays: Sequence[Array]) -> int | None:
    """By how much the resident set grows during the call."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
    except OSError:
        return None
    before = resident()
    call(*arrays)
    after = resident()
    return None if before is None or after is None else after["VmHWM"] - before["VmRSS"]


def traced_peak(call: Callable[..., Any], arrays: Sequence[Array]) -> int:
    """The most that is allocated during the call, beyond what was there."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call(*arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def measure(name: str, world: str, seed: int, sizes: Sequence[int]) -> tuple[dict[str, list[int]], int | None]:
    """The traced peaks of each pass at each size, and the growth of the resident set, forward at the largest."""
    for what in PASSES:
        kernel(name, what, world)(*inputs(seed, 64, what))  # what a first call allocates once is no part of a peak
    grown = resident_peak(kernel(name, "forward", world), inputs(seed, sizes[-1], "forward"))
    peaks = {w: [traced_peak(kernel(name, w, world), inputs(seed, N, w)) for N in sizes] for w in PASSES}
    return peaks, grown


def apart(name: str, run: Run, sizes: Sequence[int]) -> tuple[dict[str, list[int]], int | None]:
    """`measure` in a fresh process, with one thread for products, so that no other's buffers are counted."""
    with mock.patch.dict(os.environ, {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(measure, name, run.world, run.seed, sizes).result()


def memory(run: Run, name: str, sizes: Sequence[int]) -> Iterator[Finding]:
    run.tick(f"{name} up to N={sizes[-1]:,}")
    N, quadratic = sizes[0], name == STANDARD
    peaks, grown = apart(name, run, sizes)
    note = "" if grown is not None else "The resident set is not measured: no /proc/self/clear_refs on this system."
    for what, (one, two, four) in peaks.items():
        slope = math.log2((four - two) / (two - one)) if four > two > one else math.nan
        pairs = (four - 3 * two + 2 * one) / (6 * N * N)
        at = f"{name} {what}, N={N:,} to {4 * N:,}"
        if quadratic:
            margin = 0.3 if run.quick else 0.15
            yield within(f"slope of the peak: {at}", slope, 2 - margin, 2 + margin, note)
            yield within(f"bytes for each pair: {at}", pairs, 8, math.inf)
        else:
            yield within(f"slope of the peak: {at}", slope, 0.9, 1.1, note)
            yield within(f"bytes for each pair: {at}", pairs, -1 / 8, 1 / 8)
    if grown is not None:
        lo, hi = (8, math.inf) if quadratic else (0, 1)
        yield within(f"resident bytes for each pair: {name}, N={sizes[-1]:,}", grown / sizes[-1] ** 2, lo, hi)


# multiply-adds


class Counted(np.ndarray[Any, Any]):
    """An array whose matrix products are counted, and whatever comes of it too."""

    multiply_adds = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *arrays: Any, out: Any = None, **options: Any) -> Any:
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in arrays]
        if out is not None:
            options["out"] = tuple(np.asarray(x) if isinstance(x, Counted) else x for x in out)
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            Counted.multiply_adds += result.size * plain[0].shape[-1]
        return out[0] if out is not None else counted(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return counted(super().__array_function__(function, types, arguments, options))


def counted(x: Any) -> Any:
    return x.view(Counted) if isinstance(x, np.ndarray) else x


def multiply_adds(run: Run, name: str, what: str, N: int, Dv: int) -> int:
    """How many the implementation executes in matrix products."""
    exact64, head = arguments.exact64, Arguments.head
    Counted.multiply_adds = 0
    with (
        mock.patch.object(arguments, "exact64", lambda x, name: counted(exact64(x, name))),
        mock.patch.object(Arguments, "head", lambda self, x, b, h: counted(head(self, x, b, h))),
    ):
        kernel(name, what, run.world)(*inputs(run.seed, N, what, Dv))
    return Counted.multiply_adds


def arithmetic(run: Run) -> Iterator[Finding]:
    Dv, sizes = 24, (256, 512, 1024)
    for name in (STANDARD, TILED):
        for what in PASSES:
            done = [multiply_adds(run, name, what, N, Dv) for N in sizes]
            each = D + Dv if what == "forward" else 3 * (D + Dv) + (D if name == TILED else 0)
            for N, got in zip(sizes, done, strict=True):
                yield exact(f"multiply-adds / N²: {name} {what}, N={N:,}", got / N**2, float(each))
            yield exact(f"slope of them: {name} {what}", math.log(done[-1] / done[0], sizes[-1] / sizes[0]), 2.0)


def prove(run: Run) -> Iterator[Finding]:
    yield from memory(run, STANDARD, (512, 1024, 2048) if run.quick else (1024, 2048, 4096))
    tiled = (1024, 2048, 4096) if run.quick else (2048, 4096, 8192)
    yield from memory(run, TILED, tiled)
    if importlib.util.find_spec("numba") is None:
        run.tick("arithmetic")
        missing = f"{NUMBA} is not measured: no Numba, pip install 'refattn[cpu]'."
        yield from (replace(f, note=missing) for f in arithmetic(run))
    else:
        yield from memory(run, NUMBA, (2048, 4096, 8192))  # from 2048 keys on it sums dq in four parts
        yield from arithmetic(run)


def picture(figure: Any, run: Run) -> None:
    """Peak memory against N, and multiply-adds against N."""
    left, right = figure.subplots(1, 2)
    both = (("C3", STANDARD, "standard (oracle)", 4096), ("C0", TILED, "tiled (streaming)", 8192))
    for color, name, label, most in both:
        sizes = [2**i for i in range(6, 1 + int(math.log2(most)))]
        peaks, _ = apart(name, run, sizes)
        for what, style in zip(PASSES, ("o-", "s--"), strict=True):
            left.plot(sizes, np.array(peaks[what]) / 2**20, style, color=color, label=f"{label}, {what}", markersize=4)
            few = sizes[:6]
            count = [multiply_adds(run, name, what, N, D) for N in few]
            right.plot(few, np.array(count) / 1e6, style, color=color, label=f"{label}, {what}", markersize=4)
    N = np.array([2048, 8192])
    left.plot(N, 160 * (N / 2048) ** 2, ":", color="grey")
    left.plot(N, 0.8 * N / 2048, ":", color="grey")
    left.text(6500, 900, "N²", color="grey")
    left.text(6500, 1.5, "N", color="grey")
    left.axvline(1024, color="C0", alpha=0.3)
    left.text(1100, 0.2, "one tile of keys", color="C0", rotation=90, fontsize="small", va="bottom")
    left.set(title="peak memory beyond the inputs, MiB", ylim=(0.1, 5000))
    right.set(title="multiply-adds in products, millions")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("N")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="upper left")


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
