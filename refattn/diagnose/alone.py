"""A hypothesis held in some outputs alone: a kernel makes them in several loops, each of which has its own code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from ..case import NAMES
from ..precision import Precision
from .dense import Array, Inputs
from .hypothesis import Answer, Hypothesis
from .model import Model

__all__ = ["alone", "right"]


@cache
def alone(whole: Hypothesis, names: frozenset[str]) -> Hypothesis:
    """The same wrong in these outputs alone, whatever makes them; the others are right."""

    def solve(inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
        y = whole.solve(inputs, contract, want & names) if want & names else {}
        return {**right(inputs, contract, want), **{n: x for n, x in y.items() if n in names}}

    *some, last = (n for n in NAMES if n in names)
    words = f"in {', '.join(some)} and {last} alone" if some else f"in {last} alone"
    return replace(
        whole, name=f"{whole.name}, {words}", what=f"{whole.what.rstrip('.')}, {words}", shows=whole.shows & names,
        solve=solve, same=None, family=None, members=(), made=None, narrow=max(1, whole.narrow), whole=whole,
    )  # fmt: skip


def right(inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Mapping[str, Array]:
    """The right answer, made once."""
    key = ("right", contract, want)
    if key not in inputs.made:
        inputs.made[key] = Model(inputs, contract).solve(want)
    found: Answer = inputs.made[key]
    return found
