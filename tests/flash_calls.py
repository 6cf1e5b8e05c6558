"""Calls of `refattn.flash` whose answers are compared bit for bit, here and in other processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from refattn import flash
from refattn.masks import Causal, Dilated

__all__ = ["DTYPES", "SHARED", "bits", "child", "digest", "environment", "problem", "run_here", "solve"]

Array = np.ndarray[Any, Any]
Call = dict[str, Any]
ROOT = Path(__file__).parent.parent
DTYPES = {"float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
OPTIONS = ("mask", "bias", "scale", "softcap", "sinks")


def problem(dtype: str, seed: int = 0, B: int = 2, H: int = 4, Lq: int = 40, Lk: int = 70, D: int = 24) -> Call:
    """Arrays and options of a call: an interval of keys, a rule that is none, or a boolean array."""
    rng = np.random.default_rng(seed)
    rows, keys = (B, H, Lq), (B, H // 2, Lk)
    shapes = {"q": (*rows, D), "k": (*keys, D), "v": (*keys, 9), "dout": (*rows, 9), "dlse": rows, "bias": (H, 1, Lk)}
    x: Call = {name: rng.standard_normal(shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}
    mask = [Causal("bottom_right"), Dilated(40, 2, "top_left"), rng.random((1, Lq, Lk)) < 0.5][seed % 3]
    return x | {"mask": mask, "sinks": rng.standard_normal(H)}


SHARED = [problem(dtype, n, 2, 2, 700, 900, 48) for n, dtype in enumerate(("float32", "float64", "bfloat16"))]
SHARED += [problem("float32", 0, 2, 4, 1, 20_000, 64)]
"""large enough to be shared among threads"""


def solve(x: Call, module: Any = flash) -> dict[str, Array]:
    """All outputs that there are, by name."""
    options = {name: x[name] for name in OPTIONS if name in x}
    found = module.attention(x["q"], x["k"], x["v"], **options)._asdict()
    found |= module.attention_grad(x["q"], x["k"], x["v"], x["dout"], x["dlse"], **options)._asdict()
    return {name: y for name, y in found.items() if y is not None}


def bits(x: Call) -> dict[str, bytes]:
    return {name: y.tobytes() for name, y in solve(x).items()}


def digest(problems: list[Call]) -> str:
    return hashlib.sha256(b"".join(y for x in problems for y in bits(x).values())).hexdigest()


def child(code: str) -> list[str]:
    """The command that runs the code in a new process."""
    first = "import numba, numpy as np\nfrom flash_calls import Dilated, SHARED, digest, flash\n"
    return [sys.executable, "-c", first + textwrap.dedent(code)]


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path} | more


def run_here(code: str, **more: str) -> str:
    """What a new process prints."""
    ran = subprocess.run(child(code), capture_output=True, text=True, cwd=ROOT, env=environment(**more), timeout=200)
    if ran.returncode != 0:
        raise RuntimeError(f"exit {ran.returncode}: {ran.stderr}")
    return ran.stdout
