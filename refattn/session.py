"""What a session of pytest examines, and what it finds of it beyond the single cases: see `refattn.plugin`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .calling import Local
from .case import Case
from .cases import CASES
from .diagnose import Suspects, merged_diagnoses
from .examine import examine
from .expected import expected_failures, shipped
from .implementation import wrap
from .judge import Verdict
from .probes import probes
from .said import cleaned, plain
from .worker import Worker

__all__ = ["Examination", "Session", "merged", "not_judged", "summary"]


@dataclass
class Examination:
    """One implementation: its candidate, the cases that it is expected to fail, and how it did so far."""

    candidate: Worker | Local
    spec: str | None
    """None if it is an object of this process"""
    expected: Mapping[str, str] = field(default_factory=dict)
    strict: bool = True
    """whether one that is expected to fail must"""
    suspects: Suspects = field(default_factory=Suspects)
    counts: dict[str, int] = field(default_factory=dict)
    judged: int = 0
    """how many cases were judged, or were not because it needs what this machine has not"""
    refused: int = 0

    @property
    def name(self) -> str:
        return plain(self.spec or self.candidate.description.name)

    def examine(self, case: Case) -> Verdict:
        """The verdict, of a failure with what it looks like; an expected one is not looked at."""
        verdict = cleaned(examine(self.candidate, case))
        if verdict.status != "unsupported" or " ".join(verdict.reasons).startswith("needs "):
            self.judged += 1
        else:
            self.refused += 1
        if case.id in self.expected:
            return verdict
        self.counts[verdict.status] = self.counts.get(verdict.status, 0) + 1
        return replace(verdict, notes=verdict.notes + self.suspects.watch(verdict), evidence=None)

    def findings(self) -> dict[str, Any]:
        """Plain data: what was found of an implementation that failed; nothing of others."""
        if not self.counts.get("failed"):
            return {}
        about, rows = self.candidate.description, probes(self.candidate).rows
        return {
            "name": self.name,
            "about": plain(" ".join(x for x in (about.name, about.version) if x)),
            "counts": dict(self.counts),
            "found": [f"{row.name}: {row.found}" for row in rows],
            "mismatches": [str(row) for row in rows if not row.fits],
            "diagnoses": [self.suspects.findings()],
        }


class Session:
    """The implementations that a session examines, each loaded once."""

    def __init__(self, timeout: float, expected: Path | None) -> None:
        self.timeout, self.own_list = timeout, expected
        self._examinations: dict[Any, Examination] = {}

    def of(self, attention: Any) -> Examination:
        """The examination of a spec or an implementation; `CannotLoad`, or ValueError or OSError of its list."""
        key = attention if isinstance(attention, str) else id(attention)
        if key not in self._examinations:
            self._examinations[key] = self._begin(attention)
        return self._examinations[key]

    def _begin(self, attention: Any) -> Examination:
        spec = attention if isinstance(attention, str) else None
        path = self.own_list or (shipped(spec) if spec else None)
        expected = {} if path is None else expected_failures(path, spec or "", CASES)
        if spec is not None:
            return Examination(Worker(spec, self.timeout), spec, expected, self.own_list is not None)
        local = Local(wrap(attention, getattr(attention, "__qualname__", type(attention).__name__)))
        return Examination(local, None, expected)

    def findings(self) -> list[dict[str, Any]]:
        return [found for examination in self._examinations.values() if (found := examination.findings())]

    def tally(self) -> list[tuple[str, int, int]]:
        """Of each implementation its name, and how many cases were judged and refused."""
        return [(one.name, one.judged, one.refused) for one in self._examinations.values()]

    def close(self) -> None:
        for examination in self._examinations.values():
            examination.candidate.close()


def merged(findings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those of the same implementation, found by several processes, made one."""
    whole: dict[str, dict[str, Any]] = {}
    for found in findings:
        one = whole.setdefault(found["name"], {**found, "counts": {}, "diagnoses": []})
        for status, n in found["counts"].items():
            one["counts"][status] = one["counts"].get(status, 0) + n
        one["diagnoses"] += found["diagnoses"]
    return list(whole.values())


def not_judged(tally: Sequence[tuple[str, int, int]]) -> list[str]:
    """The names of those of which, in all processes together, cases were refused and none was judged."""
    judged: dict[str, int] = {}
    refused: dict[str, int] = {}
    for name, n, m in tally:
        judged[name], refused[name] = judged.get(name, 0) + n, refused.get(name, 0) + m
    return [name for name, n in judged.items() if not n and refused[name]]


def summary(found: Mapping[str, Any]) -> list[str]:
    """What is printed at the end of a failing run."""
    counts = ", ".join(f"{n} {status}" for status, n in sorted(found["counts"].items()))
    about = "" if found["about"] == found["name"] else f" ({found['about']})"
    lines = [f"{found['name']}{about}: {counts}"]
    lines += textwrap.wrap(f"found: {'; '.join(found['found'])}", 100, subsequent_indent="  ", break_long_words=False)
    lines += [f"mismatch: {text}" for text in found["mismatches"]]
    diagnosis = merged_diagnoses(found["diagnoses"])
    return lines + [f"{'           ' if n else 'diagnosis: '}{line}" for n, line in enumerate(diagnosis)]
