"""Interleaved timing: each implementation in a process of its own, and these take turns.

In one process they would share thread pools, OpenMP runtimes and rounding modes that each sets for itself, and
one that crashes would end all.  A turn ends when the threads that spin on after a call have fallen asleep: a process
waits idle while another has its turn.  The order of a round is drawn anew, so that nobody always follows the same
neighbour.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from .ceilings import Ceiling, ceiling
from .peers import PEERS, NotOffered
from .work import Work, agree, cores, inputs

Job = tuple[str, Work | Ceiling]
"""The name of an implementation and what it does."""
REST, RESTS = 0.005, 60
"""A turn ends after so many seconds in which its process did nothing, or so many times that."""
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


class Plan(NamedTuple):
    """A turn lasts so many seconds or one call; rounds fill `budget` seconds, but are `least` to `most`."""

    turn: float
    budget: float
    least: int
    most: int
    patience: float  # a call that would take longer is left out, a reference's after an eighth of it


QUICK = Plan(0.01, 0.25, 3, 5, 1.6)
FULL = Plan(0.1, 3.0, 2, 7, 15.0)
LONG = 2e10
"""operations of a call that needs no other before it to wake threads and fill caches"""


class Timing(NamedTuple):
    seconds: float  # the median of the medians of all turns
    repeats: int  # calls that were timed
    least: float  # the seconds of the fastest turn


# ---- in the process of one implementation

_prepared: dict[Work | Ceiling, Callable[[], Any]] = {}


def prepare(name: str, work: Work | Ceiling) -> float:
    """Make ready, compile, look at the answer; seconds of a call."""
    if work not in _prepared:
        if isinstance(work, Work):
            for old in [old for old in _prepared if isinstance(old, Work)]:
                del _prepared[old]
            x = inputs(work)
            call, read = PEERS[name].call(work, x)
            start = time.perf_counter()
            answer = call()
            taken = time.perf_counter() - start
            agree(work, x, read(answer))
            _prepared[work] = call
            if work.flops > LONG:
                return taken
        else:
            _prepared[work] = ceiling(name, work)
            _prepared[work]()
    return turn(work, 0.0)[0]


def turn(work: Work | Ceiling, least: float) -> tuple[float, int]:
    """Median seconds of the calls that fill `least` seconds, and how many."""
    call, taken = _prepared[work], list[float]()
    if work.flops <= LONG:
        call()
    start = now = time.perf_counter()
    while not taken or now - start < least:
        call()
        taken.append(time.perf_counter() - now)
        now += taken[-1]
    settle()
    return statistics.median(taken), len(taken)


def settle() -> None:
    """Wait until no thread of this process runs: OpenBLAS, OpenMP and Eigen spin for some hundredths of a second."""
    for _ in range(RESTS):
        before = time.process_time()
        time.sleep(REST)
        if time.process_time() - before < REST / 10:
            return


# ---- in the process that asks


@contextmanager
def processes(names: Iterable[str]) -> Iterator[dict[str, ProcessPoolExecutor]]:
    """One process for each name, with as many threads as there are cores."""
    os.environ.update(dict.fromkeys(VARIABLES, str(cores())))
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        yield {name: stack.enter_context(ProcessPoolExecutor(1, context)) for name in names}


def interleaved(
    pools: dict[str, ProcessPoolExecutor], jobs: Sequence[Job], plan: Plan, left_out: Callable[[Job, str], None]
) -> dict[Job, Timing]:  # fmt: skip
    """Times the jobs in turn; those that cannot be done are told to `left_out` with the reason."""
    first: dict[Job, float] = {}
    for job, future in [(job, _asked(pools[job[0]], *job)) for job in jobs]:
        try:
            first[job] = future.result()
        except NotOffered as error:
            left_out(job, str(error))
        except BrokenProcessPool:
            left_out(job, "its process died")
        except Exception as error:
            left_out(job, f"{type(error).__name__}: {error}".splitlines()[0])
    cost = sum(max(seconds, plan.turn) + REST for seconds in first.values())
    rounds = max(plan.least, min(plan.most, int(plan.budget / cost))) if first else 0
    turns: dict[Job, list[tuple[float, int]]] = {job: [] for job in first}
    draw = random.Random(0)
    for _ in range(rounds):
        for job in draw.sample(list(turns), len(turns)):
            try:
                turns[job].append(pools[job[0]].submit(turn, job[1], plan.turn).result())
            except BrokenProcessPool:
                del turns[job]
                left_out(job, "its process died")
    return {job: _timing(*zip(*done, strict=True)) for job, done in turns.items()}


def _asked(pool: ProcessPoolExecutor, *job: Any) -> Future[float]:
    try:
        return pool.submit(prepare, *job)
    except BrokenProcessPool as error:  # it died earlier
        future: Future[float] = Future()
        future.set_exception(error)
        return future


def _timing(seconds: tuple[float, ...], repeats: tuple[int, ...]) -> Timing:
    return Timing(statistics.median(seconds), sum(repeats), min(seconds))
