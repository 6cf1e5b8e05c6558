"""How time and memory of refattn.flash grow with N, what a second thread brings, and what a long truth costs.

Memory is the peak of a fresh process (VmHWM, or ru_maxrss where that cannot be set back) less what it held
before the call, so that the outputs count as well.  A slope is that of a straight line, fitted by least squares
to the logarithms: 2 for time and 1 for memory are the goals.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from refattn.case import Case
from refattn.inputs import Problem
from refattn.masks import Causal
from refattn.precision import preset
from refattn.truth import quick_truth

from .work import Work, cores, inputs

__all__ = ["scaling", "slope", "truth_of"]

PAGE = 4096


def slope(sizes: Any, values: Any) -> float:
    """b of the line a + b log N that is nearest to log(value)."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def anew(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args) in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def grown(call: Callable[[], Any]) -> tuple[float, int]:
    """Seconds of a call, and bytes by which it raised the peak of this process's memory."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what is free is given back, or it would be used unseen
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
    before, start = _peak(), time.perf_counter()
    call()
    return time.perf_counter() - start, _peak() - before


def _peak() -> int:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    if found:
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def scaling(dtype: str, sizes: Sequence[int], wide: int) -> dict[str, Any]:
    """Seconds and bytes of a forward of one head with D = 64 at each N, their slopes, and 1 thread / 2 threads."""
    seconds, two_threads = anew(_timed, dtype, sizes, wide)
    with ThreadPoolExecutor(cores()) as threads:
        memory = [max(PAGE, size) for size in threads.map(partial(anew, _memory, dtype), sizes)]
    return {
        "dtype": dtype, "N": list(sizes), "seconds": seconds, "bytes": memory,
        "time_slope": slope(sizes, seconds), "memory_slope": slope(sizes, memory),
        "threads_N": wide, "two_threads": two_threads,
    }  # fmt: skip


def _call(dtype: str, N: int, heads: int = 1) -> Callable[[], Any]:
    from refattn import flash

    q, k, v, _ = inputs(Work("forward", dtype, False, N, 64, H=heads, Hkv=heads))
    return lambda: flash.attention(q, k, v)


def _timed(dtype: str, sizes: Sequence[int], wide: int) -> tuple[list[float], float]:
    """Seconds of a call at each N, and those of one thread over those of two."""
    calls = [_call(dtype, N) for N in sizes]
    calls[0]()  # compiled
    taken: list[list[float]] = [[] for _ in sizes]
    for _ in range(3):
        for call, times in zip(calls, taken, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken], _two_threads(dtype, wide)


def _memory(dtype: str, N: int) -> int:
    _call(dtype, 512)()  # compiled, and the threads are there
    return grown(_call(dtype, N))[1]


def _two_threads(dtype: str, N: int) -> float:
    import numba

    call = _call(dtype, N, 8)
    taken: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(6):
        for threads, times in taken.items():
            numba.set_num_threads(min(threads, cores()))
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return statistics.median(taken[1][1:]) / statistics.median(taken[2][1:])


def truth_of(N: int, dtype: str = "float32") -> dict[str, Any]:
    """Seconds and bytes of truth and bound of one causal head of N x N, D = 64."""
    seconds, size = anew(_truth, N, dtype)
    return {"dtype": dtype, "N": N, "causal": True, "seconds": seconds, "bytes": size}


def _truth(N: int, dtype: str) -> tuple[float, int]:
    q, k, v, _ = inputs(Work("forward", dtype, True, N, 64, H=1, Hkv=1))
    mask = Causal("top_left")

    def problem(n: int) -> Problem:
        case = Case("one-head", "a long head", Lq=n, Lk=n, D=64, Dv=64, dtype=dtype, mask=mask)
        return Problem(case, {"q": q[:, :, :n], "k": k[:, :, :n], "v": v[:, :, :n]})

    quick_truth(problem(64), preset(dtype))
    return grown(lambda: quick_truth(problem(N), preset(dtype)))
