"""What comes in and goes out: arrays of CuPy, torch or NumPy, each as an address with byte strides.

Nothing is copied, and nothing is asked of a library but address, strides, dtype, device and stream.  Outputs are of
the library that q came from.  Where a library has no bfloat16, arrays of int16 hold its bits, and so do the outputs.
NumPy arrays, and torch tensors on the CPU, are for the executor; the others are for a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gpu.target import SIMULATED

__all__ = ["Array", "Library", "as_array", "on_host"]

Host = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Array:
    """An array as the kernels see it; strides in bytes, device None is the host."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: int | None
    itemsize: int
    library: Library
    owner: Any
    """the array itself: it must outlive the launch"""


class Library(Protocol):
    """What differs between libraries."""

    name: str

    def array(self, name: str, x: Any) -> Array:
        """`x` as an Array; nothing is copied."""

    def new(self, shape: tuple[int, ...], dtype: Any, device: int | None, fill: float | None = None) -> Any:
        """A new array, C contiguous; `dtype` is a name, or that of an array of this library."""

    def packed_rows(self, x: Any) -> Any:
        """A copy of `x` whose last dimension has adjacent elements."""

    def converted(self, x: Any, dtype: str) -> Any:
        """A copy of the numbers of `x` in another dtype; int16 are bits of bfloat16, on both sides."""

    def sent(self, x: Host, device: int | None) -> Any:
        """A copy of a NumPy array on the device."""

    def stream(self, device: int | None) -> int:
        """The caller's stream, as CUDA has it; 0 is the default one."""

    def on(self, device: int | None, stream: int) -> contextlib.AbstractContextManager[None]:
        """Where this library allocates and computes on that device and stream."""

    def is_int16(self, dtype: Any) -> bool:
        """Whether a dtype of this library is int16."""


class NumPyLibrary:
    name = "numpy"

    def array(self, name: str, x: Any) -> Array:
        if not SIMULATED:
            raise TypeError(
                f"{name} is a NumPy array, and kernels run on the device; pass cupy.asarray({name}), or set "
                "NUMBA_ENABLE_CUDASIM=1 before numba is imported to run in the executor"
            )
        if not x.dtype.isnative:
            raise TypeError(f"{name}.dtype={x.dtype} must be in this machine's byte order; pass {name}.astype(...)")
        address = x.__array_interface__["data"][0]
        return Array(name, x.dtype.name, x.shape, x.strides, address, None, x.itemsize, self, x)

    def new(self, shape: tuple[int, ...], dtype: Any, device: int | None, fill: float | None = None) -> Any:
        dtype = _numpy_dtype(dtype) if isinstance(dtype, str) else dtype
        if fill is not None:
            return np.full(shape, fill, dtype)
        new = np.empty(shape, dtype)
        new.reshape(-1).view(np.uint8)[...] = 0xFF  # NaN: what a kernel does not write must show in the executor
        return new

    def packed_rows(self, x: Any) -> Any:
        return np.ascontiguousarray(x)

    def converted(self, x: Any, dtype: str) -> Any:
        return _converted(np, x, dtype)

    def sent(self, x: Host, device: int | None) -> Any:
        return x.copy()

    def stream(self, device: int | None) -> int:
        return 0

    def on(self, device: int | None, stream: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_int16(self, dtype: Any) -> bool:
        return bool(dtype == np.int16)


class CuPyLibrary:
    name = "cupy"

    def array(self, name: str, x: Any) -> Array:
        _refuse_device_arrays(name, "a CuPy array", f"cupy.asnumpy({name})")
        return Array(name, x.dtype.name, x.shape, x.strides, x.data.ptr, x.device.id, x.itemsize, self, x)

    def new(self, shape: tuple[int, ...], dtype: Any, device: int | None, fill: float | None = None) -> Any:
        import cupy

        return cupy.empty(shape, dtype) if fill is None else cupy.full(shape, fill, dtype)

    def packed_rows(self, x: Any) -> Any:
        import cupy

        return cupy.ascontiguousarray(x)

    def converted(self, x: Any, dtype: str) -> Any:
        import cupy

        return _converted(cupy, x, dtype)

    def sent(self, x: Host, device: int | None) -> Any:
        import cupy

        return cupy.asarray(x)

    def stream(self, device: int | None) -> int:
        import cupy

        return int(cupy.cuda.get_current_stream(device).ptr)

    @contextlib.contextmanager
    def on(self, device: int | None, stream: int) -> Iterator[None]:
        import cupy

        with cupy.cuda.Device(device):
            current = cupy.cuda.get_current_stream()
            with current if current.ptr == stream else cupy.cuda.ExternalStream(stream, device):
                yield

    def is_int16(self, dtype: Any) -> bool:
        return bool(dtype == np.int16)


class TorchLibrary:
    name = "torch"

    def array(self, name: str, x: Any) -> Array:
        import torch

        if x.layout is not torch.strided:
            raise TypeError(f"{name} is a tensor of layout {x.layout}, which must be strided; pass {name}.to_dense()")
        if x.device.type == "cuda":
            _refuse_device_arrays(name, "a tensor on the device", f"{name}.cpu()")
        elif x.device.type != "cpu":
            raise TypeError(f"{name} is on {x.device}; it must be on a CUDA device: pass {name}.cuda()")
        elif not SIMULATED:
            raise TypeError(
                f"{name} is a tensor on the CPU, and kernels run on the device; pass {name}.cuda(), or set "
                "NUMBA_ENABLE_CUDASIM=1 before numba is imported to run in the executor"
            )
        x = x.detach().resolve_neg()
        strides = tuple(n * x.element_size() for n in x.stride())
        device = x.device.index if x.device.type == "cuda" else None
        dtype = str(x.dtype).removeprefix("torch.")
        return Array(name, dtype, tuple(x.shape), strides, x.data_ptr(), device, x.element_size(), self, x)

    def new(self, shape: tuple[int, ...], dtype: Any, device: int | None, fill: float | None = None) -> Any:
        import torch

        kind = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        place = torch.device("cpu") if device is None else torch.device("cuda", device)
        if fill is None:
            return torch.empty(shape, dtype=kind, device=place)
        return torch.full(shape, fill, dtype=kind, device=place)

    def packed_rows(self, x: Any) -> Any:
        return x.contiguous()

    def converted(self, x: Any, dtype: str) -> Any:
        import torch

        x = x.view(torch.bfloat16) if x.dtype == torch.int16 else x
        if dtype == "int16":
            return x.to(torch.bfloat16).view(torch.int16)
        return x.to(getattr(torch, dtype))

    def sent(self, x: Host, device: int | None) -> Any:
        import torch

        copy = torch.from_numpy(x.copy())
        return copy if device is None else copy.to(torch.device("cuda", device))

    def stream(self, device: int | None) -> int:
        import torch

        return 0 if device is None else int(torch.cuda.current_stream(device).cuda_stream)

    @contextlib.contextmanager
    def on(self, device: int | None, stream: int) -> Iterator[None]:
        import torch

        if device is None:
            yield
            return
        with torch.cuda.device(device):
            if torch.cuda.current_stream(device).cuda_stream == stream:
                yield
            else:
                with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=torch.device("cuda", device))):
                    yield

    def is_int16(self, dtype: Any) -> bool:
        import torch

        return bool(dtype == torch.int16)


NUMPY, CUPY, TORCH = NumPyLibrary(), CuPyLibrary(), TorchLibrary()


def as_array(name: str, x: Any) -> Array:
    """The Array of an array of NumPy, CuPy, torch, or of anything with `__cuda_array_interface__` or `__dlpack__`.

    Those others are taken as CuPy arrays, of the same memory.
    """
    if isinstance(x, np.ndarray):
        return NUMPY.array(name, x)
    modules = {(t.__module__.partition(".")[0], t.__name__) for t in type(x).__mro__}
    if ("torch", "Tensor") in modules:
        return TORCH.array(name, x)
    if ("cupy", "ndarray") in modules:
        return CUPY.array(name, x)
    if hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__"):
        return CUPY.array(name, _as_cupy(name, x))
    raise TypeError(
        f"{name} is a {type(x).__name__}, which must be an array of CuPy or torch, or of NumPy in the executor"
    )


def on_host(name: str, x: Any) -> Host | None:
    """`x` as a NumPy array if it is on the host (a sequence of ints, too), or None if it is on a device."""
    if isinstance(x, (list, tuple, np.ndarray)):
        return np.asarray(x)
    if any((t.__module__.partition(".")[0], t.__name__) == ("torch", "Tensor") for t in type(x).__mro__):
        return np.asarray(x.detach().numpy()) if x.device.type == "cpu" else None
    return None


def _refuse_device_arrays(name: str, what: str, cure: str) -> None:
    if SIMULATED:
        raise TypeError(
            f"{name} is {what}, and NUMBA_ENABLE_CUDASIM=1 runs kernels in the executor; unset it, or pass {cure}"
        )


def _as_cupy(name: str, x: Any) -> Any:
    if SIMULATED:
        raise TypeError(f"{name} is a {type(x).__name__}; the executor takes arrays of NumPy, and of torch on the CPU")
    try:
        import cupy
    except ImportError:
        raise TypeError(f"{name} is a {type(x).__name__}, which is taken through CuPy: install cupy-cuda13x") from None
    return cupy.asarray(x) if hasattr(x, "__cuda_array_interface__") else cupy.from_dlpack(x)


def _numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def _converted(xp: Any, x: Any, dtype: str) -> Any:
    """`Library.converted` for NumPy and CuPy: bits of bfloat16 are the upper half of a float32."""
    if x.dtype == np.int16:
        x = (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype != "int16":
        return x.astype(_numpy_dtype(dtype))
    bits = xp.ascontiguousarray(x.astype(np.float32)).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    rounded = xp.where((bits & 0x7FFFFFFF) > 0x7F800000, (bits >> 16) | 0x40, rounded)  # NaN stays NaN
    return rounded.astype(np.uint16).view(np.int16)
