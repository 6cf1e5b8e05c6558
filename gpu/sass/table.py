"""The table of all kernels, one row for each specialisation and architecture, and how it is made."""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.metadata
import json
import multiprocessing
import pkgutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .compilation import capability, compile_kernel
from .gate import broken_rules, row_of
from .report import Report, assemble
from .toolchain import Missing, nvdisasm, ptxas

__all__ = [
    "Entry", "FILE", "Outcome", "entries", "examine", "examine_all", "load", "quick", "rotation", "save", "versions",
]  # fmt: skip

FILE = Path(__file__).parent.parent / "sass.json"
_SOURCES = ("kernels", "ptx", "target.py")


class Entry(NamedTuple):
    """A specialisation and an architecture: `module` of gpu.kernels, `name` within it, `kernel` its function.

    The word "element" in a name says that the kernel goes element by element, and so need not load 16 bytes at a time.
    """

    module: str
    kernel: str
    name: str
    arch: str

    @property
    def key(self) -> str:
        return f"{self.module} {self.name} {self.arch}"


class Outcome(NamedTuple):
    """What became of an entry: its row and the report (empty, None: it does not compile), the rules that it breaks."""

    entry: Entry
    row: dict[str, Any]
    report: Report | None
    broken: list[str]


def _specialisations(module: str) -> list[Any]:
    declared = getattr(importlib.import_module(f"gpu.kernels.{module}"), "specialisations", None)
    return list(declared()) if declared else []


def entries() -> list[Entry]:
    """All rows that the kernel modules declare."""
    import gpu.kernels

    found = []
    for module in sorted(m.name for m in pkgutil.iter_modules(gpu.kernels.__path__) if m.name[0] == "k"):
        for one in _specialisations(module):
            kernel = getattr(one.function, "py_func", one.function).__name__
            found += [Entry(module, kernel, one.name, arch) for arch in one.archs]
    keys = [e.key for e in found]
    if twice := {k for k in keys if keys.count(k) > 1}:
        raise ValueError(f"specialisations of one name: {', '.join(sorted(twice))}; name them apart")
    return found


def examine(entry: Entry) -> Outcome:
    """Compiles one row; that it does not compile is a broken rule too."""
    try:
        return _examine(entry)
    except Missing:
        raise
    except Exception as error:  # of numba, NVVM, ptxas or the kernel's own code: any kind
        return Outcome(entry, {}, None, [f"does not compile: {type(error).__name__}: {error}"])


def _examine(entry: Entry) -> Outcome:
    (spec,) = (s for s in _specialisations(entry.module) if s.name == entry.name)
    bounds = getattr(spec.function, "targetoptions", {}).get("launch_bounds") or (spec.threads, 1)
    threads, blocks = bounds if isinstance(bounds, tuple) else (bounds, 1)
    if threads != spec.threads:
        raise ValueError(f"{entry.key}: threads={spec.threads}, but the kernel's launch bounds say {threads}")
    report = assemble(compile_kernel(spec.function, spec.signature, capability(entry.arch), bounds), entry.arch)
    broken = broken_rules(
        report,
        threads=threads,
        blocks=blocks,
        shared_bytes=spec.shared_bytes,
        tensor=spec.hmma,
        narrow="element" in spec.name.split(),
    )
    return Outcome(entry, row_of(report, threads, spec.shared_bytes), report, broken)


def examine_all(chosen: Sequence[Entry], processes: int = 2) -> Iterator[Outcome]:
    """`examine` of each, in order, by that many processes."""
    ptxas(), nvdisasm()  # fail here, by name, and not in a process
    if processes <= 1 or len(chosen) <= 2:
        yield from map(examine, chosen)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, context) as pool:
        yield from pool.map(examine, chosen)


def quick(every: Sequence[Entry], turn: int) -> list[Entry]:
    """One row of each kernel and architecture; which one (so which D, dtype, features) goes round with `turn`."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in every:
        groups.setdefault((entry.module, entry.kernel, entry.arch), []).append(entry)
    return [group[(turn + i) % len(group)] for i, group in enumerate(groups.values())]


def rotation() -> int:
    """The turn of `quick`: it changes with every change of the kernels, and not between the workers of a run."""
    here = FILE.parent
    paths = [p for name in _SOURCES for p in ([here / name] if name.endswith(".py") else (here / name).rglob("*.py"))]
    return zlib.crc32(b"".join(p.read_bytes() for p in sorted(paths)))


def versions() -> dict[str, str]:
    """What the table depends on."""
    packages = {name: importlib.metadata.version(name) for name in ("numba-cuda", "nvidia-nvvm")}
    return {"ptxas": ptxas().version, **packages}


def load(path: Path = FILE) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Versions and rows of the table; both empty where there is none."""
    if not path.exists():
        return {}, {}
    held = json.loads(path.read_text())
    return held["versions"], held["rows"]


def save(made_with: dict[str, str], rows: dict[str, dict[str, Any]], path: Path = FILE) -> None:
    """Writes the table, a row to a line, so that a change of one is a change of one line."""
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(rows[key])}" for key in sorted(rows))
    path.write_text(f'{{"versions": {json.dumps(made_with)},\n "rows": {{\n{lines}\n}}}}\n')
