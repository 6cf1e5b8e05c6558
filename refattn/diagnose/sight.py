"""Which rows see others than they should, where a hypothesis is about that alone: cheap, and tells most of them off."""

from __future__ import annotations

from functools import cache
from typing import Any

from .forward import Forward
from .hypothesis import Hypothesis
from .model import Array, Inputs, Model

__all__ = ["rows_moved"]

DECISIONS = frozenset(
    n for c in (Forward, Model) for n, f in vars(c).items() if callable(f) and n[:2] != "__" and n != "visible"
)


def rows_moved(h: Hypothesis, inputs: Inputs) -> Array | None:
    """(B, H, Lq) of a hypothesis of which nothing but what is visible is wrong."""
    made: Any = h.made
    if made is None or not _of_visibility(made):
        return None
    moved = made(inputs).visible() != inputs.visible
    return moved.any(-1) if moved.shape == inputs.visible.shape else None


@cache
def _of_visibility(made: Any) -> bool:
    return made.visible is not Model.visible and all(getattr(made, n) is getattr(Model, n) for n in DECISIONS)
