"""Scores on ball arithmetic, one pair at a time: the first half of `certified`.

The score modifiers are written anew here from what their names stand for, value and slope, so that
`refattn.score_mods` is checked and not repeated.

Beside each ball stands the sum of the absolute values that were added up to make it.  For a score
that is a = |scale| sum_d |q k|, carried through softcap and modifier by their slopes at most:

    terms  a, then (slope at most) a + |what the modifier adds|, then + |bias|
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb

Array = np.ndarray[Any, Any]
Pair = tuple[Any, Any]
"""(ball, sum of absolute values)"""


def at(x: Array, *index: int) -> tuple[int, ...]:
    """The index into x of what it holds for `index` when it is broadcast: aligned right, 1 stretches."""
    return tuple(0 if n == 1 else i for n, i in zip(x.shape, index[len(index) - x.ndim :], strict=True))


def ball(x: Any) -> Any:
    """A float64 as an exact ball."""
    return arb(float(x))


@dataclass
class Modified:
    """t = f(s) and its slope; `steepest` is an upper bound of |slope| near s, `added` |what was added to s|."""

    value: Any
    slope: Pair
    steepest: Any
    added: Any


Modifier = Callable[[Any, Any, int, int, int, int], Modified]
"""of s, an upper bound of |s|, and b, h, i, j"""


def _shifted(s: Any, by: Any) -> Modified:
    return Modified(s + by, (arb(1), arb(1)), arb(1), abs(by))


def _multiplied(s: Any, by: Any) -> Modified:
    return Modified(s * by, (by, by), by, arb(0))


def _softsign(s: Any, most: Any, *place: int) -> Modified:
    part = 8 / (8 + abs(s))
    return Modified(s * part, (part**2, part**2), arb(1), arb(0))


def _parabola(s: Any, most: Any, *place: int) -> Modified:
    return Modified(s + s * s / 16, (1 + s / 8, 1 + abs(s) / 8), 1 + most / 8, arb(0))


MODIFIERS: dict[str, Modifier] = {
    "relative": lambda s, most, b, h, i, j: _shifted(s, arb(j - i) / 16),
    "distance": lambda s, most, b, h, i, j: _shifted(s, -arb(max(i - j, j - i)) / 2 ** (h + 1)),
    "checkerboard": lambda s, most, b, h, i, j: _multiplied(s, arb(1) / 2 if (i + j) % 2 else arb(1)),
    "tilt": lambda s, most, b, h, i, j: _multiplied(s, arb(8 + 2 * h + b) / 8),
    "softsign": _softsign,
    "parabola": _parabola,
}


@dataclass
class Score:
    """One pair: (ball, sum of absolute values) of each stage, slopes included."""

    dot: Pair
    """q·k"""
    raw: Pair
    """scale q·k"""
    capped: Pair
    """after softcap and modifier"""
    biased: Pair
    bend: Pair
    """slope of the softcap"""
    by_softcap: Pair
    """derivative of softcap tanh(s / softcap) with respect to softcap"""
    slope: Pair
    """of the modifier"""


class Scores:
    """The arguments that make the scores; `visible` is a boolean array or None, `score_mod` a name or None."""

    def __init__(
        self, q: Array, k: Array, visible: Array | None, bias: Array | None, scale: float | None,
        softcap: float | None, score_mod: str | None,
    ) -> None:  # fmt: skip
        self.q, self.k, self.visible, self.bias, self.scale = q, k, visible, bias, scale
        self.softcap, self.modify = softcap, None if score_mod is None else MODIFIERS[score_mod]
        self.shape = (*q.shape[:3], k.shape[2])
        self.group = q.shape[1] // k.shape[1] if k.shape[1] else 1

    @property
    def factor(self) -> Any:
        if self.scale is not None:
            return arb(self.scale)
        D = self.q.shape[3]
        return 1 / arb(D).sqrt() if D else arb(1)

    def sees(self, b: int, h: int, i: int, j: int) -> bool:
        if self.visible is not None and not self.visible[at(self.visible, b, h, i, j)]:
            return False
        return self.bias is None or self.bias[at(self.bias, b, h, i, j)] != -math.inf

    def keys(self, b: int, h: int, i: int) -> list[int]:
        return [j for j in range(self.shape[3]) if self.sees(b, h, i, j)]

    def defined(self, b: int, h: int, i: int, j: int) -> bool:
        """Whether a pair, hidden perhaps, has a score."""
        return bool(np.isfinite(self.q[b, h, i]).all() and np.isfinite(self.k[b, h // self.group, j]).all())

    def pair(self, b: int, h: int, i: int, j: int) -> Score:
        dot, a = arb(0), arb(0)
        for x, y in zip(self.q[b, h, i], self.k[b, h // self.group, j], strict=True):
            product = ball(x) * ball(y)
            dot, a = dot + product, a + abs(product)
        s, terms = self.factor * dot, abs(self.factor) * a
        raw = (s, terms)
        bend = by_softcap = slope = (arb(1), arb(1))
        if self.softcap is not None:
            z = s / self.softcap
            e = z.exp()
            sech2, tanh = (2 / (e + 1 / e)) ** 2, z.tanh()
            s = self.softcap * tanh
            bend = (sech2, sech2)
            by_softcap = (tanh - z * sech2, abs(tanh) + abs(z) * sech2)
        if self.modify is not None:
            made = self.modify(s, self._most(terms), b, h, i, j)
            s, slope, terms = made.value, made.slope, made.steepest * terms + made.added
        capped = (s, terms)
        if self.bias is not None and self.sees(b, h, i, j):
            added = ball(self.bias[at(self.bias, b, h, i, j)])
            s, terms = s + added, terms + abs(added)
        return Score((dot, a), raw, capped, (s, terms), bend, by_softcap, slope)

    def largest(self) -> float:
        """The largest finite terms of a visible pair, before or after the modifier; from absolute values alone."""
        return max((float(x.abs_upper()) for x in self._magnitudes() if x.is_finite()), default=0.0)

    def _magnitudes(self) -> Iterator[Any]:
        factor = abs(self.factor)
        for b, h, i in np.ndindex(self.shape[:3]):
            for j in self.keys(b, h, i):
                terms = arb(0)
                for x, y in zip(self.q[b, h, i], self.k[b, h // self.group, j], strict=True):
                    terms += abs(ball(x) * ball(y))
                terms *= factor
                if self.modify is not None:
                    yield terms
                    made = self.modify(arb(0), self._most(terms), b, h, i, j)
                    terms = made.steepest * terms + made.added
                yield terms if self.bias is None else terms + abs(ball(self.bias[at(self.bias, b, h, i, j)]))

    def _most(self, terms: Any) -> Any:
        """An upper bound of |what the modifier is given|."""
        return terms if self.softcap is None or terms < self.softcap else arb(self.softcap)
