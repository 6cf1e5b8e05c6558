"""How a kernel is started: on the device in the caller's stream, or in the executor.

numba-cuda 0.30 leaves the limit of dynamic shared memory at 48 KiB (NVIDIA/numba-cuda#94): it is raised here, once for
each kernel and device, by CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES (CUDA driver API, cuKernelSetAttribute).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from numba import cuda

from gpu.target import SIMULATED
from refattn.exchange import from_torch

from .arrays import Array

__all__ = ["Machine", "host_memory", "launch", "machine", "no_driver", "require_driver"]

GRID = (2**31 - 1, 65535, 65535)
"""Most blocks in each direction (CUDA C++ Programming Guide, table of compute capabilities)."""


class Machine(NamedTuple):
    """What the choice of a kernel and its tile depends on."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """most dynamic shared memory of a block"""


EXECUTOR = Machine("executor", (9, 0), 4, 232448)


def machine(device: int | None) -> Machine:
    """The device of that number; None is the executor."""
    return EXECUTOR if SIMULATED or device is None else _machine(device)


@functools.cache
def _machine(device: int) -> Machine:
    found = cuda.gpus[device]
    name = found.name.decode() if isinstance(found.name, bytes) else str(found.name)
    limit = found.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    return Machine(name, tuple(found.compute_capability), found.MULTIPROCESSOR_COUNT, limit)


@functools.cache
def no_driver() -> str | None:
    """Why no kernel can be started, or None."""
    if SIMULATED or cuda.is_available():
        return None
    from numba.cuda.cudadrv.driver import driver

    reason = " ".join(str(driver.initialization_error or "no device was found").split())
    return f"no CUDA driver ({reason}); set NUMBA_ENABLE_CUDASIM=1 before numba is imported to run in the executor"


def require_driver() -> None:
    """Raises a RuntimeError that says what is missing."""
    reason = no_driver()
    if reason is not None:
        raise RuntimeError(reason)


def launch(
    kernel: Any, signature: Any, grid: int | Sequence[int], threads: int, shared_bytes: int, arguments: Sequence[Any],
    arrays: Sequence[Array], device: int | None, stream: int,
) -> None:  # fmt: skip
    """Starts `kernel` and returns at once; in the executor, runs it.

    `signature` is the numba type of `arguments`, None to have it found; `arrays` are those whose memory the kernel may
    touch by address.
    """
    blocks = (grid,) if isinstance(grid, int) else tuple(grid)
    if 0 in blocks:
        return
    for n, most in zip(blocks, GRID, strict=False):
        if n > most:
            raise ValueError(f"grid={blocks} needs more than {most} blocks in a direction; split the batch")
    if SIMULATED:
        from gpu import simt

        simt.run(kernel, blocks, (threads,), shared_bytes, arguments, [host_memory(x) for x in arrays])
        return
    if device is None:
        raise ValueError("device=None is the executor; set NUMBA_ENABLE_CUDASIM=1 before numba is imported")
    with cuda.gpus[device]:
        _prepare(kernel, _types(arguments) if signature is None else signature.args, shared_bytes, device)
        _configured(kernel, blocks, threads, stream, shared_bytes, device)(*arguments)


def host_memory(x: Array) -> Any:
    """The NumPy array of the same memory, in the executor."""
    return from_torch(x.owner) if x.library.name == "torch" else x.owner


def _types(arguments: Sequence[Any]) -> tuple[Any, ...]:
    from numba.cuda.typing.typeof import Purpose, typeof

    return tuple(typeof(x, Purpose.argument) for x in arguments)


@functools.cache
def _prepare(kernel: Any, types: tuple[Any, ...], shared_bytes: int, device: int) -> None:
    """Compiles for the device, and raises the limit of its dynamic shared memory."""
    kernel.compile(types)
    if shared_bytes <= 48 * 1024:
        return
    limit = _machine(device).shared_bytes
    if shared_bytes > limit:
        raise ValueError(
            f"{kernel.__name__} needs {shared_bytes} bytes of shared memory, and device {device} has {limit} a block; "
            "choose a smaller tile: with gpu.launch.tiles(keys=32)"
        )
    from numba.cuda.cudadrv import driver

    attribute = driver.binding.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    function = kernel.overloads[types]._codelibrary.get_cufunc()
    driver.driver.cuKernelSetAttribute(attribute, shared_bytes, function.handle, device)


@functools.lru_cache(maxsize=4096)
def _configured(
    kernel: Any, blocks: tuple[int, ...], threads: int, stream: int, shared_bytes: int, device: int
) -> Any:
    from numba.cuda.core.errors import NumbaPerformanceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)  # of a grid of few blocks
        return kernel[blocks, threads, cuda.external_stream(stream) if stream else 0, shared_bytes]
