"""From a file of tensors to a question: arrays with plain names, or a dump of `refattn check --dump`."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from .case import Case
from .dtypes import FORMATS, format_of
from .inputs import Problem
from .judgement import Question
from .judging import INPUTS, JUDGED, contract_of, question
from .precision import Conventions
from .tensors import BadFile, read

__all__ = ["question_of_file"]

Array = np.ndarray[Any, Any]


def question_of_file(path: Path, *, ignore: Sequence[str] = (), **options: Any) -> Question:
    """The question of a .safetensors or .npz file: the arrays have the names of `judge_arrays`.

    A file of `refattn check --dump` (outputs as got.NAME, a case in its metadata) brings its own case, with
    all that a case may have; then only ignore, contract, contract_fields and conventions may be given.
    Names that match `ignore` are left out, any other unknown one is refused.
    """
    tensors = read(path)
    dumped = any(name.startswith("got.") for name in tensors.arrays)
    parts = ("value.", "lo.", "hi.") if dumped else ()
    arrays = {
        name: x for name, x in tensors.arrays.items()
        if not name.startswith(parts or "\0") and not any(fnmatch.fnmatchcase(name, glob) for glob in ignore)
    }  # fmt: skip
    if dumped:
        return _of_dump(path, arrays, tensors.metadata, options)
    unknown = [name for name in arrays if name not in INPUTS + JUDGED]
    if unknown:
        raise BadFile(
            f"{path}: {unknown[0]} is no array of attention, which are {' '.join(INPUTS + JUDGED)}; rename it, or "
            f"leave it out with ignore={unknown[0]}"
        )
    if "case" in tensors.metadata and options.get("case") is None:
        options["case"] = _json_object(path, tensors.metadata["case"])
    return question(arrays, **{"name": path.stem, **options})


def _of_dump(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str], options: dict[str, Any]) -> Question:
    contract = {n: options.pop(n) for n in ("contract", "contract_fields", "conventions") if n in options}
    stated = [n for n, x in options.items() if x is not None and not (n == "layout" and x == "BHLD")]
    if stated:
        raise ValueError(f"{stated[0]}={options[stated[0]]!r} beside {path}, which brings its own case; leave it out")
    if "case" not in metadata:
        raise BadFile(f"{path} has outputs named got.NAME but no case in its metadata; rename them NAME")
    case = Case.from_json(_json_object(path, metadata["case"]))
    got = {name.removeprefix("got."): x for name, x in arrays.items() if name.startswith("got.")}
    given = {name: x for name, x in arrays.items() if not name.startswith("got.")}
    want = case.want & set(got)
    if not want:
        raise BadFile(f"{path} has got.{' got.'.join(got)}, must have one of {' '.join(sorted(case.want))}; dump again")
    case = replace(case, want=want)
    got = {name: x for name, x in got.items() if name in want or name == "keep"}
    rows = (case.B, case.H, case.Lq)
    shapes: dict[str, tuple[int, ...]] = {"q": (*rows, case.D), "k": (case.B, case.Hkv, case.Lk, case.D)}
    shapes["v"] = (case.B, case.Hkv, case.Lk, case.Dv)
    shapes |= {"bias": case.bias_shape} if case.bias is not None else {}
    shapes |= {"sinks": (case.H,)} if case.sinks is not None else {}
    shapes |= {"keep": (*rows, case.Lk)} if case.dropout is not None else {}
    shapes |= {"dout": (*rows, case.Dv)} if case.backward else {}
    optional = {"dout": (*rows, case.Dv), "dlse": rows}
    exact = {"float64"} if case.rotary is not None or case.quant is not None else set()
    for name, shape in {**optional, **shapes}.items():
        if name not in given:
            if name in shapes:
                raise BadFile(f"{path}: {name} is missing, which its case needs, {shape}; dump it again")
            continue
        if given[name].shape != shape:
            raise BadFile(f"{path}: {name}.shape={given[name].shape} must be {shape}, as its case says; dump it again")
        allowed = {"keep": {"bool"}, "bias": {case.bias.dtype if case.bias else ""}}.get(name, {case.dtype} | exact)
        if given[name].dtype.name not in (set(FORMATS) if name in optional else allowed):
            names = " or ".join(sorted(allowed))
            raise BadFile(f"{path}: {name}.dtype={given[name].dtype} must be {names}; dump it again")
    logical = {name: x for name, x in given.items() if name in shapes or name in optional}
    if len(logical) < len(given):
        other = min(set(given) - set(logical))
        raise BadFile(f"{path}: {other} is nothing that its case has; leave it out with ignore={other}")
    for name, x in got.items():
        if name != "keep":
            format_of(x.dtype, f"got.{name}.dtype")
    made = contract_of(case, contract.get("contract", "preset"), contract.get("contract_fields"))
    return Question(Problem(case, logical), got, made, contract.get("conventions") or Conventions())


def _json_object(path: Path, text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: case in its metadata is no JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise BadFile(f"{path}: case in its metadata must be a JSON object")
    return data
