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

__all__ = [
    "Attention",
    "Gradients",
    "Scores",
    "assert_attention",
    "attention",
    "attention_grad",
    "attention_scores",
    "multi_head_attention",
    "scaled_dot_product_attention",
]


def __getattr__(name: str) -> Any:
    """`assert_attention` is imported when it is asked for: it brings the judge along."""
    if name != "assert_attention":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .asserting import assert_attention

    return assert_attention
