"""What several processes found, each of a part of the failures, made one diagnosis."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["merged"]

NAMED = 2
"""So many bugs are named where the processes do not agree."""

COUNTED = re.compile(r"\d+ (of|such) ")


def merged(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The lines of `Suspects.findings` of several processes, of all failures together."""
    findings = [found for found in findings if found["lines"]]
    if len(findings) < 2:
        return [line for found in findings for line in found["lines"]]
    failing = sum(found["failing"] for found in findings)
    explained: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    named: dict[str, str] = {}
    for found in sorted(findings, key=lambda found: -found["cases"]):
        notes.update(found["notes"])
        if found["first"]:
            explained[kind := found["first"].split(" (")[-1]] += found["cases"]
            named.setdefault(kind, found["first"])
    told = [f"{n} of {failing} failing cases: {note}" for note, n in notes.most_common(NAMED)]
    if len(named) == 1 and all(found["exact"] for found in findings):
        bug, n = next(iter(named.values())), explained.total()
        lines = [f"your output is attention with this bug: {bug}",
                 f"it explains {'all' if n == failing else f'{n} of the {failing}'} failing cases"]  # fmt: skip
    else:
        lines = [f"{n} of {failing} failing cases look like this bug: {named[kind]}"
                 for kind, n in explained.most_common(NAMED)]  # fmt: skip
    ahead = told[: sum(n > max(explained.values(), default=0) for n in notes.values())]
    lines = ahead + lines + [line for line in told if line not in ahead]
    return lines or ["no bug of the catalogue explains it", *_facts(findings)]


def _facts(findings: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each of them says of its failures, without counts, is so of all."""
    first, *others = (found.get("facts", ()) for found in findings)
    return [line for line in first if not COUNTED.search(line) and all(line in told for told in others)]
