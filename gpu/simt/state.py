"""What runs at this moment. One launch runs at a time, on one thread."""

from __future__ import annotations

from typing import Any

__all__ = ["now"]


class Now:
    """`lane` runs; `members` are the lanes whose collective is being executed (else None); `block`, `launch`.

    `number` is 1 + the number of the block, or 0 if the launch has one only.
    `floor` and `many` are the least stamp of the block's interval, and the greatest but for special ones (`races`).
    """

    __slots__ = ("block", "floor", "lane", "launch", "many", "members", "number")

    def __init__(self) -> None:
        self.lane: Any = None
        self.members: Any = None
        self.block: Any = None
        self.launch: Any = None
        self.floor = self.many = self.number = 0


now = Now()
