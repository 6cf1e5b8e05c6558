"""Copies of the honest kernel, `refattn.streaming` and its online softmax, with some of their lines replaced."""

from __future__ import annotations

import importlib
import re
import sys
import tempfile
from functools import cache
from itertools import count
from pathlib import Path

import refattn
from refattn.case import Case
from refattn.streaming import Schedule, Streaming

__all__ = ["Patch", "patched", "sources", "supports"]

Patch = tuple[str, str, str]
"""of a file the text that stands in it once, and what stands there instead"""
NUMBER = count()


def supports(case: Case) -> str | None:
    return None


@cache
def sources() -> dict[str, str]:
    """The files of a package of its own, whose imports are of itself or of refattn."""
    here = Path(refattn.__file__).parent
    files = {path.name: path.read_text() for path in (here / "streaming").glob("*.py")}
    online = (here / "online.py").read_text()
    found = {"online.py": re.sub(r"from \.(\w)", r"from refattn.\1", online)}
    for name, text in files.items():
        text = text.replace("from .. import memory, online\n", "from refattn import memory\n\nfrom .. import online\n")
        text = text.replace("from .. import online\n", "from . import online\n")
        text = text.replace("from ..online ", "from .online ")
        found[name] = re.sub(r"from \.\.(\w)", r"from refattn.\1", text)
    return found


@cache
def folder() -> Path:
    """Where patched packages are written, and imported from."""
    path = tempfile.mkdtemp()
    sys.path.insert(0, path)
    return Path(path)


def patched(tiles: tuple[int, int, int], *patches: Patch) -> Streaming:
    """The kernel with these lines, in tiles of so many queries and keys, in so many splits."""
    files = dict(sources())
    usual = Schedule()
    for name, size in zip(("tile_q", "tile_k", "splits"), tiles, strict=True):
        patches = (("rules.py", f"{name}: int = {getattr(usual, name)}", f"{name}: int = {size}"), *patches)
    for name, old, new in patches:
        if files[name].count(old) != 1:
            raise ValueError(f"{name}: {old!r} stands in it {files[name].count(old)} times; it must be once")
        files[name] = files[name].replace(old, new)
    package = f"patched_kernel_{next(NUMBER)}"
    (folder() / package).mkdir()
    for name, text in files.items():
        (folder() / package / name).write_text(text)
    importlib.invalidate_caches()
    kernel: Streaming = importlib.import_module(package).implementation
    return kernel
