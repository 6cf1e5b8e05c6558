"""Arrays to the bytes of a safetensors file: the same bytes for the same arrays, whatever library is installed.

8 bytes, the length of a JSON header, little-endian; the header, padded with spaces to a multiple of 8; the
tensors without holes (huggingface/safetensors, README, "Format").  Tensors of wide numbers come first, so that each
begins at a multiple of its own size and a reader may map the file and point into it.  Every NaN has the one bit
pattern that is positive and quiet: which one arithmetic makes differs between processors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dtypes import FORMATS

__all__ = ["DTYPES", "safetensors", "whole"]

Array = np.ndarray[Any, Any]

DTYPES: dict[str, str] = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int32": "I32",
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
"""safetensors' name of each NumPy dtype that is written"""

_NAN = {
    "float64": 0x7FF8000000000000, "float32": 0x7FC00000, "float16": 0x7E00, "bfloat16": 0x7FC0,
    "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E,
}  # fmt: skip


def whole(x: Array) -> Array:
    """Contiguous, little-endian, in its own shape, with one NaN."""
    x = np.ascontiguousarray(x).reshape(x.shape)
    if x.dtype.name not in FORMATS:
        return x.astype(x.dtype.newbyteorder("<"), copy=False)
    bits = x.copy().view(f"u{x.dtype.itemsize}")
    bits[np.isnan(x)] = _NAN[x.dtype.name]
    return bits.view(x.dtype).astype(x.dtype.newbyteorder("<"), copy=False)


def safetensors(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """The file of named arrays, in the order of the size of their numbers, then of their names."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    data, at = [], 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name)):
        x = whole(arrays[name])
        header[name] = {"dtype": DTYPES[x.dtype.name], "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        data.append(x.tobytes())
        at += x.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data)
