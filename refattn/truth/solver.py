"""Who computes values and gradients: the oracle, and for large cases what needs O(N) memory."""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from .. import oracle, streaming
from ..case import Case
from .view import View

__all__ = ["solve"]

DENSE = 1 << 22  # scores of all heads up to which the oracle serves
COMPILED = 1 << 29  # scores from which `flash` is worth its compilation, of seconds


def solve(view: View, name: str, *more: Any, sinks: bool = True) -> Any:
    """attention or attention_grad (`name`) of the exact inputs, in float64; sinks=False leaves the sinks out."""
    x, case = view.exact, view.case
    options = view.options
    if case.dropout is not None:
        options |= {"dropout": case.dropout, "keep": view.keep}
    if not sinks:
        options["sinks"] = None
    return getattr(_solver(case), name)(x["q"], x["k"], x["v"], *more, **options)


def _solver(case: Case) -> Any:
    scores = case.scores
    if scores <= DENSE:
        return oracle
    if scores < COMPILED or case.score_mod is not None or case.dropout is not None:
        return streaming
    return _flash() or streaming


@lru_cache(maxsize=1)
def _flash() -> Any:
    """`refattn.flash`, or None where there is no Numba that it could be compiled with."""
    try:
        return importlib.import_module("refattn.flash")
    except ImportError:
        return None
