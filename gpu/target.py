"""Where the kernels run: on a device, or in the executor (`NUMBA_ENABLE_CUDASIM=1` before numba is imported)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cuda
from numba.cuda.core import config

__all__ = ["SIMULATED", "device", "kernel"]

SIMULATED = bool(config.ENABLE_CUDASIM)
if SIMULATED:
    from gpu import simt

    simt.install()  # before kernels are defined: device functions are then called as they are


def kernel(threads: int, blocks: int = 1) -> Callable[[Callable[..., Any]], Any]:
    """Decorator of a kernel that is launched with `threads` to a block, `blocks` of which share a multiprocessor.

    ptxas divides the register file by both.  No fast-math flag: LLVM would then assume that no infinity
    occurs, and masked scores are -inf.  Multiplications and additions are still fused.
    """
    if SIMULATED:
        return cuda.jit
    return cuda.jit(launch_bounds=(threads, blocks))


def device(function: Callable[..., Any]) -> Any:
    """Decorator of a function that kernels call."""
    return cuda.jit(device=True)(function)
