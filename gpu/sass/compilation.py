"""Python kernel -> PTX, on a machine that may have no CUDA driver."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from .toolchain import Missing

__all__ = ["capability", "compile_kernel", "driverless"]

Capability = tuple[int, int] | tuple[int, int, str]


def capability(arch: str) -> Capability:
    """'sm_90a' -> (9, 0, 'a'), as numba-cuda names a compute capability."""
    digits, suffix = arch.removeprefix("sm_").rstrip("af"), arch.lstrip("sm_0123456789")
    if not arch.startswith("sm_") or not digits.isdigit() or len(digits) < 2:
        raise ValueError(f"arch={arch!r} must be like 'sm_80' or 'sm_90a'")
    pair = int(digits[:-1]), int(digits[-1])
    return (*pair, suffix) if suffix else pair


@contextlib.contextmanager
def driverless(cc: Capability) -> Iterator[None]:
    """Within, numba-cuda believes that the current device has capability `cc`.

    Its `compile_device` asks the driver for the device in order to compile a function that a kernel calls,
    though the capability is known by then.
    """
    from numba.cuda import dispatcher

    asked = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: types.SimpleNamespace(compute_capability=tuple(cc[:2]))
    try:
        yield
    finally:
        dispatcher.get_current_device = asked


def compile_kernel(
    function: Callable[..., Any],
    signature: Any,
    cc: Capability,
    launch_bounds: tuple[int, ...] | None = None,
) -> str:
    """The PTX of a kernel for the capability `cc`, such as (8, 0) or (9, 0, 'a').

    `function` is the Python function, or what the decorator `gpu.target.kernel` made of it.  `launch_bounds`
    is (threads of a block, blocks of a multiprocessor); ptxas divides the registers by it.
    """
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        raise Missing("NUMBA_ENABLE_CUDASIM is set: kernels are simulated, not compiled; unset it in this process")
    try:
        from numba import cuda
    except ImportError as error:
        raise Missing(f"no numba-cuda ({error}); pip install 'refattn[gpu-dev]'") from error
    options = getattr(function, "targetoptions", {})
    with driverless(cc):
        ptx, _ = cuda.compile_ptx(
            getattr(function, "py_func", function),
            signature,
            cc=cc,
            fastmath=options.get("fastmath", False),
            launch_bounds=launch_bounds or options.get("launch_bounds"),
        )
    return str(ptx)
