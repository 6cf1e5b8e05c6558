"""Verifies a folder of golden vectors against this package: a second derivation of all that is in it.

Of each case, after its file was checked (`folder`):

- its inputs, handed over anew from their dense form, and its mask are those in the file, byte for byte;
- `refattn.truth`, by NumPy and without ball arithmetic, lies in every interval, and judges the same elements;
- the honest kernel passes;
- kernels with the bugs that the case is for: how many of them fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import streaming
from ..case import Case
from ..dtypes import round_to
from ..inputs import Problem
from ..inputs.transforms import rotated
from ..judge import ratios
from ..memory import take
from ..mutants import MUTANTS
from ..precision import preset
from ..quantise import dequantise
from ..tensors import BadFile
from ..truth import truth
from .answers import judged
from .entry import PREFIXES, in_memory, tensors_of
from .folder import Folder, Vector
from .schema import BadIndex
from .stored import whole

__all__ = ["Verified", "problem_from", "verify"]

Array = np.ndarray[Any, Any]


@dataclass
class Verified:
    """What was found: faults by case, and of the mutants that were run how often each failed."""

    faults: dict[str, str] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)
    cases: int = 0

    @property
    def good(self) -> bool:
        """No fault, and if bugs were tried at all, some were found."""
        return not self.faults and (not self.killed or any(self.killed.values()))


def verify(folder: Folder, said: Callable[[str], None] = print) -> Verified:
    """Verify every case, and say what is wrong as it is found."""
    found = Verified()
    for entry in folder.index["cases"]:
        found.cases += 1
        try:
            vector = folder.vector(entry)
            fault = next(_faults(vector), None)
            if fault is None:
                _try_mutants(vector, found.killed)
        except (BadIndex, BadFile) as error:
            fault = str(error)
        if fault is not None:
            found.faults[entry["id"]] = fault
            said(f"wrong  {entry['id']}: {fault}")
    return found


def problem_from(vector: Vector) -> Problem:
    """The problem that the stored inputs make."""
    case = vector.case
    given = {n: in_memory(case, x, back=True) for n, x in vector.tensors.items()
             if not n.startswith(PREFIXES) and n != "mask"}  # fmt: skip
    try:
        dense = take(case, given)
        stored: dict[str, Array] = {}
        if case.quant is not None:
            for name in (n for n in "qkv" if f"{n}_scale" in dense):
                codes, scale = dense[name], dense[f"{name}_scale"]
                stored |= {name: codes, f"{name}_scale": scale}
                dense[name] = dequantise(codes, scale, case.quant.kind)
        stored |= rotated(case, dense)
        known = ("q", "k", "v", "bias", "sinks", "keep", "dout", "dlse")
        return Problem(case, {name: dense[name] for name in known if name in dense}, stored)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise BadIndex(f"{vector.entry['file']}: its inputs make no problem of their case: {error}") from None


def _faults(vector: Vector) -> Iterator[str]:
    """What is wrong with a case, one after the other."""
    case, problem = vector.case, problem_from(vector)
    precision = preset(case.dtype, case.out_dtype)
    expected = truth(problem, precision)
    again = tensors_of(problem, expected)
    for name, x in vector.tensors.items():
        if not name.startswith(PREFIXES) and (name not in again or whole(again[name]).tobytes() != x.tobytes()):
            yield f"{name} is not what its case says"
    for name in sorted(case.want):
        value = again[f"value.{name}"]
        lo, hi = (vector.tensors[f"{end}.{name}"].astype(np.float64) for end in ("lo", "hi"))
        free = vector.free(name)
        if not np.array_equal(free, again.get(f"free.{name}", np.zeros_like(free))):
            yield f"free.{name} does not fit its case"
        y = round_to(value, expected[name].dtype)
        inside = (free == 1) | (free == 2) & ~np.isfinite(y) | (ratios(y, y, lo, hi) <= 1)
        if not inside.all():
            at = tuple(int(n) for n in np.argwhere(~inside)[0])
            yield f"{name}{list(at)} = {y[at]} by refattn.truth is not in [{lo[at]}, {hi[at]}]"
    verdict = judged(vector, _answer(streaming.implementation, case, problem))
    if verdict.status != "passed":
        yield f"the honest kernel fails: {verdict.text}"


def _answer(kernel: Any, case: Case, problem: Problem) -> Mapping[str, Array]:
    answer: Mapping[str, Array] = kernel(case, problem.fresh())
    return {name: x for name, x in answer.items() if name in case.want}


def _try_mutants(vector: Vector, killed: dict[str, int]) -> None:
    """Count, by name, how often a kernel with a bug that the case is for fails."""
    case, problem = vector.case, problem_from(vector)
    for name, mutant in MUTANTS.items():
        if mutant.flag not in case.flags or not mutant.semantic or not mutant.separates(case):
            continue
        killed.setdefault(name, 0)
        try:
            killed[name] += judged(vector, _answer(mutant.implementation, case, problem)).status != "passed"
        except Exception:  # a bug that raises shows
            killed[name] += 1
