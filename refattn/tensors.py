"""Named arrays out of a .safetensors or .npz file, without torch and without running anything that is in it.

A safetensors file is 8 bytes, the little-endian length of a JSON header that gives each tensor's
dtype, shape and place, and then their bytes without holes (huggingface/safetensors, README,
"Format").  It is read here and not by `safetensors.numpy`, which knows no bfloat16 and no float8, and
it is mapped, not loaded, so that a few rows of a huge tensor cost no memory.  Of an .npz file pickled
objects are refused.  A file that is not whole is refused as a whole.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .dtypes import FORMATS

__all__ = ["BadFile", "Tensors", "read"]

Array = np.ndarray[Any, Any]

_STORED: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": FORMATS["bfloat16"].dtype,
    "F8_E4M3": FORMATS["float8_e4m3fn"].dtype, "F8_E5M2": FORMATS["float8_e5m2"].dtype,
}  # fmt: skip
_LONGEST_HEADER = 100_000_000


class BadFile(ValueError):
    """A file that holds no tensors that can be trusted."""


class Tensors(NamedTuple):
    """The arrays of a file by name, and the texts that were written beside them."""

    arrays: Mapping[str, Array]
    metadata: Mapping[str, str]


def read(path: Path) -> Tensors:
    """The tensors of FILE.safetensors or FILE.npz; raises `BadFile`, which says what is wrong and what to do.

    A `dtypes` text in the metadata, as `refattn check --dump` writes it, says what a uint8 tensor is.
    """
    if path.suffix not in (".safetensors", ".npz"):
        raise BadFile(f"{path} must be a .safetensors or .npz file; torch: safetensors.torch.save_file(tensors, FILE)")
    try:
        return _safetensors(path) if path.suffix == ".safetensors" else _npz(path)
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or error}; pass a file that can be read") from None


def _safetensors(path: Path) -> Tensors:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            raise BadFile(f"{path}: a header of {length} bytes does not fit in its {size}; write or copy it again")
        text = file.read(length)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_no_twins)
        metadata = header.pop("__metadata__", {})
        texts = all(isinstance(x, str) for x in metadata.values())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadFile(f"{path}: its header is no JSON object of tensors ({error}); write the file again") from None
    if not texts:
        raise BadFile(f"{path}: __metadata__ must hold texts only; write the file again")
    places = [_place(path, name, entry) for name, entry in header.items()]
    end = 0
    for name, _, _, begin, stop in sorted(places, key=lambda place: place[3:]):
        if begin != end:
            raise BadFile(f"{path}: {name} begins at byte {begin} of the data, must at {end}; write the file again")
        end = stop
    if 8 + length + end != size:
        cut = "is cut off" if 8 + length + end > size else "has bytes of no tensor"
        raise BadFile(f"{path} of {size} bytes must have {8 + length + end}: it {cut}; write or copy it again")
    raw: Array = np.memmap(path, np.uint8, "r") if end else np.zeros(size, np.uint8)
    data = np.asarray(raw)[8 + length :]
    arrays = {name: data[begin:stop].view(dtype).reshape(shape) for name, dtype, shape, begin, stop in places}
    return Tensors(_as_they_are(path, arrays, metadata), metadata)


def _place(path: Path, name: str, entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int, int]:
    try:
        kind, shape, (begin, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise BadFile(f"{path}: {name} must have dtype, shape and data_offsets; write the file again") from None
    if not isinstance(kind, str) or kind not in _STORED:
        raise BadFile(f"{path}: {name} of dtype {kind!r} cannot be read; store one of {', '.join(_STORED)}")
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, stop)):
        raise BadFile(f"{path}: {name} with shape {shape} at {[begin, stop]} must have ints >= 0; write the file again")
    dtype = np.dtype(_STORED[kind])
    if stop - begin != math.prod(shape) * dtype.itemsize:
        raise BadFile(
            f"{path}: {name} of {kind} {shape} has {stop - begin} bytes, must have "
            f"{math.prod(shape) * dtype.itemsize}; write the file again"
        )
    return name, dtype, shape, begin, stop


def _no_twins(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{name!r} is there twice")
        made[name] = value
    return made


def _as_they_are(path: Path, arrays: dict[str, Array], metadata: Mapping[str, str]) -> dict[str, Array]:
    """Arrays stored as uint8 in the dtype that the metadata say."""
    known = {"bool": np.dtype(np.bool_)} | {f.name: f.dtype for f in FORMATS.values() if f.dtype.itemsize == 1}
    try:
        said = dict(json.loads(metadata.get("dtypes", "{}")))
        dtypes = {name: known[kind] for name, kind in said.items() if name in arrays}
    except (ValueError, TypeError, KeyError) as error:
        raise BadFile(f"{path}: dtypes in its metadata must name {', '.join(known)}: {error}") from None
    for name, dtype in dtypes.items():
        if arrays[name].dtype.itemsize != 1:
            raise BadFile(f"{path}: {name} is {arrays[name].dtype}, must be uint8 to stand for {dtype.name}")
        arrays[name] = arrays[name].view(dtype)
    for name, x in arrays.items():
        if x.dtype == np.bool_ and x.size and x.view(np.uint8).max() > 1:
            raise BadFile(f"{path}: {name} holds bytes other than 0 and 1, must be bool; write the file again")
    return arrays


def _npz(path: Path) -> Tensors:
    arrays: dict[str, Array] = {}
    name = "the archive"
    try:
        with path.open("rb") as file:
            start = file.read(6)
        if start == np.lib.format.MAGIC_PREFIX:
            raise BadFile(f"{path} holds one array, must be an archive; use np.savez(FILE, q=q, k=k, ...)")
        if start[:1] != b"\x80" and not zipfile.is_zipfile(path):  # which a pickle begins with
            raise BadFile(f"{path} is no archive of np.savez, or cut off; write or copy it again")
        archive = np.load(path, allow_pickle=False)
        with archive:
            for name in archive.files:
                if name in arrays:
                    raise BadFile(f"{path}: {name} is there twice; write the file again")
                arrays[name] = np.asarray(archive[name])
    except BadFile:
        raise
    except (ValueError, EOFError, KeyError, SyntaxError, MemoryError, NotImplementedError, RuntimeError, AttributeError,
            zipfile.BadZipFile, zlib.error) as error:  # fmt: skip
        if "pickle" in str(error):
            raise BadFile(f"{path}: {name} is pickled, which may run code; store plain arrays of numbers") from None
        raise BadFile(f"{path}: {name} cannot be read, cut off or damaged ({error}); write the file again") from None
    return Tensors(arrays, {})
