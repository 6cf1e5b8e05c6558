"""What runs at this moment. One launch runs at a time, on one thread."""

from __future__ import annotations

from typing import Any

__all__ = ["now"]


class Now:
    """`lane` runs; `members` are the lanes whose collective is being executed (else None); `block`, `launch`."""

    __slots__ = ("block", "lane", "launch", "members")

    def __init__(self) -> None:
        self.lane: Any = None
        self.members: Any = None
        self.block: Any = None
        self.launch: Any = None


now = Now()
