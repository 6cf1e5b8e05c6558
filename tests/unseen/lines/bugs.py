"""The bugs of four people, each with the tiles of the kernel that it was written for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from refattn.streaming import Streaming

from . import first, fourth, second, third
from .kernel import patched

__all__ = ["FIRST", "FOURTH", "SECOND", "THIRD", "Bug"]

Bug = tuple[str, str, Callable[[], Streaming]]


def made(tiles: tuple[int, int, int], rows: Sequence[tuple[Any, ...]]) -> list[Bug]:
    return [(name, sentence, partial(patched, tiles, *patches)) for name, sentence, *patches in rows]


FIRST = made((16, 16, 1), first.BUGS)
SECOND = made((32, 32, 2), second.BUGS)
THIRD = made((64, 32, 1), third.BUGS)
FOURTH = made((16, 32, 2), fourth.BUGS)
