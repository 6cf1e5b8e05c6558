"""Tasks for plain threads: each takes the next task by an atomic counter, without the GIL.

numba's own threading layers are not used: GNU OpenMP cannot be used after a fork, workqueue not by two
threads at once.  Which thread does a task alters nothing in its result.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import numba
import numpy as np

__all__ = ["run"]

Array = np.ndarray[Any, Any]
SMALL = 1e7
"""multiplications that one thread does in less time than it takes to wake another"""
BRIEF = 1e9
"""multiplications, some hundredths of a second, of which the calling thread does its share: Ctrl-C waits so long"""

_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)


def run(kernel: Any, tasks: Array, costs: Array, *args: Any) -> None:
    """kernel(counter, tasks, *args) in as many threads as numba has; each task costs so many multiplications.

    The costliest come first.  Ctrl-C ends the call once each thread has ended its task.
    """
    counter = np.zeros(1, np.int64)
    if costs.sum() <= SMALL:
        kernel(counter, tasks, *args)
        return
    order = tasks[np.argsort(-costs, kind="stable")]
    n = min(numba.get_num_threads(), len(order))
    kernel(counter, order[:0], *args)  # compiled here, so that the threads find it
    counter[0] = 0
    if n not in _pools:
        _pools[n] = ThreadPoolExecutor(n, "refattn.flash")
    helps = costs.sum() <= BRIEF
    done: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # "can't start new thread", as when memory is short: fewer do it all
            for _ in range(n - helps):
                done.append(_pools[n].submit(kernel, counter, order, *args))
        if helps or not done:
            kernel(counter, order, *args)
        for future in done:
            future.result()
    finally:
        counter[0] = len(order)
        wait(done)
