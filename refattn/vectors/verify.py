"""Verifies a folder of golden vectors against this package: a second derivation of all that is in it.

Of each case, after its file was checked (`folder`):

- it is the case of that id in `refattn.cases`, if there is one, with the inputs that are drawn for it;
- its inputs, handed over anew from their dense form, and its mask are those in the file, byte for byte;
- its entry in the index is what is written of such a case and such tensors;
- `refattn.truth`, by NumPy and without ball arithmetic, lies in every interval, judges the same elements, and agrees
  with value.NAME within its own error;
- no interval is wider or narrower than the one of `refattn.truth`, but for a tolerance rounded up to few bits;
- the honest kernel passes;
- kernels with the bugs that the case is for: how many of them fail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .. import streaming
from ..case import Case
from ..cases import CASES, FLAGS
from ..dtypes import round_to
from ..inputs import Problem
from ..inputs.transforms import rotated
from ..judge import ratios
from ..memory import give_answer, take
from ..mutants import MUTANTS
from ..precision import Conventions, Precision, preset
from ..quantise import dequantise
from ..tensors import BadFile
from ..truth import Expected
from ..truth.finish import finish
from ..truth.solve import Truth
from .answers import judged
from .dyadic import problem_of
from .entry import PREFIXES, entry_of, in_memory, tensors_of
from .expected import RIGOROUS
from .folder import Folder, Vector
from .schema import BadIndex
from .stored import whole
from .write import RULE

__all__ = ["Verified", "problem_from", "verify"]

Array = np.ndarray[Any, Any]

USUAL = Conventions()


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
    index = folder.index
    lies = [flag for flag, text in index["flags"].items() if text != FLAGS.get(flag, "")]
    if lies or index["rule"] != RULE:
        found.faults["index"] = f"its {f'flag {lies[0]}' if lies else 'rule'} is not explained as refattn does"
        said(f"wrong  index: {found.faults['index']}")
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
    yield from _other_inputs(vector, problem, "what its case says")
    known = next((c for c in CASES if c.id == case.id), None)
    if known is not None:
        if known != case:
            yield "case is not the one of that id in refattn.cases; verify by the refattn that wrote it"
            return
        yield from _other_inputs(vector, problem_of(known), "what is drawn for its case")
    precision, rigorous = preset(case.dtype, case.out_dtype), case.id in RIGOROUS
    again, _ = entry_of(case, vector.tensors, precision, "rigorous" if rigorous else "sharp")
    wrong = [name for name, x in json.loads(json.dumps(again)).items() if x != vector.entry[name]]
    if wrong:
        yield f"index: {wrong[0]}={vector.entry[wrong[0]]!r} must be {again[wrong[0]]!r}"
    for name, (own, least, most) in _bounds(problem, precision, rigorous).items():
        yield from _wrong_numbers(vector, problem, name, own, least, most)
    verdict = judged(vector, _answer(streaming.implementation, case, problem))
    if verdict.status != "passed":
        yield f"the honest kernel fails: {verdict.text}"


def _other_inputs(vector: Vector, problem: Problem, what: str) -> Iterator[str]:
    """The inputs, and the mask, that are not those of the problem, byte for byte."""
    again = tensors_of(problem, {})
    stored = {name: x for name, x in vector.tensors.items() if not name.startswith(PREFIXES)}
    for name in sorted(again.keys() | stored.keys()):
        if name not in again or name not in stored or whole(again[name]).tobytes() != stored[name].tobytes():
            yield f"{name} is not {what}"


def _bounds(problem: Problem, precision: Precision, rigorous: bool) -> dict[str, tuple[Array, Expected, Expected]]:
    """Of each output the error of `refattn.truth` itself, and the least and the widest interval that may be written.

    A radius t is written as up(t (1 + 2**-30) + a rounding of the value), at most 2**-5 above that: `expected`.
    """
    solved = Truth(problem, precision, USUAL)
    values, radii = solved.bounds()
    doubles = replace(preset("float64"), inputs=precision.inputs)
    _, errors = Truth(problem, doubles, USUAL).bounds()
    found = {}
    for name in sorted(problem.case.want):
        value, (certain, sharp) = values[name], radii[name]
        if solved.nonfinite is not None:
            value = np.where(solved.nonfinite.of(name) & ~np.isfinite(value), np.nan, value)
        t = certain if rigorous else sharp
        t = np.where(np.isnan(value) | ~np.isfinite(t), np.inf, t)
        size = np.where(np.isfinite(value), np.abs(value), 0.0)
        endless = 2.0**-30 * size.max(initial=0.0)  # where no bound holds, as after the lowest number: of no proof
        own = np.where(np.isfinite(errors[name][0]), errors[name][0], endless) + 2.0**-51 * size
        own = own + 2.0**-59 * np.where(np.isfinite(t), t, 0.0)  # below which a value is written as 0: `nearest`

        def made(t: Array, name: str = name, value: Array = value) -> Expected:
            return finish(name, value, t, t, problem.case, precision, USUAL, solved.empty, solved.nonfinite)

        least = np.where(np.isinf(t), np.inf, np.maximum(t * (1 - 2.0**-20) - own, 0.0))
        found[name] = own, made(least), made(np.where(t > 0, t * (1 + 2.0**-5 + 2.0**-20) + 2 * own, own))
    return found


def _wrong_numbers(
    vector: Vector, problem: Problem, name: str, own: Array, least: Expected, most: Expected
) -> Iterator[str]:
    """What is wrong with free, lo, hi and value of an output."""
    inner, outer = (tensors_of(problem, {name: e}) for e in (least, most))
    lo, hi, value = (vector.tensors[f"{kind}.{name}"].astype(np.float64) for kind in ("lo", "hi", "value"))
    true, free = inner[f"value.{name}"], vector.free(name)
    if not np.array_equal(free, inner.get(f"free.{name}", np.zeros_like(free))):
        yield f"free.{name} does not fit its case"
        return
    y = round_to(true, least.dtype)
    inside = (free == 1) | (free == 2) & ~np.isfinite(y) | (ratios(y, y, lo, hi) <= 1)
    if (at := _first(~inside)) is not None:
        yield f"{name}{list(at)} = {y[at]} by refattn.truth is not in [{lo[at]}, {hi[at]}]"
    with np.errstate(invalid="ignore"):
        near = np.abs(value - true) <= give_answer(vector.case, {name: own})[name]
    if (at := _first(~(near | _same(value, true) | (free == 1)))) is not None:
        yield f"value.{name}{list(at)} = {value[at]} must be {true[at]}"
    for end, x, sign in (("lo", lo, -1.0), ("hi", hi, 1.0)):
        a, b = (tensors[f"{end}.{name}"].astype(np.float64) for tensors in (inner, outer))
        fits = _same(x, b) | (sign * a <= sign * x) & (sign * x <= sign * b) | (free == 1)
        if (at := _first(~fits)) is not None:
            yield f"{end}.{name}{list(at)} = {x[at]} must be from {a[at]} to {b[at]}"


def _same(x: Array, y: Array) -> Array:
    return np.asarray((x == y) | np.isnan(x) & np.isnan(y))


def _first(wrong: Array) -> tuple[int, ...] | None:
    return tuple(int(n) for n in np.argwhere(wrong)[0]) if wrong.any() else None


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
