"""The truth of a problem: for each wanted output the value and the interval of each element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .inputs import Problem
from .precision import Conventions, Precision

__all__ = ["Expected", "truth"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Expected:
    """One output: an element passes if lo <= got <= hi; all float64, in the output's shape.

    `lo` and `hi` come from the bound that decides, `rigorous_lo` and `rigorous_hi` from the one
    that holds always.  `ignored` elements are not judged (they lie past q_lens or k_lens);
    where `nonfinite`, a NaN or an infinity passes too.
    """

    value: Array
    lo: Array
    hi: Array
    rigorous_lo: Array
    rigorous_hi: Array
    dtype: str
    ignored: Array
    nonfinite: Array


def truth(problem: Problem, precision: Precision, conventions: Conventions) -> dict[str, Expected]:
    raise NotImplementedError
