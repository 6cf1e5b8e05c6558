"""Families of the additive bias, in the shape of `case.bias_shape`, and of the (H,) sink logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS

__all__ = ["BIAS", "SINKS"]

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


def _normal(case: Case, rng: Rng) -> Array:
    return 2 * rng.standard_normal(case.bias_shape)


def _alibi(case: Case, rng: Rng) -> Array:
    """-2**(-8 (h+1) / H) |i + Lk - Lq - j|; Press et al. 2021, "Train short, test long", section 3."""
    _, h, i, j = np.ogrid[tuple(slice(n) for n in case.bias_shape)]
    bias = -(2.0 ** (-8 * (h + 1) / max(case.H, 1))) * abs(i + case.Lk - case.Lq - j)
    return np.broadcast_to(bias, case.bias_shape)


def _minus_inf(case: Case, rng: Rng) -> Array:
    """A third of it -inf, which hides like a mask; the first key stays."""
    hidden = rng.random(case.bias_shape) < 0.3
    hidden[..., 0:1] = False
    return np.where(hidden, -np.inf, _normal(case, rng))


def _padding(case: Case, rng: Rng) -> Array:
    """-inf over the last quarter of the keys, and over every fifth query: nothing else hides them."""
    _, _, i, j = np.ogrid[tuple(slice(n) for n in case.bias_shape)]
    queries = (i % 5 == 4) if case.bias_shape[2] > 1 else np.zeros_like(i, dtype=bool)
    return np.where(queries | (j >= case.Lk - case.Lk // 4), -np.inf, _normal(case, rng))


def _finite_min(case: Case, rng: Rng) -> Array:
    """The same with the lowest finite number, as many models have it."""
    bias = _minus_inf(case, rng)
    lowest = -FORMATS[case.bias.dtype].max if case.bias else -np.inf
    return np.where(np.isneginf(bias), lowest, bias)


BIAS: dict[str, Callable[[Case, Rng], Array]] = {
    f.__name__[1:]: f for f in (_normal, _alibi, _minus_inf, _padding, _finite_min)
}

SINKS: dict[str, Callable[[Case, Rng], Array]] = {
    "zero": lambda case, rng: np.zeros(case.H),
    "normal": lambda case, rng: math.log(max(case.Lk, 1)) + 1 + rng.standard_normal(case.H),
    "large": lambda case, rng: math.log(max(case.Lk, 1)) + 10 + np.arange(case.H) / max(case.H, 1),
}
