"""A run as a file of JSON lines, which a kill at any point leaves whole but for what was being judged.

    {"refattn": "0.1.0", "format": 1, "spec": "torch", "seed": 0, "cases": {...}, "implementation": {...}, ...}
    {"probed": [...]}                                   if it was asked for its conventions
    {"case": {...}, "status": "passed", ...}            a verdict, as in the report's JSON, as soon as it is there
    {"diagnosis": [...], "smallest": "..."}             what only the whole run knows: the run is complete

Of two lines on the same case the later one holds: a failure is written as soon as it is judged, and again once it
is known what it looks like.  A run that goes on judges the cases that have no line; failures whose arrays the diagnosis
needs, which are not kept, are run again.  It goes on only with the sources (`refattn.sources`) and the limits with
which it began.  Numbers that are not finite are the strings nan, inf, -inf.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

import numpy as np

from .case import Case
from .conform import Journal, Report, run
from .judge import Status, Verdict
from .probes import Convention
from .report_json import (
    as_finite,
    convention_as_json,
    convention_of,
    description_of,
    implementation_as_json,
    suite_version,
    verdict_as_json,
    verdict_of,
)
from .sources import sources

__all__ = ["BadRecord", "Record", "read", "recorded_run"]

FORMAT = 1
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""what a file raises that is no record, where it is read as one"""
Line = dict[str, Any]


class BadRecord(ValueError):
    """The file is no record, or that of another run, or of one that is going on."""


def recorded_run(
    spec: str,
    cases: Sequence[Case],
    path: Path,
    *,
    timeout: float = 60.0,
    memory: float | None = None,
    **options: Any,
) -> Report:
    """`refattn.conform.run`, written to `path` as it goes; where that has some of it, the run goes on from there.

    `options` are the others of `run`.  Raises `BadRecord` besides what `run` raises.
    """
    with Record(path, timeout, memory) as record:
        return run(spec, cases, timeout=timeout, memory=memory, journal=record, **options)


def read(path: Path) -> Report:
    """The report of a record, in the order of its cases; interrupted if it is not complete; with remarks if the kernel,
    or refattn, is another one by now.
    """
    if not path.is_file():
        raise BadRecord(f"{path} is no file; it must be what `refattn check --record` wrote")
    try:
        lines, _ = _lines(path, path.read_bytes())
    except OSError as error:
        raise BadRecord(str(error)) from None
    if not lines:
        raise BadRecord(f"{path}: no line is complete; it must be what `refattn check --record` wrote")
    try:
        report = _report(lines)
        report.remarks = _remarks(lines[0], report)
    except MALFORMED as error:
        raise BadRecord(f"{path}: {error!r}; it must be what this version of `refattn check --record` wrote") from None
    return report


class Record(Journal):
    """The file of a run, locked for as long as it is open; use it in a `with`."""

    def __init__(self, path: Path, timeout: float = 60.0, memory: float | None = None) -> None:
        self.path = path
        self._limits = {"timeout": timeout, "memory": memory}
        self._kept: dict[Case, Line] = {}
        self._expected: Mapping[str, str] = {}
        if path.exists() and not path.is_file():
            raise BadRecord(f"{path} is no regular file; name a file")
        try:
            # unbuffered: what could not be written must not be tried again when it is closed
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
        except OSError as error:
            raise BadRecord(str(error)) from None
        try:
            _lock(self._file.fileno(), path)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Record:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def begin(self, report: Report, cases: Sequence[Case]) -> Mapping[Case, Verdict]:
        lines, whole = _lines(self.path, self._file.read())
        header = _header(report, cases) | {"limits": self._limits}
        self._file.truncate(whole)  # what a kill left of the last line
        self._file.seek(whole)
        self._expected = report.expected
        if not lines:
            report.date = time.strftime("%Y-%m-%d")
            self._write(header | {"date": report.date})
            return {}
        for name, was, now in _differing(lines[0], header):
            cure = "name another file, or remove it"
            if name.startswith("sources"):
                raise BadRecord(f"{self.path}: {_changed(name, was)}; {cure}")
            raise BadRecord(f"{self.path} was made with {name} {was}, and this is {now}; {cure}")
        try:
            found = _report(lines)
        except MALFORMED as error:
            raise BadRecord(f"{self.path}: {error!r}; name another file, or remove it") from None
        self._kept = {Case.from_json(line["case"]): line for line in lines if "case" in line}
        as_expected = all(
            line["expected_failure"] == self._expected.get(case.id) for case, line in self._kept.items()
        )
        self.complete = not found.interrupted and as_expected
        report.probed, report.date = found.probed, found.date
        if self.complete:
            report.diagnosis, report.smallest = found.diagnosis, found.smallest
        return {v.case: v for v in found.verdicts}

    def keep_probed(self, rows: Sequence[Convention]) -> None:
        self._write({"probed": [convention_as_json(row) for row in rows]})

    def keep(self, verdict: Verdict) -> None:
        before, line = self._kept.get(verdict.case), verdict_as_json(verdict, self._expected)
        same = ("notes", "expected_failure")
        if before is None or any(before[name] != line[name] for name in same):
            self._kept[verdict.case] = line
            self._write(line)

    def end(self, report: Report) -> None:
        self._write({"diagnosis": list(report.diagnosis), "smallest": report.smallest})

    def _write(self, line: Line) -> None:
        left, begin = json.dumps(line, allow_nan=False).encode() + b"\n", self._file.tell()
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._file.truncate(begin)
            cure = "what was written before is kept, and the same command goes on from there"
            raise BadRecord(f"{self.path}: {error.strerror}; {cure}") from None


def _lock(file: int, path: Path) -> None:
    """For this process, until it ends, however that may be; not on systems without fcntl."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadRecord(f"{path}: another run writes it; wait for that, or name another file") from None


def _lines(path: Path, data: bytes) -> tuple[list[Line], int]:
    """The lines of a record, and the bytes that they take: without a last one that is not complete."""
    whole = data.rfind(b"\n") + 1
    start = b'{"refattn": '
    if not data.startswith(start[: len(data)]):
        raise BadRecord(f"{path} is no record of a run; name another file")
    lines = []
    for number, text in enumerate(data[:whole].splitlines(), 1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError(f"{text[:20]!r} must be a JSON object")
            lines.append(line)
        except (ValueError, RecursionError) as error:
            raise BadRecord(f"{path}:{number}: {error}; name another file, or remove it") from None
    found = lines[0].get("format") if lines else FORMAT
    if type(found) is not int or found != FORMAT:
        raise BadRecord(f"{path}: format {found} must be {FORMAT}; name another file")
    return lines, whole


def _header(report: Report, cases: Sequence[Case]) -> Line:
    digest = hashlib.sha256(json.dumps([as_finite(case.to_json()) for case in cases]).encode()).hexdigest()
    return {
        "refattn": suite_version(),
        "format": FORMAT,
        "spec": report.spec,
        "seed": report.seed,
        "cases": {"number": len(cases), "digest": digest, "ids": [case.id for case in cases]},
        "implementation": implementation_as_json(report),
        "sources": sources(report.spec),
        "platform": {"python": platform.python_version(), "numpy": np.__version__, "processor": _processor()},
    }


def _check(verdict: Verdict, expected: Any) -> None:
    """Refuse what no run has written."""
    if verdict.status not in get_args(Status):
        raise ValueError(f"status {verdict.status!r} must be one of {' '.join(get_args(Status))}")
    texts = (*verdict.reasons, *verdict.notes, *verdict.suspicions, "" if expected is None else expected)
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{verdict.case.id}: reasons, notes, suspicions and expected_failure must be text")


def _differing(was: Line, now: Line, before: str = "") -> list[tuple[str, Any, Any]]:
    """The fields that differ, by their names, and their values."""
    found = []
    for name, value in now.items():
        other = was.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            found += _differing(other, value, f"{before}{name}.")
        elif value != other:
            found.append((before + name, other, value))
    return found


def _changed(name: str, was: Any) -> str:
    """What is to be said of a digest that is another one; `was` is None where the record has none."""
    if was is None:
        return "it does not say of which sources it was made"
    return f"{'refattn' if name == 'sources.refattn' else 'the kernel'} has changed since"


def _remarks(header: Line, report: Report) -> tuple[str, ...]:
    """Whether it is complete, and of these sources."""
    done, all_of_it = len(report.verdicts), report.selected
    remarks = [f"{done:,} of {all_of_it:,} cases, not complete"] if report.interrupted else []
    now, was = sources(report.spec), header.get("sources")
    if was is not None and was["kernel"] and not now["kernel"]:
        remarks.append("its kernel is not found here, so whether that has changed is not known")
        now["kernel"] = was["kernel"]
    differing = _differing({"sources": was}, {"sources": now})
    return (*remarks, *(_changed(name, value) for name, value, _ in differing))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _report(lines: Sequence[Line]) -> Report:
    header, last = lines[0], lines[-1]
    report = Report(header["spec"], description_of(header["implementation"]), header["seed"], header["cases"]["number"])
    report.date = header.get("date", "")
    verdicts, expected = {}, {}
    for line in lines[1:]:
        if "case" in line:
            verdict = verdict_of(line)
            _check(verdict, line["expected_failure"])
            verdicts[verdict.case] = verdict
            expected[verdict.case.id] = line["expected_failure"]
        elif "probed" in line:
            report.probed = tuple(convention_of(row) for row in line["probed"])
    place = {id: n for n, id in enumerate(header["cases"]["ids"])}
    report.verdicts = sorted(verdicts.values(), key=lambda v: place[v.case.id])
    report.expected = {id: reason for id, reason in expected.items() if reason is not None}
    report.interrupted = "diagnosis" not in last
    if not report.interrupted:
        report.diagnosis, report.smallest = tuple(last["diagnosis"]), last["smallest"]
    return report
