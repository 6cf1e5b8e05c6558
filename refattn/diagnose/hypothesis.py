"""A hypothesis: one thing wrong, with its parameters filled in, and what a kernel with it would return.

Two sources.  `kind` enters a subclass of `Model`, once for each value of its parameters, so that a family (the
tile's size, which head, off by how many) is one row and the report prints the value that fits.  The mutants of the
catalogue whose answer is a function of the inputs are hypotheses too.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from ..case import GRADIENTS, NAMES, Case
from ..memory import take_answer
from ..mutants import MUTANTS, Mutant
from ..precision import Precision
from .model import BEFORE, Inputs, Model
from .own_tiles import in_loops, loops

__all__ = ["KINDS", "Hypothesis", "always", "hypotheses", "kind"]

Array = np.ndarray[Any, Any]
Answer = Mapping[str, Array]
TILED = ("online", "tails", "merge", "precision")
"""families of mutants that depend on the size of tiles"""


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """`what` is wrong, in words; `shows` are the outputs that it can change, and `separates` the cases that can tell.

    solve       (inputs, contract or None for float64, names) -> the outputs of these names, dense
    rounding    it is a loss of bits: its answer is compared in the arithmetic promised, and explains most of
                the error rather than all
    """

    name: str
    what: str
    separates: Callable[[Case], bool]
    shows: frozenset[str]
    solve: Callable[[Inputs, Precision | None, frozenset[str]], Answer]
    rounding: bool = False
    same: Callable[[Case], Any] | None = None
    """what of its parameters matters to a case: hypotheses of one class that agree in it answer alike"""
    part: str = ""
    """"forward", "lse" or "backward" if it is wrong in that alone, "loops" if loops have other tiles"""
    family: Any = None
    """what it has in common with those that differ from it in the size of tiles or splits alone, if any do"""
    members: tuple[Hypothesis, ...] = ()
    """of a whole family: each case is explained by some of them"""
    made: type[Model] | None = None
    """the model that solves it"""
    vague: bool = False
    """it says what came out rather than why: others that explain as much are named before it"""
    narrow: int = 0
    """0, or what makes it less likely than others that explain as much: 1 it holds in a region or in some outputs
    alone, 2 a family"""
    fitted: bool = False
    """it was deduced from the failures themselves, which so explain nothing more"""
    whole: Hypothesis | None = None
    """of one that holds in some outputs alone"""

    @cached_property
    def elsewhere(self) -> tuple[Hypothesis, ...]:
        """The same thing wrong in a part of the kernel alone."""
        whole = self.made is not None and not self.part and (self.fitted or not self.narrow) and self.shows & FORWARD
        return tuple(_parts(self, self.made)) if self.made is not None and whole else ()

    def __str__(self) -> str:
        return f"{self.what.rstrip('.')} ({self.name.split('[')[0]})"


FREE = {"tile": "n", "rows": "m", "keys": "n", "splits": "some", "cut": "some keys", "loop": "n keys"}
"""Parameters that are a kernel's own affair, and may differ from case to case; and what stands for them."""
KINDS: list[Hypothesis] = []
FORWARD = frozenset(NAMES) - frozenset(GRADIENTS)
BACKWARD = (
    *BEFORE, "sink", "to_logits", "undropped", "again", "delta", "arriving", "dropped", "through_softmax", "slope",
    "modifier_slope", "dp_of", "dq_of", "dk_of", "dv_of", "q_factor", "k_factor", "group", "reduced", "dsinks",
    "backward", "low", "rules",
)  # fmt: skip
"""the decisions of a model on which its backward rests, besides what the forward left"""


def always(case: Case) -> bool:
    return True


def kind(
    when: Callable[..., bool] = always, shows: str = "", rounding: bool = False, same: Any = None,
    vague: bool = False, **values: Any,
) -> Callable[[type[Model]], type[Model]]:
    """Enters a wrong `Model`, once for each combination of `values`: mappings from words to values, or sequences.

    Its docstring says what is wrong, with {parameter} for the words; each value becomes an attribute of the class.
    `when` is asked of a case, and if it is written for two, also of the values by name.
    """
    choices = [[(n, str(w), v) for w, v in _named(given)] for n, given in values.items()]

    def enter(model: type[Model]) -> type[Model]:
        doc = " ".join((model.__doc__ or "").split())
        for chosen in product(*choices):
            words = {n: w for n, w, _ in chosen}
            made = type(model.__name__, (model,), {n: _held(v) for n, _, v in chosen})
            name = model.__name__ + (f"[{', '.join(words.values())}]" if words else "")
            free = {n: FREE[n] for n in words if n in FREE}
            family = (model.__name__, doc.format(**words | free)) if free else None
            KINDS.append(Hypothesis(
                name, doc.format(**words), _separates(when, made), frozenset(shows.split() or NAMES),
                _solver(made), rounding, None if same is None else _same(made, same, words), family=family, made=made,
                vague=vague,
            ))  # fmt: skip
        return model

    return enter


def _parts(whole: Hypothesis, made: type[Model]) -> Iterator[Hypothesis]:
    """The same in the forward alone, in the backward alone, and where the backward goes by the lse returned."""
    for part, solve, where, shows in (
        ("forward", in_forward, "in the forward alone", whole.shows),
        ("lse", by_lse, "and the backward goes by it", whole.shows),
        ("backward", in_backward, "in the backward alone", frozenset[str]()),
    ):
        if part == "backward" and all(getattr(made, n) is getattr(Model, n) for n in BACKWARD):
            continue  # nothing of it is in the backward
        if part == "lse" or not whole.shows <= {"lse"}:
            what = f"{whole.what.rstrip('.')}, {where}"
            family = None if whole.family is None else (*whole.family, where)
            yield replace(
                whole, name=f"{whole.name}, {where}", what=what, shows=shows | frozenset(GRADIENTS),
                solve=partial(solve, made), part=part,
                same=None if whole.same is None else partial(_same_part, part, whole.same),
                family=family,
            )  # fmt: skip
    backward = whole.shows & frozenset(GRADIENTS) and any(getattr(made, n) is not getattr(Model, n) for n in BACKWARD)
    for where, by in loops(made) if backward else ():
        yield replace(
            whole, name=f"{whole.name}, {where}", what=f"{whole.what.rstrip('.')}, {where}", same=None, family=None,
            solve=partial(in_loops, made, by), part="loops",
        )  # fmt: skip


def _same_part(part: str, same: Callable[[Case], Any], case: Case) -> Any:
    return part, same(case)


def in_forward(made: type[Model], inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
    wrong, right = made(inputs, contract), Model(inputs, contract)
    with np.errstate(all="ignore"):
        y = wrong.told(wrong.forward())
        right.forward()
    right.goes_by(wrong)
    return right.rest(y, want)


def by_lse(made: type[Model], inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
    wrong = made(inputs, contract)
    with np.errstate(all="ignore"):
        y = wrong.told(wrong.forward())
    wrong.m, wrong.l = y["lse"], np.where(wrong.l == 0, 0, 1).astype(wrong.l.dtype)
    return wrong.rest(y, want)


def in_backward(made: type[Model], inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
    wrong, right = made(inputs, contract), Model(inputs, contract)
    with np.errstate(all="ignore"):
        y = right.forward()
        wrong.forward()
    wrong.goes_by(right)
    return wrong.rest(y, want)


def _same(made: type[Model], same: Any, words: Mapping[str, str]) -> Callable[[Case], Any]:
    """A key: the class, the parameters that are not summed up, and what the others come to for a case."""
    rest = tuple(w for n, w in words.items() if n != same[0])
    return lambda case: (made.__name__, rest, same[1](case, made))


def _named(given: Any) -> Iterator[tuple[Any, Any]]:
    yield from given.items() if isinstance(given, Mapping) else ((v, v) for v in given)


def _held(value: Any) -> Any:
    """A value as an attribute of a class; a function stays one, and is not made a method."""
    return staticmethod(value) if callable(value) and not isinstance(value, type) else value


def _separates(when: Callable[..., bool], made: type[Model]) -> Callable[[Case], bool]:
    takes = when.__code__.co_argcount if hasattr(when, "__code__") else 1
    return when if takes == 1 else lambda case: when(case, made)


def _solver(made: type[Model]) -> Callable[[Inputs, Precision | None, frozenset[str]], Answer]:
    return lambda inputs, contract, want: made(inputs, contract).solve(want)


@cache
def hypotheses() -> tuple[Hypothesis, ...]:
    """All: the catalogue's first, with its size of tiles, then the kinds."""
    collecting = gc.isenabled()
    gc.disable()  # tens of thousands of classes are made, and none is garbage: half of the time
    try:
        from . import kinds  # noqa: F401 - each of its modules enters its own
    finally:
        if collecting:
            gc.enable()
    return (*(_of_mutant(m) for m in MUTANTS.values() if m.semantic), *KINDS)


@cache
def whole_family(family: Any) -> Hypothesis:
    """One that explains a case if any of a family does: its tiles or splits may differ from case to case."""
    alike = [h for h in KINDS if h.family is not None and h.family[:2] == family[:2]]
    rows = [h for row in alike for h in (row, *row.elsewhere) if h.family == family]
    what = f"{', '.join(family[1:]).replace('.,', ',').rstrip('.')}, whatever the tiles or splits of a case"
    return replace(
        rows[0], name=f"{family[0]}[any]{rows[0].part}", what=what, members=tuple(rows), narrow=2, family=None,
        same=None, made=None, separates=lambda case: any(h.separates(case) for h in rows),
    )  # fmt: skip


def _of_mutant(mutant: Mutant) -> Hypothesis:
    gradients = frozenset(GRADIENTS)
    shows = mutant.shows if mutant.family == "backward" and mutant.shows <= gradients else frozenset(NAMES)

    def solve(inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
        case, schedule = inputs.case, mutant.implementation.schedule
        if contract is None:
            arithmetic = Precision(case.dtype, case.out_dtype, accumulate="float64", lse="float64")
        else:
            arithmetic = contract
            if mutant.family not in TILED:
                schedule = replace(schedule, tile_q=48, tile_k=max(48, contract.tile), exp="exp2")
        kernel = replace(mutant.implementation, schedule=schedule, contract=arithmetic)
        with np.errstate(all="ignore"):
            found = kernel(replace(case, want=want) if want != case.want else case, inputs.handed())
        return {n: np.asarray(take_answer(case, n, np.asarray(x)), np.float64) for n, x in found.items()}

    return Hypothesis(mutant.name, mutant.what, mutant.separates, shows, solve)
