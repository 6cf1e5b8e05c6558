"""A block's shared memory: a window of bytes with the dynamic part first, then the static arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InvalidLaunch, Misaligned, OutOfBounds, fail
from .races import Shadow

__all__ = ["BASE", "SharedMemory"]

BASE = 1040
"""Address of the dynamic part: a multiple of 16 and of no more, since a device promises no more."""

STATIC, GAP = 49152, 64


class SharedMemory:
    """The bytes of one block after another; allocations are the same for all blocks of a launch."""

    def __init__(self, dynamic: int) -> None:
        self.dynamic = dynamic
        self.top = -(-(dynamic + GAP) // 16) * 16
        size = self.top + STATIC + 64 * GAP
        self.bytes = np.zeros(size, np.uint8)
        self.rows = self.bytes.reshape(-1, 16)
        self.shadow = Shadow(size)
        self.statics: dict[Any, Any] = {}
        self.spans: list[tuple[int, int]] = []
        self.used = 0

    def reset(self) -> None:
        """A new block."""
        self.shadow.reset()

    def allocate(self, nbytes: int, alignment: int) -> int:
        """Offset of a new static array."""
        self.used += nbytes
        if self.used > STATIC:
            raise fail(InvalidLaunch, f"static shared arrays take {self.used} bytes; a block may have {STATIC}")
        start = -(-self.top // max(alignment, 16)) * max(alignment, 16)
        self.top = start + nbytes + GAP
        self.spans.append((start, start + nbytes))
        return start

    def offset(self, address: int, nbytes: int, what: str, lane: Any = None) -> int:
        """The offset of an access."""
        offset = address - BASE
        if 0 <= offset <= self.dynamic - nbytes and not address % nbytes:
            return offset
        if not (0 <= offset and offset + nbytes <= self.dynamic):
            if not any(a <= offset and offset + nbytes <= b for a, b in self.spans):
                raise fail(
                    OutOfBounds,
                    f"{what} of {nbytes} bytes at shared offset {offset} is out of bounds: the block has "
                    f"{self.dynamic} bytes of dynamic shared memory",
                    lane,
                )
        if address % nbytes:
            raise fail(
                Misaligned, f"{what} of {nbytes} bytes at shared address {address:#x}: not a multiple of {nbytes}", lane
            )
        return offset

    def load(self, address: int, nbytes: int) -> np.ndarray:
        """Read by the running lane."""
        offset = self.offset(address, nbytes, "load")
        self.shadow.read(offset, nbytes)
        return self.bytes[offset : offset + nbytes]

    def store(self, address: int, data: np.ndarray) -> None:
        """Written by the running lane."""
        n = len(data)
        offset = self.offset(address, n, "store")
        self.shadow.write(offset, n)
        self.bytes[offset : offset + n] = data

    def gather(self, addresses: np.ndarray, nbytes: int, lanes: list[Any]) -> np.ndarray:
        """Read by a warp."""
        offsets = self.offsets(addresses, nbytes, lanes)
        self.shadow.read_rows(offsets, nbytes, lanes)
        return self.take(offsets, nbytes)

    def offsets(self, addresses: np.ndarray, nbytes: int, lanes: list[Any]) -> np.ndarray:
        """The offsets of accesses, each by a lane."""
        offsets = np.asarray(addresses, np.int64) - BASE
        if offsets.min() < 0 or offsets.max() + nbytes > self.dynamic or np.bitwise_or.reduce(offsets) % nbytes:
            for address, lane in zip(addresses.tolist(), lanes, strict=True):
                self.offset(address, nbytes, "read", lane)
        return offsets

    def take(self, offsets: np.ndarray, nbytes: int) -> np.ndarray:
        """(n, nbytes) uint8 at the offsets, multiples of nbytes."""
        if nbytes == 16:
            return self.rows[offsets >> 4]
        return self.bytes[offsets[:, None] + np.arange(nbytes)]
