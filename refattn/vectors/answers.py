"""Judges answers by golden vectors: a file ID.safetensors of each case, with out, lse, dq, ... as the index says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..dtypes import FORMATS, round_to
from ..judge import ratios
from ..tensors import BadFile, read
from .folder import Folder, Vector

__all__ = ["Verdict", "judged", "judged_folder"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Verdict:
    """What became of one case: passed, failed, or unanswered; `text` says where and how far.

    `missing` are the outputs that the case wants and the answer has not, which say nothing about those.
    """

    id: str
    status: str
    text: str = ""
    ratio: float = 0.0
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        without = f"without {' '.join(self.missing)}; " if self.missing else ""
        return f"{self.status:<10} {self.id}  {without}{self.text}".rstrip()


def judged_folder(folder: Folder, answers: Path) -> list[Verdict]:
    """The verdict of each case; one of which there is no file is unanswered."""
    verdicts = []
    for entry in folder.index["cases"]:
        path = answers / f"{entry['id']}.safetensors"
        if not os.path.lexists(path):  # a link that leads nowhere is an answer that cannot be read
            verdicts.append(Verdict(entry["id"], "unanswered"))
            continue
        vector = folder.vector(entry)
        try:
            verdicts.append(judged(vector, read(path).arrays))
        except BadFile as error:
            verdicts.append(Verdict(entry["id"], "failed", str(error)))
    return verdicts


def judged(vector: Vector, answer: Mapping[str, Array]) -> Verdict:
    """All outputs that are there, of which there must be one, and out where the case wants it."""
    id, outputs = vector.entry["id"], vector.entry["outputs"]
    unknown = sorted(set(answer) - set(outputs))
    if unknown or not answer or "out" in outputs and "out" not in answer:
        what = f"{unknown[0]} is no output of it" if unknown else f"{'out' if answer else 'every output'} is missing"
        return Verdict(id, "failed", f"{what}; it wants {' '.join(sorted(outputs))}")
    worst, texts = 0.0, []
    for name, x in answer.items():
        ratio, text = _judged(vector, name, x)
        worst = max(worst, ratio)
        texts += [text] if text else []
    missing = tuple(sorted(set(outputs) - set(answer)))
    status, text = ("failed", "; ".join(texts)) if texts else ("passed", f"largest ratio {worst:.3g}")
    return Verdict(id, status, text, worst, missing)


def _judged(vector: Vector, name: str, x: Array) -> tuple[float, str]:
    """The largest ratio of an output, and what is wrong with it."""
    value, lo, hi = (vector.tensors[f"{kind}.{name}"].astype(np.float64) for kind in ("value", "lo", "hi"))
    dtype = vector.tensors[f"lo.{name}"].dtype.name
    if x.shape != value.shape:
        return np.inf, f"{name}.shape={x.shape} must be {value.shape}"
    if x.dtype.name not in FORMATS or FORMATS[x.dtype.name].bits < FORMATS[dtype].bits:
        return np.inf, f"{name}.dtype={x.dtype.name} must be {dtype}, or wider"
    got, free = round_to(x.astype(np.float64), dtype), vector.free(name)
    pardoned = (free == 1) | (free == 2) & ~np.isfinite(got)
    ratio = np.where(pardoned, 0.0, ratios(got, value, lo, hi))
    if (ratio <= 1).all():
        return float(ratio.max(initial=0.0)), ""
    at = np.unravel_index(int(ratio.argmax()), ratio.shape)
    place = ", ".join(str(int(n)) for n in at)
    text = (
        f"{name}[{place}] = {got[at]:.9g}, should be {value[at]:.9g} in [{lo[at]:.9g}, {hi[at]:.9g}], ratio "
        f"{ratio[at]:.4g}, {np.count_nonzero(~(ratio <= 1)):,} of {vector.entry['outputs'][name]['judged']:,} elements"
    )
    return float(ratio[at]), text
