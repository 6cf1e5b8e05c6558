"""Arrays as kernels index them, in shared and in global memory: bounds, races and uninitialised reads are checked.

An index is looked up in a table from index to place, which fills as a kernel goes, so that bounds are checked once for
each index.  A place counts elements from the beginning of the memory; `ratio` cells of the detector make an element.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .errors import Misaligned, OutOfBounds, SimtError, fail
from .global_memory import SEVERAL
from .local_arrays import cast_to, numpy_dtype
from .races import UNSET, joined
from .state import now

__all__ = ["Array", "GlobalArray", "LoneGlobalArray", "SharedArray", "bare", "shared_array"]

LARGEST_TABLE = 1 << 20


class Array:
    """A view of memory; `array` is the same as a NumPy array, `data` all elements of the memory in a row."""

    __slots__ = ("array", "data", "dtype", "memory", "ndim", "parts", "places", "ratio", "reads", "shape", "size",
                 "start", "steps", "strides", "writes")  # fmt: skip

    def __init__(self, array: np.ndarray, memory: Any) -> None:
        self.array, self.memory = array, memory
        self.shape, self.strides, self.ndim, self.size, self.dtype = (
            array.shape, array.strides, array.ndim, array.size, array.dtype,
        )  # fmt: skip
        n = self.dtype.itemsize
        every = memory.bytes
        self.data = every[: len(every) // n * n].view(self.dtype)
        self.start, rest = divmod(array.__array_interface__["data"][0] - every.__array_interface__["data"][0], n)
        if rest or any(s % n for s in self.strides):
            raise Misaligned(f"an array of {self.dtype} with strides {self.strides} is not aligned to {n} bytes")
        self.steps = tuple(s // n for s in self.strides)
        self.places: dict[Any, int] = {}
        self.parts: dict[Any, Array] = {}
        self.follow()

    def follow(self) -> None:
        """Takes up the cells of the memory's detector."""
        raise NotImplementedError

    @property
    def kind(self) -> type[Array]:
        """The class of parts."""
        return next(c for c in (SharedArray, LoneGlobalArray, GlobalArray) if isinstance(self, c))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def locate(self, index: Any) -> int | None:
        """The place of an element, which enters the table; None if the index is of a part of the array."""
        indices = index if type(index) is tuple else (index,)
        place, whole = self.start, len(indices) == self.ndim
        for i, n, step in zip(indices, self.shape, self.steps, strict=False):
            if isinstance(i, slice):
                whole = False
            elif 0 <= i < n:
                place += int(i) * step
            else:
                raise fail(OutOfBounds, f"index {index} of an array of shape {self.shape} is out of bounds")
        if whole:
            if len(self.places) > LARGEST_TABLE:
                self.places.clear()
            self.places[index] = place
            return place
        if len(indices) > self.ndim:
            raise fail(OutOfBounds, f"index {index} has more dimensions than an array of shape {self.shape}")
        return None

    def place_of(self, index: Any) -> int:
        """The place of an element that is to be written."""
        place = self.locate(index)
        if place is None:
            raise fail(SimtError, f"index {index} of an array of shape {self.shape} is of a part: assign its elements")
        return place

    def part(self, index: Any) -> Array:
        """A view of a part."""
        key = str(index)
        if key not in self.parts:
            self.parts[key] = self.kind(self.array[index], self.memory)
        return self.parts[key]

    def put(self, place: int, value: Any) -> None:
        """Converts as a device does."""
        try:
            self.data[place] = value
        except OverflowError:
            self.data[place] = cast_to(self.dtype)(value)


class SharedArray(Array):
    """An array in shared memory whose elements are cells of the detector."""

    __slots__ = ()

    def __init__(self, array: np.ndarray, memory: Any) -> None:
        memory.shadow.split(array.itemsize.bit_length() - 1)
        super().__init__(array, memory)
        memory.shadow.arrays.append(self)

    def follow(self) -> None:
        shadow = self.memory.shadow
        self.reads, self.writes = shadow.reads, shadow.writes
        self.__class__ = SharedArray if self.dtype.itemsize == 1 << shadow.shift else WideSharedArray

    def __getitem__(self, index: Any) -> Any:
        try:
            place = self.places[index]
        except (KeyError, TypeError):
            found = self.locate(index)
            if found is None:
                return self.part(index)
            place = found
        r = self.reads[place]
        if r < now.many:  # else several warps have read it in this interval, and a write since would have raised
            lane = now.lane
            if r != lane.warp_read and r != lane.read:
                if self.writes[place] >= now.floor:
                    self.memory.shadow.may_read(place, lane)
                self.reads[place] = joined(r, lane)
        return self.data[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            place = self.places[index]
        except (KeyError, TypeError):
            place = self.place_of(index)
        lane, floor = now.lane, now.floor
        if floor <= self.writes[place] < UNSET or self.reads[place] >= floor:
            self.memory.shadow.may_write(place, lane)
        self.writes[place] = lane.stamp
        try:
            self.data[place] = value
        except OverflowError:
            self.put(place, value)


class WideSharedArray(SharedArray):
    """One whose elements are several cells."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        place = self.locate(index)
        if place is None:
            return self.part(index)
        n = self.dtype.itemsize
        self.memory.shadow.read(place * n, n)
        return self.data[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        place, n = self.place_of(index), self.dtype.itemsize
        self.memory.shadow.write(place * n, n)
        self.put(place, value)


class GlobalArray(Array):
    """An array in global memory whose elements are cells of the detector; `memory` is its region."""

    __slots__ = ()

    def __init__(self, array: np.ndarray, memory: Any) -> None:
        memory.split(array.itemsize & -array.itemsize)
        super().__init__(array, memory)
        memory.followers.append(self)

    def follow(self) -> None:
        region = self.memory
        self.reads, self.writes = region.readers, region.writers
        self.ratio = self.dtype.itemsize >> region.shift
        self.__class__ = GlobalArray if self.ratio == 1 else WideGlobalArray

    def __getitem__(self, index: Any) -> Any:
        try:
            place = self.places[index]
        except (KeyError, TypeError):
            found = self.locate(index)
            if found is None:
                return self.part(index)
            place = found
        r = self.reads[place]
        if r != SEVERAL and r != now.number:
            self.memory.read(place, now.number)
        return self.data[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            place = self.places[index]
        except (KeyError, TypeError):
            place = self.place_of(index)
        if not self.memory.writable:
            raise fail(OutOfBounds, f"index {index} of a read-only array is written")
        if now.number:
            for cell in range(place * self.ratio, (place + 1) * self.ratio):
                self.memory.write(cell, now.number)
        self.put(place, value)


class WideGlobalArray(GlobalArray):
    """One whose elements are several cells."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        place = self.locate(index)
        if place is None:
            return self.part(index)
        for cell in range(place * self.ratio, (place + 1) * self.ratio):
            if self.reads[cell] not in (SEVERAL, now.number):
                self.memory.read(cell, now.number)
        return self.data[place]


class LoneGlobalArray(GlobalArray):
    """One in a launch of one block, where no other block can race."""

    __slots__ = ()

    def follow(self) -> None:
        """No detector."""

    def __getitem__(self, index: Any) -> Any:
        try:
            place = self.places[index]
        except (KeyError, TypeError):
            found = self.locate(index)
            if found is None:
                return self.part(index)
            place = found
        return self.data[place]


def bare(argument: Any) -> np.ndarray | None:
    """The NumPy array behind an argument of a launch, None if it is none."""
    array = getattr(argument, "_ary", argument)
    return array if isinstance(array, np.ndarray) and array.ndim else None


def shared_array(shape: Any, dtype: Any, alignment: int | None = None) -> SharedArray:
    """`cuda.shared.array`: one array for each place in the kernel; shape 0 is the dynamic shared memory."""
    dtype = numpy_dtype(dtype)
    shared = now.block.shared
    frame = sys._getframe(1)
    key: Any = dtype if isinstance(shape, int) and shape == 0 else (frame.f_code, frame.f_lasti)
    found = shared.statics.get(key)
    if found is None:
        if key is dtype:
            start, shape = 0, (shared.dynamic // dtype.itemsize,)
        else:
            shape = (shape,) if isinstance(shape, int) else tuple(shape)
            start = shared.allocate(int(np.prod(shape)) * dtype.itemsize, max(alignment or 1, dtype.itemsize))
        count = int(np.prod(shape)) * dtype.itemsize
        found = SharedArray(shared.bytes[start : start + count].view(dtype).reshape(shape), shared)
        shared.statics[key] = found
    return found
