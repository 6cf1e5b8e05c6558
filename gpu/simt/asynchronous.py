"""What runs beside the lanes: copies to shared memory (cp.async), and reads of it by wgmma.

A copy's bytes arrive at once here, but until its lane has waited for its group any access to them is an error; then
they count as written by that lane in that interval.  Reads of wgmma are pending until the warpgroup has waited for
their group: to write what they read is an error; then they count as reads by several warps.  They see writes of the
generic proxy only if the writing lane has executed a proxy fence since, and a barrier has been passed.
Sources: PTX ISA 9.0, "cp.async", "cp.async.wait_group", "wgmma.wait_group", "Async proxy", "membar/fence".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import Race, SimtError, fail
from .executor import collective
from .races import FENCE_SHIFT, LANE, SPECIAL, UNSET
from .state import now

__all__ = ["commit_group", "commit_reads", "copy_async", "proxy_fence", "read_async", "wait_group", "wait_reads"]

FENCES = (1 << 14) - 1


def copy_async(shared: Any, address: Any, nbytes: Any, size: int = 16) -> None:
    """cp.async: begins a copy of `nbytes` from global to shared memory; the rest of `size` bytes become 0.

    Both addresses are multiples of `size`.  If nbytes is 0, the global address is not looked at.
    """
    n, memory, lane = int(nbytes), now.block.shared, now.lane
    if not 0 <= n <= size:
        raise fail(SimtError, f"cp.async of {n} bytes: 0 to {size} can be copied")
    offset = memory.offset(int(shared), size, "cp.async")
    shadow, floor, stamp = memory.shadow, now.floor, SPECIAL | lane.number
    cells = shadow.cells(offset, size)
    writes, reads = shadow.writes, shadow.reads
    for cell in cells:
        if floor <= writes[cell] < UNSET or reads[cell] >= floor:
            shadow.may_write(cell, lane)
        writes[cell], reads[cell] = stamp, 0
    to = memory.bytes
    if n:
        to[offset : offset + n] = now.launch.buffers.load(int(address), n, size, "cp.async")
    if n < size:
        to[offset + n : offset + size] = 0
    lane.copies.append((offset, offset + size))


def commit_group() -> None:
    """cp.async.commit_group: the copies that the lane began since the last one are a group."""
    lane = now.lane
    lane.groups.append(lane.copies)
    lane.copies = []


def wait_group(n: int) -> None:
    """cp.async.wait_group n: all groups of the lane but the last n have arrived."""
    lane = now.lane
    shadow = now.block.shared.shadow
    shift, w = shadow.shift, shadow.w
    first = max(len(lane.groups) - int(n), 0)
    done, lane.groups = lane.groups[:first], lane.groups[first:]
    for group in done:
        for start, end in group:
            w[start >> shift : end >> shift] = lane.stamp


def proxy_fence() -> None:
    """fence.proxy.async: what the lane has written may be read by the asynchronous proxy after a barrier."""
    lane = now.lane
    lane.fences += 1
    if lane.fences > FENCES:
        raise fail(SimtError, f"more than {FENCES} proxy fences in a block: the detector cannot count them")
    lane.stamp += 1 << FENCE_SHIFT
    now.block.fences[lane.number] = lane.fences


class Reads:
    """The reads of one warpgroup: offsets and bytes of each."""

    __slots__ = ("groups", "open")

    def __init__(self) -> None:
        self.open: list[tuple[np.ndarray, int]] = []
        self.groups: list[list[tuple[np.ndarray, int]]] = []


def _warpgroup() -> tuple[int, Reads]:
    if now.members is None or len(now.members) != 128:
        raise fail(SimtError, "asynchronous reads belong in a collective of 128 lanes")
    number = now.members[0].warp.number // 4
    return number, now.block.reads.setdefault(number, Reads())


def _cells(shadow: Any, offsets: np.ndarray, nbytes: int) -> np.ndarray:
    return ((offsets >> shadow.shift)[:, None] + np.arange(nbytes >> shadow.shift)).ravel()


def read_async(addresses: np.ndarray, nbytes: int) -> np.ndarray:
    """In a collective of 128 lanes: reads of shared memory by wgmma, (n,) addresses -> (n, nbytes) uint8.

    nbytes is 2, 4, 8 or 16 and divides the addresses.  Pending until `wait_reads`.
    """
    number, reads = _warpgroup()
    memory = now.block.shared
    shadow = memory.shadow
    offsets = memory.offsets(addresses, nbytes, [None] * len(addresses))
    if nbytes < 1 << shadow.shift:
        shadow.split(nbytes.bit_length() - 1)
    cells = _cells(shadow, offsets, nbytes)
    w = shadow.w[cells]
    writer = w & LANE
    stale = now.block.fences[writer % len(now.block.fences)] <= (w >> FENCE_SHIFT & FENCES)
    if w.max() >= now.floor or stale.any():
        _refuse(shadow, cells, w, stale)
    r = shadow.r[cells]
    shadow.r[cells] = np.where(r >= SPECIAL, r, SPECIAL) | 1 << number
    reads.open.append((offsets, nbytes))
    return memory.take(offsets, nbytes)


def _refuse(shadow: Any, cells: np.ndarray, w: np.ndarray, stale: np.ndarray) -> None:
    lane = now.lane
    late = np.flatnonzero(w >= now.floor)
    for i in late.tolist():
        if w[i] >= SPECIAL:
            shadow.may_read(int(cells[i]), lane)
        who = int(w[i]) & LANE
        other = f"warp {who >> 5}, lane {who & 31} wrote since the last syncthreads()"
        raise shadow.race("read after write", int(cells[i]), "reads (wgmma)", other, lane)
    i = int(np.flatnonzero(stale)[0])
    who = int(w[i]) & LANE
    other = f"warp {who >> 5}, lane {who & 31} wrote without fence.proxy.async since"
    raise fail(Race, f"proxy: wgmma reads shared offset {int(cells[i]) << shadow.shift}, which {other}", lane)


def commit_reads() -> None:
    """wgmma.commit_group: the warpgroup's reads since the last one are a group. In a collective, or by each lane."""
    if now.members is None:
        return collective(_commit, None, 128)
    reads = _warpgroup()[1]
    reads.groups.append(reads.open)
    reads.open = []


def wait_reads(n: int) -> None:
    """wgmma.wait_group n: the reads of all groups but the last n are done.  For a collective, or each lane."""
    if now.members is None:
        return collective(_wait, n, 128)
    number, reads = _warpgroup()
    shadow = now.block.shared.shadow
    first = max(len(reads.groups) - int(n), 0)
    done, reads.groups = reads.groups[:first], reads.groups[first:]
    bit = 1 << number
    for group in done:
        for offsets, nbytes in group:
            cells = _cells(shadow, offsets, nbytes)
            r = shadow.r[cells] & ~bit
            shadow.r[cells] = np.where(r == SPECIAL, now.many, r)
    for group in [*reads.groups, reads.open] if done else []:
        for offsets, nbytes in group:
            cells = _cells(shadow, offsets, nbytes)
            r = shadow.r[cells]
            shadow.r[cells] = np.where(r >= SPECIAL, r, SPECIAL) | bit


def _commit(payloads: list[Any]) -> Sequence[Any]:
    commit_reads()
    return payloads


def _wait(payloads: list[Any]) -> Sequence[Any]:
    wait_reads(int(payloads[0]))
    return payloads
