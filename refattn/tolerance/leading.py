"""Scores so large that their errors decide which key leads: what out may be all the same.

If the score of key j is right to within E_j, then p_j <= exp(t_j + E_j - max_i (t_i - E_i)).  Keys for which that is
1 or more may lead, and out is an average of their values but for what the others weigh at most.  A sink is a key
of value 0, whose score is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["leading"]

Array = np.ndarray[Any, Any]


def leading(t: Array, error: Array, visible: Array, v: Array, o: Array, sink: float | None) -> tuple[Array, Array]:
    """For rows of scores t (rows, Lk): a bound of |out - o|, and of sum p |v|, both (rows, Dv), without roundings."""
    least = np.where(visible, t - error, -np.inf).max(1, keepdims=True, initial=-np.inf)
    if sink is not None:
        least = np.maximum(least, sink)
    ahead = np.where(visible, t + error - np.where(np.isneginf(least), 0.0, least), -np.inf)
    lead = ahead >= 0
    rest = np.where(lead, 0.0, np.exp(np.minimum(ahead, 0.0)))
    low, high = np.zeros_like(o), np.zeros_like(o)
    for row, leads in enumerate(lead):
        if leads.any():
            low[row], high[row] = v[leads].min(0), v[leads].max(0)
    if sink is not None:
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    largest, others = np.maximum(np.abs(low), np.abs(high)), rest @ np.abs(v)
    away = np.maximum(high - o, o - low) + others + rest.sum(1, keepdims=True) * largest
    return np.maximum(away, 0.0), largest + others
