"""Where a failing answer is wrong: which entries, heads, rows and columns, in what way, and by which keys.

    where = localise(verdict.evidence)
    print("\n".join(where.lines()))

Nothing is guessed: each line is something that was counted, or an explanation that gives the answer within the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import CACHES, MATRICES, Case
from ..dtypes import round_to
from ..inputs import Problem
from ..judge import Evidence
from ..memory import answer_shape, take_answer
from ..precision import Precision, preset
from .index_sets import words
from .keyscan import keys_that_are_off
from .places import sources
from .values import DENSE, Compared, factors, growth, kinds

__all__ = ["Compared", "Localisation", "Spot", "compared", "localise"]

Array = np.ndarray[Any, Any]

_AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("out", "dq"), ("entry", "head", "row", "column")), "lse": ("entry", "head", "row"),
    **dict.fromkeys(("dk", "dv", *CACHES), ("entry", "key head", "key", "column")),
    **dict.fromkeys((*MATRICES, "dbias"), ("entry", "head", "row", "key")), "dsinks": ("head",),
}  # fmt: skip


@dataclass(frozen=True)
class Spot:
    """One output that fails: how many elements, and what there is to say of them."""

    name: str
    failing: int
    elements: int
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Localisation:
    """What fails, output by output, and which keys' weights explain it."""

    spots: tuple[Spot, ...]
    keys: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Text, a finding a line."""
        lines = []
        for spot in self.spots:
            first, *more = spot.findings
            lines.append(f"{spot.name}: {first}")
            lines += [f"{' ' * len(spot.name)}  {text}" for text in more]
        return lines + [f"keys: {text}" for text in self.keys]


def localise(evidence: Evidence, precision: Precision | None = None) -> Localisation:
    """Where the answer of a failed verdict is outside its bounds; outputs of a wrong form are left out.

    `precision` is the contract that it was judged by; None is the preset of the case's dtypes.
    """
    problem = evidence.problem
    precision = precision or preset(problem.case.dtype, problem.case.out_dtype)
    outputs = [x for x in compared(evidence) if x.failing.any()]
    spots = tuple(
        Spot(x.name, int(x.failing.sum()), int(x.judged.sum()), tuple(_findings(x, problem))) for x in outputs
    )
    keys: tuple[str, ...] = ()
    for x in outputs:
        if x.name == "out" and problem.case.H and problem.case.Hkv:
            keys = keys_that_are_off(problem, precision, x.got, x.expected, np.asarray(x.failing.any(-1)))
    return Localisation(spots, keys)


def compared(evidence: Evidence) -> Iterator[Compared]:
    """Each output that has the right shape, with which of its elements fail."""
    case = evidence.problem.case
    for name, expected in evidence.expected.items():
        x = evidence.got.get(name)
        if x is None or x.shape != answer_shape(case, name, expected.value.shape):
            continue
        got = round_to(np.asarray(take_answer(case, name, x), np.float64), expected.dtype)
        judged = ~np.broadcast_to(expected.ignored, got.shape)
        with np.errstate(invalid="ignore"):
            inside = (expected.lo <= got) & (got <= expected.hi)
        free = expected.nonfinite & ~np.isfinite(got)
        yield Compared(name, got, expected, judged, judged & ~free & ~inside, _AXES.get(name, ()))


def _findings(x: Compared, problem: Problem) -> Iterator[str]:
    places = list(_places(x, problem.case))
    yield f"{x.failing.sum():,} of {x.judged.sum():,} elements fail: {places[0]}"
    yield from places[1:]
    yield from _classes(x, problem)
    yield from kinds(x)
    yield from factors(x, problem.case)
    yield from growth(x)
    if x.got.size <= DENSE:
        yield from sources(x)


# ---- which


def _places(x: Compared, case: Case) -> Iterator[str]:
    """Which entries, heads, rows and columns; of each entry or head on its own where they differ."""
    if not x.axes:
        yield "its only element"
        return
    text, product = _product(x, case, ())
    if product >= 0.9 or len(x.axes) < 3:
        yield text
        return
    yield "in places that differ by entry or head" if x.failing.sum() > 1 else text
    for axis in (0, 1):
        n = x.failing.shape[axis]
        chosen = [i for i in range(n) if np.take(x.failing, i, axis).any()]
        if 1 < len(chosen) <= 8 or (len(chosen) == 1 and n > 1):
            parts = [_product(x, case, (axis, i)) for i in chosen]
            if min(share for _, share in parts) >= 0.9 or axis == 1 or x.failing.shape[1] == 1:
                for i, (part, _) in zip(chosen, parts, strict=True):
                    yield f"{x.axes[axis]} {i}: {part}"
                return


def _product(x: Compared, case: Case, one: tuple[int, int] | tuple[()]) -> tuple[str, float]:
    """Words for each axis, and which share of the rows that these say fails."""
    failing, judged = x.failing, x.judged
    if one:
        keep = _along(np.arange(failing.shape[one[0]]) == one[1], one[0], failing.ndim)
        failing, judged = failing & keep, judged & keep
    parts, projections = [], []
    for axis, what in enumerate(x.axes):
        others = tuple(a for a in range(failing.ndim) if a != axis)
        some, there = np.asarray(failing.any(others)), np.asarray(judged.any(others))
        projections.append(some)
        if some.size < 2 or (one and axis == one[0]) or (some == there).all():
            continue
        parts.append(_axis_words(some, there, what, case, one))
    rows = tuple(range(min(3, failing.ndim)))
    last = tuple(range(len(rows), failing.ndim))
    by_row = np.asarray(failing.any(last)) if last else failing
    there = np.asarray(judged.any(last)) if last else judged
    box = there
    for axis in rows:
        box = box & _along(projections[axis], axis, len(rows))
    return ", ".join(parts) or "everywhere", float(by_row.sum() / max(box.sum(), 1))


def _along(x: Array, axis: int, ndim: int) -> Array:
    """x (n,) as an array of `ndim` dimensions that broadcasts but along `axis`."""
    return x.reshape([-1 if a == axis else 1 for a in range(ndim)])


def _axis_words(some: Array, there: Array, what: str, case: Case, one: tuple[int, int] | tuple[()]) -> str:
    group = case.H // case.Hkv if case.Hkv else 1
    if what == "head":
        at = np.flatnonzero(some)
        if group > 1 and at.size == group and at[0] % group == 0 and at[-1] == at[0] + group - 1:
            return f"heads {at[0]}..{at[-1]} (those of key head {at[0] // group})"
        return words(some, there, what, periods=(group,) if group > 1 else (), tiles=())
    if what not in ("row", "key"):
        return words(some, there, what, tiles=(8, 16, 32, 64, 128) if what == "column" else ())
    names = {n: text for n, text in ((case.Lk, "Lk"), (case.Lq, "Lq"), (case.Lk - case.Lq, "Lk - Lq"),
             (case.Lq - case.Lk, "Lq - Lk")) if n > 1}  # fmt: skip
    entries = range(case.B) if not one or one[0] else (one[1],)
    for b in entries:
        for lens, text in zip(case.lengths, ("q_lens", "k_lens"), strict=True):
            names.setdefault(lens[b], f"{text}[{b}]")
    return words(some, there, what, names=names)


def _classes(x: Compared, problem: Problem) -> Iterator[str]:
    """Whether exactly those rows fail that see no key, or that see all, or whose first keys are hidden."""
    case = problem.case
    if x.axes[:3] != ("entry", "head", "row") or case.scores > DENSE or x.name in MATRICES:
        return
    seen = case.visibility.tile()
    if "bias" in problem.logical and case.bias is not None:
        seen = seen & ~np.isneginf(np.asarray(problem.logical["bias"], np.float64))
    last = tuple(range(3, x.failing.ndim))
    failing, judged = (np.asarray(a.any(last)) if last else a for a in (x.failing, x.judged))
    if x.name == "dbias" or failing.shape != seen.shape[:3] or (failing == judged).all():
        return
    some, whole = np.asarray(seen.any(-1)), np.asarray(seen.all(-1))
    classes = {"that see no key": ~some, "that see some key": some, "from which some key is hidden": ~whole}
    classes |= {f"that see none of the first {n} keys": ~np.asarray(seen[..., :n].any(-1)) & some
                for n in (1, 16, 32, 64, 128) if n < case.Lk}  # fmt: skip
    for text, rows in classes.items():
        if rows.any() and not rows[judged].all() and np.array_equal(failing, rows & judged):
            yield f"exactly the rows {text}"
            return
