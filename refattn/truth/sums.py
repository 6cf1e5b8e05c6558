"""The rigorous bounds of gradients that are summed over pairs, heads and batch entries."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["BiasSum"]

Array = np.ndarray[Any, Any]
EVERYTHING = slice(None)


class BiasSum:
    """dbias' rigorous bound: sums of |dT| and of its error over what the bias broadcast over."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.error, self.terms, self.count = np.zeros(shape), np.zeros(shape), np.zeros(shape)

    def at(self, b: int, h: int) -> Any:
        B, H, Lq, Lk = self.error.shape

        def add(rows: slice, dT: Array, error: Array) -> None:
            for total, part in ((self.error, error), (self.terms, np.abs(dT)), (self.count, np.ones_like(dT))):
                place = total[b if B > 1 else 0, h if H > 1 else 0]
                if Lq == 1:
                    part = part.sum(0, keepdims=True)
                if Lk == 1:
                    part = part.sum(1, keepdims=True)
                place[rows if Lq > 1 else EVERYTHING] += part

        return add

    def over(self, bs: slice, hs: slice) -> Any:
        """The same of tiles (b, h, rows, keys) of some heads."""
        stretched = tuple(axis for axis, n in enumerate(self.error.shape) if n == 1)
        place = tuple(EVERYTHING if n == 1 else at for at, n in zip((bs, hs), self.error.shape, strict=False))

        def add(rows: slice, dT: Array, error: Array) -> None:
            for total, part in ((self.error, error), (self.terms, np.abs(dT)), (self.count, np.ones_like(dT))):
                total[place] += part.sum(stretched, keepdims=True)

        return add

    def radius(self, u: float) -> Array:
        return self.error + self.count * u * (self.terms + self.error)
