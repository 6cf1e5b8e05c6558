"""refattn: the ground truth for attention."""

from .oracle import (
    Attention,
    Gradients,
    attention,
    attention_grad,
    multi_head_attention,
    scaled_dot_product_attention,
)

__all__ = [
    "Attention",
    "Gradients",
    "attention",
    "attention_grad",
    "multi_head_attention",
    "scaled_dot_product_attention",
]
