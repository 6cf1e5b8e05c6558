"""Reads a folder of golden vectors: nothing of it is trusted before it is checked, and nothing in it is run.

The index is JSON and is held against the schema; a file is one named in it, inside the folder, of its size and
sha256; its tensors have the names, dtypes and shapes that the index says (`refattn.tensors` refuses headers that do
not fit).  What is wrong is said by name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..case import Case
from ..tensors import read
from . import schema
from .schema import BadIndex
from .stored import DTYPES

__all__ = ["Folder", "Vector", "opened"]

Array = np.ndarray[Any, Any]

_LARGEST_INDEX = 1 << 26
_LARGEST = 1 << 28
"""pairs of query and key of one case"""


@dataclass(frozen=True)
class Vector:
    """One case as it is stored: its entry in the index, the case itself, its tensors."""

    entry: Mapping[str, Any]
    case: Case
    tensors: Mapping[str, Array]

    def free(self, name: str) -> Array:
        """free.NAME, or zeros."""
        return self.tensors.get(f"free.{name}", np.zeros(self.tensors[f"lo.{name}"].shape, np.uint8))


@dataclass(frozen=True)
class Folder:
    """An index that was checked; `vector` reads the tensors of one of its entries."""

    path: Path
    index: Mapping[str, Any]

    def vector(self, entry: Mapping[str, Any]) -> Vector:
        """The case of an entry; raises `BadIndex`, or `BadFile` of `refattn.tensors`."""
        path = self.path / entry["file"]
        if not path.is_file() or not path.resolve().is_relative_to(self.path.resolve()):
            raise BadIndex(f"{path} must be a file in {self.path}; write the folder or fetch it again")
        size = path.stat().st_size
        if size != entry["bytes"]:
            raise BadIndex(f"{path} has {size} bytes, must have {entry['bytes']}; fetch it again")
        if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
            raise BadIndex(f"{path} has not the sha256 of the index; fetch it again")
        tensors = read(path).arrays
        _check_tensors(path, tensors, entry)
        return Vector(entry, _case(entry), tensors)


def opened(path: Path) -> Folder:
    """The folder, its index checked; raises `BadIndex`."""
    file = path / "index.json"
    try:
        if file.stat().st_size > _LARGEST_INDEX:
            raise BadIndex(f"{file} has more than {_LARGEST_INDEX:,} bytes, is no index")
        index = json.loads(file.read_bytes(), object_pairs_hook=_no_twins, parse_constant=_no_constant)
    except OSError as error:
        raise BadIndex(f"{file}: {error.strerror or error}; pass a folder of `refattn vectors write`") from None
    except BadIndex:
        raise
    except (ValueError, RecursionError) as error:
        raise BadIndex(f"{file} is no JSON: {error}") from None
    schema.check(index)
    entries = index["cases"]
    _same("case_count", index["case_count"], len(entries))
    judged = sum(output["judged"] for entry in entries for output in entry["outputs"].values())
    _same("element_count", index["element_count"], judged)
    ids = [entry["id"] for entry in entries]
    if len(set(ids)) < len(ids):
        raise BadIndex(f"{file}: {max(ids, key=ids.count)} is there twice")
    return Folder(path, index)


def _same(name: str, said: Any, found: Any) -> None:
    if said != found:
        raise BadIndex(f"index.{name}={said} must be {found}, as its cases say")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"a name is there twice among {', '.join(name for name, _ in pairs)[:60]}")
    return made


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _check_tensors(path: Path, tensors: Mapping[str, Array], entry: Mapping[str, Any]) -> None:
    said: dict[str, dict[str, Any]] = dict(entry["inputs"])
    for name, output in entry["outputs"].items():
        like = {"shape": output["shape"]}
        said |= {f"value.{name}": {**like, "dtype": "F64"}, f"free.{name}": {**like, "dtype": "U8"}}
        said |= {f"{end}.{name}": {**like, "dtype": output["dtype"]} for end in ("lo", "hi")}
    missing = [name for name in said if name not in tensors and not name.startswith("free.")]
    unknown = [name for name in tensors if name not in said]
    if missing or unknown:
        raise BadIndex(f"{path}: {(missing or unknown)[0]} is {'missing' if missing else 'not in the index'}")
    for name, x in tensors.items():
        found = {"dtype": DTYPES.get(x.dtype.name, x.dtype.name), "shape": list(x.shape)}
        if found != {"dtype": said[name]["dtype"], "shape": said[name]["shape"]}:
            raise BadIndex(f"{path}: {name} is {found['dtype']} {found['shape']}, the index says {said[name]}")


def _case(entry: Mapping[str, Any]) -> Case:
    """The case of the entry, which says the same as the entry itself."""
    what, said = f"index: case {entry['id']}", entry["case"]
    for name in ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv"):
        if said.get(name, Case.__dataclass_fields__[name].default) != entry[name]:
            raise BadIndex(f"{what} says {name}={said.get(name)} and {name}={entry[name]}")
    if entry["B"] * entry["H"] * max(entry["Lq"], 1) * max(entry["Lk"], 1) > _LARGEST:
        raise BadIndex(f"{what} has more than {_LARGEST:,} pairs of query and key")
    try:
        case = Case.from_json(said)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise BadIndex(f"{what} makes no problem: {error}") from None
    if case.id != entry["id"] or case.want != set(entry["outputs"]):
        raise BadIndex(f"{what} is {case.id} with {' '.join(sorted(case.want))} in its own words")
    return case
