"""What of a verdict the diagnosis goes by: its arrays, if they are not too many, and what the judge named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import NAMES
from ..judge import Verdict

__all__ = ["SCORES", "bare", "can_be_evaluated", "named", "short"]

Array = np.ndarray[Any, Any]
SCORES = 2**18
"""a case with more scores than this is not evaluated again"""


def can_be_evaluated(verdict: Verdict) -> bool:
    e = verdict.evidence
    wrong = any(not o.passed for o in verdict.outputs)  # not only of a wrong dtype or shape
    return e is not None and wrong and verdict.contract is not None and verdict.case.scores <= SCORES


def named(verdict: Verdict) -> list[str]:
    """The conventions and contracts that the judge named."""
    return [n for n in verdict.notes if n.startswith(("undeclared", "within"))]


def short(note: str, where: str) -> str:
    """A note without what is said of the case alone."""
    return note.split(", unless")[0] + where * note.startswith("undeclared")


def bare(verdict: Verdict) -> Verdict:
    """The verdict with the judged outputs alone as evidence."""
    evidence = verdict.evidence
    if evidence is None:
        return verdict
    got: Mapping[str, Array] = {n: x for n, x in evidence.got.items() if n in NAMES and n in evidence.expected}
    return replace(verdict, evidence=replace(evidence, got=got))
