"""Several judges at once: each a process of its own, with a candidate of its own in yet another one.

The work of a judge is NumPy in small pieces, which threads of one process would do in turn.  A case goes to whichever
judge is free.  A judge that ends by itself is our fault, and ends the run.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from .case import Case
from .examine import BadContract, examine
from .judge import Verdict
from .worker import CannotLoad, Worker, settle

__all__ = ["Judges"]


class Judges:
    """`jobs` processes that each examine one case at a time; use it in a `with`."""

    def __init__(self, jobs: int, spec: str, timeout: float, memory: float | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._judges: dict[Connection[Any, Any], Any] = {}
        try:
            for _ in range(jobs):
                ours, theirs = context.Pipe()
                arguments = (theirs, spec, timeout, memory, os.getcwd())
                process = context.Process(target=_serve, args=arguments, name="refattn judge", daemon=True)
                process.start()
                theirs.close()
                self._judges[ours] = process
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def verdicts(self, cases: Iterable[tuple[int, Case]]) -> Iterator[tuple[int, Verdict]]:
        """The verdict of each numbered case, as they come; raises what `examine` raises."""
        todo = iter(cases)
        at: dict[Connection[Any, Any], tuple[int, Case]] = {}

        def hand(judge: Connection[Any, Any]) -> None:
            for number, case in islice(todo, 1):
                at[judge] = number, case
                with suppress(OSError):  # one that has ended is found below
                    judge.send(case)

        for judge in self._judges:
            hand(judge)
        while at:
            wait(list(at))
            for judge in [judge for judge in at if judge.poll()]:
                number, case = at.pop(judge)
                try:
                    reply = judge.recv()
                except (EOFError, OSError):
                    process = self._judges[judge]
                    process.join()
                    raise RuntimeError(
                        f"the process that judged {case.id} ended with exit code {process.exitcode}; if that is -9, "
                        "there may be too little memory for so many: use fewer jobs"
                    ) from None
                if isinstance(reply, Exception):
                    raise reply
                hand(judge)
                yield number, reply

    def close(self) -> None:
        """End them, with their candidates."""
        for judge in self._judges:
            judge.close()
        for process in self._judges.values():
            process.terminate()
        for process in self._judges.values():
            process.join(5)
            process.kill()
            process.join()


def _serve(pipe: Connection[Any, Any], spec: str, timeout: float, memory: float | None, folder: str) -> None:
    """The judge: examines each case that it is sent until the pipe closes."""
    settle()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # which closes the worker
    os.chdir(folder)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait leave the cores to the other candidates
    try:
        with Worker(spec, timeout, memory) as worker:
            while True:
                pipe.send(examine(worker, pipe.recv()))
    except (EOFError, ConnectionError):
        pass
    except (BadContract, CannotLoad) as error:
        pipe.send(error)
