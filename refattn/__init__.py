"""refattn: the ground truth for attention."""

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

__all__ = [
    "Attention",
    "Gradients",
    "Scores",
    "attention",
    "attention_grad",
    "attention_scores",
    "multi_head_attention",
    "scaled_dot_product_attention",
]
