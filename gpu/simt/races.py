"""The race detector of shared memory: who wrote each cell last, and who has read it since.

Only barriers order what lanes do: `syncthreads` the block, `syncwarp` the warp.  Each access is stamped with an
*interval*, the number of the last block barrier, and of the last warp barrier within; two accesses to a cell in one
interval by different warps (or in one interval of a warp by different lanes), one of them a write, are a race.  Since
intervals do not depend on the order in which warps run, a race is found under every schedule.

A stamp is an int64, later intervals are larger:  block interval << 44 | warp interval << 24 | who.

    writes   fences << 10 | lane       `fences`: how many proxy fences the lane had executed
    reads    lane, or 1024 + warp (several of its lanes), or all ones (several warps)
    >= 2**62 writes: uninitialised, or in flight for a lane; reads: pending in the asynchronous proxy

A cell is 16 bytes, until an access is narrower: then all cells are split.  Sources: PTX ISA 9.0, "Memory Consistency
Model", "cp.async", "Async proxy"; FastTrack (Flanagan and Freund 2009) for the stamps.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import Race, UninitialisedRead, fail
from .state import now

__all__ = ["MANY", "Shadow", "renew", "renew_block"]

BLOCK_SHIFT, WARP_SHIFT, FENCE_SHIFT = 44, 24, 10
MANY = (1 << BLOCK_SHIFT) - 1
WHO = 2047
SPECIAL = 1 << 62
UNSET = SPECIAL | 1 << 61
LANE = 1023
WIDEST = 4
WARP_INTERVAL = MANY >> WARP_SHIFT << WARP_SHIFT
SINCE = "since the last syncthreads()"


def renew(warp: Any, interval: int) -> None:
    """The stamps of a warp's lanes in a new interval."""
    start = interval << BLOCK_SHIFT | warp.interval << WARP_SHIFT
    several = start | 1024 + warp.number
    for lane in warp.lanes:
        lane.read = start | lane.number
        lane.stamp = lane.read | lane.fences << FENCE_SHIFT
        lane.warp_read = several


def renew_block(block: Any) -> None:
    """A barrier of the block has been passed."""
    block.interval += 1
    now.floor = block.interval << BLOCK_SHIFT
    now.many = now.floor | MANY
    for warp in block.warps:
        warp.interval = 0
        renew(warp, block.interval)


class Shadow:
    """Stamps of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.arrays: list[Any] = []  # those that hold `writes` and `reads`, and must learn of a split
        self.shift = 0
        self.reset()

    def _allot(self, writes: np.ndarray, reads: np.ndarray) -> None:
        self.writes, self.reads = array("q", writes.tobytes()), array("q", reads.tobytes())
        self.w, self.r = np.frombuffer(self.writes, np.int64), np.frombuffer(self.reads, np.int64)
        for a in self.arrays:
            a.follow()

    def reset(self) -> None:
        """Nothing is written."""
        if not self.arrays and self.shift < WIDEST:
            self.shift = WIDEST
            self._allot(np.full(self.size >> WIDEST, UNSET), np.zeros(self.size >> WIDEST, np.int64))
        self.w[:] = UNSET
        self.r[:] = 0

    def split(self, shift: int) -> None:
        """Cells of 1 << shift bytes."""
        if shift < self.shift:
            n = 1 << (self.shift - shift)
            self.shift = shift
            self._allot(np.repeat(self.w, n), np.repeat(self.r, n))

    def cells(self, offset: int, nbytes: int) -> Sequence[int]:
        """The cells of an access."""
        shift = self.shift
        n = nbytes >> shift
        if n == 1:
            return (offset >> shift,)
        if not n:
            self.split(nbytes.bit_length() - 1)
            return (offset >> self.shift,)
        return range(offset >> shift, (offset >> shift) + n)

    def read(self, offset: int, nbytes: int) -> None:
        """The running lane reads."""
        cells = self.cells(offset, nbytes)
        lane, writes, reads, floor = now.lane, self.writes, self.reads, now.floor
        for cell in cells:
            r = reads[cell]
            if r < now.many and r != lane.read and r != lane.warp_read:  # else a write since would have raised
                if writes[cell] >= floor:
                    self.may_read(cell, lane)
                reads[cell] = joined(r, lane)

    def write(self, offset: int, nbytes: int) -> None:
        """The running lane writes."""
        cells = self.cells(offset, nbytes)
        lane, writes, reads, floor = now.lane, self.writes, self.reads, now.floor
        for cell in cells:
            if floor <= writes[cell] < UNSET or reads[cell] >= floor:
                self.may_write(cell, lane)
            writes[cell] = lane.stamp

    def may_read(self, cell: int, lane: Any) -> None:
        """Raises if a write in this interval, or the want of one, forbids the read."""
        w = self.writes[cell]
        if w < lane.read and (w & LANE) >> 5 == lane.number >> 5 and w & WARP_INTERVAL < lane.read & WARP_INTERVAL:
            return  # the same warp, before a barrier of its own
        if w >= UNSET:
            raise fail(UninitialisedRead, f"shared offset {cell << self.shift} is read, and nobody wrote it", lane)
        if w >= SPECIAL:
            raise self.in_flight("read", cell, w, lane)
        writer = w & LANE
        if writer != lane.number:
            self.ordered("read after write", "reads", "wrote", cell, w, writer, lane)

    def may_write(self, cell: int, lane: Any) -> None:
        """Raises if an access in this interval forbids the write."""
        floor = now.floor
        w, r = self.writes[cell], self.reads[cell]
        if floor <= w < UNSET:
            if w >= SPECIAL:
                raise self.in_flight("written", cell, w, lane)
            writer = w & LANE
            if writer != lane.number:
                self.ordered("write after write", "writes", "wrote", cell, w, writer, lane)
        if r >= SPECIAL:
            raise self.race("write after read", cell, "writes", "a wgmma that was not waited for still reads", lane)
        if r >= floor:
            who = r & WHO
            if who == WHO:
                raise self.race("write after read", cell, "writes", f"several warps read {SINCE}", lane)
            if who != lane.number:
                self.ordered("write after read", "writes", "read", cell, r, who, lane)

    def ordered(self, hazard: str, does: str, did: str, cell: int, stamp: int, who: int, lane: Any) -> None:
        """Raises unless a barrier of the warp lies between an access and the lane's."""
        warp = who - 1024 if who > LANE else who >> 5
        name = f"warp {warp}" + (f", lane {who & 31}" if who <= LANE else "")
        if warp != lane.warp.number:
            raise self.race(hazard, cell, does, f"{name} {did} {SINCE}", lane)
        if stamp & WARP_INTERVAL == lane.read & WARP_INTERVAL:
            raise self.race(hazard, cell, does, f"{name} {did} with neither syncwarp() nor syncthreads() since", lane)

    def in_flight(self, what: str, cell: int, w: int, lane: Any) -> Race:
        owner = w & LANE
        own = "it" if owner == lane.number else f"warp {owner >> 5}, lane {owner & 31},"
        return fail(
            Race, f"shared offset {cell << self.shift} is {what} while a cp.async that {own} began is in flight", lane
        )  # type: ignore[return-value]

    def race(self, hazard: str, cell: int, does: str, other: str, lane: Any) -> Race:
        return fail(Race, f"{hazard}: it {does} shared offset {cell << self.shift}, which {other}", lane)  # type: ignore[return-value]

    def read_rows(self, offsets: np.ndarray, nbytes: int, lanes: list[Any]) -> None:
        """A warp reads: row i is at offsets[i], its address given by lanes[i]; the data may reach any lane."""
        rows = (offsets >> self.shift)[:, None] + np.arange(nbytes >> self.shift)
        if self.w[rows].max() >= now.floor:
            self._may_read_rows(rows, lanes)
        r, own = self.r[rows], lanes[0].warp_read
        if r.max() < now.floor:
            self.r[rows] = own
        elif not (r == own).all():
            who = r & WHO
            warp = np.where(who > LANE, who - 1024, who >> 5)
            self.r[rows] = np.where((r < now.floor) | (warp == lanes[0].warp.number), own, np.maximum(r, now.many))

    def _may_read_rows(self, rows: np.ndarray, lanes: list[Any]) -> None:
        for row, lane in zip(rows.tolist(), lanes, strict=True):
            for cell in row:
                w = self.writes[cell]
                if w >= SPECIAL:
                    self.may_read(cell, lane)
                elif w >= now.floor:
                    self.ordered("read after write", "reads", "wrote", cell, w, w & LANE, lane)


def joined(r: int, lane: Any) -> int:
    """The readers of a cell, with one more; `r` is not yet several warps."""
    if r < now.floor:
        return lane.read
    who = r & WHO
    warp = who - 1024 if who > LANE else who >> 5
    if warp != lane.warp.number:
        return now.many
    return lane.warp_read if r & WARP_INTERVAL == lane.read & WARP_INTERVAL else lane.read
