"""Named families of inputs, ordered by difficulty, and `Problem`: a case with its arrays.

A family is a function of (case, rng) that fills q, k, v in float64 before they are rounded to the
case's dtype.  One function here is one family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .case import Case

__all__ = ["FAMILIES", "Problem", "make"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Problem:
    """A case with its arrays.

    `logical` holds dense arrays in the case's dtypes, (B, heads, L, D): all that the oracle sees.
    `fresh()` gives what an implementation is handed: copies, stored as `case.storage` says.
    Names: q k v, and where the case has them bias sinks dout dlse.
    """

    case: Case
    logical: Mapping[str, Array]
