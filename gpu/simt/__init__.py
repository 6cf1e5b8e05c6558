"""Runs the source of numba-cuda kernels on the CPU, lane by lane, and raises where a device would fault or err.

`install()` puts it in the place of numba-cuda's simulator; then `kernel[grid, block, stream, shared](*arrays)` runs in
it, and so does `run(...)`, which also takes addresses.  What a kernel must not do is an error in every schedule: see
`errors` and `races`.  The other names are what the models of instructions in `gpu.ptx` call.
"""

from __future__ import annotations

from .access import gather, load, shared_base, store
from .asynchronous import (
    commit_group,
    commit_reads,
    copy_async,
    proxy_fence,
    read_async,
    wait_group,
    wait_reads,
)
from .errors import Divergence, InvalidLaunch, LaneError, Misaligned, OutOfBounds, Race, SimtError, UninitialisedRead
from .executor import collective
from .launch import run
from .schedules import scheduled
from .stand_in import install

__all__ = [
    "Divergence", "InvalidLaunch", "LaneError", "Misaligned", "OutOfBounds", "Race", "SimtError", "UninitialisedRead",
    "collective", "commit_group", "commit_reads", "copy_async", "gather", "install", "load", "proxy_fence",
    "read_async", "run", "scheduled", "shared_base", "store", "wait_group", "wait_reads",
]  # fmt: skip
