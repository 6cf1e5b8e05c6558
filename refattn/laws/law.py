"""What a law is, and the table that `@law` enters each into."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..case import Case, Dense
from ..inputs import Problem
from ..judge import Output
from .bench import SMALL, Bench, size

__all__ = ["LAWS", "Law", "law"]

Kind = Literal["exact", "bitwise", "bound"]
Check = Callable[[Problem, Bench], Iterator[Output]]

KNOWN = frozenset(
    "id why flags chapter B H Hkv Lq Lk D Dv dtype out_dtype family seed want "
    "mask scale softcap bias sinks storage".split()
)
"""fields of a case that the laws understand; no law is tried where another is set"""


@dataclass(frozen=True)
class Law:
    """A relation between answers that holds for every correct implementation.

    kind        "exact": by definition, to the last bit; "bitwise": to the last bit where IEEE forces it on a
                kernel that is deterministic, or the implementation declares it, else within the bound;
                "bound": within the sum of the derived radii
    statement   the relation, as a formula
    holds       on which cases it does: what breaks it is left out
    alone       the broken kernel (tests/test_laws.py has it) that passes the case table and all other laws;
                "" if none is known
    long        it is affordable where the truth of every row is not: see `Bench`
    """

    name: str
    kind: Kind
    statement: str
    holds: Callable[[Case], bool]
    alone: str
    long: bool
    check: Check

    def applies(self, case: Case) -> bool:
        """Whether it can be asked of a case: the law holds there, and its price can be paid."""
        return _understood(case) and (self.long or size(case) <= SMALL) and self.holds(case)


LAWS: dict[str, Law] = {}


def law(
    kind: Kind, statement: str, *,
    holds: Callable[[Case], bool] = lambda case: True, alone: str = "", long: bool = False,
) -> Callable[[Check], Check]:  # fmt: skip
    """Enters a function into LAWS under its own name; the arguments are fields of `Law`.

    The function takes a base problem and a `Bench`, asks the implementation for what it needs, and
    yields an `Output` for each comparison.
    """

    def enter(check: Check) -> Check:
        name = check.__name__
        LAWS[name] = Law(name, kind, statement, holds, alone, long, check)
        return check

    return enter


def _understood(case: Case) -> bool:
    changed = {f.name for f in dataclasses.fields(case) if getattr(case, f.name) != f.default}
    sized = all((case.B, case.H, case.Lq, case.Lk, case.D, case.Dv))
    return changed <= KNOWN and case.storage == Dense() and not case.family.startswith("poisoned") and sized
