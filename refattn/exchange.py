"""Arrays of other libraries, taken as they are and handed over, bit for bit.

`as_numpy` takes the arrays of NumPy, torch, jax, MLX, CuPy, TensorFlow, tinygrad, and all that has `__array__` or
`__dlpack__`; `hand_over` makes arrays of one of KINDS.  Nothing is imported but the library that is asked for.

Between two libraries the dtypes of 16 and 8 bits seldom cross: `np.from_dlpack` and `tensor.numpy()` refuse
bfloat16 and float8, `torch.from_numpy` the dtypes of ml_dtypes, MLX's buffers bfloat16.  There they cross as
integers of the same size, and are viewed as what they are on the other side.  With torch no copy is made and
strides are kept.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .dtypes import FORMATS, format_of
from .precision import Unsupported

__all__ = ["KINDS", "as_numpy", "from_torch", "hand_over", "is_array", "is_torch", "to_torch"]

Array = np.ndarray[Any, Any]

_INTEGERS = {1: "uint8", 2: "int16"}
_CPU = (1, 3)
"""devices of DLPack whose memory NumPy can read: kDLCPU, kDLCUDAHost"""


def is_array(x: Any) -> bool:
    """Whether `as_numpy` takes it: an array of some library, not a list and not a number of Python."""
    return is_torch(x) or any(hasattr(x, name) for name in ("__array__", "__dlpack__", "numpy"))


def as_numpy(x: Any) -> Array:
    """`x` as an array of NumPy, without a copy where the library allows it.

    >>> as_numpy(np.float32(3)).shape
    ()
    """
    if isinstance(x, (np.ndarray, np.generic)):
        return np.asanyarray(x)
    if is_torch(x):
        return from_torch(x)
    if type(x).__module__ == "mlx.core":
        return _from_mlx(x)
    if hasattr(x, "get") and hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] not in _CPU:
        return np.asarray(x.get())  # CuPy, which refuses np.asarray
    if hasattr(x, "__array__"):
        return np.asarray(x)
    return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x.numpy())


def hand_over(x: Array, kind: str) -> Any:
    """`x`, of integers, booleans or a dtype of `dtypes`, as an array of that kind.

    Only torch shares the memory of `x` for certain.  `Unsupported` if the library has no such dtype.
    """
    return _HANDERS[kind](x)


def is_torch(x: Any) -> bool:
    """Whether `x` is a torch tensor; does not import torch."""
    return any(t.__module__ == "torch" and t.__name__ == "Tensor" for t in type(x).__mro__)


def to_torch(x: Array) -> Any:
    """A detached CPU tensor that shares the memory of `x`, of integers, booleans or a dtype of `dtypes`."""
    import torch

    if x.dtype.kind in "biu":
        return torch.from_numpy(x)
    name = format_of(x.dtype, "x.dtype").name
    integer = _INTEGERS.get(x.dtype.itemsize)
    if integer is None:
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(integer)).view(getattr(torch, name))


def from_torch(x: Any) -> Array:
    """The array of a tensor, detached and on the CPU; dtypes other than those of `dtypes` as torch maps them."""
    import torch

    x = x.detach().cpu()
    name = str(x.dtype).removeprefix("torch.")
    integer = _INTEGERS.get(x.element_size()) if name in FORMATS else None
    if integer is None:
        return np.asarray(x.resolve_neg().resolve_conj().numpy())
    return np.asarray(x.resolve_neg().view(getattr(torch, integer)).numpy().view(FORMATS[name].dtype))


def _to_jax(x: Array) -> Any:
    jax: Any = importlib.import_module("jax")
    if x.dtype == np.float64 and not jax.config.jax_enable_x64:
        raise Unsupported("float64: jax makes it float32; set JAX_ENABLE_X64=1")
    return jax.numpy.asarray(x)


def _to_mlx(x: Array) -> Any:
    mx: Any = importlib.import_module("mlx.core")
    name = x.dtype.name
    if name.startswith("float8"):
        raise Unsupported(f"{name}: MLX has no such dtype")
    if name == "float64" and mx.default_device().type != mx.cpu:
        raise Unsupported("float64: MLX has it on the CPU only; mx.set_default_device(mx.cpu)")
    if name == "bfloat16":
        return mx.array(x.view("uint16")).view(mx.bfloat16)
    return mx.array(x, dtype=mx.float64) if name == "float64" else mx.array(x)


def _from_mlx(x: Any) -> Array:
    mx: Any = importlib.import_module("mlx.core")
    if x.dtype == mx.bfloat16:
        return np.asarray(x.view(mx.uint16)).view(FORMATS["bfloat16"].dtype)
    return np.asarray(x)


def _to_cupy(x: Array) -> Any:
    return importlib.import_module("cupy").asarray(x)


def _same(x: Array) -> Array:
    return x


_HANDERS: dict[str, Callable[[Array], Any]] = {
    "numpy": _same, "torch": to_torch, "jax": _to_jax, "mlx": _to_mlx, "cupy": _to_cupy,
}  # fmt: skip
KINDS = tuple(_HANDERS)
"""what `Implementation.arrays` may be"""
