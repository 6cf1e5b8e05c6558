"""What speaks against a hypothesis: cases that passed, and in which a kernel like it would have failed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..case import Case
from ..inputs import make
from ..precision import preset
from ..truth import Expected, truth
from .dense import Inputs
from .hypothesis import Hypothesis

__all__ = ["would_be_noticed"]

CLEAR = 4.0
"""A passed case contradicts a hypothesis whose answer is so many radii off."""


def would_be_noticed(h: Hypothesis, case: Case) -> bool:
    """Whether a kernel like this is far outside of the bound, in a case that passed."""
    if h.members:
        return False  # some of them may be what is there
    inputs, expected = _passed(case)
    try:
        with np.errstate(all="ignore"):
            exact = h.solve(inputs, preset(case.dtype, case.out_dtype) if h.rounding else None, frozenset(expected))
    except Exception:  # as in Trial.match
        return False
    for name in (n for n in expected if n in exact):
        e = expected[name]
        with np.errstate(all="ignore"):
            radius = np.maximum(e.hi - e.value, e.value - e.lo)
            same = (exact[name] == e.value) | (np.abs(exact[name] - e.value) <= CLEAR * radius)
        if not (same | e.ignored | (e.nonfinite & ~np.isfinite(exact[name]))).all():
            return True
    return False


@lru_cache(maxsize=128)
def _passed(case: Case) -> tuple[Inputs, dict[str, Expected]]:
    problem = make(case)
    return Inputs(problem), truth(problem, preset(case.dtype, case.out_dtype))
