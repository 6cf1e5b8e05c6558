"""Hypotheses on rotary embeddings: which angles, of which positions, and what is rotated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...case import Cache, Case
from ...memory import take_answer
from ...precision import preset
from ...rotary import Rotary
from ...streaming import Rules, Schedule
from ...streaming.prepare import prepare
from ..dense import wide
from ..hypothesis import kind
from ..model import PLAIN, Array, Model
from .roundings import TO, _applies, lowered

__all__: list[str] = []

Turn = Callable[[Array, Array, Array], tuple[Array, Array, Array]]
"""(x, cos, sin) -> those that are used"""
Place = Callable[[Array, Array, Array], Array]
"""(true position, lengths of queries, of keys) -> the one that is used"""


class Turned(Rules):
    """Rotates by other angles, or at other positions."""

    turn: Turn | None = None
    exchanged = False

    def rotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        if self.exchanged:
            rotary = dataclasses.replace(rotary, interleaved=not rotary.interleaved)
        return super().rotate(*self.by(x, cos, sin), rotary)

    def unrotate(self, x: Array, cos: Array, sin: Array, rotary: Rotary) -> Array:
        if self.exchanged:
            rotary = dataclasses.replace(rotary, interleaved=not rotary.interleaved)
        return super().unrotate(*self.by(x, cos, sin), rotary)

    def by(self, x: Array, cos: Array, sin: Array) -> tuple[Array, Array, Array]:
        return (x, cos, sin) if self.turn is None else self.turn(x, cos, sin)


def _rules(turn: Turn | None = None, exchanged: bool = False) -> Rules:
    made = type("Wrong", (Turned,), {"turn": staticmethod(turn) if turn else None, "exchanged": exchanged})
    found: Rules = made(preset("float64"), Schedule())
    return found


def _whole(x: Array, cos: Array, sin: Array) -> tuple[Array, Array, Array]:
    again = np.arange(x.shape[-1] // 2) % cos.shape[-1]
    return x, cos[..., again], sin[..., again]


TURNS: dict[str, Rules] = {
    "not at all": _rules(lambda x, cos, sin: (x, np.ones_like(cos), 0 * sin)),
    "in the pairs of the other layout: i, i + half for 2i, 2i + 1, or the other way round": _rules(exchanged=True),
    "the other way round: sin has the other sign": _rules(lambda x, cos, sin: (x, cos, -sin)),
    "with sin and cos exchanged": _rules(lambda x, cos, sin: (x, sin, cos)),
    "twice": _rules(lambda x, cos, sin: (x, cos**2 - sin**2, 2 * sin * cos)),
    "in all coordinates, beyond dim by the same angles again": _rules(_whole),
    "in half of the coordinates alone": _rules(
        lambda x, cos, sin: (x, np.where(np.arange(cos.shape[-1]) < cos.shape[-1] // 2, cos, 1),
                             np.where(np.arange(cos.shape[-1]) < cos.shape[-1] // 2, sin, 0))),
    "by the angle of the next pair": _rules(lambda x, cos, sin: (x, np.roll(cos, -1, -1), np.roll(sin, -1, -1))),
    "by the angle of the first pair for all": _rules(lambda x, cos, sin: (x, cos[..., :1] + 0 * cos,
                                                                         sin[..., :1] + 0 * sin)),
    "by angles in reverse": _rules(lambda x, cos, sin: (x, cos[..., ::-1], sin[..., ::-1])),
    "by angles of each pair twice: i // 2 for i": _rules(
        lambda x, cos, sin: (x, np.repeat(cos, 2, -1)[..., : cos.shape[-1]],
                             np.repeat(sin, 2, -1)[..., : cos.shape[-1]])),
    "without sin": _rules(lambda x, cos, sin: (x, cos, 0 * sin)),
}  # fmt: skip


def _in_tile(at: Array, lq: Array, lk: Array, n: int) -> Array:
    return at % n


PLACES: dict[str, Place] = {
    "one too far": lambda at, lq, lk: at + 1,
    "one too early": lambda at, lq, lk: at - 1,
    "counted from 0, without those before": lambda at, lq, lk: at - (lk - lq),
    "that of the first new token for all": lambda at, lq, lk: 0 * at + lk - lq,
    "counted from behind the last key": lambda at, lq, lk: at + lq,
    "with the number of keys before added twice": lambda at, lq, lk: at + (lk - lq),
    "of the last one for all": lambda at, lq, lk: 0 * at + lk - 1,
    "0 for all": lambda at, lq, lk: 0 * at,
    "counted from the last": lambda at, lq, lk: lk - 1 - at,
    "those of the first entry": lambda at, lq, lk: at + (lk - lq)[:1] - (lk - lq),
    "those of the next entry": lambda at, lq, lk: at + np.roll(lk - lq, -1, 0) - (lk - lq),
    "those of the longest entry": lambda at, lq, lk: at + np.max(lk - lq, initial=0) - (lk - lq),
    "counted from the end of the longest entry": lambda at, lq, lk: at + np.max(lk, initial=0) - lk,
} | {f"its place in a tile of {n}": partial(_in_tile, n=n) for n in (8, 16, 32, 64, 128)}


def _rotated(case: Case) -> bool:
    return case.rotary is not None and case.Lk > 0


class Rotated(Model):
    of: Any = "qk"

    def arrays(self) -> dict[str, Array]:
        return self.from_memory(self.inputs.handed())

    def made(self, x: dict[str, Array]) -> dict[str, Array]:
        right = super().made(x)
        wrong = self.wrong(x)
        return right | {n: wide(wrong[n]) for n in self.of}

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        """With the cache, where the new keys are as they were rotated."""
        case = self.given
        if "k" not in self.of or not isinstance(case.storage, Cache):
            return y
        cache = self.inputs.handed()["k_cache"].astype(np.float64)
        for b, (lq, lk) in enumerate(zip(*case.lengths, strict=True)):
            cache[b, lk - lq : lk] = self.x["k"][b, :, lk - lq : lk].swapaxes(0, 1)
        return y | {"k_cache": take_answer(case, "k_cache", cache)}

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        raise NotImplementedError


@kind(_rotated, of={"Queries are": "q", "Keys are": "k", "Queries and keys are": "qk"}, how=TURNS)
class rotated(Rotated):
    """{of} rotated {how}."""

    how: Rules

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        return prepare(self.given, x, self.how)


@kind(lambda case: _rotated(case) and not case.want.isdisjoint(("dq", "dk")), "dq dk", how=TURNS)
class rotated_back(Model):
    """dq and dk are rotated back {how}."""

    how: Rules

    def rules(self) -> Rules:
        return self.how


@kind(_rotated, of={"queries": "q", "keys": "k", "queries and keys": "qk"}, how=PLACES)
class rotary_position(Rotated):
    """The position by which {of} are rotated is {how}."""

    how: Place

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        case, how = self.given, type(self).how
        rotary, (lq, lk) = case.rotary, (np.array(n)[:, None] for n in case.lengths)
        if rotary is None:
            return x
        plain = prepare(dataclasses.replace(case, rotary=None), x, PLAIN)
        found = {}
        for n, here in (("q", np.arange(case.Lq) + lk - lq), ("k", np.arange(case.Lk) + 0 * lk)):
            at = np.clip(how(here, lq, lk), 0, case.Lk - 1)[:, None]
            found[n] = PLAIN.rotate(plain[n], x["cos"][at], x["sin"][at], rotary)
        before = isinstance(case.storage, Cache) & (np.arange(case.Lk) < lk - lq)
        found["k"] = np.where(before[:, None, :, None], plain["k"], found["k"])
        return found


@kind(lambda case, how: _rotated(case) and _applies(case, how), rounding=True,
      of={"Queries are": "q", "Keys are": "k", "Queries and keys are": "qk"},
      what={"by angles of which cos and sin are": False, "and then": True}, to=TO)  # fmt: skip
class rotated_rounded(Rotated):
    """{of} rotated {what} rounded to {to}."""

    what, to = False, ""

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        low = {n: lowered(x[n], self.to, self.given) for n in ("cos", "sin") if not self.what}
        found = prepare(self.given, x | low, self.rules())
        return {n: lowered(found[n], self.to, self.given) if self.what else found[n] for n in "qk"}


@kind(lambda case: _rotated(case) and isinstance(case.storage, Cache), how={"again, with the new ones": 1,
      "again, and not the new ones": 0, "again as they are read, and the new ones too": 2})  # fmt: skip
class cache_rotated_again(Rotated):
    """The keys of the cache, which are rotated, are rotated {how}."""

    of: Any = "k"
    how = 1

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        case, right = self.given, prepare(self.given, x, PLAIN)["k"]
        if case.rotary is None:
            return x
        old = np.arange(case.Lk) < np.subtract(*map(np.array, case.lengths[::-1]))[:, None]
        at = np.arange(case.Lk) + 0 * old
        twice = PLAIN.rotate(right, x["cos"][at][:, None], x["sin"][at][:, None], case.rotary)
        plain = prepare(dataclasses.replace(case, rotary=None), x, PLAIN)["k"]
        old = old[:, None, :, None]
        return {"k": twice if self.how == 2 else np.where(old, twice, right if self.how else plain)}

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y if self.how == 2 else super().told(y)


@kind(lambda case: _rotated(case) and case.D == case.Dv)
class values_rotated(Rotated):
    """Values are rotated as keys are."""

    of: Any = "v"

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        return {"v": prepare(self.given, x | {"k": x["v"]}, _rules())["k"]}
