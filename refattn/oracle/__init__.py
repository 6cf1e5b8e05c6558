"""Attention, its variants and their gradients by definition: dense, in float64, NumPy only.

`attention` is the page to read in order to know what is true; `textbook` has the paper's own form, the
others build on it: `second` (gradients of gradients), `modules` (projections), `latent` (MLA),
`parallel` (merges, split keys, rings).
"""

from .arguments import scale_of
from .attention import (
    Attention,
    Gradients,
    Scores,
    attention,
    attention_grad,
    attention_scores,
)
from .latent import LatentGradients, latent_attention, latent_attention_grad
from .modules import (
    MultiHeadGradients,
    multi_head_attention,
    multi_head_attention_grad,
    split_qkv,
    stack_qkv,
)
from .parallel import (
    MergeGradients,
    RingGradients,
    merge_state,
    merge_states,
    merge_states_grad,
    ring_attention,
    ring_attention_grad,
    shards,
    split_kv,
)
from .second import SecondGradients, attention_grad_grad
from .textbook import scaled_dot_product_attention

__all__ = [
    "Attention",
    "Gradients",
    "LatentGradients",
    "MergeGradients",
    "MultiHeadGradients",
    "RingGradients",
    "Scores",
    "SecondGradients",
    "attention",
    "attention_grad",
    "attention_grad_grad",
    "attention_scores",
    "latent_attention",
    "latent_attention_grad",
    "merge_state",
    "merge_states",
    "merge_states_grad",
    "multi_head_attention",
    "multi_head_attention_grad",
    "ring_attention",
    "ring_attention_grad",
    "scale_of",
    "scaled_dot_product_attention",
    "shards",
    "split_kv",
    "split_qkv",
    "stack_qkv",
]
