"""Hypotheses on where results are written: at another head's or entry's place, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

RESULTS = {"out": ("out",), "lse": ("lse",), "out and lse": ("out", "lse"), "dq": ("dq",)}
NEVER = {"0": 0.0, "NaN": np.nan}
Places = Callable[[Case], Array]


def _group(case: Case) -> int:
    return max(1, case.H // max(1, case.Hkv))


HEADS: dict[str, Places] = {
    "its place in the group": lambda c: np.arange(c.H) % _group(c),
    "its key head": lambda c: np.arange(c.H) // _group(c),
    "h % Hkv": lambda c: np.arange(c.H) % max(1, c.Hkv),
    "head 0": lambda c: np.zeros(c.H, int),
    "head h + 1": lambda c: np.arange(c.H) + 1,
    "head h - 1": lambda c: np.arange(c.H) - 1,
    "the first head of its group": lambda c: np.arange(c.H) // _group(c) * _group(c),
}
ENTRIES: dict[str, Places] = {
    "entry 0": lambda c: np.zeros(c.B, int),
    "the next entry": lambda c: np.arange(c.B) + 1,
    "the entry before": lambda c: np.arange(c.B) - 1,
}


def _elsewhere(case: Case, how: Any) -> bool:
    at = how.to(case)
    return not case.want.isdisjoint(how.of) and not np.array_equal(at, np.arange(at.size))


class written_at(Model):
    of: tuple[str, ...] = ("out",)
    to: Places
    left, axis = 0.0, 1

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: self.moved(y[n]) for n in self.of if n in y}

    def moved(self, x: Array) -> Array:
        at, found = type(self).to(self.given), np.full_like(x, self.left).swapaxes(0, self.axis)
        for place, own in zip(at, x.swapaxes(0, self.axis), strict=True):
            if 0 <= place < at.size:
                found[place] = own
        return found.swapaxes(0, self.axis)


@kind(_elsewhere, shows="out lse dq", of=RESULTS, to=HEADS, left=NEVER)
class written_at_head(written_at):
    """{of} of head h: written at the place of {to}, the last one stays; the rest is never written, and is {left}."""


@kind(_elsewhere, shows="out lse dq", of=RESULTS, to=ENTRIES, left=NEVER)
class written_at_entry(written_at):
    """{of}: written at the place of {to}, the last one stays; the rest is never written, and is {left}."""

    axis = 0


Where = Callable[[Any], Array]
"""of a model -> booleans that broadcast to (B, H, Lq)"""
WHERE: dict[str, Where] = {
    "the last entry": lambda x: np.arange(x.given.B)[:, None, None] == x.given.B - 1,
    "entries without keys": lambda x: np.array(x.given.lengths[1])[:, None, None] == 0,
    "rows that see nothing": lambda x: ~x.seen.any(-1),
    "all entries but the first": lambda x: np.arange(x.given.B)[:, None, None] > 0,
    "the last head": lambda x: np.arange(x.given.H)[:, None] == x.given.H - 1,
    "all heads but the first": lambda x: np.arange(x.given.H)[:, None] > 0,
    "heads past the first Hkv": lambda x: np.arange(x.given.H)[:, None] >= x.given.Hkv,
    "all heads of a group but the first": lambda x: np.arange(x.given.H)[:, None] % _group(x.given) > 0,
    "the first row": lambda x: np.arange(x.given.Lq) == 0,
    "the last row": lambda x: np.arange(x.given.Lq) == x.given.Lq - 1,
}


def _past(x: Any, tile: int, whole: bool) -> Array:
    return np.arange(x.given.Lq) >= (x.given.Lq // tile * tile if whole else tile)


WHERE |= {f"rows past the last whole tile of {n}": partial(_past, tile=n, whole=True) for n in (16, 32, 64, 128)}
WHERE |= {f"rows past the first {n}": partial(_past, tile=n, whole=False) for n in (16, 32, 64, 128)}


@kind(
    lambda case, how: not case.want.isdisjoint(how.of), shows="out lse dq",
    of=RESULTS | {"out, lse and dq": ("out", "lse", "dq")}, where=WHERE, left=NEVER,
)  # fmt: skip
class unwritten(Model):
    """{of}: not written in {where}, where it stays {left}."""

    of: tuple[str, ...] = ("out",)
    where: Where
    left = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        gone = type(self).where(self)
        return y | {n: np.where(gone if n == "lse" else gone[..., None], self.left, y[n]) for n in self.of if n in y}


KEYS: dict[str, Where] = {
    "of the last entry": lambda x: np.arange(x.given.B)[:, None, None] == x.given.B - 1,
    "past the end of an entry": lambda x: np.arange(x.given.Lk) >= np.array(x.given.lengths[1])[:, None, None],
    "where no query sees the key": lambda x: ~x.seen.any((1, 2))[:, None],
    "past the last whole tile of 32": lambda x: np.arange(x.given.Lk) >= x.given.Lk // 32 * 32,
    "past the last whole tile of 64": lambda x: np.arange(x.given.Lk) >= x.given.Lk // 64 * 64,
    "past the last whole tile of 128": lambda x: np.arange(x.given.Lk) >= x.given.Lk // 128 * 128,
    "of entries without queries": lambda x: np.array(x.given.lengths[0])[:, None, None] == 0,
    "of all entries but the first": lambda x: np.arange(x.given.B)[:, None, None] > 0,
    "of all heads but the first": lambda x: np.arange(x.given.Hkv)[:, None] > 0,
    "of the last head": lambda x: np.arange(x.given.Hkv)[:, None] == x.given.Hkv - 1,
}


@kind(
    lambda case, how: not case.want.isdisjoint(how.of), shows="dk dv",
    of={"dk": ("dk",), "dv": ("dv",), "dk and dv": ("dk", "dv")}, where=KEYS, left=NEVER,
)  # fmt: skip
class keys_unwritten(Model):
    """{of}: not written {where}, where it stays {left}."""

    of: tuple[str, ...] = ("dk",)
    where: Where
    left = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        gone = type(self).where(self)[..., None]
        return y | {n: np.where(gone, self.left, y[n]) for n in self.of if n in y}
