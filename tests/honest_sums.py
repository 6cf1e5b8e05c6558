"""Honest sums: the products of a kernel in another order, fused, truncated as tensor cores do, or more exact.

A class with its own `matmul` uses it for q kᵀ, p v and, by `sums_of`, for the products of the gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from refattn.precision import Precision
from refattn.streaming import Rules, Schedule
from refattn.streaming.rules import selected_product

Array = np.ndarray[Any, Any]


class Summed(Rules):
    """Products and row sums by `matmul`: (M, N), (N, D) -> (M, D)."""

    def matmul(self, w: Array, x: Array) -> Array:
        return w @ x

    def products(self, q: Array, k: Array, scale: float) -> Array:
        factor = self.dtype.type(scale)
        if self.precision.scaled_q is not None:
            s = self.matmul(self.round(q * factor, self.precision.scaled_q), k.T)
        else:
            s = self.matmul(q, k.T) * factor
        return self.round(s, self.precision.scores)

    def weigh(
        self, p: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> tuple[Array, Array]:  # fmt: skip
        rounded = self.round(p, self.precision.weights)
        summed = rounded if self.precision.sum_rounded_weights else p
        ones = np.ones((p.shape[1], 1), p.dtype)
        return self.matmul(summed, ones)[:, 0], self.selected(self.drop(rounded, kept), v, visible)

    def selected(self, w: Array, x: Array, visible: Array | None) -> Array:
        """`refattn.streaming.rules.selected_product` by `matmul`."""
        finite = np.isfinite(x)
        if visible is None or finite.all():
            return self.matmul(w, x)
        y = self.matmul(w, np.where(finite, x, 0).astype(x.dtype))
        for n in np.flatnonzero(~finite.all(1)):
            rows, columns = np.flatnonzero(visible[:, n]), np.flatnonzero(~finite[n])
            y[np.ix_(rows, columns)] += w[rows, n, None] * x[n, columns]
        return y


@contextmanager
def sums_of(rules: type[Rules], precision: Precision, schedule: Schedule) -> Iterator[None]:
    """The kernel's products with values and gradients are those of `rules`, if it is `Summed`."""
    if not issubclass(rules, Summed):
        yield
        return
    usual: Callable[..., Array] = selected_product
    own = rules(precision, schedule).selected
    # the package has functions of these names
    places: list[Any] = [sys.modules[f"refattn.streaming.{name}"] for name in ("forward", "backward")]
    for place in places:
        place.selected_product = own
    try:
        yield
    finally:
        for place in places:
            place.selected_product = usual


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
    """Within the contract: a truncation is off by less than 2 u of the sum, but there is one for `size` terms.

    So n terms cost n / size such, and no more than the (n - 1) u of a sum term by term.
    """

    size = 16

    def matmul(self, w: Array, x: Array) -> Array:
        y = np.zeros((len(w), x.shape[1]), w.dtype)
        wide, x = w.astype(np.float64), x.astype(np.float64)
        for i in range(0, len(x), self.size):
            y = truncated(y + wide[:, i : i + self.size] @ x[i : i + self.size])
        return y


class TruncatedEight(Truncated):
    size = 8


def truncated(x: Array) -> Array:
    """float64 -> float32, toward 0."""
    y = x.astype(np.float32)
    return np.where(np.abs(y) > np.abs(x), np.nextafter(y, np.float32(0)), y)


class Compensated(Summed):
    """What a compensated sum gives: as if in float64, rounded once."""

    def matmul(self, w: Array, x: Array) -> Array:
        return (w.astype(np.float64) @ x.astype(np.float64)).astype(w.dtype)
