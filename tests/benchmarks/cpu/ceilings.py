"""What the machine can do with all its cores: a square matrix product, multiply-adds in registers, reading memory.

A ceiling is the fastest turn, as whatever else runs can only lower it; a call is long enough for its threads to
have found a core each.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .work import cores

__all__ = ["CEILINGS", "Ceiling", "ceiling"]

ROWS, READ, STEPS, CHAINS = 1024, 1 << 26, 1 << 22, 24


@dataclass(frozen=True)
class Ceiling:
    what: Literal["matmul", "fma", "read"]
    dtype: str

    @property
    def flops(self) -> float:
        """Operations of one call; bytes for `read`."""
        if self.what == "fma":
            from refattn.flash.vectors import lanes

            return 2.0 * cores() * STEPS * CHAINS * lanes(self.dtype)
        return 2.0 * ROWS**3 if self.what == "matmul" else 4.0 * READ

    def __str__(self) -> str:
        return f"{self.what} {self.dtype}"


CEILINGS = {
    "numpy naive": (Ceiling("matmul", "float32"), Ceiling("matmul", "float64")),
    "torch": (*(Ceiling("matmul", kind) for kind in ("float32", "float64", "bfloat16")), Ceiling("read", "float32")),
    "refattn.flash": (Ceiling("fma", "float32"), Ceiling("fma", "float64")),
}
"""By the implementation in whose process they run."""


def ceiling(name: str, what: Ceiling) -> Callable[[], Any]:
    """A call that does `what`, with the library of that implementation."""
    if what.what == "fma":
        return _multiply_adds(what.dtype)
    if name == "torch":
        import torch

        if what.what == "read":
            return torch.ones(READ).sum
        a, b = torch.rand(2, ROWS, ROWS).to(getattr(torch, what.dtype))
        return lambda: a @ b
    c, d = np.random.default_rng(0).random((2, ROWS, ROWS)).astype(what.dtype)
    return lambda: c @ d


def _multiply_adds(dtype: str) -> Callable[[], Any]:
    """In each thread STEPS times CHAINS multiply-adds of vectors, no chain waiting for another."""
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic

    from refattn.flash.vectors import Vectors, array_data, lanes

    @intrinsic
    def steps(typing: Any, x: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = array_data(context, builder, signature.args[0], args[0])
            v = Vectors(builder, signature.args[0].dtype)
            x = v.load(data, 0)
            sums = [v.load(data, i * v.lanes) for i in range(CHAINS)]
            for i, end in enumerate(v.loop(STEPS, sums, lambda _, sums: [v.fma(s, x, x) for s in sums])):
                v.store(end, data, i * v.lanes)
            return ir.Constant(ir.IntType(64), STEPS)

        return types.int64(x), code

    run = njit(lambda x: steps(x), nogil=True)
    numbers = np.random.default_rng(0).random((cores(), CHAINS * lanes(dtype))).astype(dtype) / 2
    pool = ThreadPoolExecutor(cores())
    return lambda: list(pool.map(run, numbers))
