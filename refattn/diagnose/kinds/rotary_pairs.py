"""Hypotheses on rotary embeddings: which coordinates are a pair, and by which positions gradients are turned back."""

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
from ..model import PLAIN, Array, Model
from .rotation import PLACES, Place, Rotated, _rotated

__all__: list[str] = []

Pairs = Callable[[Array, int, int], tuple[Array, Array]]
"""(0 to dim / 2, dim, D) -> the first and the second coordinate of each pair"""
PAIRS: dict[str, Pairs] = {
    "i with i + D / 2": lambda i, dim, D: (i, i + D // 2),
    "2i with 2i + 1 of each half of the head": lambda i, dim, D: (
        2 * i % (D // 2) + (2 * i >= D // 2) * (D // 2), 2 * i % (D // 2) + 1 + (2 * i >= D // 2) * (D // 2)),
    "i with D - 1 - i": lambda i, dim, D: (i, D - 1 - i),
    "i with dim - 1 - i": lambda i, dim, D: (i, dim - 1 - i),
    "i with i + D - dim": lambda i, dim, D: (i, i + D - dim),
    "i with i + D - dim / 2": lambda i, dim, D: (i, i + D - dim // 2),
    "i with i + dim / 2, of the last dim coordinates": lambda i, dim, D: (i + D - dim, i + D - dim // 2),
    "2i with 2i + 1, of the last dim coordinates": lambda i, dim, D: (2 * i + D - dim, 2 * i + 1 + D - dim),
    "i with i + dim / 2, after the first D / 2": lambda i, dim, D: (i + D // 2, i + D // 2 + dim // 2),
    "i with i + dim / 2, after the first dim": lambda i, dim, D: (i + dim, i + dim + dim // 2),
    "i with i + dim": lambda i, dim, D: (i, i + dim),
    "2i with 2i + 2": lambda i, dim, D: (4 * (i // 2) + i % 2, 4 * (i // 2) + i % 2 + 2),
    "i with i + dim / 4, in each half": lambda i, dim, D: (
        i % max(dim // 4, 1) + i // max(dim // 4, 1) * (dim // 2),
        i % max(dim // 4, 1) + i // max(dim // 4, 1) * (dim // 2) + dim // 4),
}  # fmt: skip


class Paired(Rules):
    """Turns other pairs of coordinates, of rotations of one layout."""

    pairs: Pairs
    interleaved = False

    def rotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return self.turned(super().rotate, x, cos, sin, rotary)

    def unrotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        return self.turned(super().unrotate, x, cos, sin, rotary)

    def turned(self, how: Callable[..., Array], x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        if rotary.interleaved != self.interleaved:
            return how(x, cos, sin, rotary)
        at, halves = np.concatenate(taken(self.pairs, rotary, x.shape[-1])), Rotary(rotary.dim, False, rotary.base)
        y = np.array(x, np.float64)
        y[..., at] = how(x[..., at], cos, sin, halves)
        return y


def taken(pairs: Pairs, rotary: Rotary, D: int) -> tuple[Array, Array]:
    first, second = pairs(np.arange(rotary.dim // 2), rotary.dim, D)
    return first, second


def _rules(words: str, pairs: Pairs) -> Rules:
    made = type("Wrong", (Paired,), {"pairs": staticmethod(pairs), "interleaved": words.startswith("2i")})
    found: Rules = made(preset("float64"), Schedule())
    return found


RULES = {words: _rules(words, pairs) for words, pairs in PAIRS.items()}
"""in place of i with i + dim / 2, or of 2i with 2i + 1"""


def _other(case: Case, how: Any) -> bool:
    """Whether these are pairs, each coordinate in one, and others than those of the case."""
    if case.rotary is None or not _rotated(case) or case.rotary.interleaved != how.how.interleaved:
        return False
    dim, i = case.rotary.dim, np.arange(case.rotary.dim // 2)
    first, second = taken(how.how.pairs, case.rotary, case.D)
    at = np.concatenate((first, second))
    if len(set(at.tolist())) < len(at) or at.min(initial=0) < 0 or at.max(initial=0) >= case.D:
        return False
    true = (2 * i, 2 * i + 1) if case.rotary.interleaved else (i, i + dim // 2)
    return not (np.array_equal(first, true[0]) and np.array_equal(second, true[1]))


@kind(_other, of={"Queries are": "q", "Keys are": "k", "Queries and keys are": "qk"}, how=RULES)
class rotated_in_pairs(Rotated):
    """{of} rotated in other pairs: {how}."""

    how: Rules

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        return prepare(self.given, x, self.how)

    def rules(self) -> Rules:
        return self.how if self.of == "qk" else super().rules()


@kind(lambda case, how: not case.want.isdisjoint(("dq", "dk")) and _other(case, how), "dq dk", how=RULES)
class turned_back_in_pairs(Model):
    """dq and dk are turned back in other pairs: {how}."""

    how: Rules

    def rules(self) -> Rules:
        return self.how


OF = {"dq is": ("dq",), "dk is": ("dk",), "dq and dk are": ("dq", "dk")}


def _where(case: Case, name: str, how: Place | None) -> Array:
    """(B, 1, rows) positions, within those that there are."""
    lq, lk = (np.array(n)[:, None] for n in case.lengths)
    own = np.arange(case.Lq) + lk - lq if name == "dq" else np.arange(case.Lk) + 0 * lk
    at = own if how is None else how(own, lq, lk)
    return np.clip(np.where(np.arange(at.shape[1]) < (lq if name == "dq" else lk), at, 0), 0, case.Lk - 1)[:, None]


def _moved(case: Case, how: Any) -> bool:
    wanted = [n for n in how.of if n in case.want]
    return _rotated(case) and any(not np.array_equal(_where(case, n, how.at), _where(case, n, None)) for n in wanted)


@kind(_moved, "dq dk", of=OF, at=PLACES)
class turned_back_at(Model):
    """The position by which {of} turned back is {at}."""

    of: tuple[str, ...] = ("dq",)
    at: Place

    def backward(self) -> dict[str, Array]:
        y, case, x = super().backward(), self.given, self.inputs.problem.stored
        if case.rotary is None:
            return y
        for n in self.of:
            right, wrong = _where(case, n, None), _where(case, n, type(self).at)
            turned = PLAIN.rotate(y[n], x["cos"][right], x["sin"][right], case.rotary)
            y[n] = PLAIN.unrotate(turned, x["cos"][wrong], x["sin"][wrong], case.rotary)
        return y


def _twice(case: Case, how: Any) -> bool:
    return _rotated(case) and not case.want.isdisjoint(how.of)


TIMES = {"not at all": 1, "the other way round": 2, "twice": -1}


@kind(_twice, "dq dk", of={w: n for w, n in OF.items() if len(n) == 1}, times=TIMES)
class turned_back_alone(Model):
    """{of} turned back {times}, alone."""

    of: tuple[str, ...] = ("dq",)
    times = 1

    def backward(self) -> dict[str, Array]:
        y, case, x = super().backward(), self.given, self.inputs.problem.stored
        if case.rotary is None:
            return y
        for n in self.of:
            at = _where(case, n, None)
            for _ in range(abs(self.times)):
                turn = PLAIN.rotate if self.times > 0 else PLAIN.unrotate
                y[n] = turn(y[n], x["cos"][at], x["sin"][at], case.rotary)
        return y
