"""jax on the CPU: `jax` and `jax-eager` are jax.nn.dot_product_attention, `jax-flash` Pallas' kernel for TPUs."""

from .dot_product import default, eager
from .flash import flash

__all__ = ["default", "eager", "flash"]
