"""The model of wgmma: asynchronous products of a warpgroup, with every rule of `gpu.ptx.wgmma` checked.

A product is computed when it is issued, but its accumulators are poisoned until the groups that it is in have been
waited for and the array is pinned.  Whether a register was touched is told by identity: the objects in a local
array are remembered, and a write puts another object there.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache
from operator import is_
from typing import Any

import ml_dtypes
import numpy as np

from gpu import simt
from gpu.simt.errors import fail
from gpu.simt.local_arrays import Poison
from gpu.simt.state import now

__all__ = ["commit", "fence", "pin", "product", "wait"]

Array = np.ndarray[Any, Any]
PATTERN, ROW, STEP, CHUNK = 1024, 128, 32, 16
"""Bytes of the swizzle's pattern, of a row of it, of 16 numbers along k, and of what it permutes."""


class Flight:
    """An accumulator (64 x n), of whose products `under_way` have not been waited for.

    `owned`: each lane's local array, and the poison that stands in it.
    """

    __slots__ = ("n", "owned", "under_way", "value")

    def __init__(self, n: int) -> None:
        self.n = n
        self.value: Array = np.zeros((64, n), np.float32)
        self.owned: list[tuple[Any, Pending]] = []
        self.under_way = 0


class Pending(Poison):
    """Stands in an accumulator for the results of a flight; `number` is the lane's in the warpgroup."""

    __slots__ = ("flight", "number")

    def __init__(self, flight: Flight, number: int, lane: Any) -> None:
        text = f"an accumulator of wgmma m64n{flight.n}k16 is used before wgmma.commit_group, wgmma.wait_group and pin"
        super().__init__(simt.Race, text)
        self.flight, self.number, self.lane = flight, number, lane


class Registers:
    """What a lane's register arrays were when they were pinned, and when a fence followed."""

    __slots__ = ("fenced", "pinned")

    def __init__(self) -> None:
        self.pinned: dict[int, tuple[Any, list[Any]]] = {}
        self.fenced: dict[int, tuple[Any, list[Any]]] = {}


class Warpgroup:
    """Products since the last commit and committed ones: (flight, lent), lent: A's arrays with what they held."""

    __slots__ = ("committed", "issued")

    def __init__(self) -> None:
        self.issued: list[tuple[Flight, Any]] = []
        self.committed: list[list[tuple[Flight, Any]]] = []


_registers: weakref.WeakKeyDictionary[Any, Registers] = weakref.WeakKeyDictionary()
_groups: weakref.WeakKeyDictionary[Any, Warpgroup] = weakref.WeakKeyDictionary()


def _held(array: Any) -> list[Any]:
    return list.__getitem__(array, slice(0, array.extent))


def _put(array: Any, elements: Sequence[Any]) -> None:
    list.__setitem__(array, slice(0, array.extent), elements)


def pin(array: Any) -> None:
    """Results whose groups are complete are there; writes so far come before a fence that follows."""
    head = list.__getitem__(array, 0)
    if isinstance(head, Pending):
        if head.flight.under_way:
            raise fail(simt.Race, "pin of an accumulator before wgmma.wait_group: its products are under way")
        _put(array, list(head.flight.value[_places(head.flight.n)][head.number]))
    _registers.setdefault(now.lane, Registers()).pinned[id(array)] = array, _held(array)


def fence() -> None:
    """wgmma.fence"""
    for lane in now.members:
        if lane in _registers:
            own = _registers[lane]
            own.fenced.update(own.pinned)
            own.pinned.clear()


def commit() -> None:
    """wgmma.commit_group"""
    group = _groups.setdefault(now.members[0], Warpgroup())
    group.committed.append(group.issued)
    group.issued = []
    simt.commit_reads()


def wait(n: int) -> None:
    """wgmma.wait_group n"""
    group = _groups.setdefault(now.members[0], Warpgroup())
    complete = group.committed[: max(len(group.committed) - n, 0)]
    del group.committed[: len(complete)]
    for flight, lent in (one for products in complete for one in products):
        flight.under_way -= 1
        if not flight.under_way:
            _untouched(flight)
        for lane, (a, held) in zip(now.members, lent, strict=False):
            if not all(map(is_, _held(a), held)):
                raise fail(simt.Race, "A of wgmma, in registers, is written before wgmma.wait_group", lane)
    simt.wait_reads(n)


def product(n: int, dtype: str, a_in_registers: bool, transposed_b: bool) -> Callable[..., None]:
    """wgmma.mma_async.m64nNk16, as lanes call it."""
    number = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)

    def wgmma(payloads: list[tuple[Any, ...]]) -> list[None]:
        arrays = [payload[0] for payload in payloads]
        held, ats, bs, adds = zip(*(payload[1:] for payload in payloads), strict=True)
        _agree("the descriptor of B", bs)
        _agree("add", [bool(add) for add in adds])
        lent = []
        if a_in_registers:
            _agree("at", ats)
            lent = [(a, _fenced(a, "A in registers", lane)) for a, lane in zip(held, now.members, strict=True)]
            A = _fragments([x[ats[0] : ats[0] + 4] for _, x in lent], number)
        else:
            _agree("the descriptor of A", held)
            A = _operand(held[0], 64, number, False, "A")
        B = _operand(bs[0], n, number, transposed_b, "B")
        flight = _flight(arrays, n, adds[0])
        with np.errstate(all="ignore"):
            flight.value = flight.value + A @ B.T if adds[0] else A @ B.T
        flight.under_way += 1
        _groups.setdefault(now.members[0], Warpgroup()).issued.append((flight, lent))
        return [None] * 128

    wgmma.__name__ = f"wgmma.mma_async m64n{n}k16"
    if a_in_registers:

        def issue(c: Any, a: Any, at: Any, b: Any, add: Any) -> None:
            simt.collective(wgmma, (c, a, int(at), int(b), add), 128)

    else:

        def issue(c: Any, a: Any, b: Any, add: Any) -> None:  # type: ignore[misc]
            simt.collective(wgmma, (c, int(a), 0, int(b), add), 128)

    return issue


def _agree(what: str, values: Sequence[Any]) -> None:
    for lane, value in zip(now.members, values, strict=True):
        if value != values[0]:
            raise fail(simt.Divergence, f"{what} is {value}, but {values[0]} in lane 0 of the warpgroup", lane)


def _fenced(array: Any, what: str, lane: Any) -> list[Any]:
    """What a register array holds; raises unless it was pinned and fenced since it was written."""
    own = _registers.get(lane)
    known = own.fenced.get(id(array)) if own else None
    held = _held(array)
    if known is None or not all(map(is_, known[1], held)):
        text = f"{what} of wgmma: no pin and wgmma.fence since the registers were written, or their results taken"
        raise fail(simt.Race, text, lane)
    return held


def _untouched(flight: Flight) -> None:
    for (c, pending), lane in zip(flight.owned, now.members, strict=True):
        if not all(x is pending for x in _held(c)):
            raise fail(simt.Race, "an accumulator of wgmma is written before wgmma.wait_group", lane)


def _flight(arrays: list[Any], n: int, add: Any) -> Flight:
    """The flight that the accumulators are in; where they are in none, a new one that starts from their values."""
    heads = [list.__getitem__(c, 0) for c in arrays]
    if all(isinstance(x, Pending) for x in heads):
        flight: Flight = heads[0].flight
        if flight.n != n or any(x.flight is not flight for x in heads):
            text = f"an accumulator of wgmma m64n{flight.n}k16 under way is given to m64n{n}k16: wait first"
            raise fail(simt.Race, text)
        _untouched(flight)
        return flight
    flight = Flight(n)
    held = []
    for number, (c, lane) in enumerate(zip(arrays, now.members, strict=True)):
        if c.extent != n // 2:
            raise fail(simt.OutOfBounds, f"an accumulator of {c.extent} registers for n={n}: it needs {n // 2}", lane)
        held.append(_fenced(c, "the accumulator", lane))
        flight.owned.append((c, Pending(flight, number, lane)))
    if add:
        flight.value[_places(n)] = np.array(held, np.float32)
    for c, pending in flight.owned:
        _put(c, [pending] * c.extent)
    return flight


@cache
def _places(n: int) -> tuple[Array, Array]:
    """Row and column of element i of lane l in an accumulator (64 x n): two arrays (128, n / 2)."""
    lane, i = np.arange(128)[:, None], np.arange(n // 2)
    return lane // 32 * 16 + lane % 32 // 4 + i // 2 % 2 * 8, lane % 4 * 2 + i // 4 * 8 + i % 2


def _fragments(registers: list[list[Any]], number: Any) -> Array:
    """A (64 x 16) from the lanes' four registers: the places of an accumulator with n = 16, in pairs."""
    found = np.empty((64, 16), np.float32)
    found[_places(16)] = np.array(registers, np.int32).view(number).astype(np.float32)
    return found


def _operand(descriptor: int, rows: int, number: Any, transposed: bool, what: str) -> Array:
    """The operand that a descriptor tells of: (rows, 16), rows along m or n."""
    bits = descriptor & (1 << 64) - 1
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    if bits >> 62 != 1 or bits >> 49 & 7:
        raise fail(simt.SimtError, f"the descriptor of {what}, {bits:#x}: the model has the 128-byte swizzle only")
    if start % PATTERN >= ROW or start % (ROW if transposed else STEP):
        text = f"{what} of wgmma at shared address {start:#x}: the swizzle's pattern starts at multiples of {PATTERN}"
        raise fail(simt.Misaligned, text + ", the next 16 of k in it 32 bytes on")
    if stride % PATTERN or (transposed and rows > 64 and leading % PATTERN):
        raise fail(simt.Misaligned, f"{what} of wgmma: offsets {leading} and {stride} are not multiples of {PATTERN}")
    if transposed:
        k, chunk = np.arange(16)[:, None], np.arange(rows // 8)
        at = start + chunk // 8 * leading + k // 8 * stride + k % 8 * ROW + chunk % 8 * CHUNK
    else:
        row, chunk = np.arange(rows)[:, None], np.arange(2)
        at = start + row // 8 * stride + row % 8 * ROW + chunk * CHUNK
    at ^= (at >> 7 & 7) << 4
    found = simt.read_async(at.ravel(), CHUNK).view(number).astype(np.float32).reshape(len(at), -1)
    return found.T if transposed else found
