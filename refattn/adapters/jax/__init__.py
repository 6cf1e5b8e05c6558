"""jax on the CPU.

`jax` and `jax-eager` are jax.nn.dot_product_attention; `jax-flash` and `jax-splash` are kernels of Pallas for TPUs,
which an interpreter runs.
"""

from .dot_product import default, eager
from .flash import flash
from .splash import splash

__all__ = ["default", "eager", "flash", "splash"]
