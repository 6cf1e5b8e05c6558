"""torch on the CPU: `torch`, `torch-math`, `torch-flash` are `scaled_dot_product_attention` and two of its backends."""

from .sdpa import default, flash, math

__all__ = ["default", "flash", "math"]
