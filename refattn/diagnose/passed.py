"""What speaks against a hypothesis: cases that passed, and in which a kernel like it would have failed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..case import NAMES, Case
from ..inputs import make
from ..precision import preset
from ..truth import Expected, truth
from .dense import Array, Inputs
from .distances import largest_of_row
from .hypothesis import Hypothesis
from .model import Model

__all__ = ["would_be_noticed"]

CLEAR = 4.0
"""A passed case contradicts a hypothesis whose answer is so many radii off."""


def would_be_noticed(h: Hypothesis, case: Case) -> bool:
    """Whether a kernel like this is far outside of the bound, in a case that passed."""
    if h.members:
        return False  # some of them may be what is there
    inputs, contract = _inputs(case), preset(case.dtype, case.out_dtype) if h.rounding else None
    names = frozenset(case.want) & frozenset(NAMES)
    try:
        with np.errstate(all="ignore"):
            exact, right = h.solve(inputs, contract, names), _right(case)
            if contract is None and not any(_differs(exact[n], right[n]) for n in names if n in exact and n in right):
                return False  # without asking how far off it may be
    except Exception:  # as in Trial.match
        return False
    expected = _expected(case)
    for name in (n for n in expected if n in exact):
        e = expected[name]
        with np.errstate(all="ignore"):
            radius = np.maximum(e.hi - e.value, e.value - e.lo)
            same = (exact[name] == e.value) | (np.abs(exact[name] - e.value) <= CLEAR * radius)
        if not (same | e.ignored | (e.nonfinite & ~np.isfinite(exact[name]))).all():
            return True
    return False


def _differs(x: Array, right: Array) -> bool:
    """By more than float64 rounds."""
    same = (x == right) | (np.isnan(x) & np.isnan(right)) | (np.abs(x - right) <= 1e-12 * largest_of_row(np.abs(right)))
    return not same.all()


@lru_cache(maxsize=512)
def _inputs(case: Case) -> Inputs:
    return Inputs(make(case))


@lru_cache(maxsize=512)
def _right(case: Case) -> dict[str, Array]:
    return Model(_inputs(case)).solve(frozenset(case.want))


@lru_cache(maxsize=128)
def _expected(case: Case) -> dict[str, Expected]:
    return truth(_inputs(case).problem, preset(case.dtype, case.out_dtype))
