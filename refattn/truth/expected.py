"""`Expected`: what one output should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Expected"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Expected:
    """One output: an element passes if lo <= got <= hi; all float64, in the output's shape.

    `lo` and `hi` come from the bound that decides, `rigorous_lo` and `rigorous_hi` from the one
    that holds always.  `ignored` elements are not judged (they lie past q_lens or k_lens); where
    `nonfinite`, a NaN or an infinity passes too.
    """

    value: Array
    lo: Array
    hi: Array
    rigorous_lo: Array
    rigorous_hi: Array
    dtype: str
    ignored: Array
    nonfinite: Array
    narrow: bool = False
    """from `quick_truth`: to be outside decides nothing"""
    deviation: Array | None = None
    """of out: the standard deviation of an honest error before out is rounded, if all roundings were independent"""
