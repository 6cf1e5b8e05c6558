"""How much memory a group of processes uses; psutil is imported where it is asked."""

from __future__ import annotations

import importlib.util
import os

__all__ = ["lacking", "resident"]


def resident(group: int) -> int:
    """Bytes of resident memory of all processes of the group; a page that they share counts once for each.

    A limit on address space (RLIMIT_AS) would not do: frameworks reserve many times what they use.
    """
    import psutil

    total = 0
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == group:
                total += psutil.Process(pid).memory_info().rss
        except (psutil.Error, OSError):  # it ended meanwhile
            pass
    return total


def lacking() -> str:
    """What `resident` needs and this machine has not, with the cure; nothing if all is there."""
    if not hasattr(os, "getpgid"):
        return "a memory limit needs process groups, which this system has not; run it on Linux or macOS"
    if importlib.util.find_spec("psutil") is None:
        return "a memory limit needs psutil: python -m pip install psutil"
    return ""
