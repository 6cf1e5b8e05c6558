"""The runs behind the matrix: in one folder a file of JSON lines for each implementation, as of `refattn.record`.

What cannot be loaded leaves a file NAME.unloaded.json instead, so that its column can be drawn again later.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from ..case import Case
from ..conform import BadContract
from ..expected import expected_failures, shipped
from ..record import read, recorded_run
from ..worker import CannotLoad
from .table import Column

__all__ = ["columns", "measure"]

SECONDS = 10.0
"""between two lines that say how far it is"""
_MISSING = re.compile(r"\b(NotInstalled|ModuleNotFoundError|PackageNotFoundError): (.*)")


def measure(
    specs: Sequence[str], cases: Sequence[Case], folder: Path, jobs: int, options: Mapping[str, Any], probing: bool
) -> None:
    """Run the implementations, `jobs` at a time, each to its file in `folder`; what is there is not run again.

    `options` are timeout, memory and seed of `refattn.record.recorded_run`, whose `BadRecord` is raised in the end.
    """
    begin, errors = time.monotonic(), list[BaseException]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(_measure, spec, cases, folder, dict(options), probing): spec for spec in specs}
        while running:
            done, _ = wait(running, SECONDS, "FIRST_COMPLETED")
            for future in done:
                spec, error = running.pop(future), future.exception()
                errors += [error] if error else []
                _say(f"{spec}: {error or future.result()}, {time.monotonic() - begin:.0f} s")
            if not done:
                _say(f"{_judged(folder, specs)} of {len(cases) * len(specs)} cases, {time.monotonic() - begin:.0f} s")
    if errors:
        raise errors[0]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _judged(folder: Path, specs: Sequence[str]) -> int:
    """About how many cases are judged: lines of the files."""
    files = (_file(folder, spec) for spec in specs)
    return sum(max(path.read_bytes().count(b"\n") - 2, 0) for path in files if path.is_file())


def _measure(spec: str, cases: Sequence[Case], folder: Path, options: Mapping[str, Any], probing: bool) -> str:
    """In a process of its own: one implementation; what came of it, in words."""
    record, unloaded = _file(folder, spec), _file(folder, spec, ".unloaded.json")
    known = shipped(spec)
    expected = {} if known is None else expected_failures(known, spec, cases)
    try:
        report = recorded_run(spec, cases, record, expected=expected, probing=probing, shrinking=True, **options)
    except (CannotLoad, BadContract) as error:
        why, said = _why(spec, error)
        if not record.stat().st_size:
            record.unlink()
        unloaded.write_text(json.dumps({"spec": spec, "why": why, "said": said}))
        return why
    unloaded.unlink(missing_ok=True)
    return ", ".join(f"{n} {status}" for status, n in report.counts().items())


def _why(spec: str, error: Exception) -> tuple[str, str]:
    """Why there is no run, in words for the head of the column, and what was said.

    Only a library of `refattn.adapters` may be missing: a module of the user's own that is not found is a mistake.
    """
    missing = [] if ":" in spec else _MISSING.findall(str(error))
    if missing:
        return "not installed", missing[-1][1]
    return "cannot be loaded" if isinstance(error, CannotLoad) else "bad contract", str(error)


def columns(folder: Path, specs: Sequence[str] = ()) -> list[Column]:
    """What is in the folder, in the order of `specs`, or of the names; without specs, all of it."""
    found: dict[str, Column] = {}
    for path in sorted(folder.glob("*.unloaded.json")):
        data = json.loads(path.read_text())
        found[data["spec"]] = Column(data["spec"], None, data["why"], data["said"])
    for path in sorted(folder.glob("*.jsonl")):
        report = read(path)
        found[report.spec] = Column(report.spec, report)
    return [found[spec] for spec in specs or sorted(found) if spec in found]


def _file(folder: Path, spec: str, ending: str = ".jsonl") -> Path:
    return folder / (re.sub(r"[^A-Za-z0-9_.-]+", ".", spec) + ending)
