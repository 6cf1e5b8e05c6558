"""What lanes, and models of instructions, call to reach memory by address."""

from __future__ import annotations

from typing import Any

import numpy as np

from .shared_memory import BASE
from .state import now

__all__ = ["gather", "load", "shared_base", "store"]


def shared_base() -> int:
    """The address of the block's dynamic shared memory: a multiple of 16, not of 1024."""
    return BASE


def load(space: str, address: Any, nbytes: int) -> np.ndarray:
    """The bytes at an address of "global" or "shared" memory; `nbytes` (1, 2, 4, 8, 16) divides it. Use it at once."""
    if space == "shared":
        return now.block.shared.load(int(address), nbytes)
    return now.launch.buffers.load(int(address), nbytes, nbytes, "load")


def store(space: str, address: Any, data: np.ndarray) -> None:
    """Stores uint8 bytes; their number as in `load`."""
    if space == "shared":
        now.block.shared.store(int(address), data)
    else:
        now.launch.buffers.store(int(address), data)


def gather(addresses: np.ndarray, nbytes: int) -> np.ndarray:
    """Within a collective of a warp: each lane's bytes of shared memory; (lanes,) -> (lanes, nbytes) uint8."""
    return now.block.shared.gather(addresses, nbytes, now.members)
