"""Hypotheses of too few bits where rescaling is lazy: weights and sums are relative to another maximum than usual."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import LN2, Array
from .lazy import Kept, _several
from .loops import TILES, Loop, State, loops
from .roundings import TO, lowered, named

__all__: list[str] = []

ORDERS = loops(*(Loop(n, backwards) for backwards in (False, True) for n in TILES[:3]))
BY = {"8 in base 2": 8 * LN2, "8": 8.0}


def _may(case: Case, how: Any) -> bool:
    return bool(named(how.to, case)) and _several(case, how)


@kind(_may, rounding=True, of={"the running output is": "o", "the running output and the row sum are": "zo"}, to=TO,
      by=BY, loop=ORDERS)  # fmt: skip
class state_rounded_lazily(Kept):
    """From tile to tile of {loop}, rescaled where the maximum grows by {by} or more, {of} rounded to {to}."""

    of, to = "o", ""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = super().step(state, t, keys)
        z = lowered(z, self.to, self.given) if "z" in self.of else z
        return m, z, lowered(o, self.to, self.given)


@kind(_may, rounding=True, to=TO, by=BY, loop=ORDERS)
class weights_rounded_lazily(Kept):
    """From tile to tile of {loop}, rescaled where the maximum grows by {by} or more, weights are rounded to {to}."""

    to = ""

    def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
        return super().weighed(lowered(p, self.to, self.given), keys)


@kind(_may, rounding=True, to=TO, by=BY, loop=ORDERS)
class weights_summed_lazily(Kept):
    """From tile to tile of {loop}, rescaled where the maximum grows by {by}, weights are rounded to {to} and summed."""

    to = ""

    def exp(self, x: Array) -> Array:
        return np.asarray(lowered(super().exp(x), self.to, self.given))
