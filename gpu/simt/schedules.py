"""The order in which warps and lanes run.

"first": the lowest warp that can run runs until it must wait; "last": the highest; an int: warps and lanes
in an order drawn with that seed, and a warp gives way at one collective in ten.  Each is reproducible.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

__all__ = ["Schedule", "default_schedule", "scheduled"]

PREEMPTION = 0.1
_chosen: list[str | int] = []


class Schedule:
    """The choices of one launch."""

    def __init__(self, name: str | int) -> None:
        self.name = name
        self.random = random.Random(name) if isinstance(name, int) else None

    def order(self, blocks: list[Any]) -> list[Any]:
        """The blocks in the order in which they run."""
        return self.turn(blocks)[:: 1 if self.name == "last" else -1]

    def pick(self, ready: Sequence[Any]) -> Any:
        """One of the warps, which are in ascending order."""
        if self.random is not None:
            return ready[int(self.random.random() * len(ready))]
        return ready[0 if self.name == "first" else -1]

    def turn(self, lanes: list[Any]) -> list[Any]:
        """A stack of lanes: the last runs first."""
        stack = lanes[::-1]
        if self.random is not None:
            self.random.shuffle(stack)
        return stack

    def preempt(self) -> bool:
        """Whether a warp gives way now."""
        return self.random is not None and self.random.random() < PREEMPTION


def parse(name: str | int) -> str | int:
    if isinstance(name, int) and not isinstance(name, bool):
        return name
    if name in ("first", "last"):
        return name
    if isinstance(name, str) and name.lstrip("-").isdigit():
        return int(name)
    raise ValueError(f'schedule={name!r} must be "first", "last" or an int')


def default_schedule() -> str | int:
    """What `scheduled` or the environment variable GPU_SCHEDULE says, else "first"."""
    return _chosen[-1] if _chosen else parse(os.environ.get("GPU_SCHEDULE", "first"))


@contextmanager
def scheduled(name: str | int) -> Iterator[None]:
    """Launches inside run under this schedule."""
    _chosen.append(parse(name))
    try:
        yield
    finally:
        _chosen.pop()
