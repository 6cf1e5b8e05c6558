"""Hypotheses on the products of a rotation: a sign, a coordinate overwritten too early, and those not rotated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...precision import preset
from ...rotary import Rotary
from ...streaming import Rules, Schedule
from ...streaming.prepare import prepare
from ..hypothesis import kind
from ..model import Array
from .rotation import Rotated, _rotated

__all__: list[str] = []

Pair = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
"""(first and second of a pair, cos, sin) -> those that come out"""


def _first(a: Array, b: Array, cos: Array, sin: Array) -> Array:
    return a * cos - b * sin


def _second(a: Array, b: Array, cos: Array, sin: Array) -> Array:
    return b * cos + a * sin


PAIR: dict[str, Pair] = {
    "the second of a pair is b cos - a sin": lambda a, b, c, s: (_first(a, b, c, s), _second(-a, b, c, s)),
    "the first of a pair is a cos + b sin": lambda a, b, c, s: (_first(a, -b, c, s), _second(a, b, c, s)),
    "the second of a pair is made of the first as it is turned":
        lambda a, b, c, s: (_first(a, b, c, s), _second(_first(a, b, c, s), b, c, s)),
    "the first of a pair is made of the second as it is turned":
        lambda a, b, c, s: (_first(a, _second(a, b, c, s), c, s), _second(a, b, c, s)),
    "the first of a pair alone is turned": lambda a, b, c, s: (_first(a, b, c, s), b),
    "the second of a pair alone is turned": lambda a, b, c, s: (a, _second(a, b, c, s)),
    "the two of a pair are exchanged": lambda a, b, c, s: (_second(a, b, c, s), _first(a, b, c, s)),
}
REST = "those past its dim are 0"


class Products(Rules):
    pair: Pair | None = None

    def rotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return self.turned(super().rotate(x, cos, sin, rotary), x, cos, sin, rotary)

    def unrotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return self.turned(super().unrotate(x, cos, sin, rotary), x, cos, -sin, rotary)

    def turned(self, right: Array, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        y, n = np.array(right, np.float64), rotary.dim
        if self.pair is None:
            y[..., n:] = 0
            return y
        half = slice(0, n, 2), slice(1, n, 2)
        one, two = half if rotary.interleaved else (slice(0, n // 2), slice(n // 2, n))
        y[..., one], y[..., two] = type(self).pair(x[..., one], x[..., two], cos, sin)  # type: ignore[misc]
        return y


def _rules(pair: Pair | None) -> Rules:
    made = type("Wrong", (Products,), {"pair": None if pair is None else staticmethod(pair)})
    found: Rules = made(preset("float64"), Schedule())
    return found


HOW = {words: _rules(pair) for words, pair in PAIR.items()} | {REST: _rules(None)}


def _shows(case: Case, how: Any) -> bool:
    partly = case.rotary is not None and case.rotary.dim < case.D
    return _rotated(case) and (how.how.pair is not None or partly)


@kind(_shows, of={"queries": "q", "keys": "k", "queries and keys": "qk"}, how=HOW)
class rotated_by(Rotated):
    """Where {of} are rotated, {how}."""

    how: Rules

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        return prepare(self.given, x, self.how)

    def rules(self) -> Rules:
        return self.how if self.of == "qk" else super().rules()
