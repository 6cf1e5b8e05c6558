"""Honest sums: the products of a kernel in another order, fused, truncated as tensor cores do, or more exact."""

from __future__ import annotations

from typing import Any

import numpy as np

from refattn.streaming import Rules
from refattn.streaming.rules import toward_zero

Array = np.ndarray[Any, Any]


class Summed(Rules):
    """Row sums by `matmul` too."""

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        rounded = self.round(p, self.precision.weights)
        summed = rounded if self.precision.sum_rounded_weights else p
        ones = np.ones((p.shape[1], 1), p.dtype)
        return self.matmul(summed, ones)[:, 0], self.selected(self.drop(rounded, kept), v, visible)


class Sequential(Summed):
    """One term after the other, product and sum rounded each."""

    back = False

    def matmul(self, w: Array, x: Array) -> Array:
        y = np.zeros((len(w), x.shape[1]), w.dtype)
        for n in reversed(range(len(x))) if self.back else range(len(x)):
            y = self.step(y, w[:, n, None], x[n])
        return y

    def step(self, y: Array, w: Array, x: Array) -> Array:
        return np.asarray(y + w * x)


class Backwards(Sequential):
    back = True


class SequentialFma(Sequential):
    """Fused: the product of two float32 is exact in float64; the sum is rounded there (by 2**-29 u), and again."""

    def step(self, y: Array, w: Array, x: Array) -> Array:
        return np.asarray((y.astype(np.float64) + w.astype(np.float64) * x).astype(y.dtype))


class Tree(Summed):
    def matmul(self, w: Array, x: Array) -> Array:
        n = len(x)
        if n <= 1:
            return w @ x
        return np.asarray(self.matmul(w[:, : n // 2], x[: n // 2]) + self.matmul(w[:, n // 2 :], x[n // 2 :]))


class Lanes(Summed):
    def matmul(self, w: Array, x: Array) -> Array:
        a, b, c, d = (w[:, i::4] @ x[i::4] for i in range(4))
        return np.asarray((a + b) + (c + d))


class Blocks(Summed):
    size = 8

    def matmul(self, w: Array, x: Array) -> Array:
        y = np.zeros((len(w), x.shape[1]), w.dtype)
        for i in range(0, len(x), self.size):
            y = y + w[:, i : i + self.size] @ x[i : i + self.size]
        return y


class Truncated(Summed):
    """`size` products exactly, then truncated to float32.

    Off by less than 2 u of the sum for each 16 terms: always within the rigorous bound of a contract that rounds to
    nearest, and, though errors have one sign, within the sharp one in all cases.
    """

    size = 16

    def matmul(self, w: Array, x: Array) -> Array:
        y = np.zeros((len(w), x.shape[1]), w.dtype)
        wide, x = w.astype(np.float64), x.astype(np.float64)
        for i in range(0, len(x), self.size):
            y = toward_zero(y + wide[:, i : i + self.size] @ x[i : i + self.size], np.float32)
        return y


class TruncatedEight(Truncated):
    size = 8


class TruncatedEach(Truncated):
    """After each product, the worst that the contract that truncates allows for."""

    size = 1


class Compensated(Summed):
    """What a compensated sum gives: as if in float64, rounded once."""

    def matmul(self, w: Array, x: Array) -> Array:
        return (w.astype(np.float64) @ x.astype(np.float64)).astype(w.dtype)
