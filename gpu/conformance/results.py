"""Results as JSON lines, one a job, so that a run that was stopped goes on where it was; and what they come to."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .jobs import Job

__all__ = ["Log", "source_digest", "summary"]

ROOT = Path(__file__).parent.parent


def source_digest() -> str:
    """A number that changes with the kernels, their launch, the primitives and the executor."""
    digest = hashlib.sha256()
    for folder in ("kernels", "launch", "ptx", "simt"):
        for path in sorted((ROOT / folder).glob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Log:
    """The file; lines of another source are passed over."""

    def __init__(self, path: Path | None, version: str) -> None:
        self.path = path
        self.stamp = {"version": version, "source": source_digest()}
        self.found: dict[Job, dict[str, Any]] = {}
        self.stale = 0
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                if {name: row.get(name) for name in self.stamp} == self.stamp:
                    self.found[Job(*(row[name] for name in Job._fields))] = row
                else:
                    self.stale += 1

    def add(self, job: Job, result: Mapping[str, Any]) -> None:
        row = {**job._asdict(), **result, **self.stamp}
        self.found[job] = row
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")


def summary(found: Mapping[Job, Mapping[str, Any]]) -> list[str]:
    """Counts of each kernel, the largest ratio of each output, and all that failed."""
    statuses = ("passed", "acceptable", "unsupported", "failed", "crash", "timeout")
    lines = [f"{'kernel':12s}" + "".join(f"{s:>12s}" for s in statuses) + "   largest ratios that passed"]
    for kernel in sorted({job.kernel for job in found}):
        rows = {job: row for job, row in found.items() if job.kernel == kernel}
        counts = Counter(row["status"] for row in rows.values())
        largest: dict[str, tuple[float, str]] = {}
        for job, row in rows.items():
            for name, ratio in row["ratios"].items():
                if row["status"] in ("passed", "acceptable") and math.isfinite(ratio):
                    largest[name] = max(largest.get(name, (-1.0, "")), (ratio, job.case))
        shown = ", ".join(f"{name} {ratio:.3g} ({case})" for name, (ratio, case) in sorted(largest.items()))
        lines.append(f"{kernel:12s}" + "".join(f"{counts[s]:12d}" for s in statuses) + "   " + shown)
    for job, row in sorted(found.items()):
        if row["status"] in ("failed", "crash", "timeout"):
            reason = " ".join(" ".join(row["reasons"]).split())[-300:]
            worst = {name: f"{ratio:.3g}" for name, ratio in row["ratios"].items() if not ratio <= 1}
            lines += [f"FAIL {' '.join(job)}: {row['status']} {worst} {reason}", f"     replay: {job.replay()}"]
    return lines
