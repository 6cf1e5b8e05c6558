"""Loops that have tiles of their own: a kernel's forward and dq go by tiles of queries, its dk and dv by tiles of keys.

What is wrong in all of them shows in the tiles of each.  A backward's are those of the forward, or these with the
numbers of queries and keys exchanged; and one of its loops may be right.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ..precision import Precision
from .dense import Array, Inputs
from .model import Model

__all__ = ["in_loops", "loops"]

LOOPS = {"dk and dv": frozenset({"dk", "dv"}), "dq": frozenset({"dq", "dbias", "dsinks", "dscale", "dsoftcap"})}
"""what each loop of a backward returns"""


@cache
def exchanged(made: Any) -> type[Model]:
    """The same wrong in tiles of as many queries as there were keys."""
    return type(made.__name__, (made,), {"rows": (made.keys, False), "keys": made.rows[0]})


def loops(made: Any) -> Iterator[tuple[str, tuple[type[Model], type[Model]]]]:
    """In words, what dk and dv, and dq, are made by where not as the forward; none if it has no tiles."""
    rows, keys = getattr(made, "rows", None), getattr(made, "keys", None)
    if not (isinstance(rows, tuple) and isinstance(keys, int) and rows[0] > 1 and keys > 1 and rows[1] is False):
        return
    yield "in the forward, dk and dv alone", (made, Model)
    yield "in the forward and dq alone", (Model, made)
    if rows[0] == keys:
        return
    other, words = exchanged(made), f"of {keys} queries and {rows[0]} keys"
    yield f"and in dq in tiles {words}", (made, other)
    yield f"and in dk and dv in tiles {words}", (other, made)
    yield f"and in the backward in tiles {words}", (other, other)
    yield f"and in dq in tiles {words}, dk and dv are right", (Model, other)
    yield f"and in dk and dv in tiles {words}, dq is right", (other, Model)


def in_loops(
    made: type[Model], backward: tuple[type[Model], type[Model]], inputs: Inputs, contract: Precision | None,
    want: frozenset[str],
) -> dict[str, Array]:  # fmt: skip
    """The forward of one model, the loops of the backward by others, which go by what it left."""
    first = made(inputs, contract)
    with np.errstate(all="ignore"):
        y = first.told(first.forward())
        for names, model in zip(LOOPS.values(), backward, strict=True):
            if not want.isdisjoint(names):
                loop = model(inputs, contract)
                loop.forward()
                loop.goes_by(first)
                loop.m = np.where(first.l == 0, np.inf, first.m)  # no weights where the forward saw nothing
                y = y | {n: x for n, x in loop.backward().items() if n in names}
    return {n: np.asarray(x, np.float64) for n, x in y.items() if n in want}
