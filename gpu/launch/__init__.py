"""From a caller's arrays to a launch: what comes in, what is refused, which kernel and tile, and on which stream.

arrays     CuPy, torch, NumPy: addresses and strides           streams    a stream's address
checks     every argument, by name                             masks      masks that are bands
operands   arrays as the tuples that kernels take              choose     tiles
device     compiling and starting, or the executor
forward    `attention`                                         gradients  `attention_grad`
"""

from .checks import Refused
from .choose import tiles
from .forward import KERNELS, Attention, attention
from .gradients import BACKWARD, Gradients, attention_grad

__all__ = ["BACKWARD", "KERNELS", "Attention", "Gradients", "Refused", "attention", "attention_grad", "tiles"]
