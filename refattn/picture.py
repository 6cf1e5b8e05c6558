"""What a failing case leaves for the page of the matrix: where its error is, and how large its elements' errors are.

A picture is plain JSON data of a kilobyte or two, since the arrays themselves are not kept:

    output     the first output that fails, in the order of `refattn.case.NAMES`
    at         where the plane that is drawn lies: {"entry": 0, "head": 3}, that with the most failing elements
    down       the axis drawn downwards, with its length: ["row", 40]
    across     the axis drawn to the right: ["column", 64], or ["key", 96] where keys can be told apart
    of         "ratio", or "weight": how much of a row's weight each key has too much or too little
    map        a text for each line, a sign for each field; a field stands for one or more indices
    histogram  how many elements have a ratio of at most 2**FIRST, of 2**(FIRST + 1), ... 2**LAST, of more or NaN

A field of a ratio is the digit of the first of LEVELS that its largest ratio is not above ("0" is within the bound),
"." where nothing is judged.  A field of a weight is "." in a row within its bounds, "0" where a visible key counts as
it should, "-" where it is hidden and does; else the digit of the first of SHARES that the change is not above where
weight is missing, as a letter (1 = A) where there is too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .case import NAMES
from .inputs import Problem
from .judge import Evidence, ratios
from .localise import Compared, compared
from .localise.key_changes import Rows, rows_of
from .precision import Precision, preset

__all__ = ["FIRST", "LAST", "LEVELS", "SHARES", "picture"]

Array = np.ndarray[Any, Any]

FIRST, LAST = -10, 20
LEVELS = (1.0, 3.0, 10.0, 100.0, 1e4, np.inf)
"""of ratios; NaN and what is infinitely far off count as more than all but the last"""
SHARES = (0.0, 0.01, 0.1, np.inf)
"""of a row's whole weight"""
MOST_DOWN, MOST_ACROSS = 32, 48
"""fields of a map"""
MOST_PAIRS = 1 << 22
"""pairs of query and key beyond which keys are not told apart"""


def picture(evidence: Evidence | None, precision: Precision | None = None) -> dict[str, Any] | None:
    """The picture of a failed verdict; None without evidence, or where no output of the right shape fails.

    `precision` is the contract that it was judged by; None is the preset of the case's dtypes.
    """
    failing = [] if evidence is None else [x for x in compared(evidence) if x.failing.any()]
    if evidence is None or not failing:
        return None
    x = min(failing, key=lambda x: NAMES.index(x.name))
    ratio = ratios(x.got, *(np.broadcast_to(a, x.got.shape) for a in (x.expected.value, x.expected.lo, x.expected.hi)))
    ratio = np.where(x.failing | (x.judged & (ratio <= 1)), ratio, np.where(x.judged, 0.0, -1.0))
    made = {"output": x.name, "histogram": _histogram(ratio[x.judged])}
    if not x.axes:  # a single number
        return made | {"at": {}, "down": ["", 1], "across": ["", 1], "of": "ratio", "map": _map(ratio.reshape(1, 1))}
    at, plane = _plane(x, ratio)
    axes = [name for name in x.axes if name not in at]
    down, across = [""] * (2 - len(axes)) + axes
    drawn = {"down": [down, plane.shape[0]], "across": [across, plane.shape[1]], "of": "ratio", "map": _map(plane)}
    if x.name == "out":
        case = evidence.problem.case
        drawn |= _weights(evidence.problem, precision or preset(case.dtype, case.out_dtype), x, at) or {}
    return made | {"at": at} | drawn


def _histogram(ratio: Array) -> list[int]:
    with np.errstate(divide="ignore"):
        log = np.ceil(np.log2(np.minimum(ratio, 2.0 ** (LAST + 1))))
    return np.bincount(np.clip(log, FIRST, LAST + 1).astype(int) - FIRST, minlength=LAST + 2 - FIRST).tolist()


def _plane(x: Compared, ratio: Array) -> tuple[dict[str, int], Array]:
    """Of more than two axes the plane of the last two in which most elements fail, and where it lies."""
    if ratio.ndim <= 2:
        return {}, ratio.reshape(-1, ratio.shape[-1])
    lead = ratio.shape[:-2]
    counts = x.failing.reshape(*lead, -1).sum(-1)
    best = np.unravel_index(int(counts.argmax()), lead)
    return {name: int(i) for name, i in zip(x.axes, best, strict=False)}, ratio[best]


def _blocks(n: int, most: int) -> Array:
    """Where the fields begin that stand for n indices."""
    return np.arange(0, n, max(1, -(-n // most)))


def _map(plane: Array) -> list[str]:
    rows, columns = (_blocks(n, most) for n, most in zip(plane.shape, (MOST_DOWN, MOST_ACROSS), strict=True))
    largest = np.maximum.reduceat(np.maximum.reduceat(plane, rows, 0), columns, 1)
    level = np.searchsorted(LEVELS[:-1], largest)
    return ["".join(line) for line in np.where(largest < 0, ".", level.astype(str))]


# ---- keys


def _weights(
    problem: Problem, precision: Precision, x: Compared, at: Mapping[str, int]
) -> dict[str, Any] | None:  # fmt: skip
    """The map of rows and keys, where out tells how much each key's weight is off; else None."""
    case, b, h = problem.case, at["entry"], at["head"]
    failing = np.asarray(x.failing[b, h].any(-1))
    if case.scores > MOST_PAIRS or not 0 < case.Lk <= case.Dv:
        return None
    if not np.isfinite(x.got[b, h][failing]).all():
        return None
    rows = rows_of(problem, precision, b, h, np.flatnonzero(failing), x.got, x.expected, case.visibility.tile())
    change = _changes(rows)
    if change is None:
        return None
    signs = np.full((case.Lq, case.Lk), ".")
    signs[failing] = np.where(rows.visible, "0", "-")
    level = np.searchsorted(SHARES[:-1], np.abs(change))
    letters = np.array(list(" ABC"))[level]
    signs[failing] = np.where(level == 0, signs[failing], np.where(change > 0, letters, level.astype(str)))
    down, across = _blocks(case.Lq, MOST_DOWN), _blocks(case.Lk, MOST_ACROSS)
    order = np.array(list(".-01A2B3C"))  # what a field of several indices shows: the last of these
    rank = (signs[..., None] == order).argmax(-1)
    rank = np.maximum.reduceat(np.maximum.reduceat(rank, down, 0), across, 1)
    return {
        "down": ["row", case.Lq], "across": ["key", case.Lk], "of": "weight",
        "map": ["".join(line) for line in order[rank]],
    }  # fmt: skip


def _changes(rows: Rows) -> Array | None:
    """(rows, keys): how much weight each key has too much, as a share of the row's; 0 where the bounds cannot tell.

    out = sum_j p_j v_j and got = sum_j w_j v_j, so that w - p solves a linear system of which v is the matrix: by least
    squares.  None if it has no one solution, or none that gives what was got, in most of the rows.  Where keys of a row
    count 0 times, once or twice, a factor that they have in common is no change: it makes the weights sum to 1.
    """
    v, off = rows.both[:, : rows.out.shape[1]], rows.got - rows.out
    if rows.factor is not None or np.linalg.matrix_rank(v) < len(v):
        return None
    inverse = np.linalg.pinv(v)  # (columns, keys)
    change, untold = off @ inverse, rows.half @ np.abs(inverse)
    told = (np.abs(change @ v - off) <= 2 * rows.half).all(1)
    if not told.mean() > 0.5:
        return None
    p = np.where(rows.visible, rows.e, 0.0)
    for i, visible in enumerate(rows.visible):
        clear = visible & (p[i] > 4 * untold[i])
        w = p[i] + change[i]
        ratio = w[clear] / p[i, clear]
        if ratio.max(initial=0.0) > 0:
            one = np.median(ratio[ratio >= 0.3 * ratio.max()]) * p[i]
            count = np.clip(np.rint(w[clear] / one[clear]), 0, 2)
            if (np.abs(w[clear] - count * one[clear]) <= untold[i, clear]).all():
                change[i] = w - one
    return np.where(np.abs(change) > untold, change, 0.0)
