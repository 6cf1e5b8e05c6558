"""Processes that run jobs, one line of JSON in and one out; one that crashes or misses its deadline is replaced."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from .jobs import Job

__all__ = ["run_all", "serve"]

Result = dict[str, Any]


def run_all(jobs: Iterable[Job], processes: int, timeout: float, done: Callable[[Job, Result], None]) -> None:
    """Runs the jobs in `processes` processes; `done` is called with each result, one at a time."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock = threading.Lock()

    def work() -> None:
        worker: _Worker | None = None
        try:
            while True:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                worker = worker or _Worker()
                result = worker.run(job, timeout)
                if result["status"] in ("crash", "timeout"):
                    worker.close()
                    worker = None
                with lock:
                    done(job, result)
        finally:
            if worker is not None:
                worker.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Worker:
    """One process, which loads the kernels once."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "gpu.conformance", "--serve"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, job: Job, timeout: float) -> Result:
        began = time.monotonic()
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(timeout, stop)
        timer.start()
        line = ""
        try:
            if self.process.stdin is not None and self.process.stdout is not None:
                self.process.stdin.write(json.dumps(job) + "\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
        except OSError:
            pass
        finally:
            timer.cancel()
        if line:
            found: Result = json.loads(line)
            return found
        code = self.process.wait()
        reason = f"no answer within {timeout:g} s" if late.is_set() else f"the process ended with code {code}"
        status = "timeout" if late.is_set() else "crash"
        return {"status": status, "reasons": [reason], "ratios": {}, "seconds": time.monotonic() - began}

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def serve() -> None:
    """A worker's loop: until its input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print is no answer
    for line in sys.stdin:
        answers.write(json.dumps(examine(Job(*json.loads(line)))) + "\n")
        answers.flush()


def examine(job: Job) -> Result:
    """The judge's verdict on a job, as plain data."""
    from gpu.implementation import FORCED
    from gpu.target import SIMULATED
    from refattn.calling import Local
    from refattn.cases import by_id
    from refattn.conform import examine as judge

    if SIMULATED:
        from gpu import simt

        with simt.scheduled(job.schedule):
            verdict = judge(Local(FORCED[job.kernel]), by_id(job.case))
    else:
        verdict = judge(Local(FORCED[job.kernel]), by_id(job.case))
    return {
        "status": verdict.status,
        "reasons": [str(r)[-1500:] for r in verdict.reasons],
        "ratios": {output.name: output.ratio for output in verdict.outputs},
        "seconds": round(verdict.seconds, 3),
    }
