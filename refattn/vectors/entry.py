"""One case as it is written: its tensors, and its entry in the index.

    inputs     as the case hands them over, under their own names (`refattn show CASE`): q k v bias sinks keep
               dout dlse cos sin k_scale cu_seqlens_q block_table ...
    mask       uint8, 1 = may attend, (B, H, Lq, Lk), where 1 in place of B or H stands for all; lengths are in it,
               -inf of a bias is not
    of each output NAME, in the shape in which it is returned:
    value.NAME float64, what it should be
    lo.NAME, hi.NAME   in the dtype of the output
    free.NAME  uint8, left out where all is 0: 0 judged, 1 not judged (memory that does not exist), 2 may be NaN or
               infinite too, since something visible is
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..case import Case, Dense
from ..dtypes import FORMATS
from ..inputs import Problem
from ..masks import Causal
from ..memory import give_answer
from ..precision import Precision
from ..truth import Expected
from .balls import scale_of
from .stored import DTYPES, safetensors

__all__ = ["PREFIXES", "entry_of", "in_memory", "tensors_of"]

Array = np.ndarray[Any, Any]

PREFIXES = ("value.", "lo.", "hi.", "free.")


def tensors_of(problem: Problem, expected: Mapping[str, Expected]) -> dict[str, Array]:
    """All tensors of a case by name."""
    case = problem.case
    tensors = {name: in_memory(case, x) for name, x in problem.fresh().items()}
    tensors["mask"] = _mask(case)
    for name, e in expected.items():
        dtype = FORMATS[e.dtype].numpy
        value, lo, hi = (_answer(case, name, x) for x in (e.value, e.lo, e.hi))
        free = np.where(e.ignored, 1, np.where(e.nonfinite, 2, 0)).astype(np.uint8)
        gaps = _answer(case, name, np.ones_like(free)) == 0
        free = np.where(gaps, np.uint8(1), _answer(case, name, free))
        with np.errstate(invalid="ignore"):
            tensors |= {f"value.{name}": value, f"lo.{name}": lo.astype(dtype), f"hi.{name}": hi.astype(dtype)}
        if free.any():
            tensors[f"free.{name}"] = free
    return tensors


def entry_of(
    case: Case, tensors: Mapping[str, Array], precision: Precision, bound: str
) -> tuple[dict[str, Any], bytes]:  # fmt: skip
    """The entry of a case in the index, and its file."""
    file = safetensors(tensors, {"case": case.id})
    outputs = {}
    for name in sorted(case.want):
        free = tensors.get(f"free.{name}")
        x = tensors[f"lo.{name}"]
        judged = x.size if free is None else int(np.count_nonzero(free != 1))
        outputs[name] = {**_described(x), "judged": judged}
    inputs = {name: _described(x) for name, x in sorted(tensors.items()) if not name.startswith(PREFIXES)}
    contract = {"accumulate": precision.accumulate, "weights": precision.weights, "rotated": precision.rotated}
    entry = {
        "id": case.id, "why": case.why, "flags": list(case.flags), "features": sorted(case.features()),
        **{name: getattr(case, name) for name in ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv", "dtype", "out_dtype")},
        "scale": scale_of(case), "softcap": case.softcap, "score_mod": case.score_mod, "dropout": case.dropout,
        "causal": case.mask.align if isinstance(case.mask, Causal) else None,
        "storage": type(case.storage).__name__,
        "layout": case.storage.layout if isinstance(case.storage, Dense) else "BHLD",
        "contract": {**contract, "bound": bound},
        "inputs": inputs, "outputs": outputs,
        "file": f"cases/{case.id}.safetensors", "bytes": len(file), "sha256": hashlib.sha256(file).hexdigest(),
        "case": case.to_json(),
    }  # fmt: skip
    return entry, file


def _described(x: Array) -> dict[str, Any]:
    return {"dtype": DTYPES[x.dtype.name], "shape": list(x.shape)}


def in_memory(case: Case, x: Array, back: bool = False) -> Array:
    """An array with four axes in the order that they have in memory; `back`: what lies so, as BHLD."""
    if not isinstance(case.storage, Dense) or x.ndim != 4:
        return x
    order = ["BHLD".index(letter) for letter in case.storage.layout]
    return x.transpose(np.argsort(order) if back else order)


def _mask(case: Case) -> Array:
    seen = case.visibility.tile().astype(np.uint8)
    for axis in (0, 1):
        if seen.shape[axis] > 1 and (seen == seen.take([0], axis)).all():
            seen = seen.take([0], axis)
    return np.asarray(seen)


def _answer(case: Case, name: str, x: Array) -> Array:
    return give_answer(case, {name: np.asarray(x)})[name]
