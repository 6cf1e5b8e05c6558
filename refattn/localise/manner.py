"""In what manner all that is wrong of one output is wrong, in words that hold of other cases too, or do not.

Words go after "where out is wrong it is".  They name no number of a single case, so that those of many can be counted:
`refattn.diagnose.facts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..case import Case
from ..dtypes import FORMATS
from .places import exchanged
from .values import Array, Compared, growth, holds, numbers

__all__ = ["manner"]

ALIKE = 3
"""elements of one factor or one difference, of which it may be said"""
NEAR = 0.05
"""A number of a kernel is tried if the usual factor is so close to it."""
CLEAR = 4.0
"""A row tells its factor by numbers of so many times the bound."""
MOST = 1 << 16
"""elements of an output of which it is asked whether some are those of others"""
_MANY = {"entry": "entries"}


def manner(x: Compared, case: Case) -> list[str]:
    """What holds of every element that fails, the most telling first."""
    at = x.failing
    got, value = x.got[at], x.expected.value[at]
    if not got.size:
        return []
    whole = {
        "NaN": np.isnan(got),
        "infinite": np.isinf(got) & np.isfinite(value),
        "0": (got == 0) & (value != 0),
        "a number that should be -inf": np.isfinite(got) & np.isneginf(value),
    }
    found = [text for text, those in whole.items() if those.all()]
    if found:
        return [*found[:1], *_direction(x.name, got, value)]
    if np.isnan(got).any() or np.isnan(value).any():
        return ["NaN in part"] if np.isnan(got).any() else []
    if not (np.isfinite(got) & np.isfinite(value)).all():
        return [*_direction(x.name, got, value), *["infinite in part"] * bool(np.isinf(got).any())]
    words = [*_multiples(x, case, got, value), *_differences(x, case, got - value)]
    words += [] if words else _by_row(x)
    if x.got.size <= MOST:
        words += [f"in most {_MANY.get(a, a + 's')} what another {a} should be" for a, _ in exchanged(x)]
    words += [f"further off the later the {x.axes[2]}" for line in growth(x) if "grows" in line]
    return list(dict.fromkeys([*words, *_direction(x.name, got, value)]))


def _multiples(x: Compared, case: Case, got: Array, value: Array) -> Iterator[str]:
    """A constant factor, by each of its names."""
    large = np.abs(value) >= np.median(np.abs(value))
    with np.errstate(all="ignore"):
        factor = float(np.median(got[large] / value[large]))
    if not (math.isfinite(factor) and factor):
        return
    for name, n in numbers(case).items():
        if abs(factor / n - 1) < NEAR and holds(x, n, 0.0, x.failing):
            yield "of the wrong sign" if n == -1 else f"{name} times what it should be"
    if got.size >= ALIKE and holds(x, factor, 0.0, x.failing):
        yield f"{factor:.3g} times what it should be"
        yield "a multiple of what it should be, one for all of a case"


def _differences(x: Compared, case: Case, off: Array) -> Iterator[str]:
    """Of lse, a constant difference."""
    if x.name != "lse":
        return
    usual = float(np.median(off))
    for name, n in numbers(case).items():
        if n > 0 and abs(usual - math.log(n)) < NEAR and holds(x, 1.0, math.log(n), x.failing):
            yield f"off by log({name})"
    if off.size >= ALIKE and holds(x, 1.0, usual, x.failing):
        yield "off by as much everywhere in a case"


def _by_row(x: Compared) -> Iterator[str]:
    """Whether each row that is wrong is a multiple of what it should be, as if its weights were summed wrongly."""
    if x.axes[-1:] != ("column",) or x.got.ndim < 2:
        return
    e, rows = x.expected, x.failing.any(-1)
    got, value, lo, hi = (a[rows] for a in (x.got, e.value, e.lo, e.hi))
    if not (np.isfinite(got) & np.isfinite(value)).all():
        return
    half = np.maximum(hi - value, value - lo)
    with np.errstate(all="ignore"):
        factor = (got * value).sum(-1, keepdims=True) / (value * value).sum(-1, keepdims=True)
        room = half * np.maximum(np.abs(factor), 1) + FORMATS[e.dtype].u * np.abs(factor * value) + FORMATS[e.dtype].eta
        near = (np.abs(got - factor * value) <= room).all(-1)
        telling = (np.abs(value) > CLEAR * room).sum(-1) >= ALIKE
    if near.all() and 2 * telling.sum() > len(near):
        yield "in each row a multiple of what it should be"


def _direction(name: str, got: Array, value: Array) -> Iterator[str]:
    """Whether all is too small or too large, in size too where a number may be negative."""
    if (got < value).all():
        yield "too small"
    if (got > value).all():
        yield "too large"
    if name == "lse":
        return
    if (np.abs(got) > np.abs(value)).all():
        yield "too large in size"
    if (np.abs(got) < np.abs(value)).all():
        yield "too small in size"
    if (got * value < 0).all():
        yield "of the wrong sign"
    if (got * value > 0).all():
        yield "of the right sign"
