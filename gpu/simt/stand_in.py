"""What `cuda` means inside a kernel: `numba.cuda` itself is given the names that numba-cuda's simulator swaps in.

The simulator replaces the module in a function's globals at each call of a device function, which costs more than
the function.  Here the names of the running lane are properties of the module, and stay.
"""

from __future__ import annotations

import types
from types import SimpleNamespace
from typing import Any, NoReturn

from . import warp_functions
from .arrays import shared_array
from .errors import InvalidLaunch, SimtError, fail
from .launch import run
from .local_arrays import local_array
from .state import now

__all__ = ["install"]


class CudaModule(types.ModuleType):
    """`numba.cuda` with what depends on the lane."""

    threadIdx = property(lambda self: now.lane.threadIdx)
    blockIdx = property(lambda self: now.block.index)
    blockDim = property(lambda self: now.launch.block_dim)
    gridDim = property(lambda self: now.launch.grid_dim)
    laneid = property(lambda self: now.lane.index)
    warpsize = property(lambda self: 32)


class NoAtomics:
    """In the place of `cuda.atomic`: the detector does not know them, and sums in an unknown order are not wanted."""

    def __getattr__(self, name: str) -> NoReturn:
        raise fail(SimtError, f"cuda.atomic.{name}: the executor has no atomics; reduce in a fixed order")


def grid(ndim: int) -> Any:
    """The thread's index in the grid."""
    b, t, d = now.block.index, now.lane.threadIdx, now.launch.block_dim
    found = tuple(b[i] * d[i] + t[i] for i in range(ndim))
    return found[0] if ndim == 1 else found


def gridsize(ndim: int) -> Any:
    """The number of threads of the grid."""
    g, d = now.launch.grid_dim, now.launch.block_dim
    found = tuple(g[i] * d[i] for i in range(ndim))
    return found[0] if ndim == 1 else found


_FROM_SIMULATOR = [
    "popc", "fma", "cbrt", "brev", "clz", "ffs", "selp", "threadfence", "threadfence_block", "threadfence_system",
    "const", "fp16",
]  # fmt: skip


def call(self: Any, *args: Any) -> Any:
    """A kernel's or a device function's call, in place of the simulator's."""
    if now.launch is not None:
        return self.fn(*args)
    if self._device:
        raise TypeError(f"{self.fn.__name__} is a device function: call it in a kernel")
    if self.grid_dim is None:
        raise ValueError(f"{self.fn.__name__}: launch it as {self.fn.__name__}[grid, block](...)")
    run(self, tuple(self.grid_dim), tuple(self.block_dim), self.dynshared_size, args, [])


def configure(self: Any, configuration: tuple[Any, ...]) -> Any:
    """`kernel[grid, block, stream, shared_bytes]`"""
    from numba.cuda.errors import normalize_kernel_dimensions

    if now.launch is not None:
        raise fail(InvalidLaunch, f"{self.fn.__name__} is launched while a kernel runs")
    self.grid_dim, self.block_dim = normalize_kernel_dimensions(*configuration[:2])
    self.dynshared_size = configuration[3] if len(configuration) > 3 else 0
    return self


def install() -> None:
    """Puts this executor in the place of numba-cuda's simulator; once is enough."""
    import numba.cuda
    from numba.cuda.core import config

    if not config.ENABLE_CUDASIM:
        raise RuntimeError("simt.install() needs NUMBA_ENABLE_CUDASIM=1 in the environment before numba is imported")
    cuda: Any = numba.cuda
    if isinstance(cuda, CudaModule):
        return
    from numba.cuda.simulator import kernel, kernelapi

    fake: Any = kernel.FakeCUDAKernel
    cuda.__class__ = CudaModule
    module = kernelapi.FakeCUDAModule((1, 1, 1), (1, 1, 1), 0)
    for name in _FROM_SIMULATOR:
        setattr(cuda, name, getattr(module, name))
    for name in warp_functions.__all__:
        setattr(cuda, name, getattr(warp_functions, name))
    cuda.grid, cuda.gridsize = grid, gridsize
    cuda.shared, cuda.local = SimpleNamespace(array=shared_array), SimpleNamespace(array=local_array)
    cuda.atomic = NoAtomics()
    fake.__call__, fake.__getitem__ = call, configure
    plain = cuda.jit

    def jit(function: Any = None, device: bool = False, **options: Any) -> Any:
        if not device:
            return plain(function, **options)
        if not isinstance(function, types.FunctionType):
            return lambda f: jit(f, device=True, **options)
        function.py_func = function  # type: ignore[attr-defined]
        return function  # a device function costs no more than a plain one

    cuda.jit = jit
