"""Which cases an implementation is known to fail, and why: lists of lines, the user's own or those shipped here.

    # torch 2.13.0
    scale-negative-*-f32     # NaN (FINDINGS 1, torch 2.13.0)
    [torch-flash torch]
    chunks-x-far-bf16        # ...

An id or a glob of ids, and the reason.  What follows a line of names in brackets is for these implementations alone.
`adapters/expected/torch.txt` is for `torch` and all its variants, such as `torch-flash`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import filter as matching
from pathlib import Path

from .case import Case
from .cases import CASES
from .laws import rows

__all__ = ["expected_failures", "shipped"]

SHIPPED = Path(__file__).parent / "adapters" / "expected"


def shipped(spec: str) -> Path | None:
    """The list that comes with refattn for a bare name, such as torch-flash; None if there is none."""
    path = SHIPPED / f"{spec.partition('-')[0]}.txt"
    return path if ":" not in spec and path.is_file() else None


def expected_failures(path: Path, spec: str, cases: Sequence[Case]) -> dict[str, str]:
    """The reason for each case, also law, that is expected to fail; refused: a line that matches none."""
    found: dict[str, str] = {}
    ids = _ids(cases)
    names: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        pattern, _, reason = (part.strip() for part in line.partition("#"))
        section = re.fullmatch(r"\[(.*)\]", pattern)
        if section:
            names = section[1].split()
            continue
        if not pattern:
            continue
        matched = matching(ids, pattern)
        if not matched:
            raise ValueError(f"{path}:{number}: {pattern!r} matches no case; `refattn list --full` shows them")
        if not names or spec in names:
            found.update(dict.fromkeys(matched, reason or "no reason given"))
    return found


def _ids(cases: Iterable[Case]) -> list[str]:
    return list(dict.fromkeys(case.id for case in (*cases, *CASES, *rows())))
