"""How far an honest answer may be from an exact one: parts of the radius within which a hypothesis explains."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import FORMATS
from ..precision import Precision

__all__ = ["capped", "grown", "largest_of_row", "roundings", "step"]

Array = np.ndarray[Any, Any]


def largest_of_row(x: Array) -> Array:
    """The largest finite number of each row: a bug moves errors from one column to another."""
    x = np.where(np.isfinite(x), x, 0.0)
    return np.broadcast_to(x.max(-1, keepdims=True, initial=0.0), x.shape) if x.ndim else x


def capped(x: Array) -> Array:
    return np.where(np.isnan(x), 1e300, np.minimum(x, 1e300))


def grown(x: Array, value: Array) -> float:
    """How much larger than the truth an answer is, as its honest error may be; not less than 1."""
    sizes = [float(np.abs(np.where(np.isfinite(a), a, 0)).max(initial=0)) for a in (x, value)]
    return min(max(sizes[0] / sizes[1], 1.0), 100.0) if sizes[1] > 0 else 1.0


def roundings(contract: Precision) -> float:
    """A few roundings of the accumulators, one of the weights: the least relative error that is granted a row."""
    weights = 0.0 if contract.weights is None else FORMATS[contract.weights].u
    return 16 * FORMATS[contract.accumulate].u + weights


def step(x: Array, dtype: str) -> Array:
    """No less than the distance of neighbouring numbers of the format, at x."""
    f = FORMATS[dtype]
    return 2 * f.u * np.where(np.isfinite(x), np.abs(x), 0.0) + f.eta
