"""Lanes as greenlets, gathered in warps; a block runs until its lanes have all returned.

A lane runs until it arrives at a barrier or a collective; then the next lane of its warp runs.  The last to arrive
executes the collective for all.  A warp whose lanes wait for the warpgroup or the block stands still until
those have arrived too.  Lanes switch directly to each other: the scheduler is entered once a warp, not once a lane.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Sequence
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

from .errors import Divergence, LaneError, OutOfBounds, SimtError, fail, frame_of, line_of, raised_at
from .races import renew_block
from .state import now

__all__ = ["BLOCK", "Lane", "Warp", "collective", "run_block"]

WARP, WARPGROUP, BLOCK = 32, 128, 0
_frame = sys._getframe


class Lane(greenlet):
    """One thread: `index` in its warp, `number` in its block."""

    __slots__ = ("at", "copies", "fences", "groups", "index", "number", "op", "read", "stamp", "threadIdx", "warp",
                 "warp_read")  # fmt: skip

    def run(self) -> None:
        now.lane = self
        warp = self.warp
        try:
            now.launch.function(*now.launch.arguments)
        except (SimtError, GreenletExit):
            raise
        except Exception as error:
            kind = OutOfBounds if isinstance(error, IndexError) else LaneError
            raise fail(kind, f"{type(error).__name__}: {error}", self, raised_at(error)) from error
        warp.live -= 1


class Warp:
    """Up to 32 lanes; `stack` holds those that have not yet run since the last collective, the next one last."""

    __slots__ = ("at", "blocked", "hub", "interval", "lanes", "live", "mixed", "number", "op", "payloads", "results",
                 "stack", "width")  # fmt: skip

    def __init__(self, number: int, lanes: list[Lane], hub: greenlet) -> None:
        self.number = number
        self.lanes = lanes
        self.hub = hub
        self.live = len(lanes)
        self.payloads: list[Any] = [None] * len(lanes)
        self.results: Sequence[Any] = self.payloads
        self.op: Any = None
        self.at: Any = None
        self.width = WARP
        self.mixed = False
        self.blocked = False
        self.interval = 0
        self.stack = now.launch.schedule.turn(lanes)

    def resume(self) -> None:
        """Lets lanes run until the warp is blocked, gives way, or has finished."""
        while self.stack:
            if self.stack.pop().switch() == "gives way":
                return
            # else a lane returned
        if self.live:
            self.refuse()

    def arrived(self, lane: Lane) -> None:
        """The last lane of the warp that runs has arrived."""
        if self.mixed or self.live != len(self.lanes):
            self.refuse()
        if self.width != WARP:
            self.blocked = True
            self.hub.switch("gives way")
            return
        if len(self.lanes) != WARP:
            raise fail(Divergence, f"{name_of(self.op)} in a warp of {len(self.lanes)} threads; it needs 32", lane)
        now.members = self.lanes
        self.proceed(self.op(self.payloads), lane)

    def proceed(self, results: Sequence[Any], lane: Lane | None) -> None:
        """All lanes may go on; `lane` is the one that runs."""
        now.members = None
        self.op = None
        self.results = results
        schedule = now.launch.schedule
        if schedule.random is not None:
            self.stack = schedule.turn(self.lanes)
            if lane is None:
                return
            if schedule.preempt():
                self.hub.switch("gives way")
            elif self.stack[-1] is lane:
                self.stack.pop()
            else:
                self.stack.pop().switch()
        elif lane is None:
            self.stack = self.lanes[::-1]
        else:
            i = lane.index
            self.stack = self.lanes[:i][::-1] + self.lanes[:i:-1]

    def refuse(self) -> None:
        """Raises: the lanes of the warp are not at the same place."""
        groups: dict[tuple[Any, Any], list[Lane]] = {}
        returned = []
        for lane in self.lanes:
            if lane.dead:
                returned.append(lane.index)
            else:
                groups.setdefault((lane.op, lane.at), []).append(lane)
        parts = [f"lanes {ranges(returned)} have returned"] if returned else []
        for (op, _), lanes in groups.items():
            where = line_of(frame_of(lanes[0]))
            parts.append(f"lanes {ranges([x.index for x in lanes])} are at {name_of(op)} ({where})")
        first = min((lanes for lanes in groups.values()), key=len)[0]
        raise fail(Divergence, "divergence: " + "; ".join(parts), first)


def name_of(op: Any) -> str:
    return str(getattr(op, "__name__", op))


def ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    found: list[list[int]] = []
    for n in numbers:
        if found and found[-1][1] == n - 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def collective(op: Callable[[list[Any]], Sequence[Any]], payload: Any, lanes: int = 32) -> Any:
    """Waits until all lanes of the warp (128: of the warpgroup) have come here; op(payloads) gives a result to each.

    All must come from the same place in the kernel, as .aligned instructions demand.
    """
    lane = now.lane
    warp = lane.warp
    warp.payloads[lane.index] = payload
    at = _frame(2).f_lasti
    lane.op = op
    lane.at = at
    if warp.op is None:
        warp.op = op
        warp.at = at
        warp.width = lanes
    elif warp.op is not op or warp.at != at:
        warp.mixed = True
    stack = warp.stack
    if stack:
        stack.pop().switch()
    else:
        warp.arrived(lane)
    now.lane = lane
    return warp.results[lane.index]


def run_block() -> None:
    """Runs the lanes of `now.block`."""
    hub = getcurrent()
    block = now.block
    schedule = now.launch.schedule
    dx, dy, dz = now.launch.block_dim
    lanes = []
    context = contextvars.copy_context()
    for number in range(dx * dy * dz):
        lane = Lane(parent=hub)
        lane.gr_context = context.copy()  # NumPy keeps its error state there
        lane.number = number
        lane.index = number % WARP
        lane.copies, lane.groups, lane.fences = [], [], 0
        lane.threadIdx = now.launch.thread_indices[number]
        lanes.append(lane)
    warps = [Warp(i // WARP, lanes[i : i + WARP], hub) for i in range(0, len(lanes), WARP)]
    for warp in warps:
        for lane in warp.lanes:
            lane.warp = warp
    block.warps = warps
    renew_block(block)
    try:
        _schedule(warps, schedule)
    finally:
        for lane in lanes:
            if lane and not lane.dead:
                lane.throw(GreenletExit)
        now.lane = None


def _schedule(warps: list[Warp], schedule: Any) -> None:
    ready = list(warps)
    while True:
        while ready:
            warp = schedule.pick(ready)
            warp.resume()
            if warp.blocked:
                ready.remove(warp)
                if warp.width == WARPGROUP:
                    group = warps[warp.number // 4 * 4 :][:4]
                    if _group_arrived(group):
                        ready = sorted(ready + group, key=lambda w: w.number)
            elif not warp.live:
                ready.remove(warp)
        waiting = [warp for warp in warps if warp.live]
        if not waiting:
            return
        _release(warps)
        ready = list(warps)


def _group_arrived(group: list[Warp]) -> bool:
    """Executes the collective of a warpgroup if all its warps have come."""
    if not all(warp.blocked and warp.width == WARPGROUP for warp in group):
        return False
    if len(group) != 4:
        text = f"{name_of(group[0].op)} in a warpgroup of {len(group)} warps; it needs 4"
        raise fail(Divergence, text, group[0].lanes[0])
    if any(warp.op is not group[0].op or warp.at != group[0].at for warp in group):
        _refuse_block(group, "warpgroup")
    _execute(group)
    return True


def _execute(warps: list[Warp]) -> None:
    """One collective of several warps."""
    now.members = [lane for warp in warps for lane in warp.lanes]
    now.lane = now.members[0]
    op = warps[0].op
    try:
        results = op([payload for warp in warps for payload in warp.payloads])
    except SimtError:
        raise
    except Exception as error:
        raise fail(LaneError, f"{type(error).__name__}: {error}") from error
    start = 0
    for warp in warps:
        n = len(warp.lanes)
        warp.blocked = False
        warp.proceed(results[start : start + n], None)
        start += n


def _release(warps: list[Warp]) -> None:
    """No warp can run: all must be at the same barrier of the block."""
    first = warps[0]
    if not all(w.blocked and w.width == BLOCK and w.op is first.op and w.at == first.at for w in warps):
        _refuse_block(warps, "block")
    _execute(warps)
    renew_block(now.block)


def _refuse_block(warps: list[Warp], what: str) -> None:
    """Raises: the warps are not at the same place."""
    parts = []
    for warp in warps:
        if not warp.live:
            parts.append(f"warp {warp.number} has returned")
        else:
            parts.append(f"warp {warp.number} is at {name_of(warp.op)} ({line_of(frame_of(warp.lanes[0]))})")
    alive = next(warp for warp in warps if warp.live)
    raise fail(Divergence, f"divergence in the {what}: " + "; ".join(parts), alive.lanes[0])
