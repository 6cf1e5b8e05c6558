"""Arrays from NumPy to torch and back, without copies, bit for bit.

`torch.from_numpy` refuses the dtypes of ml_dtypes and `tensor.numpy()` refuses bfloat16 and float8,
so arrays of 16 and 8 bits cross as integers of the same size and are viewed as what they are on
the other side.  Strides are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import FORMATS, format_of

__all__ = ["from_torch", "is_torch", "to_torch"]

Array = np.ndarray[Any, Any]

_INTEGERS = {1: "uint8", 2: "int16"}


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
