"""Where ptxas and nvdisasm are, and why one is missing."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["Missing", "Tool", "nvdisasm", "ptxas"]

PTXAS_FLOOR = (13, 0)
"""NVVM 13.0 writes PTX 9.0, which an older ptxas refuses."""


class Missing(RuntimeError):
    """A tool or a package that the gate needs is not here; the text says which, and how to get it."""


class Tool:
    """A program and its version, as in 13.0.88."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        found = re.search(r"V(\d+)\.(\d+)\.(\d+)", text)
        if found is None:
            raise Missing(f"{path} --version printed no version; reinstall it")
        self.version = found[0][1:]
        self.release = (int(found[1]), int(found[2]))

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs the program; ValueError with its message when it fails."""
        done = subprocess.run([self.path, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(f"{self.path.name} failed: {(done.stderr or done.stdout).strip()}")
        return done


@functools.cache
def ptxas() -> Tool:
    """The assembler of PTX."""
    tool = Tool(_find("ptxas", "nvidia-cuda-nvcc"))
    if tool.release < PTXAS_FLOOR:
        raise Missing(
            f"{tool.path} is {tool.version}, and the PTX of NVVM 13.0 needs at least 13.0; "
            "pip install nvidia-cuda-nvcc==13.0.88"
        )
    return tool


@functools.cache
def nvdisasm() -> Tool:
    """The disassembler of cubins."""
    return Tool(_find("nvdisasm", "nvidia-cuda-nvdisasm"))


def _find(name: str, wheel: str) -> Path:
    """The program's path.  The wheel comes first, for its version is pinned: the table depends on it."""
    program = f"{name}.exe" if sys.platform == "win32" else name
    try:
        files = importlib.metadata.distribution(wheel).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    candidates = [Path(str(f.locate())) for f in files if f.name == program]
    on_path = shutil.which(program)
    candidates += [Path(on_path)] if on_path else []
    candidates += [Path(os.environ[v], "bin", program) for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise Missing(
        f"no {name}: not in the package {wheel}, not on PATH, not under CUDA_HOME or CUDA_PATH; "
        f"pip install 'refattn[gpu-dev]'"
    )
