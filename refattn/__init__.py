"""refattn: the ground truth for attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .oracle import (
    Attention,
    Gradients,
    Scores,
    attention,
    attention_grad,
    attention_scores,
    multi_head_attention,
    scaled_dot_product_attention,
)

if TYPE_CHECKING:
    from .asserting import assert_attention
    from .judging import judge_arrays

__all__ = [
    "Attention",
    "Gradients",
    "Scores",
    "assert_attention",
    "attention",
    "attention_grad",
    "attention_scores",
    "judge_arrays",
    "multi_head_attention",
    "scaled_dot_product_attention",
]


def __getattr__(name: str) -> Any:
    """`assert_attention` and `judge_arrays` are imported when they are asked for: they bring the judge along."""
    if name == "assert_attention":
        from .asserting import assert_attention

        return assert_attention
    if name == "judge_arrays":
        from .judging import judge_arrays

        return judge_arrays
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
