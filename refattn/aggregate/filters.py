"""Filters on the rows of all heads together: scale, size, rounding toward zero, up or down; and the mean square.

Directions are made orthogonal within each row: scale to out, so that a common factor of a row (roundings of P of one
sign, the reciprocal of its sum) is not taken for it; size and the roundings to scale.  What remains of an error that
honest rows may have in common, relatively `slack`, times what the filter makes of it, is the allowance.

Toward zero is asked only where out is rounded to fewer bits than the accumulators have; up and down where the error of
exp, which can be the same for rows that resemble one another, is far below that rounding too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import FORMATS
from ..precision import Precision
from .gates import FEWEST
from .rows import Rows
from .suspicion import Found, Suspicion, limit_of

__all__ = ["Filters", "Sum"]

Array = np.ndarray[Any, Any]

_TESTS = 5


@dataclass
class Sum:
    """sum u, sum u², what u is for an error of one unit, and what is allowed."""

    total: float = 0.0
    squares: float = 0.0
    response: float = 0.0
    allowance: float = 0.0

    def add(self, filter: Array, rows: Rows, allowance: float) -> None:
        u = (filter * rows.z).sum(1)
        self.total += float(u.sum())
        self.squares += float((u * u).sum())
        self.response += float((filter * filter).sum())
        self.allowance += allowance

    @property
    def statistic(self) -> float:
        return max(abs(self.total) - self.allowance, 0.0) / self.squares**0.5 if self.squares > 0 else 0.0

    @property
    def estimate(self) -> float:
        return self.total / self.response if self.response > 0 else 0.0

    @property
    def explained(self) -> float:
        """The part of sum z² that is gone if the estimate is taken off."""
        return self.total * self.estimate


class Filters:
    """The sums so far, for outputs of dtype `out`."""

    def __init__(self, out: str, precision: Precision) -> None:
        u_out, accumulate = FORMATS[out].u, FORMATS[precision.accumulate].u
        names = ["scale", "size"]
        if u_out > accumulate:
            names.append("toward zero")
        if u_out >= 64 * precision.exp_ulp * accumulate:
            names.append("up and down")
        self.sums = {name: Sum() for name in names}
        self.squares: list[Array] = []
        """the mean of z² of each row"""

    def add(self, rows: Rows) -> None:
        scale = rows.turned
        of_scale = np.abs((scale * rows.scale).sum(1)) + np.abs((scale * rows.exponent).sum(1))
        self.sums["scale"].add(scale, rows, float((of_scale * rows.scale_slack).sum()) / 2)
        signed = rows.half * np.sign(rows.size)
        for name, direction in (("size", rows.size), ("toward zero", signed)):
            if name not in self.sums:
                continue
            filter = rows.less(direction, rows.scale)
            allowed = float((np.abs((filter * rows.size).sum(1)) * rows.size_slack).sum())
            self.sums[name].add(filter, rows, allowed)
        if "up and down" in self.sums:
            self.sums["up and down"].add(rows.less(rows.half, rows.size, scale), rows, 0.0)
        self.squares.append((rows.z**2).sum(1) / rows.judged.sum(1))

    def found(self) -> Iterator[Found]:
        limit = limit_of(_TESTS)
        beyond = {name: s for name, s in self.sums.items() if s.statistic > limit}
        if "size" in beyond and "toward zero" in beyond:  # nearly the same direction
            del beyond[min(("size", "toward zero"), key=lambda name: beyond[name].explained)]
        for name, s in beyond.items():
            yield Found(s.explained, Suspicion(name, "out", s.statistic, limit, _TEXTS[name](s)))

    def mean_square(self) -> Iterator[Suspicion]:
        limit = limit_of(_TESTS)
        squares = np.concatenate([*self.squares, np.zeros(0)])
        if len(squares) < FEWEST:
            return
        mean, spread = float(squares.mean()), float(squares.std(ddof=1)) / len(squares) ** 0.5
        statistic = (mean - 1) / spread if spread > 0 else 0.0
        if statistic > limit:
            text = f"errors of out are {mean**0.5:.3g} times as large as its roundings explain (root mean square)"
            yield Suspicion("rms", "out", statistic, limit, text)


def _scale(s: Sum) -> str:
    much = "too" if s.estimate > 0 else "too little"
    return (
        f"out is {_percent(s.estimate)} ({s.statistic:.0f} sigma) {much} sensitive to scale: "
        f"scale may be off by {_percent(s.estimate, '+')}"
    )


def _size(s: Sum) -> str:
    return f"out is {_percent(s.estimate)} ({s.statistic:.0f} sigma) too {'large' if s.estimate > 0 else 'small'}"


def _toward_zero(s: Sum) -> str:
    where = "away from" if s.estimate > 0 else "toward"
    return f"out is rounded {where} zero: {_bias(s)}"


def _up_and_down(s: Sum) -> str:
    return f"out is rounded {'up' if s.estimate > 0 else 'down'}: {_bias(s)}"


def _bias(s: Sum) -> str:
    return f"the mean error is {abs(s.estimate):.2f} of half a unit in the last place ({s.statistic:.0f} sigma)"


def _percent(x: float, sign: str = "") -> str:
    return f"{100 * (x if sign else abs(x)):{sign}.2g} %"


_TEXTS = {"scale": _scale, "size": _size, "toward zero": _toward_zero, "up and down": _up_and_down}
