"""Where a failing answer is wrong: which entries, heads, rows and columns, in what way, and by which keys.

    where = localise(verdict.evidence)
    print("\n".join(where.lines()))

Nothing is guessed: each line is something that was counted, or an explanation that gives the answer within the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import CACHES, MATRICES, Case
from .dtypes import FORMATS, round_to
from .index_sets import words
from .inputs import Problem
from .judge import Evidence
from .keyscan import keys_that_are_off
from .memory import answer_shape, take_answer
from .precision import Precision, preset
from .truth import Expected
from .wrong_places import sources

__all__ = ["Localisation", "Spot", "localise"]

Array = np.ndarray[Any, Any]

_AXES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("out", "dq"), ("entry", "head", "row", "column")), "lse": ("entry", "head", "row"),
    **dict.fromkeys(("dk", "dv", *CACHES), ("entry", "key head", "key", "column")),
    **dict.fromkeys((*MATRICES, "dbias"), ("entry", "head", "row", "key")), "dsinks": ("head",),
}  # fmt: skip
_DENSE = 1 << 22
"""elements up to which all is looked at"""


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


@dataclass(frozen=True)
class _Output:
    """One output of the right shape: got and the interval, dense, float64; axes as in _AXES."""

    name: str
    got: Array
    expected: Expected
    judged: Array
    failing: Array
    axes: tuple[str, ...]


def localise(evidence: Evidence, precision: Precision | None = None) -> Localisation:
    """Where the answer of a failed verdict is outside its bounds; outputs of a wrong form are left out.

    `precision` is the contract that it was judged by; None is the preset of the case's dtypes.
    """
    problem = evidence.problem
    precision = precision or preset(problem.case.dtype, problem.case.out_dtype)
    outputs = [x for x in _outputs(evidence) if x.failing.any()]
    spots = tuple(
        Spot(x.name, int(x.failing.sum()), int(x.judged.sum()), tuple(_findings(x, problem))) for x in outputs
    )
    keys: tuple[str, ...] = ()
    for x in outputs:
        if x.name == "out" and problem.case.H and problem.case.Hkv:
            keys = keys_that_are_off(problem, precision, x.got, x.expected, np.asarray(x.failing.any(-1)))
    return Localisation(spots, keys)


def _outputs(evidence: Evidence) -> Iterator[_Output]:
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
        yield _Output(name, got, expected, judged, judged & ~free & ~inside, _AXES.get(name, ()))


def _findings(x: _Output, problem: Problem) -> Iterator[str]:
    places = list(_places(x, problem.case))
    yield f"{x.failing.sum():,} of {x.judged.sum():,} elements fail: {places[0]}"
    yield from places[1:]
    yield from _classes(x, problem)
    yield from _kinds(x)
    yield from _factors(x, problem.case)
    yield from _growth(x)
    if x.got.size <= _DENSE:
        yield from sources(x.name, x.got, x.expected, x.failing, x.axes)


# ---- which


def _places(x: _Output, case: Case) -> Iterator[str]:
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


def _product(x: _Output, case: Case, one: tuple[int, int] | tuple[()]) -> tuple[str, float]:
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


def _classes(x: _Output, problem: Problem) -> Iterator[str]:
    """Whether exactly those rows fail that see no key, or that see all, or whose first keys are hidden."""
    case = problem.case
    if x.axes[:3] != ("entry", "head", "row") or case.B * case.H * case.Lq * case.Lk > _DENSE or x.name in MATRICES:
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


# ---- in what way


def _kinds(x: _Output) -> Iterator[str]:
    """NaN, infinity, 0 or another constant."""
    got, value = x.got[x.failing], np.broadcast_to(x.expected.value, x.got.shape)[x.failing]
    n = got.size
    for text, those in (("NaN", np.isnan(got)), ("infinite", np.isinf(got))):
        count = int(those.sum())
        if count:
            yield f"{'all' if count == n else f'{count:,}'} of them {'is' if count == n == 1 else 'are'} {text}"
    zero = (got == 0) & (value != 0)
    if zero.sum() >= 0.9 * n:
        yield f"{'all' if zero.all() else f'{zero.sum():,}'} of them are 0: never written, or nothing was added up"
    elif n >= 8 and np.isfinite(got).all() and (got == got[0]).all():
        yield f"all of them are {got[0]:.6g}"


def _factors(x: _Output, case: Case) -> Iterator[str]:
    """Whether all is a constant multiple of what it should be, or off by a constant."""
    judged = x.judged & ~x.expected.nonfinite & np.isfinite(x.got) & np.isfinite(x.expected.value)
    got, value = x.got[judged], np.broadcast_to(x.expected.value, x.got.shape)[judged]
    if got.size < 8 or not x.failing[judged].any() or not value.std() > 0:
        return
    large = np.abs(value) >= np.quantile(np.abs(value), 0.5)
    with np.errstate(all="ignore"):
        factor = float(np.median(got[large] / value[large]))
    if factor == -1.0 and _holds(x, factor, 0.0):
        yield "all of it has the wrong sign"
    elif factor != 0.0 and math.isfinite(factor) and _holds(x, factor, 0.0):
        yield f"all of it is {factor:.6g} times what it should be{_known(factor, case, ' = ')}"
    offset = float(np.median(got - value))
    if x.name == "lse" and offset and _holds(x, 1.0, offset):
        yield f"all of it is off by {offset:+.6g}{_known(math.exp(min(offset, 700.0)), case, ' = log ')}"


def _holds(x: _Output, factor: float, offset: float) -> bool:
    """Whether factor times the value plus offset is within the bound, stretched alike, and far from the value."""
    e, u = x.expected, FORMATS[x.expected.dtype].u
    judged = x.judged & ~e.nonfinite
    with np.errstate(all="ignore"):
        made = factor * e.value + offset
        half = np.maximum(e.hi - e.value, e.value - e.lo)
        room = half * max(abs(factor), 1.0) + u * (np.abs(made) + 2 * abs(offset)) + FORMATS[e.dtype].eta
        within = (np.abs(x.got - made) <= room)[judged]
        return bool(within.all()) and float(np.median((np.abs(made - e.value) / room)[judged])) > 3


def _known(factor: float, case: Case, link: str) -> str:
    """The name of a number that a kernel may forget."""
    scale = case.scale if case.scale is not None else case.D**-0.5 if case.D else 1.0
    group, p = case.H / case.Hkv if case.Hkv else 1.0, case.dropout or 0.0
    numbers: Mapping[str, float] = {
        "log2(e)": math.log2(math.e), "log(2)": math.log(2), "2": 2.0, "1/2": 0.5, "-1": -1.0, "scale": scale,
        "D": case.D, "D**0.5": case.D**0.5, "H / Hkv": group, "1 - dropout": 1 - p, "scale**2": scale * scale,
    }  # fmt: skip
    near = 2e-3 if FORMATS[case.dtype].bits < 20 else 1e-5
    for name, number in numbers.items():
        inverse = f"1 / ({name})" if " " in name else f"1 / {name}"
        for text, n in ((name, number), (inverse, 1 / number if number else 0.0)):
            if n not in (0.0, 1.0) and math.isclose(factor, n, rel_tol=near):
                return link + text
    return ""


def _growth(x: _Output) -> Iterator[str]:
    """Whether the error, in units of the bound, grows with the row."""
    if len(x.axes) < 3 or x.failing.shape[2] < 32 or x.name in MATRICES or x.got.size > _DENSE:
        return
    e = x.expected
    with np.errstate(all="ignore"):
        half = np.where(x.got > e.value, e.hi - e.value, e.value - e.lo)
        ratio = np.abs(x.got - e.value) / half
    ratio = np.where(x.judged & np.isfinite(ratio), ratio, np.nan)
    others = tuple(a for a in range(ratio.ndim) if a != 2)
    there = np.isfinite(ratio).any(others)
    if there.sum() < 32:
        return
    by_row = np.nanmedian(np.where(there.reshape((1, 1, -1) + (1,) * (ratio.ndim - 3)), ratio, 0.0), axis=others)[there]
    rank = np.argsort(np.argsort(by_row)).astype(float)
    correlation = float(np.corrcoef(rank, np.arange(rank.size))[0, 1])
    quarter = rank.size // 4
    first, last = float(np.median(by_row[:quarter])), float(np.median(by_row[-quarter:]))
    for sign, early, late in ((1, first, last), (-1, last, first)):
        if sign * correlation > 0.8 and late > 4 * early > 0 and late > 1:
            what = "grows" if sign > 0 else "falls"
            ends = f"{first:.2g} of the bound in the first quarter, {last:.2g} in the last"
            yield f"the error {what} with the {x.axes[2]}: {ends}"
