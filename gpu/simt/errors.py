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
    "fail",
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
_BELOW = (_OWN, os.path.join(os.path.dirname(os.path.dirname(_OWN)), "ptx") + os.sep)
_BELOW += tuple(os.path.dirname(os.path.abspath(m.__file__)) + os.sep for m in (np, greenlet) if m.__file__)


def in_kernel(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of kernel source: below it are the models of instructions, and NumPy."""
    while frame is not None and (frame.f_code.co_filename.startswith(_BELOW) or frame.f_code.co_filename[0] == "<"):
        if frame.f_code.co_filename[0] == "<" and frame.f_code.co_filename != "<__array_function__ internals>":
            return frame  # source given as text
        frame = frame.f_back
    return frame


def line_of(frame: FrameType | None) -> str:
    """`file.py:12, in f: text of the line`."""
    if frame is None:
        return "an unknown line"
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, in {code.co_name}" + (f": {text}" if text else "")


def place(lane: Any) -> str:
    """Kernel, block, warp, lane and source line of a lane, running or waiting."""
    frame = in_kernel(sys._getframe(1) if lane is greenlet.getcurrent() else lane.gr_frame)
    return f"{now.launch.name}: block {tuple(now.block.index)}, warp {lane.warp.number}, lane {lane.index}, at {line_of(frame)}"


def fail(kind: type[SimtError], text: str, lane: Any = None) -> SimtError:
    """An error of `kind` that happened to `lane` (None: the running one)."""
    lane = now.lane if lane is None else lane
    if lane is None:
        return kind(text)
    return kind(f"{text}\n  {place(lane)}")
