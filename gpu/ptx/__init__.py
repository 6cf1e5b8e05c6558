"""The instructions that the kernels use beyond Numba's own, one name for each.

Each is declared once: its PTX, its documentation, and a NumPy model that stands for it in the executor.
"""

from . import memory, scalar, tensor, wgmma
from .memory import *  # noqa: F403
from .scalar import *  # noqa: F403
from .tensor import *  # noqa: F403
from .wgmma import *  # noqa: F403

__all__ = [*memory.__all__, *scalar.__all__, *tensor.__all__, *wgmma.__all__]  # noqa: PLE0604
