"""`cuda.local.array`: registers of one lane, of one dtype, poisoned until written.

A list subclass, since lists are read fastest.  It has twice as many places as elements: the upper half holds what a
read at -1 or beyond the end finds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import numpy as np

from .errors import OutOfBounds, SimtError, UninitialisedRead, fail
from .state import now

__all__ = ["local_array", "numpy_dtype"]


class Poison:
    """Stands for a value that does not exist: to use it is an error, to move it is not."""

    __slots__ = ("kind", "lane", "text")

    def __init__(self, kind: type[SimtError], text: str) -> None:
        self.kind, self.text, self.lane = kind, text, now.lane

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise fail(self.kind, self.text, self.lane)

    __array_ufunc__ = __array__


_USES = """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and rand or ror xor rxor
lshift rlshift rshift rrshift neg pos abs invert lt le gt ge eq ne bool int float index complex round trunc"""
for _name in _USES.split():
    setattr(Poison, f"__{_name}__", Poison.__array__)
Poison.__hash__ = object.__hash__  # type: ignore[method-assign]


def numpy_dtype(dtype: Any) -> np.dtype:
    """The NumPy dtype of a numba type or of what NumPy takes for one."""
    name = getattr(dtype, "name", None)
    return np.dtype(name if isinstance(name, str) else dtype)


@cache
def cast_to(dtype: np.dtype) -> Callable[[Any], Any]:
    """A conversion as a device does it: integers wrap."""
    kind: Any = dtype.type
    if dtype.kind not in "iu":
        return kind

    def wrap(value: Any) -> Any:
        if isinstance(value, int):
            value = np.uint64(value & 0xFFFFFFFFFFFFFFFF).astype(dtype)
        return kind(value)

    return wrap


@cache
def local_type(dtype: np.dtype) -> type[list]:
    """The class of local arrays of one dtype."""
    kind, cast, put = dtype.type, cast_to(dtype), list.__setitem__

    class Local(list):
        __slots__ = ("extent",)
        extent: int

        def __setitem__(self, i: Any, value: Any) -> None:
            if type(value) is not kind:
                value = cast(value)
            if 0 <= i < self.extent:
                put(self, i, value)
            else:
                raise fail(OutOfBounds, f"index {i} of a local array of {self.extent}")

        def __len__(self) -> int:
            return self.extent

    return Local


def local_array(shape: Any, dtype: Any, alignment: int | None = None) -> Any:
    """A new local array of uninitialised elements."""
    size = shape if isinstance(shape, int) else shape[0] if len(shape) == 1 else None
    if size is None:
        raise fail(SimtError, f"cuda.local.array({shape}): the executor has local arrays of one dimension only")
    kind, unset, beyond = described(size, dtype)
    found = kind([Poison(UninitialisedRead, unset)] * size + [Poison(OutOfBounds, beyond)] * size)
    found.extent = size  # type: ignore[attr-defined]
    return found


@cache
def described(size: int, dtype: Any) -> tuple[type[list], str, str]:
    """The class of a local array, and what its errors say."""
    name = f"a local array of {size} {numpy_dtype(dtype)}"
    unset = f"an element of {name} is read before it is written"
    return local_type(numpy_dtype(dtype)), unset, f"an index outside {name}"
