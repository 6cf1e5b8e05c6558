"""What the executor raises, and how an error says where in the kernel it happened."""

from __future__ import annotations

import linecache
import os
import sys
from types import FrameType
from typing import Any

import greenlet
import numpy as np

from .state import now

__all__ = [
    "Divergence", "InvalidLaunch", "LaneError", "Misaligned", "OutOfBounds", "Race", "SimtError", "UninitialisedRead",
    "fail", "frame_of", "line_of", "raised_at",
]  # fmt: skip


class SimtError(Exception):
    """A kernel did what a device would punish, with a wrong number or a fault."""


class Divergence(SimtError):
    """Not all lanes of a warp, warpgroup or block arrived at the same barrier or collective."""


class Misaligned(SimtError):
    """An access of n bytes whose address is not a multiple of n."""


class OutOfBounds(SimtError):
    """An access outside the buffers of the launch, an array, or the block's shared memory; or a negative index."""


class UninitialisedRead(SimtError):
    """A read of shared or local memory that nobody wrote."""


class Race(SimtError):
    """Two accesses, one of them a write, whose order nothing guarantees."""


class LaneError(SimtError):
    """Another exception in the kernel's own code: it is the cause of this one."""


class InvalidLaunch(SimtError):
    """A grid, block, or amount of shared memory that a device refuses."""


_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BELOW = (
    _OWN,
    os.path.join(os.path.dirname(os.path.dirname(_OWN)), "ptx") + os.sep,
    *(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (np, greenlet)),
)


def in_kernel(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of kernel source: below it are the models of instructions, and NumPy."""
    while frame is not None and frame.f_code.co_filename.startswith(_BELOW):
        frame = frame.f_back
    return frame


def frame_of(lane: Any) -> FrameType | None:
    """Where a lane is, running or waiting."""
    return in_kernel(sys._getframe(1) if lane is greenlet.getcurrent() else lane.gr_frame)


def raised_at(error: BaseException) -> FrameType | None:
    """Where in the kernel an error was raised."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_BELOW):
            found = trace.tb_frame
        trace = trace.tb_next
    return found


def line_of(frame: FrameType | None) -> str:
    """`file.py:12, in f: text of the line`."""
    if frame is None:
        return "an unknown line"
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, in {code.co_name}" + (f": {text}" if text else "")


def fail(kind: type[SimtError], text: str, lane: Any = None, frame: FrameType | None = None) -> SimtError:
    """An error of `kind` that happened to `lane` (None: the running one), at `frame` (None: where the lane is)."""
    lane = now.lane if lane is None else lane
    if lane is None:
        return kind(text)
    where = f"block {tuple(now.block.index)}, warp {lane.warp.number}, lane {lane.index}"
    return kind(f"{text}\n  {now.launch.name}: {where}, at {line_of(frame or frame_of(lane))}")
