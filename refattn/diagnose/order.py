"""In which order hypotheses are asked: first those that would show in the cases that failed, and in few that passed.

Which cases a bug can show in is known without solving any: `separates`.  Hypotheses of one kind stand in a row, the
sizes of tiles varying last, so that a few of a row speak for their neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np

from ..case import GRADIENTS, Case
from .hypothesis import Hypothesis, hypotheses

__all__ = ["by_plausibility", "richness", "spread", "wordiness"]

T = TypeVar("T")
Row = tuple[Hypothesis, ...]
NEIGHBOURS, NEAR, FEW = 16, 2, 64
"""At most so many of a kind are placed by one of them if there are many, so many if they differ in the size of tiles
or splits alone; of more than so many are there many."""
RICHNESS = 0.03
"""What speaks against a kind for each bit that it has to fit by."""
PLACED = (0, 1, 2)
"""the one in the middle of a row, its first, and its last"""
FAILED, PASSED = 6, 16
"""so many cases are looked at"""
DECODED = 16
"""Up to so many queries may be decoded, in a way of their own."""


def by_plausibility(
    failed: Sequence[Case], passed: Sequence[Case], forward: bool, slight: bool
) -> list[tuple[float, Row]]:
    """All hypotheses, neighbours together, with what speaks against these: 2 if they show in no case that failed, 1 if
    they do in all that passed.

    Those of gradients alone come before others where the `forward` is right, and losses of bits where errors are
    `slight`, and there alone.
    """
    alike = _alike(failed, passed)
    placed, of_rows = [], _against(spread(failed, FAILED), spread(alike, PASSED))
    for row, against in zip(_rows(), of_rows, strict=True):
        bits = 0 if not row[0].rounding else -1 if slight else 1
        against += RICHNESS * richness(row[0])
        placed.append((against + bits + (not forward and not row[0].shows <= frozenset(GRADIENTS)), row))
    return sorted(placed, key=lambda x: x[0])


def _alike(failed: Sequence[Case], passed: Sequence[Case]) -> Sequence[Case]:
    """The cases that passed; those of no more queries, if all that failed have few."""
    most = max(c.Lq for c in failed)
    few = [c for c in passed if c.Lq <= most]
    return few if few and most <= DECODED else passed


def _against(failed: Sequence[Case], passed: Sequence[Case]) -> list[float]:
    """What speaks against each row, or that of its first, its last and the one in the middle that shows most."""
    shown = np.array([sum(_shows(case, which) for case in failed) / len(failed) for which in PLACED])
    middle = sum((_shows(case, 0) for case in passed), np.zeros(shown.shape[1]))
    found = []
    for at, (row, which) in enumerate(zip(_rows(), shown.argmax(0).tolist(), strict=True)):
        speaks = middle[at] if which == 0 else sum(map(_one(row, which).separates, passed))
        most = float(shown[which, at])
        found.append(2 * (1 - most) + float(speaks) / max(len(passed), 1) if most else 3.0)
    return found


def _one(row: Row, which: int) -> Hypothesis:
    """One of `PLACED`."""
    return row[(len(row) // 2, 0, -1)[which]]


@lru_cache(maxsize=512)
def _shows(case: Case, which: int) -> np.ndarray[Any, Any]:
    """Of each row, whether one of it may show in a case."""
    return np.array([_one(row, which).separates(case) for row in _rows()], float)


@cache
def _rows() -> tuple[Row, ...]:
    """Neighbours that differ in sizes alone, or of a kind that has many."""
    kinds = _kinds()
    rows: dict[Any, list[Hypothesis]] = {}
    for at, h in enumerate(hypotheses()):
        one = at if h.family is None and kinds[_kind(h)] <= FEW else h.family
        rows.setdefault((_kind(h), one), []).append(h)
    found = []
    for (name, _), row in rows.items():
        size = NEAR if kinds[name] <= FEW else NEIGHBOURS
        found += [tuple(row[i : i + size]) for i in range(0, len(row), size)]
    return tuple(found)


@cache
def _kinds() -> Counter[str]:
    return Counter(map(_kind, hypotheses()))


def _kind(h: Hypothesis) -> str:
    return h.name if h.made is None else h.made.__name__


def richness(h: Hypothesis) -> int:
    """How much its kind has to fit by: bits."""
    return _kinds()[_kind(h)].bit_length()


@cache
def _lengths() -> dict[str, float]:
    kinds = _kinds()
    total: Counter[str] = Counter()
    for h in hypotheses():
        total[_kind(h)] += len(h.what)
    return {name: total[name] / n for name, n in kinds.items()}


def wordiness(h: Hypothesis) -> float:
    """How many letters its kind takes to be said, on average."""
    return _lengths().get(_kind(h), len(h.what))


def spread(items: Sequence[T], n: int) -> list[T]:
    """Of so many, as many as are asked for, spread over all."""
    return [items[i * len(items) // n] for i in range(n)] if len(items) > n else list(items)
