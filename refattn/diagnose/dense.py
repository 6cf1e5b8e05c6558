"""The arrays of a problem, dense and in float64, and two products that mind what is hidden."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..inputs import Problem

__all__ = ["ANYTHING", "Array", "Inputs", "product", "safe", "wide"]

ANYTHING = 2.0**127
"""In an answer: memory that was never written, which may hold any number."""

Array = np.ndarray[Any, Any]


class Inputs:
    """The arrays of a problem, dense and in float64, made once for all hypotheses."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.case = problem, problem.case
        self.arrays = {n: wide(x) for n, x in problem.logical.items()}
        self.visible = np.array(self.case.visibility.tile())
        self.made: dict[Any, Any] = {}
        """what several hypotheses have in common, by what it depends on"""

    def handed(self) -> dict[str, Array]:
        """What an implementation is handed."""
        return self.problem.fresh()


def safe(m: Array) -> Array:
    """What is subtracted from scores: 0 for a row that has seen nothing."""
    return np.where(np.isneginf(m), 0, m)


def product(w: Array, x: Array, seen: Array) -> Array:
    """w @ x, where what is not finite in x counts only where it is seen."""
    finite = np.isfinite(x)
    if finite.all():
        return w @ x
    touched = seen.astype(np.float64) @ (~finite).astype(np.float64) > 0
    return np.where(touched, np.nan, w @ np.where(finite, x, 0))


def wide(x: Array) -> Array:
    return x if x.dtype == np.bool_ else np.asarray(x, np.float64)
