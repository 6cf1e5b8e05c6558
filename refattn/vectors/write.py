"""Writes a folder of golden vectors: an index, one safetensors file for each case, a README, the index's schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..case import Case
from ..cases import FLAGS
from ..precision import preset
from . import schema
from .dyadic import problem_of
from .entry import entry_of, tensors_of
from .expected import LEFT_OUT, RIGOROUS, expected_of
from .onnx_node import expressible, write_node

__all__ = ["RULE", "index_of", "write"]

RULE = (
    "an element x, rounded to the output's dtype, passes if free == 1, or lo <= x <= hi, or free == 2 and x is not "
    "finite; where there is no free tensor, free is 0"
)


def write(folder: Path, cases: Sequence[Case], onnx: bool = False, said: Callable[[str], None] = print) -> int:
    """Write the vectors of the cases into a new or empty folder, and return how many there are.

    Left out, and said so: cases of which no bound can be written.  `onnx`: node tests too, of the cases that the
    operator Attention can express.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; pass a new folder")
    entries = []
    for case in cases:
        if case.id in LEFT_OUT:
            said(f"left out: {case.id}, whose tolerance would depend on the machine")
            continue
        problem = problem_of(case)
        tensors = tensors_of(problem, expected_of(problem, preset(case.dtype, case.out_dtype)))
        bound = "rigorous" if case.id in RIGOROUS else "sharp"
        entry, file = entry_of(case, tensors, preset(case.dtype, case.out_dtype), bound)
        (folder / "cases").mkdir(parents=True, exist_ok=True)
        (folder / entry["file"]).write_bytes(file)
        entries.append(entry)
        if onnx and expressible(problem):
            write_node(folder / "onnx" / f"test_attention_{case.id}", problem)
    folder.mkdir(parents=True, exist_ok=True)
    _write_text(folder / "index.json", index_of(entries))
    _write_text(folder / "schema.json", schema.text())
    _write_text(folder / "README.md", files(__package__).joinpath("README.md").read_text(encoding="utf-8"))
    return len(entries)


def index_of(entries: Sequence[dict[str, Any]]) -> str:
    """The index as text, one line for each case."""
    used = sorted({flag for entry in entries for flag in entry["flags"]})
    header = {
        "format": "refattn-vectors", "version": 1, "case_count": len(entries),
        "element_count": sum(output["judged"] for entry in entries for output in entry["outputs"].values()),
        "rule": RULE, "flags": {flag: FLAGS.get(flag, "") for flag in used},
    }  # fmt: skip
    lines = [json.dumps(header, indent=1, ensure_ascii=True, allow_nan=False)[:-2] + ',\n "cases": [']
    lines += [",\n".join("  " + json.dumps(entry, ensure_ascii=True, allow_nan=False) for entry in entries), " ]\n}\n"]
    return "\n".join(lines)


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))
