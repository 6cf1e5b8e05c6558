"""A candidate in a process of its own: whatever it does there is a result, never our failure.

The child is spawned, and the candidate is imported only there, after nothing but NumPy, so that
what it sets in os.environ precedes its own imports.  The child leads a process group, which is
killed as a whole at the deadline; what the candidate prints goes to stderr.  A crash or a missed
deadline ends the child, and the next case gets a new one.

`concurrent.futures` cannot kill a worker, `multiprocessing.Pool` waits for ever for one that fails
to start, and pebble (5.2, measured) takes `os._exit(0)` for a missed deadline and leaves the
processes that a killed worker had started: hence one process, one pipe, and this file.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

from .calling import FRAMES_TO_CUT, Answer, Description, Plan, call, candidate_traceback, describe, plan
from .case import Case
from .implementation import load
from .inputs import Problem
from .pipes import Stalled, TooLong, receive, send
from .replies import Forged, received
from .resident import lacking, resident

__all__ = ["CannotLoad", "Worker", "settle"]

LOAD_SECONDS = 300.0
"""how long a candidate may take to be imported"""
GRACE_SECONDS = 0.5
"""what the pipe and the dump of the stack may take beyond the deadline"""
TRANSFER_SECONDS = 10.0
"""what an answer that was begun, or a problem that is handed over, may take"""
POLL_SECONDS = 0.05
"""how often the memory of a candidate is looked at"""


_ENOUGH = 1 << 30
"""bytes of a message beside eight times the numbers of its case, each of eight"""


class CannotLoad(Exception):
    """The candidate cannot be imported, is no implementation, or cannot be limited as asked; the text says why."""


class Worker:
    """A spawned process that holds the implementation `spec`; use it in a `with`.

    `start(problem)` returns at once and `result()` waits, so that the caller can compute the truth
    in between.  Raises `CannotLoad` when the candidate cannot be imported.

    `memory` in GB, 1e9 bytes: it is killed where its process group uses more, which is looked at every POLL_SECONDS.
    `quiet`: what it prints is thrown away, not sent to stderr.
    """

    def __init__(self, spec: str, timeout: float = 60.0, memory: float | None = None, quiet: bool = False) -> None:
        if not timeout > 0:
            raise ValueError(f"timeout={timeout} must be > 0 seconds")
        if memory is not None and not memory > 0:
            raise ValueError(f"memory={memory} must be > 0 GB; pass None for no limit")
        self.spec = spec
        self.timeout = timeout
        self.memory = memory
        self.quiet = quiet
        if memory is not None and lacking():
            raise CannotLoad(lacking())
        self._process: Any = None
        self._leader: int | None = None
        self._used = 0.0
        self._closed = threading.Event()
        self._pipe: Connection[Any, Any] | None = None
        self._busy = False
        self._deadline = 0.0
        self._most = _ENOUGH
        self._lost: Answer | None = None
        handle, self._log = tempfile.mkstemp(prefix="refattn-", suffix=".log")
        os.close(handle)
        try:
            if memory is not None:
                threading.Thread(target=self._watch_memory, args=(memory,), daemon=True).start()
            self.description = self._spawn()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def plan(self, case: Case) -> Plan:
        self._send(case)
        reply = self._reply(self.timeout, Plan)
        return reply if isinstance(reply, Plan) else Plan(failure=reply)

    def start(self, problem: Problem) -> None:
        self._send(problem)
        case = problem.case
        numbers = case.B * (case.H * case.Lq + case.Hkv * case.Lk) * (case.D + case.Dv + 2) + case.scores
        self._most = _ENOUGH + 64 * numbers
        self._deadline = time.monotonic() + self.timeout

    def result(self) -> Answer:
        reply: Answer = self._reply(self._deadline - time.monotonic(), Answer)
        if reply.seconds > self.timeout:
            text = f"took {reply.seconds:.3g} s, the limit is {self.timeout:g} s"
            return Answer("timeout", text=text, seconds=reply.seconds)
        return reply

    def close(self) -> None:
        """End the child and all that it started."""
        self._closed.set()
        self._stop()
        if os.path.exists(self._log):
            os.unlink(self._log)

    def rest(self) -> None:
        """End the child until the next case needs one."""
        self._stop()

    def _watch_memory(self, limit: float) -> None:
        """A thread: kills the child's group where it uses more, also while the truth is computed."""
        while not self._closed.wait(POLL_SECONDS):
            leader = self._leader
            if leader is not None and (used := resident(leader) / 1e9) > limit:
                self._used = used
                _kill_group(leader)

    def _spawn(self) -> Description:
        self._used = 0.0
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self.spec, os.getcwd(), self._log, self.timeout, self.quiet)
        self._process = context.Process(target=_serve, args=arguments, name=f"refattn {self.spec}", daemon=True)
        self._process.start()
        self._leader = self._process.pid
        theirs.close()
        reply = self._receive(LOAD_SECONDS)
        if isinstance(reply, Description):
            return reply
        self._stop()
        how = f"{reply.text} while it was imported" if isinstance(reply, Answer) else str(reply)
        raise CannotLoad(f"cannot load {self.spec!r}: {how}")

    def _send(self, message: Case | Problem) -> None:
        """Hand the child a message, in a new child if there is none; what fails is told by `_reply`."""
        if self._busy:
            self._stop()  # the caller did not wait for the last answer
        self._lost = None
        for _ in range(2):
            try:
                if self._process is None:
                    self._spawn()
                if self._pipe is not None:
                    send(self._pipe, message, time.monotonic() + max(self.timeout, TRANSFER_SECONDS))
                    self._busy = True
                return
            except Stalled:
                self._stop()
                self._lost = Answer("timeout", text="did not take what it was sent", seconds=self.timeout)
                return
            except CannotLoad as error:
                self._lost = Answer("error", text=f"{error}\n(it was loaded again after a crash or a missed deadline)")
                return
            except OSError:
                self._stop()  # it died between two cases
        self._lost = Answer("crash", text="died before it could be called")

    def _reply(self, seconds: float, kind: type[Plan] | type[Answer]) -> Any:
        if self._lost is not None:
            return self._lost
        reply = self._receive(max(seconds, 0.0) + GRACE_SECONDS)
        self._busy = False
        if isinstance(reply, (Answer, kind)):
            return reply
        self._stop()
        return Answer("crash", text=f"sent no {kind.__name__}")

    def _receive(self, seconds: float) -> Any:
        """The next message of the child, or the Answer that says how it ended."""
        end = time.monotonic() + seconds
        pipe, process = self._pipe, self._process
        if pipe is None:
            return Answer("crash", text="died before it could be called")
        while True:
            left = end - time.monotonic()
            # a process forked by the candidate may hold the pipe open: look at the exit code too
            wait([pipe, process.sentinel], timeout=max(min(left, 0.2), 0.0))
            ended = process.exitcode is not None
            try:
                if pipe.poll(0):
                    return received(receive(pipe, max(end, time.monotonic() + TRANSFER_SECONDS), self._most))
            except Stalled:
                self._stop()
                return Answer("timeout", text="began an answer and did not end it", seconds=self.timeout)
            except TooLong as error:
                self._stop()
                return Answer("crash", text=f"sent {error}")
            except Forged as error:
                self._stop()
                return Answer("crash", text=str(error))
            except (EOFError, OSError):
                process.join(5)
                ended = True
            if ended:
                answer = Answer("crash", text=self._how_it_ended(process.exitcode) + _stack(self._log))
                self._stop()
                return answer
            if left <= 0:
                self._stop()
                text = f"no answer within {self.timeout:g} s" + _stack(self._log)
                return Answer("timeout", text=text, seconds=self.timeout)

    def _how_it_ended(self, code: int | None) -> str:
        if self._used:
            return f"used {self._used:.3g} GB, the limit is {self.memory:g} GB"
        if code is None or code >= 0:
            return f"the process ended with exit code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"the process was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def _stop(self) -> None:
        process, self._process, self._leader = self._process, None, None
        pipe, self._pipe = self._pipe, None
        self._busy = False
        if pipe is not None:
            pipe.close()
        if process is not None and process.pid is not None:
            _kill_group(process.pid)
            process.kill()
            process.join()
            process.close()


def _kill_group(leader: int) -> None:
    if hasattr(os, "killpg"):
        try:
            os.killpg(leader, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # no such group: it ended, or was not yet its own leader


def _stack(log: str) -> str:
    """Where the candidate was, from what faulthandler wrote: its frames, innermost first."""
    with open(log, errors="replace") as file:
        frames: list[str] = []
        for line in file:  # a block for each thread
            if line.rstrip().endswith("(most recent call first):") or "in _end_with_parent" in line:
                frames = []
            elif any(f'File "{ours}"' in line for ours in FRAMES_TO_CUT):
                return "".join(["\nwhere, innermost first:\n", *frames]).rstrip() if frames else ""
            elif line.startswith("  File "):
                frames.append(line)
    return ""


def _serve(pipe: Connection[Any, Any], spec: str, folder: str, log: str, timeout: float, quiet: bool) -> None:
    """The child: load, describe, then answer each message until the pipe closes."""
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    settle(log)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with open(log, "w") as trace:
        faulthandler.enable(trace)
        try:
            implementation = load(spec)
            description = describe(implementation)
        except BaseException as error:
            pipe.send(candidate_traceback(error))
            return
        pipe.send(description)
        while True:
            try:
                message = pipe.recv()
                trace.truncate(0)
                trace.seek(0)
                faulthandler.dump_traceback_later(timeout, file=trace)
                reply = plan(implementation, message) if isinstance(message, Case) else call(implementation, message)
                faulthandler.cancel_dump_traceback_later()
                pipe.send(reply)
            except (EOFError, ConnectionError):
                return


def settle(leftover: str = "") -> None:
    """Lead a group of its own, out of reach of the terminal's Ctrl-C; print to stderr; end with the parent.

    `leftover` is a file that a parent that was killed could not take away.
    """
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    multiprocessing.current_process().daemon = False  # a candidate may start processes of its own
    threading.Thread(target=_end_with_parent, args=(leftover,), daemon=True).start()


def _end_with_parent(leftover: str) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        if leftover and os.path.exists(leftover):
            os.unlink(leftover)
        _kill_group(os.getpid())
        os._exit(1)
