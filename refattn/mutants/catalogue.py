"""The table of mutants: its row, how a wrong class enters it, and which cases can tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..case import GRADIENTS, NAMES, Case
from ..cases import FLAGS
from ..memory import give_answer, take_answer
from ..precision import Conventions, Precision
from ..streaming import Rules, Schedule, Streaming

__all__ = [
    "MUTANTS", "SPLITS", "TILES", "Kernel", "Mutant", "Wrapped",
    "always", "changed", "hides", "mutant", "unequal_lengths", "wants",
]  # fmt: skip

Array = np.ndarray[Any, Any]

TILES = Schedule(tile_q=64, tile_k=64)
"""small tiles, so that rows of some hundred keys take several"""
SPLITS = Schedule(tile_q=64, tile_k=64, splits=3)


@dataclass(frozen=True)
class Kernel(Streaming):
    """The kernel under any contract: None is the preset.  A mutant is one with wrong rules, or a subclass.

    `replace(mutant.implementation, contract=..., schedule=...)` is the same mutant in other arithmetic,
    and remembers nothing of calls before.
    """

    contract: Precision | None = None
    left: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """what is left over from a call, of those mutants that leave something"""

    def precision(self, case: Case) -> Precision:
        return super().precision(case) if self.contract is None else self.contract


class Wrapped(Kernel):
    """The honest kernel with something done before it or after it."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Array]:
        return self.after(case, given, super().__call__(*self.before(case, given)))

    def before(self, case: Case, given: Mapping[str, Any]) -> tuple[Case, Mapping[str, Any]]:
        """What the kernel is called with."""
        return case, given

    def after(self, case: Case, given: Mapping[str, Any], y: dict[str, Array]) -> dict[str, Array]:
        """What is returned of its answer y."""
        return y


@dataclass(frozen=True)
class Mutant:
    """One row of the catalogue.

    what        what is wrong, as one would say it to the kernel's author
    seen        where it, or its kin, was seen in public; empty: a kind of which no report is known
    separates   which cases can tell it from a correct kernel: on all others its answer is the same, bit for bit
    flag        the entry of `refattn.cases.FLAGS` it belongs to, "" if none
    shows       where it can show: names of outputs (all, if not said); "canary", in NaN alone; "law", between
                calls; "call", in what else a call does (inputs that changed, other bits the second time)
    caught      ids of cases, or of rows of laws, in the order in which they are asked of one process: the
                last fails.  "" for one that nothing catches, and then `survives` says why
    equal       on which observable it is equal to the correct kernel although it is wrong, and why
    semantic    its answer is another function of the inputs, which can be evaluated in float64; not so for
                roundings, for what depends on calls, and for cheats
    """

    name: str
    family: str
    what: str
    seen: tuple[str, ...]
    separates: Callable[[Case], bool]
    flag: str
    implementation: Kernel
    caught: str = ""
    shows: frozenset[str] = frozenset()
    survives: str = ""
    equal: str = ""
    semantic: bool = True


MUTANTS: dict[str, Mutant] = {}


def always(case: Case) -> bool:
    return True


def mutant(
    family: str, seen: str, separates: Callable[[Case], bool] = always, flag: str = "", *, caught: str = "",
    shows: str = "", survives: str = "", equal: str = "", semantic: bool = True,
    schedule: Schedule = TILES, invariant: bool = False,
) -> Callable[[type[Rules] | type[Kernel]], Kernel]:  # fmt: skip
    """Enters a wrong class, of rules or of the whole kernel, into MUTANTS, and makes it an implementation.

    The arguments are fields of `Mutant`; `invariant`: it declares that it is batch invariant.
    """

    def enter(kind: type[Rules] | type[Kernel]) -> Kernel:
        name = kind.__name__
        how: dict[str, Any] = {"name": name, "schedule": schedule}
        how["conventions"] = Conventions(batch_invariant=invariant)
        made = kind(**how) if issubclass(kind, Kernel) else Kernel(rules=kind, **how)
        what = " ".join((kind.__doc__ or "").split())
        could = () if survives else GRADIENTS if family == "backward" else NAMES
        its = flag or (name if name in FLAGS else "")
        MUTANTS[name] = Mutant(
            name, family, what, tuple(seen.split()), separates, its, made,
            caught, frozenset(shows.split() or could), survives, equal, semantic,
        )  # fmt: skip
        return made

    return enter


def changed(case: Case, y: dict[str, Array], name: str, change: Callable[[Array], Array]) -> dict[str, Array]:
    """The answer with `change` made to one output, which it sees dense; as it is if that is not there."""
    if name not in y:
        return y
    dense = take_answer(case, name, y[name])
    return y | give_answer(case, {name: np.asarray(change(dense.copy())).astype(dense.dtype)})


def wants(*names: str) -> Callable[[Case], bool]:
    return lambda case: not case.want.isdisjoint(names)


def unequal_lengths(case: Case) -> bool:
    return any(lq != lk for lq, lk in zip(*case.lengths, strict=True))


def hides(case: Case) -> bool:
    return not (case.mask is case.q_lens is case.k_lens is case.bias is None)
