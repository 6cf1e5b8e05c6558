"""The scores at each stage and the weights, written tile by tile where a case asks for them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from .arguments import Arguments
from .forward import Head, forward, tiles
from .rules import Rules

__all__ = ["matrices"]

Array = np.ndarray[Any, Any]


def matrices(x: Arguments, rules: Rules) -> dict[str, Array]:
    """scores, capped, biased and weights (B, H, Lq, Lk), as `refattn.oracle.Scores` has them."""
    names = ("scores", "capped", "biased", "weights")
    found = {name: np.zeros(x.shape, x.dtype) for name in names}
    with np.errstate(all="ignore"):
        for b, h in product(range(x.B), range(x.H)):
            head = Head(x, rules, b, h)
            done = forward(head)
            for rows, keys in product(tiles(x.Lq, rules.schedule.tile_q), tiles(x.Lk, rules.schedule.tile_k)):
                at = b, h, rows, keys
                s, capped = head.unhidden(rows, keys)
                visible, bias = x.tile(b, h, rows, keys)
                t = capped if bias is None else rules.round(capped + bias, rules.precision.scores)
                t = rules.hide(np.array(t), visible)
                p = rules.exp(t, done.shift[rows, None]) * done.factor[rows, None]
                p = p if visible is None else np.where(visible, p, 0)
                for name, tile in rules.stages(s, capped, t, p).items():
                    found[name][at] = tile
    return found
