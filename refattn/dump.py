"""The tensors of a failing case, in one safetensors file.

Inputs have their own names; of each output there are `got.out`, and in float64 `value.out`,
`lo.out`, `hi.out`.  The metadata hold the case as JSON under `case`, and under `dtypes` the real
dtype of float8 arrays, which are stored as uint8 since `safetensors.numpy` cannot load them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .judge import Evidence

__all__ = ["dump"]

Array = np.ndarray[Any, Any]


def dump(evidence: Evidence, folder: Path, spec: str) -> Path:
    """Write FOLDER/CASE.safetensors and return its path."""
    from safetensors.numpy import save_file

    arrays = dict(evidence.problem.logical)
    for name, x in evidence.got.items():
        arrays[f"got.{name}"] = x
    for name, expected in evidence.expected.items():
        arrays[f"value.{name}"] = expected.value
        arrays[f"lo.{name}"] = expected.lo
        arrays[f"hi.{name}"] = expected.hi
    small = {name: x.dtype.name for name, x in arrays.items() if x.dtype.itemsize == 1}
    stored = {name: _whole(x.view(np.uint8) if name in small else x) for name, x in arrays.items()}
    case = evidence.problem.case
    path = folder / f"{case.id}.safetensors"
    metadata = {"case": json.dumps(case.to_json()), "implementation": spec, "dtypes": json.dumps(small)}
    save_file(stored, path, metadata=metadata)
    return path


def _whole(x: Array) -> Array:
    """Contiguous, in its own shape: NumPy's function makes a scalar an array of one."""
    return np.ascontiguousarray(x).reshape(x.shape)
