"""Families of the additive bias, in the shape of `case.bias_shape`, and of the (H,) sink logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from ..alibi import alibi, slopes
from ..case import Case
from ..dtypes import FORMATS
from ..visibility import Align

__all__ = ["BIAS", "SINKS"]

Array = np.ndarray[Any, Any]
Rng = np.random.Generator


def _normal(case: Case, rng: Rng) -> Array:
    return 2 * rng.standard_normal(case.bias_shape)


def _alibi(case: Case, rng: Rng) -> Array:
    """-slope |i + Lk - Lq - j|, as FlashAttention has it."""
    return _linear(case, "absolute", "bottom_right")


def _alibi_signed(case: Case, rng: Rng) -> Array:
    """slope (j - i), as cuDNN has it."""
    return _linear(case, "signed", "top_left")


def _linear(case: Case, distance: Literal["absolute", "signed"], align: Align) -> Array:
    """ALiBi in the case's shape: of a dimension that its bias does not have, the first entry."""
    H, Lq, Lk = (max(n, 1) for n in (case.H, case.Lq, case.Lk))
    _, h, i, j = case.bias_shape
    return np.broadcast_to(alibi(slopes(H), Lq, Lk, distance, align)[:h, :i, :j], case.bias_shape)


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


def _minus_1e9(case: Case, rng: Rng) -> Array:
    """`_padding` with -1e9 for -inf: it hides nothing from a query that has nothing else."""
    return np.maximum(_padding(case, rng), -1e9)


def _minus_10000(case: Case, rng: Rng) -> Array:
    """The same with -10000, which scores may come near."""
    return np.maximum(_padding(case, rng), -1e4)


BIAS: dict[str, Callable[[Case, Rng], Array]] = {
    f.__name__[1:]: f
    for f in (_normal, _alibi, _alibi_signed, _minus_inf, _padding, _finite_min, _minus_1e9, _minus_10000)
}

SINKS: dict[str, Callable[[Case, Rng], Array]] = {
    "zero": lambda case, rng: np.zeros(case.H),
    "normal": lambda case, rng: math.log(max(case.Lk, 1)) + 1 + rng.standard_normal(case.H),
    "minus_inf": lambda case, rng: np.where(np.arange(case.H) % 2, rng.standard_normal(case.H), -np.inf),  # none
    "large": lambda case, rng: math.log(max(case.Lk, 1)) + 10 + np.arange(case.H) / max(case.H, 1),
}
