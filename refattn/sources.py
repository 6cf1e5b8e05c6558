"""Of which sources a run is made: digests of the kernel's files and of refattn's own, without running any.

Of `module:callable` it is the module's file; if that is part of a package that is not installed in site-packages, all
code of the package, the compiled libraries too.  What a kernel imports from elsewhere is not looked at, and neither is
a library of `refattn.adapters`, whose version is what it says itself.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

__all__ = ["sources"]

CODE = frozenset(".py .pyx .so .pyd .dylib .c .cc .cpp .cxx .h .hpp .cu .cuh .hip .metal .cl .ptx".split())


def sources(spec: str) -> dict[str, str]:
    """The digests: "refattn", and "kernel", which is "" of a library and of what is not found."""
    own = Path(__file__).parent
    files = _files(spec.partition(":")[0]) if ":" in spec else []
    return {"refattn": _digest(own, own.rglob("*.py")), "kernel": _digest(files[0].parent, files) if files else ""}


def _files(module: str) -> list[Path]:
    """The files that a kernel is made of, that of the package's root first."""
    first, *rest = module.split(".")
    found = _top(first)
    if found is None or not found.has_location or found.origin is None:
        return []
    file = Path(found.origin)
    if found.submodule_search_locations is None:
        return [file]
    if {"site-packages", "dist-packages"}.isdisjoint(file.parts):
        return [file, *(path for path in file.parent.rglob("*") if path.suffix in CODE and path.is_file())]
    name = first
    for part in rest:
        name = f"{name}.{part}"
        found = None if found is None else PathFinder.find_spec(name, found.submodule_search_locations)
    return [Path(found.origin)] if found is not None and found.has_location and found.origin else []


def _top(name: str) -> ModuleSpec | None:
    """Where the candidate's process finds it: it looks in the folder of the run too."""
    importlib.invalidate_caches()
    folder = os.getcwd()
    path = sys.path if folder in sys.path else [folder, *sys.path]
    try:
        return PathFinder.find_spec(name, path) or importlib.util.find_spec(name)
    except (ValueError, ImportError):  # a module without a spec, such as __main__
        return None


def _digest(root: Path, files: Iterable[Path]) -> str:
    """Of names and contents; "" if one cannot be read."""
    digest = hashlib.sha256()
    try:
        for name, path in sorted({(path.relative_to(root).as_posix(), path) for path in files}):
            digest.update(f"{name}\0".encode("utf-8", "surrogateescape"))
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    except OSError:
        return ""
    return digest.hexdigest()[:16]
