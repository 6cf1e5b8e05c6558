"""A launch: the grid, block after block, with the memory that it may touch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import GlobalArray, LoneGlobalArray, bare
from .errors import InvalidLaunch
from .executor import run_block
from .global_memory import Buffers, Region, byte_bounds
from .schedules import Schedule, default_schedule, parse
from .shared_memory import SharedMemory
from .state import now

__all__ = ["Dim3", "run"]

LARGEST_BLOCK, LARGEST_SHARED = 1024, 232448


class Dim3(NamedTuple):
    """An index or an extent."""

    x: int
    y: int
    z: int


class Block:
    """The block that runs."""

    __slots__ = ("fences", "index", "interval", "reads", "shared", "warps")

    def __init__(self, index: Dim3, shared: SharedMemory, threads: int) -> None:
        self.index = index
        self.shared = shared
        self.interval = 0
        self.fences = np.zeros(threads, np.int64)  # proxy fences of each lane
        self.reads: dict[int, Any] = {}  # pending reads of each warpgroup
        self.warps: list[Any] = []


class Launch:
    """What is the same for all blocks."""

    def __init__(
        self, function: Any, grid: Dim3, block: Dim3, shared_bytes: int, arguments: Sequence[Any], buffers: Buffers,
        schedule: str | int,
    ) -> None:  # fmt: skip
        self.function = function
        self.name = getattr(function, "__qualname__", str(function)).rpartition(".")[2]
        self.grid_dim, self.block_dim = grid, block
        self.shared_bytes = shared_bytes
        self.arguments = arguments
        self.buffers = buffers
        self.schedule = Schedule(schedule)
        x, y, z = block
        self.thread_indices = [Dim3(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def extent(value: Any, what: str) -> Dim3:
    sizes = (value,) if isinstance(value, (int, np.integer)) else tuple(value)
    if not 1 <= len(sizes) <= 3 or any(int(s) < 1 for s in sizes):
        raise InvalidLaunch(f"{what}={value} must be one to three positive sizes")
    return Dim3(*(int(s) for s in sizes + (1,) * (3 - len(sizes))))


def handed(array: np.ndarray, memory: Buffers, lone: bool) -> GlobalArray:
    """What the kernel gets for an array."""
    kind = LoneGlobalArray if lone else GlobalArray
    if not array.size:
        address = array.__array_interface__["data"][0]
        return kind(array, Region(address, address, [array]))
    return kind(array, memory.region_of(byte_bounds(array)[0]))


def run(
    kernel: Any, grid: Any, block: Any, shared_bytes: int, args: Sequence[Any], buffers: Sequence[np.ndarray],
    schedule: str | int | None = None,
) -> None:  # fmt: skip
    """Runs a kernel over the grid.

    `args` may hold host addresses of memory in `buffers`, and arrays, which the kernel indexes; `buffers` are the
    arrays that it may touch by address: their elements, not the gaps of a view.  `schedule`: see `simt.scheduled`.
    """
    if now.launch is not None:
        raise InvalidLaunch("a kernel is launched while another runs")
    grid, block = extent(grid, "grid"), extent(block, "block")
    if block.x * block.y * block.z > LARGEST_BLOCK:
        raise InvalidLaunch(f"block={tuple(block)} has more than {LARGEST_BLOCK} threads")
    if not 0 <= shared_bytes <= LARGEST_SHARED:
        raise InvalidLaunch(f"shared_bytes={shared_bytes} must be at most {LARGEST_SHARED}")
    memory = Buffers()
    bares = [bare(a) for a in args]
    memory.add([*buffers, *(a for a in bares if a is not None)])
    lone = grid.x * grid.y * grid.z == 1
    arguments = [a if b is None else handed(b, memory, lone) for a, b in zip(args, bares, strict=True)]
    function = getattr(kernel, "py_func", kernel)
    chosen = default_schedule() if schedule is None else parse(schedule)
    launch = Launch(function, grid, block, int(shared_bytes), arguments, memory, chosen)
    now.launch = launch
    shared = SharedMemory(launch.shared_bytes)
    blocks = [Dim3(x, y, z) for z, y, x in itertools.product(range(grid.z), range(grid.y), range(grid.x))]
    try:
        with np.errstate(all="ignore"):
            for number, index in enumerate(launch.schedule.order(blocks)):
                shared.reset()
                now.block = Block(index, shared, block.x * block.y * block.z)
                now.number = number + 1 if len(blocks) > 1 else 0
                run_block()
    finally:
        now.lane = now.block = now.launch = now.members = None
