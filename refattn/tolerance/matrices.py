"""The bounds of the scores at each stage, and of the weights; rigorous alone.

The scores' errors are those of `scores`.  With p = exp(t - lse), whichever way the weights are had,
exp(t - m) / l or exp(t - lse),

    |p^ - p| <= p expm1(e_t + e_lse + u (4 |t - lse| + 2 max(|t|, |lse|) + 4) + (T+1) ε + T u) + u_P p + underflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..precision import Precision
from .extras import NONE, Extras
from .forward import EVERYTHING, LARGEST, Forward, Tile, row_tiles
from .rounding import Units, repetitive
from .scores import scores

__all__ = ["matrices"]

Array = np.ndarray[Any, Any]


def matrices(
    q: Array, k: Array, visible: Tile, bias: Tile, scale: float, softcap: float | None, f: Forward,
    precision: Precision, extras: Extras = NONE,
) -> dict[str, Array]:  # fmt: skip
    """Radii (Lq, Lk) of scores, capped, biased and weights of one head, whose forward bound is f."""
    c = Units(precision, len(k))
    found = {name: np.zeros((len(q), len(k))) for name in ("scores", "capped", "biased", "weights")}
    same_q, same_k = repetitive(q), repetitive(k).T
    for rows in row_tiles(len(q), len(k)):
        seen = visible(rows, EVERYTHING)
        with np.errstate(over="ignore", invalid="ignore"):
            s = scores(
                q[rows], k, same_q[rows] & same_k, seen, bias(rows, EVERYTHING), scale, softcap, precision, c,
                extras.slack(q[rows], k, rows, EVERYTHING), extras.mod(rows, EVERYTHING),
            )  # fmt: skip
            lse = np.where(np.isneginf(f.lse[rows]), 0.0, f.lse[rows])
            t = np.where(seen, s.t, lse)
            far = np.maximum(np.abs(t), np.abs(lse))
            e = s.error + f.lse_rigorous[rows] + c.u * (4 * np.abs(t - lse) + 2 * far + 4)
            e = e + (c.rescalings + 1) * c.eps + c.rescalings * c.u
            endless = e > LARGEST
            e = np.expm1(np.minimum(e, LARGEST))
            p = np.exp(np.minimum(t - lse, 0.0))
            weights = p * (e + c.u_weights * (1 + e)) + c.weights_eta + 2 * c.smallest_normal
            weights = np.where(endless, np.inf, weights)
        found["scores"][rows], found["capped"][rows] = s.s_error, s.capped_error
        found["biased"][rows], found["weights"][rows] = s.error, np.where(seen, weights, 0.0)
    return found
