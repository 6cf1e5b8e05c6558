"""The table of mutants, how a class of wrong rules enters it, and which cases can tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..case import Case
from ..streaming import Rules, Schedule, Streaming

__all__ = ["MUTANTS", "TILES", "Mutant", "always", "hides", "mutant", "unequal_lengths", "wants"]

TILES = Schedule(tile_q=64, tile_k=64)
"""small tiles, so that rows of some hundred keys take several"""


@dataclass(frozen=True)
class Mutant:
    """One row of the catalogue."""

    name: str
    family: str
    what: str
    seen: tuple[str, ...]
    separates: Callable[[Case], bool]
    flag: str
    implementation: Streaming


MUTANTS: dict[str, Mutant] = {}


def mutant(
    family: str, seen: str, separates: Callable[[Case], bool], flag: str = ""
) -> Callable[[type[Rules]], Streaming]:
    """Enters a class of wrong rules into MUTANTS, and makes it an implementation."""

    def enter(rules: type[Rules]) -> Streaming:
        name = rules.__name__
        implementation = Streaming(name=name, rules=rules, schedule=TILES)
        what = " ".join((rules.__doc__ or "").split())
        MUTANTS[name] = Mutant(name, family, what, tuple(seen.split()), separates, flag or name, implementation)
        return implementation

    return enter


def always(case: Case) -> bool:
    return True


def wants(*names: str) -> Callable[[Case], bool]:
    return lambda case: not case.want.isdisjoint(names)


def unequal_lengths(case: Case) -> bool:
    return any(lq != lk for lq, lk in zip(*case.lengths, strict=True))


def hides(case: Case) -> bool:
    return not (case.mask is case.q_lens is case.k_lens is case.bias is None)
