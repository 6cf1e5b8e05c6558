"""What the kernel makes of its inputs before it attends: codes times scales, and rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case
from .rules import Rules

__all__ = ["prepare"]

Array = np.ndarray[Any, Any]


def prepare(case: Case, x: Mapping[str, Array], rules: Rules) -> dict[str, Array]:
    """q, k and v as they enter the dot product; x holds them dense, with the scales and tables."""
    made = {name: x[name] for name in "qkv"}
    if case.quant is not None:
        for name in "qkv":
            if f"{name}_scale" in x:
                made[name] = rules.dequantise(name, x[name], x[f"{name}_scale"], case.quant.kind)
    if case.rotary is not None and case.Lk:
        q_cos, q_sin = _at_queries(case, x, rules)
        made["q"] = rules.rotate(made["q"], q_cos, q_sin, case.rotary)
        turned = rules.rotate(made["k"], x["cos"], x["sin"], case.rotary)
        made["k"] = np.where(rules.rotated_before(case, _past(case)), made["k"].astype(turned.dtype), turned)
    return made


def turned_back(case: Case, gradients: dict[str, Any], x: Mapping[str, Array], rules: Rules) -> dict[str, Any]:
    """dq and dk of what was not rotated yet."""
    if case.rotary is None:
        return gradients
    dq = rules.unrotate(gradients["dq"], *_at_queries(case, x, rules), case.rotary)
    return gradients | {"dq": dq, "dk": rules.unrotate(gradients["dk"], x["cos"], x["sin"], case.rotary)}


def _at_queries(case: Case, x: Mapping[str, Array], rules: Rules) -> tuple[Array, Array]:
    """cos and sin (B, 1, Lq, dim / 2); those of queries that do not exist stand for position 0."""
    i, lq, lk = np.arange(case.Lq)[None], *_lengths(case)
    at = np.where(i < lq, rules.query_positions(i, lq, lk), 0)[:, None]
    return x["cos"][at], x["sin"][at]


def _past(case: Case) -> Array:
    """(B, 1, Lk, 1): whether a key came before the first query."""
    lq, lk = _lengths(case)
    return (np.arange(case.Lk) < lk - lq)[:, None, :, None]


def _lengths(case: Case) -> tuple[Array, Array]:
    """Those of queries and keys, (B, 1)."""
    q, k = (np.array(lens, dtype=np.int64) for lens in case.lengths)
    return q[:, None], k[:, None]
