"""Barriers, shuffles and votes of `cuda`, as lanes call them.

Each is a collective: an operation on the payloads of all lanes of the warp, or of the block for barriers.  Shuffles
and votes take the full mask only.  Source: CUDA C++ Programming Guide, "Warp Shuffle Functions", "Warp Vote
Functions", "Synchronization Functions"; PTX ISA 9.0, shfl.sync, vote.sync, bar.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .errors import Divergence, fail
from .executor import BLOCK, collective
from .races import renew
from .state import now

__all__ = [
    "all_sync", "any_sync", "ballot_sync", "shfl_down_sync", "shfl_sync", "shfl_up_sync", "shfl_xor_sync",
    "syncthreads", "syncthreads_and", "syncthreads_count", "syncthreads_or", "syncwarp",
]  # fmt: skip

FULL = (-1, 0xFFFFFFFF)


def named(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Errors name an operation as kernels call it."""

    def rename(operation: Callable[..., Any]) -> Callable[..., Any]:
        operation.__name__ = name
        return operation

    return rename


def whole(mask: Any) -> None:
    """Raises unless the mask names all lanes of a warp."""
    if mask not in FULL:
        raise fail(Divergence, f"mask {int(mask):#x}: the executor has warps of 32 lanes only; pass 0xffffffff")


def syncthreads() -> None:
    """All threads of the block come here; what they wrote before is seen by all."""
    collective(_barrier, None, BLOCK)


def syncthreads_count(predicate: Any) -> int:
    """A barrier; in how many threads the predicate holds."""
    return collective(_count, bool(predicate), BLOCK)


def syncthreads_and(predicate: Any) -> int:
    """A barrier; 1 if the predicate holds in all threads."""
    return collective(_and, bool(predicate), BLOCK)


def syncthreads_or(predicate: Any) -> int:
    """A barrier; 1 if the predicate holds in a thread."""
    return collective(_or, bool(predicate), BLOCK)


def syncwarp(mask: Any = 0xFFFFFFFF) -> None:
    """All lanes of the warp come here; what they wrote before is seen by all of them."""
    whole(mask)
    collective(_warp_barrier, None)


def shfl_sync(mask: Any, value: Any, source: Any) -> Any:
    """The value of lane `source` mod 32."""
    whole(mask)
    return collective(_from_lane, (value, int(source)))


def shfl_up_sync(mask: Any, value: Any, delta: Any) -> Any:
    """The value of the lane `delta` below; one's own where there is none."""
    whole(mask)
    return collective(_from_below, (value, int(delta)))


def shfl_down_sync(mask: Any, value: Any, delta: Any) -> Any:
    """The value of the lane `delta` above; one's own where there is none."""
    whole(mask)
    return collective(_from_above, (value, int(delta)))


def shfl_xor_sync(mask: Any, value: Any, bits: Any) -> Any:
    """The value of the lane whose number differs by `bits`; one's own where there is none."""
    whole(mask)
    return collective(_from_xor, (value, int(bits)))


def ballot_sync(mask: Any, predicate: Any) -> Any:
    """Bit i: whether the predicate holds in lane i; int32."""
    whole(mask)
    return collective(_ballot, bool(predicate))


def any_sync(mask: Any, predicate: Any) -> bool:
    """Whether the predicate holds in a lane."""
    whole(mask)
    return collective(_any, bool(predicate))


def all_sync(mask: Any, predicate: Any) -> bool:
    """Whether the predicate holds in all lanes."""
    whole(mask)
    return collective(_all, bool(predicate))


@named("syncthreads")
def _barrier(payloads: list[Any]) -> Sequence[Any]:
    return payloads


@named("syncthreads_count")
def _count(payloads: list[bool]) -> Sequence[int]:
    return [sum(payloads)] * len(payloads)


@named("syncthreads_and")
def _and(payloads: list[bool]) -> Sequence[int]:
    return [int(all(payloads))] * len(payloads)


@named("syncthreads_or")
def _or(payloads: list[bool]) -> Sequence[int]:
    return [int(any(payloads))] * len(payloads)


@named("syncwarp")
def _warp_barrier(payloads: list[Any]) -> Sequence[Any]:
    warp = now.lane.warp
    warp.interval += 1
    renew(warp, now.block.interval)
    return payloads


@named("shfl_sync")
def _from_lane(payloads: list[Any]) -> Sequence[Any]:
    return [payloads[source % 32][0] for _, source in payloads]


@named("shfl_up_sync")
def _from_below(payloads: list[Any]) -> Sequence[Any]:
    return [payloads[i - d][0] if 0 <= i - d < 32 else x for i, (x, d) in enumerate(payloads)]


@named("shfl_down_sync")
def _from_above(payloads: list[Any]) -> Sequence[Any]:
    return [payloads[i + d][0] if 0 <= i + d < 32 else x for i, (x, d) in enumerate(payloads)]


@named("shfl_xor_sync")
def _from_xor(payloads: list[Any]) -> Sequence[Any]:
    return [payloads[i ^ m][0] if 0 <= i ^ m < 32 else x for i, (x, m) in enumerate(payloads)]


@named("ballot_sync")
def _ballot(payloads: list[bool]) -> Sequence[Any]:
    return [np.packbits(payloads, bitorder="little").view(np.int32)[0]] * 32


@named("any_sync")
def _any(payloads: list[bool]) -> Sequence[bool]:
    return [any(payloads)] * 32


@named("all_sync")
def _all(payloads: list[bool]) -> Sequence[bool]:
    return [all(payloads)] * 32
