"""Attention, its variants and their gradients by definition: dense, in float64, NumPy only.

`attention` is the page to read in order to know what is true; `textbook` has the paper's own forms.
"""

from .arguments import scale_of
from .attention import Attention, Gradients, attention, attention_grad
from .textbook import multi_head_attention, scaled_dot_product_attention

__all__ = [
    "Attention",
    "Gradients",
    "attention",
    "attention_grad",
    "multi_head_attention",
    "scale_of",
    "scaled_dot_product_attention",
]
