"""Some query rows of a problem, as a problem of its own, and what they cover.

The rows of out, lse and dq depend on no other row, so that few of them can be judged in O(Lk) memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .case import Case
from .drawn import Dense as Drawn
from .inputs import Problem
from .masks import Mask
from .storage import Dense, Shared, Strided

__all__ = ["Coverage", "Given", "Sampled", "inseparable", "part", "sample"]

Array = np.ndarray[Any, Any]
BY_ROW = ("out", "lse", "dq")


class Given(Mask):
    """A mask that was given as a boolean array (B or 1, H or 1, Lq or 1, Lk or 1); it is not copied."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        index = tuple(x if n > 1 else np.zeros_like(x) for x, n in zip((b, h, i, j), self.array.shape, strict=True))
        return np.asarray(self.array[index])

    def to_json(self) -> dict[str, Any]:
        return Drawn.of(self.array).to_json()

    def __repr__(self) -> str:
        return f"Given(bool {self.array.shape})"


@dataclass(frozen=True)
class Sampled(Mask):
    """The mask of a problem of Lq queries, of which the i-th that is left is rows[i]; lq[b] of them exist."""

    mask: Mask
    rows: tuple[int, ...]
    lq: tuple[int, ...]

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        rows, lens = np.array(self.rows, dtype=np.int64), np.array(self.lq, dtype=np.int64)
        return self.mask(b, h, rows[i], j, lens[b], lk)


@dataclass(frozen=True)
class Coverage:
    """Which rows were judged: `drawn` of them at random, the others since bugs like them."""

    rows: tuple[int, ...]
    drawn: int
    of: int
    left_out: tuple[str, ...] = ()
    """outputs that need all rows"""
    beyond: int | None = None
    """not a sample: those furthest out of a narrower bound, which so many are out of"""

    def miss(self, one_in: float) -> float:
        """An upper bound of the chance to see no wrong row if one in so many were wrong."""
        return max(0.0, 1 - 1 / one_in) ** self.drawn

    def __str__(self) -> str:
        if self.beyond is not None:
            others = self.of - self.beyond
            return (
                f"{len(self.rows):,} of {self.of:,} rows, the furthest out of a quicker, narrower bound of the "
                f"{self.beyond:,} that are out of it; the other {others:,} are right"
            )
        chances = ", ".join(
            f"{self.miss(n):.2g} if one row in {n} were wrong" for n in (10, 100, 1000) if n <= max(self.of, 10)
        )
        left = f"; not judged, since they need all rows: {' '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{len(self.rows):,} of {self.of:,} rows, {self.drawn:,} of them drawn, the others first, last, and at "
            f"powers of two; the chance to miss all wrong ones is {chances}{left}"
        )


def sample(
    problem: Problem, answer: Mapping[str, Array], n: int, seed: int
) -> tuple[Problem, dict[str, Array], Coverage | None]:
    """The problem of n rows drawn without replacement and of those at boundaries; None if that is all rows."""
    case = problem.case
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"rows={n!r} must be an int >= 1; pass None for all rows")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r} of the rows must be an int >= 0")
    lens = case.lengths[0]
    near = {n for e in range(case.Lq.bit_length()) for n in (2**e - 1, 2**e)}
    near |= {0, case.Lq - 1} | {end for length in lens for end in (length - 1, length)}
    always = np.array(sorted(x for x in near if 0 <= x < case.Lq), dtype=np.int64)
    others = np.setdiff1d(np.arange(case.Lq), always)
    if n >= len(others):
        return problem, dict(answer), None
    left_out = tuple(name for name in answer if name not in BY_ROW and name != "keep")
    if why := inseparable(case):
        raise ValueError(f"rows={n} with {why}; judge all rows")
    if set(left_out) == set(answer) - {"keep"}:
        raise ValueError(f"rows={n} with {' '.join(left_out)} alone: they need all rows; leave rows out")
    drawn = np.random.default_rng(seed).choice(others, n, replace=False)
    rows = np.sort(np.concatenate([always, drawn]))
    return *part(problem, answer, rows), Coverage(tuple(rows.tolist()), n, case.Lq, left_out)


def inseparable(case: Case) -> str:
    """Why rows of this case are no problem of their own, or nothing."""
    for what, given in (("score_mod", case.score_mod), ("rotary", case.rotary)):
        if given is not None:
            return f"{what}={given!r}: it depends on positions"
    if not isinstance(case.storage, (Dense, Strided, Shared)):
        return f"storage={case.storage}: its rows have no place of their own"
    return ""


def part(problem: Problem, answer: Mapping[str, Array], rows: Array) -> tuple[Problem, dict[str, Array]]:
    """The problem of these rows alone, and the part of the answer that belongs to them."""
    case = problem.case

    def taken(x: Array) -> Array:
        return x if x.shape[2] != case.Lq else np.ascontiguousarray(x[:, :, rows])

    by_row = ("q", "dout", "dlse", "bias", "keep")
    logical = {name: taken(x) if name in by_row else x for name, x in problem.logical.items()}
    mask = case.mask
    if isinstance(mask, Given):
        mask = Given(taken(mask.array))
    elif mask is not None:
        mask = Sampled(mask, tuple(rows.tolist()), case.lengths[0])
    q_lens = None if case.q_lens is None else tuple(int(np.searchsorted(rows, n)) for n in case.q_lens)
    theirs = {name: taken(x) for name, x in answer.items() if name in (*BY_ROW, "keep")}
    small = replace(case, Lq=len(rows), mask=mask, q_lens=q_lens, want=frozenset(theirs) - {"keep"})
    return Problem(small, logical), theirs
