"""torch on the CPU: `torch`, `torch-math`, `torch-flash` are `scaled_dot_product_attention` and two of its backends;
`torch-flex` is flex_attention, `torch-mha` and `torch-mha_weights` are nn.MultiheadAttention."""

from .flex import flex
from .mha import mha, mha_weights
from .sdpa import default, flash, math

__all__ = ["default", "flash", "flex", "math", "mha", "mha_weights"]
