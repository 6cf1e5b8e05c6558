"""The runs behind the matrix: in one folder a file of JSON lines for each implementation, as of `refattn.record`.

What cannot be loaded leaves a file NAME.unloaded.json instead, so that its column can be drawn again later.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ..case import Case
from ..conform import BadContract
from ..expected import expected_failures, shipped
from ..record import BadRecord, read, recorded_run
from ..said import cleaned, plain, without_folders
from ..worker import CannotLoad
from .table import Column

__all__ = ["CannotMeasure", "columns", "measure"]

SPAWN = multiprocessing.get_context("spawn")

SECONDS = 10.0
"""between two lines that say how far it is"""
_MISSING = re.compile(r"\b(NotInstalled|ModuleNotFoundError|PackageNotFoundError): (.*)")


class CannotMeasure(Exception):
    """A run that cannot be made, or that ended; the text says which, and why."""


def measure(
    specs: Sequence[str], cases: Sequence[Case], folder: Path, jobs: int, options: Mapping[str, Any], probing: bool
) -> None:
    """Run the implementations, `jobs` at a time, each to its file in `folder`; what is there is not run again.

    `options` are timeout, memory and seed of `refattn.record.recorded_run`.  Raises `CannotMeasure` in the end.
    """
    begin, errors, waiting = time.monotonic(), list[str](), list(specs)
    running: dict[Any, tuple[str, Any]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                spec, (ours, theirs) = waiting.pop(0), SPAWN.Pipe()
                process = SPAWN.Process(target=_measure, args=(theirs, spec, cases, folder, options, probing))
                process.start()
                theirs.close()
                running[ours] = spec, process
            ready = wait(list(running), SECONDS)
            for pipe in ready:
                spec, process = running.pop(pipe)
                good, said = _result(pipe, process)
                errors += [] if good else [f"{spec}: {said}"]
                _say(f"{spec}: {said}, {time.monotonic() - begin:.0f} s")
            if not ready:
                _say(f"{_judged(folder, specs)} of {len(cases) * len(specs)} cases, {time.monotonic() - begin:.0f} s")
    finally:
        for _, process in running.values():  # it was interrupted: what they wrote is kept
            process.kill()
            process.join()
    if errors:
        raise CannotMeasure("; ".join(errors))


def _result(pipe: Any, process: Any) -> tuple[bool, str]:
    """Whether a run was made, and what came of it."""
    try:
        result: tuple[bool, str] = pipe.recv()
    except EOFError:
        process.join()
        return False, f"its run ended with exit code {process.exitcode}; run again to go on"
    process.join()
    return result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _judged(folder: Path, specs: Sequence[str]) -> int:
    """About how many cases are judged: lines of the files."""
    files = (_file(folder, spec) for spec in specs)
    return sum(max(path.read_bytes().count(b"\n") - 2, 0) for path in files if path.is_file())


def _measure(
    pipe: Any, spec: str, cases: Sequence[Case], folder: Path, options: Mapping[str, Any], probing: bool
) -> None:
    """In a process of its own: one implementation; sends whether that was possible, and what came of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    record, unloaded = _file(folder, spec), _file(folder, spec, ".unloaded.json")
    known = shipped(spec)
    try:
        expected = {} if known is None else expected_failures(known, spec, cases)
        report = recorded_run(spec, cases, record, expected=expected, probing=probing, shrinking=True, **options)
    except (CannotLoad, BadContract) as error:
        why, said = _why(spec, error)
        if record.is_file() and not record.stat().st_size:
            record.unlink()
        unloaded.write_text(json.dumps({"spec": spec, "why": why, "said": plain(said)}))
        pipe.send((True, why))
    except (BadRecord, OSError) as error:
        pipe.send((False, str(error)))
    else:
        unloaded.unlink(missing_ok=True)
        pipe.send((True, ", ".join(f"{n} {status}" for status, n in report.counts().items())))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _why(spec: str, error: Exception) -> tuple[str, str]:
    """Why there is no run, in words for the head of the column, and what was said.

    Only a library of `refattn.adapters` may be missing: a module of the user's own that is not found is a mistake.
    """
    missing = [] if ":" in spec else _MISSING.findall(str(error))
    if missing:
        return "not installed", missing[-1][1]
    return "cannot be loaded" if isinstance(error, CannotLoad) else "bad contract", str(error)


def columns(folder: Path, specs: Sequence[str] = ()) -> list[Column]:
    """What is in the folder, in the order of `specs`, or of the names; without specs, all of it.

    What could not be loaded the last time has no run, though an older one may be there.  The files say where on the
    machine something failed; columns, of which pages are made, do not.
    """
    found: dict[str, Column] = {}
    records = [_file(folder, spec) for spec in specs] or sorted(folder.glob("*.jsonl"))
    for path in records:
        if specs and not path.exists():
            continue
        report = read(path)
        report.verdicts = [cleaned(verdict, without_folders) for verdict in report.verdicts]
        if report.spec in found:
            raise BadRecord(f"{path}: another file there is of {report.spec} too; remove the older one")
        found[report.spec] = Column(report.spec, report)
    for path in sorted(folder.glob("*.unloaded.json")):
        column = _unloaded(path)
        found[column.spec] = column
    return [found[spec] for spec in specs or sorted(found) if spec in found]


def _unloaded(path: Path) -> Column:
    try:
        data = json.loads(path.read_bytes())
        spec, why, said = (data[name] for name in ("spec", "why", "said"))
        if all(isinstance(text, str) for text in (spec, why, said)):
            return Column(spec, None, why, without_folders(said))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise BadRecord(f"{path} is not what `refattn matrix` writes of an implementation that it cannot load; remove it")


def _file(folder: Path, spec: str, ending: str = ".jsonl") -> Path:
    """Its name says the spec; where two specs would have the same, a digest tells them apart."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", ".", spec)
    if not re.fullmatch(r"[A-Za-z0-9_-]+|[A-Za-z0-9_.]+:[A-Za-z0-9_]+", spec):
        name += "-" + hashlib.sha256(spec.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return folder / (name + ending)
