"""The figures of README: python -m tests.benchmarks.figures [--quick]."""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from refattn.case import Case
from refattn.dtypes import FORMATS, round_to
from refattn.inputs import Problem
from refattn.masks import Causal
from refattn.precision import preset
from refattn.truth import quick_truth


def import_time(module: str) -> float:
    """Median seconds of a fresh process that imports the module."""
    taken = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def check_time() -> float:
    """Seconds of `refattn check`, all usual cases on our own kernel."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "refattn", "check"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def truth_of(N: int, dtype: str) -> tuple[float, float]:
    """Seconds, and MB beyond those of the inputs, for truth and bound of one causal head of N x N, D = 64.

    By `quick_truth`, which is what an answer is judged by first.
    """
    rng = np.random.default_rng(0)
    q, k, v = (round_to(rng.standard_normal((1, 1, N, 64)), dtype).astype(FORMATS[dtype].numpy) for _ in range(3))
    case = Case("one-head", "a long head", Lq=N, Lk=N, D=64, Dv=64, dtype=dtype, mask=Causal("bottom_right"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    quick_truth(Problem(case, {"q": q, "k": k, "v": v}), preset(dtype))
    taken = time.perf_counter() - start
    return taken, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2k instead of 32k, no check")
    quick = parser.parse_args().quick
    N = 2048 if quick else 32768
    bare, ours = import_time("numpy"), import_time("refattn")
    print(f"import numpy {bare:.3f} s, import refattn {ours:.3f} s: {ours - bare:.3f} s more")
    for dtype in ("float32", "bfloat16"):
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:  # whose largest memory is this one's alone
            taken, memory = fresh.submit(truth_of, N, dtype).result()
        print(f"truth and bound of {N} x {N} causal, D = 64, {dtype}: {taken:.1f} s, {memory:.0f} MB more")
    if not quick:
        print(f"refattn check: {check_time():.1f} s")


if __name__ == "__main__":
    main()
