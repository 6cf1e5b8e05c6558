"""The forward of a problem, by tiles of queries or, where there are few, by parts of the keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import FORMATS
from . import decode
from .decode import few
from .forward import forward
from .problem import Problem
from .threads import run

__all__ = ["solve", "tiled"]

Array = np.ndarray[Any, Any]


def solve(problem: Problem) -> tuple[Array, Array, Array, Array]:
    """out (B, H, Lq, Dv), lse, shift and factor, each (B, H, Lq), in the dtype that is computed in; out in bfloat16
    where operands are pairs of such."""
    return decode.solve(problem) if few(problem) else tiled(problem, problem.operands())


def tiled(problem: Problem, operands: tuple[Array, Array, Array, tuple[int, ...]]) -> tuple[Array, Array, Array, Array]:
    """What `solve` has, by tiles of queries; operands as `Problem.operands` or, whose scores are bit for bit those of
    the backward, `Problem.single`."""
    x = problem.x
    *arrays, sizes = operands
    dtype = problem.dtype if arrays[2].dtype == problem.dtype else np.dtype(np.uint16)
    out = np.empty((x.B, x.H, x.Lq, x.Dv), dtype)
    lse, shift, factor = np.empty((3, x.B, x.H, x.Lq), problem.dtype)
    more = (*problem.bias(), problem.scale, problem.softcap, problem.sinks)
    results = tuple(a.reshape(-1) for a in (out, lse, shift, factor))
    for launch in problem.launches():
        run(
            forward, launch.tasks, launch.pairs * (x.D + x.Dv),
            tuple(arrays), launch.seen, more, results, (*sizes, launch.sub, problem.wide),
        )  # fmt: skip
    return out if dtype == problem.dtype else out.view(FORMATS[problem.kind].dtype), lse, shift, factor
