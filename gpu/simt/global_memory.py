"""Global memory: the buffers of a launch, found by host address, and the race detector across blocks.

Nothing orders the blocks of a launch: a cell that one writes and another reads or writes is a race.  A cell is 16
bytes, until an access is narrower: then the cells of the region are split.
"""

from __future__ import annotations

import ctypes
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np

from .errors import Misaligned, OutOfBounds, Race, fail
from .state import now

__all__ = ["SEVERAL", "Buffers", "Region", "byte_bounds"]

SEVERAL = -1
WIDEST = 4
SPARSE = 64
"""A region is sparse if its arrays fill less than one of so many bytes."""


def byte_bounds(a: np.ndarray) -> tuple[int, int]:
    """First address of the elements of an array, and the one after the last."""
    low = high = a.__array_interface__["data"][0]
    for n, stride in zip(a.shape, a.strides, strict=True):
        low, high = (low + (n - 1) * stride, high) if stride < 0 else (low, high + (n - 1) * stride)
    return low, high + a.itemsize


class Rare(dict):
    """Cells of which few are ever touched; the others are 0."""

    def __missing__(self, cell: int) -> int:
        return 0


class Pieces:
    """The memory of arrays as intervals of bytes, where marking each byte would take too much."""

    def __init__(self, arrays: list[np.ndarray], origin: int) -> None:
        found: list[tuple[int, int]] = []
        for a in arrays:
            run = a.itemsize
            rest: list[np.ndarray] = []
            for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
                if stride == run and not rest:
                    run *= n
                else:
                    rest.append(stride * np.arange(n))
            starts = np.zeros(1, np.int64)
            for steps in rest:
                starts = np.add.outer(starts, steps).ravel()
            low = byte_bounds(a)[0] - origin
            found += [(low + start, low + start + run) for start in starts.tolist()]
        self.starts: list[int] = []
        self.ends: list[int] = []
        for start, end in sorted(found):
            if self.ends and start <= self.ends[-1]:
                self.ends[-1] = max(self.ends[-1], end)
            else:
                self.starts.append(start)
                self.ends.append(end)

    def find(self, mark: int, start: int, end: int) -> int:
        """-1 if all bytes of [start, end) belong to arrays, else another number."""
        i = bisect_right(self.starts, start) - 1
        return -1 if i >= 0 and end <= self.ends[i] else start


class Region:
    """Memory [start, end) that one or more arrays span; offsets count from `origin`, a multiple of 16."""

    def __init__(self, start: int, end: int, arrays: list[np.ndarray]) -> None:
        self.start, self.end = start, end
        self.origin = start & ~15
        size = end - self.origin
        self.arrays = arrays  # kept alive
        self.bytes = np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(self.origin)), np.uint8)
        self.shift = WIDEST
        self.followers: list[Any] = []  # arrays that hold `writers` and `readers`, and must learn of a split
        self.writable = all(a.flags.writeable for a in arrays)
        self.writers: Any  # of each cell: 1 + number of the block
        self.readers: Any
        self.gaps: bytearray | Pieces | None = None  # what finds bytes that belong to no element
        if size > SPARSE * sum(a.nbytes for a in arrays):
            self.writers, self.readers, self.gaps = Rare(), Rare(), Pieces(arrays, self.origin)
            return
        cells = (size >> self.shift) + 1
        self.writers, self.readers = (array("i", bytes(4 * cells)) for _ in range(2))
        if any(not a.flags.c_contiguous for a in arrays) or len(arrays) > 1:
            self.gaps = self._gaps(size)

    def split(self, unit: int) -> None:
        """Cells of `unit` bytes at most, a power of two."""
        n = (1 << self.shift) // unit
        if n > 1:
            self.shift = unit.bit_length() - 1
            self.writers, self.readers = (_repeated(cells, n) for cells in (self.writers, self.readers))
            for a in self.followers:
                a.follow()

    def _gaps(self, size: int) -> bytearray | None:
        """1 at each byte that belongs to no element of the arrays; None: there are none."""
        marks = bytearray(b"\1") * size
        gaps = np.frombuffer(marks, np.uint8)
        for a in self.arrays:
            low = a.__array_interface__["data"][0] - self.origin
            np.lib.stride_tricks.as_strided(gaps[low:], (*a.shape, a.itemsize), (*a.strides, 1))[...] = 0
        return marks if gaps[self.start - self.origin :].any() else None

    def read(self, cell: int, block: int) -> None:
        """The running lane's block, which has not read the cell yet, reads."""
        other = self.writers[cell]
        if other and other != block:
            raise self.race("reads", "wrote", cell)
        self.readers[cell] = SEVERAL if self.readers[cell] else block

    def write(self, cell: int, block: int) -> None:
        """The running lane's block writes."""
        if self.writers[cell] not in (0, block):
            raise self.race("writes", "wrote", cell)
        if self.readers[cell] not in (0, block):
            raise self.race("writes", "read", cell)
        self.writers[cell] = block

    def race(self, does: str, did: str, cell: int) -> Race:
        offset = (cell << self.shift) - (self.start - self.origin)
        text = f"across blocks: it {does} offset {offset} of a buffer, which another block {did} in this launch"
        return fail(Race, text)  # type: ignore[return-value]


def _repeated(cells: Any, n: int) -> Any:
    """Each cell n times."""
    if isinstance(cells, Rare):
        return Rare({cell * n + i: block for cell, block in cells.items() for i in range(n)})
    return array("i", np.repeat(np.frombuffer(cells, np.int32), n).tobytes())


class Buffers:
    """The buffers in order of address."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.starts: list[int] = []

    def add(self, arrays: Iterable[np.ndarray]) -> None:
        """Overlapping arrays make one region."""
        spans = sorted(((*byte_bounds(a), i, a) for i, a in enumerate(arrays) if a.size), key=lambda s: s[:3])
        merged: list[tuple[int, int, list[np.ndarray]]] = []
        for low, high, _, a in spans:
            if merged and low < merged[-1][1]:
                start, end, members = merged[-1]
                merged[-1] = (start, max(end, high), [*members, a])
            else:
                merged.append((low, high, [a]))
        self.regions = [Region(*m) for m in merged]
        self.starts = [r.start for r in self.regions]

    def region_of(self, address: int) -> Region:
        """The region of an array."""
        return self.regions[bisect_right(self.starts, address) - 1]

    def find(self, address: int, nbytes: int, alignment: int, what: str) -> tuple[Region, int]:
        """The region and offset of an access."""
        i = bisect_right(self.starts, address) - 1
        if i < 0 or address + nbytes > self.regions[i].end:
            raise fail(OutOfBounds, self._outside(address, nbytes, what, i))
        if address % alignment:
            text = f"{what} of {alignment} bytes at global address {address:#x}: not a multiple of {alignment}"
            raise fail(Misaligned, text)
        region = self.regions[i]
        offset = address - region.origin
        if region.gaps is not None and region.gaps.find(1, offset, offset + nbytes) >= 0:
            raise fail(
                OutOfBounds,
                f"{what} of {nbytes} bytes at offset {address - region.start} of a buffer is out of bounds: between "
                "elements of its arrays",
            )
        return region, offset

    def load(self, address: int, nbytes: int, alignment: int, what: str) -> np.ndarray:
        """Read by the running lane."""
        region, offset = self.find(address, nbytes, alignment, what)
        block = now.number
        if block:
            if nbytes & 15:
                region.split(nbytes & -nbytes)
            readers = region.readers
            for cell in range(offset >> region.shift, offset + nbytes >> region.shift):
                r = readers[cell]
                if r != block and r != SEVERAL:
                    region.read(cell, block)
        return region.bytes[offset : offset + nbytes]

    def store(self, address: int, data: np.ndarray) -> None:
        """Written by the running lane."""
        n = len(data)
        region, offset = self.find(address, n, n, "store")
        if not region.writable:
            raise fail(OutOfBounds, f"store at offset {address - region.start} of a read-only buffer")
        block = now.number
        if block:
            if n & 15:
                region.split(n & -n)
            for cell in range(offset >> region.shift, offset + n >> region.shift):
                region.write(cell, block)
        region.bytes[offset : offset + n] = data

    def _outside(self, address: int, nbytes: int, what: str, i: int) -> str:
        if not self.regions:
            return f"{what} at global address {address:#x}: the launch has no buffers; pass them to simt.run"
        near = self.regions[max(i, 0)]
        return (
            f"{what} of {nbytes} bytes at global address {address:#x} is out of bounds: offset {address - near.start} "
            f"of the nearest buffer, which has {near.end - near.start} bytes"
        )

