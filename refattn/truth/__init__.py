"""The truth of a problem: for each wanted output the value and the interval of each element.

Values come from the oracle, or tile by tile from `streaming` where the scores of all heads would
not fit; intervals from `tolerance`, the truth's own float64 error included.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from ..inputs import Problem
from ..precision import Conventions, Precision
from ..tolerance import NONE, Extras, Forward, Tile, forward, forward_lite
from .expected import Expected
from .finish import dtype_of
from .solve import Truth
from .view import View

__all__ = ["Expected", "View", "dtype_of", "quick_truth", "truth"]

Array = np.ndarray[Any, Any]

CHEAP = 1 << 18  # scores from which the cheap bound is worth asking first
USUAL = Conventions()


def truth(problem: Problem, precision: Precision, conventions: Conventions = USUAL) -> dict[str, Expected]:
    """What each output that the case wants should be, under a contract and conventions."""
    return Truth(problem, precision, conventions, forward).expected()


def quick_truth(problem: Problem, precision: Precision) -> dict[str, Expected]:
    """`truth`, or for long plain forwards in 16 and 8 bits narrower intervals at a tenth of its cost.

    An answer within `narrow` intervals is within those of `truth`; any other, `truth` decides.
    """
    case = problem.case
    long = case.B * case.H * case.Lq * case.Lk > CHEAP
    plain = case.bias is case.softcap is case.score_mod is case.dropout is case.rotary is case.quant is None
    if long and plain and case.want <= {"out", "lse"}:
        with contextlib.suppress(_TooCoarse):
            narrow = Truth(problem, precision, USUAL, _lite).expected()
            return {name: replace(e, narrow=True) for name, e in narrow.items()}
    return truth(problem, precision)


class _TooCoarse(Exception):
    """The cheap bound would not be sharp."""


def _lite(
    q: Array, k: Array, v: Array, visible: Tile, bias: Tile, scale: float, softcap: float | None, sink: float | None,
    precision: Precision, extras: Extras = NONE,
) -> Forward:  # fmt: skip
    found = forward_lite(q, k, v, visible, scale, sink, precision)
    if found is None:
        raise _TooCoarse
    return found
