"""In what way numbers are wrong: NaN, 0, a constant, a constant multiple, or ever more with the position."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import MATRICES, Case
from ..dtypes import FORMATS
from ..truth import Expected

__all__ = ["DENSE", "Compared", "factors", "growth", "holds", "kinds", "numbers"]

Array = np.ndarray[Any, Any]

DENSE = 1 << 22
"""elements up to which all is looked at"""


@dataclass(frozen=True)
class Compared:
    """One output of the right shape: got and the interval, dense, float64; `axes` say what its axes are of."""

    name: str
    got: Array
    expected: Expected
    judged: Array
    failing: Array
    axes: tuple[str, ...]


def kinds(x: Compared) -> Iterator[str]:
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


def factors(x: Compared, case: Case) -> Iterator[str]:
    """Whether all is a constant multiple of what it should be, or off by a constant."""
    judged = x.judged & ~x.expected.nonfinite & np.isfinite(x.got) & np.isfinite(x.expected.value)
    got, value = x.got[judged], np.broadcast_to(x.expected.value, x.got.shape)[judged]
    if got.size < 8 or not x.failing[judged].any() or not value.std() > 0:
        return
    large = np.abs(value) >= np.quantile(np.abs(value), 0.5)
    with np.errstate(all="ignore"):
        factor = float(np.median(got[large] / value[large]))
    if math.isclose(factor, -1.0, rel_tol=1e-3) and holds(x, -1.0, 0.0):
        yield "all of it has the wrong sign"
    elif factor != 0.0 and math.isfinite(factor) and holds(x, factor, 0.0):
        yield f"all of it is {factor:.6g} times what it should be{_known(factor, case, ' = ')}"
    offset = float(np.median(got - value))
    if x.name == "lse" and offset and holds(x, 1.0, offset):
        yield f"all of it is off by {offset:+.6g}{_known(math.exp(min(offset, 700.0)), case, ' = log ')}"


def holds(x: Compared, factor: float, offset: float, at: Array | None = None) -> bool:
    """Whether factor times the value plus offset is within the bound, stretched alike, and far from the value.

    It is asked of the elements `at`, or of all that are judged.
    """
    e, u = x.expected, FORMATS[x.expected.dtype].u
    judged = x.judged & ~e.nonfinite if at is None else at
    with np.errstate(all="ignore"):
        made = factor * e.value + offset
        half = np.maximum(e.hi - e.value, e.value - e.lo)
        room = half * max(abs(factor), 1.0) + u * (np.abs(made) + 2 * abs(offset)) + FORMATS[e.dtype].eta
        within = (np.abs(x.got - made) <= room)[judged]
        return bool(within.all()) and float(np.median((np.abs(made - e.value) / room)[judged])) > 3


def _known(factor: float, case: Case, link: str) -> str:
    """The name of a number that a kernel may forget."""
    near = 2e-3 if FORMATS[case.dtype].bits < 20 else 1e-5
    return next((link + name for name, n in numbers(case).items() if math.isclose(factor, n, rel_tol=near)), "")


def numbers(case: Case) -> dict[str, float]:
    """By name, the numbers that a kernel may forget, and one over each; not 0 and 1, which change nothing."""
    scale = case.scale if case.scale is not None else case.D**-0.5 if case.D else 1.0
    group, p = case.H / case.Hkv if case.Hkv else 1.0, case.dropout or 0.0
    known: Mapping[str, float] = {
        "log2(e)": math.log2(math.e), "log(2)": math.log(2), "2": 2.0, "1/2": 0.5, "-1": -1.0, "scale": scale,
        "D": case.D, "D**0.5": case.D**0.5, "H / Hkv": group, "1 - dropout": 1 - p, "scale**2": scale * scale,
    }  # fmt: skip
    found = {}
    for name, n in known.items():
        found[name] = n
        found[f"1 / ({name})" if " " in name else f"1 / {name}"] = 1 / n if n else 0.0
    return {name: n for name, n in found.items() if n not in (0.0, 1.0)}


def growth(x: Compared) -> Iterator[str]:
    """Whether the error, in units of the bound, grows with the row."""
    if len(x.axes) < 3 or x.failing.shape[2] < 32 or x.name in MATRICES or x.got.size > DENSE:
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
