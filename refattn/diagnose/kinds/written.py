"""Hypotheses on where results are written: at another head's or entry's place, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

RESULTS = {"out": ("out",), "lse": ("lse",), "out and lse": ("out", "lse"), "dq": ("dq",)}
NEVER = {"0": 0.0, "NaN": np.nan}
Places = Callable[[Case], Array]


def _turned(H: int, group: int) -> Array:
    """Where heads (key head, place in the group) lie as (place in the group, key head)."""
    return np.arange(H) % group * (H // group) + np.arange(H) // group


ALL = RESULTS | {
    "out, lse and dq": ("out", "lse", "dq"), "dk": ("dk",), "dv": ("dv",), "dk and dv": ("dk", "dv"),
    "dq, dk and dv": ("dq", "dk", "dv"), "dbias": ("dbias",), "dsinks": ("dsinks",),
}  # fmt: skip


@kind(lambda case, how: not case.want.isdisjoint(how.of), of=ALL, left=NEVER, vague=True)
class never_written(Model):
    """{of}: not written, and what is there stays {left}."""

    of: tuple[str, ...] = ("out",)
    left = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: np.full_like(y[n], self.left) for n in self.of if n in y}


HEADS: dict[str, Places] = {
    "its place in the group": lambda c: np.arange(c.H) % c.group,
    "its key head": lambda c: np.arange(c.H) // c.group,
    "h % Hkv": lambda c: np.arange(c.H) % max(1, c.Hkv),
    "head 0": lambda c: np.zeros(c.H, int),
    "head h + 1": lambda c: np.arange(c.H) + 1,
    "head h - 1": lambda c: np.arange(c.H) - 1,
    "the first head of its group": lambda c: np.arange(c.H) // c.group * c.group,
    "group and key head exchanged": lambda c: _turned(c.H, c.group),
    "key head and group exchanged": lambda c: np.argsort(_turned(c.H, c.group)),
    "the head counted from the last": lambda c: c.H - 1 - np.arange(c.H),
    "the head counted from the last of its group":
        lambda c: np.arange(c.H) // c.group * c.group + c.group - 1 - np.arange(c.H) % c.group,
    "the next head, around the end": lambda c: (np.arange(c.H) + 1) % max(c.H, 1),
}
ENTRIES: dict[str, Places] = {
    "entry 0": lambda c: np.zeros(c.B, int),
    "the next entry": lambda c: np.arange(c.B) + 1,
    "the entry before": lambda c: np.arange(c.B) - 1,
}


def _elsewhere(case: Case, how: Any) -> bool:
    at = how.to(case)
    if case.want.isdisjoint(how.of) or np.array_equal(at, np.arange(at.size)):
        return False
    missed = len({*at.tolist()} & {*range(at.size)}) < at.size  # otherwise nothing stays as it was
    return how.left == 0 or (missed and (how.left != -np.inf or "lse" in how.of))


class written_at(Model):
    of: tuple[str, ...] = ("out",)
    to: Places
    left, axis = 0.0, 1

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        empty = {n: 0.0 if self.left == -np.inf and n != "lse" else self.left for n in self.of}
        return y | {n: self.moved(y[n], empty[n]) for n in self.of if n in y}

    def moved(self, x: Array, empty: float) -> Array:
        at, found = type(self).to(self.given), np.full_like(x, empty).swapaxes(0, self.axis)
        for place, own in zip(at, x.swapaxes(0, self.axis), strict=True):
            if 0 <= place < at.size:
                found[place] = own
        return found.swapaxes(0, self.axis)


EMPTY = NEVER | {"0, lse -inf": -np.inf}
WRITTEN = RESULTS | {"out, lse and dq": ("out", "lse", "dq")}


@kind(
    lambda case, how: not np.array_equal(how.to(case), np.arange(case.H)) and how.to(case).max(initial=0) < case.H > 0,
    of={"q": ("q",), "q and dout": ("q", "dout")}, to=HEADS,
)  # fmt: skip
class query_head(Model):
    """For head h {of} read at the place of {to}."""

    of: tuple[str, ...] = ("q",)
    to: Places

    def arrays(self) -> dict[str, Array]:
        x, at = super().arrays(), np.maximum(type(self).to(self.given), 0)
        return x | {n: x[n][:, at] for n in self.of if n in x}


@kind(_elsewhere, shows="out lse dq", of=WRITTEN, to=HEADS, left=EMPTY)
class written_at_head(written_at):
    """{of} of head h: written at the place of {to}, the last one stays; the rest is never written, and is {left}."""


@kind(_elsewhere, shows="out lse dq", of=RESULTS, to=ENTRIES, left=EMPTY)
class written_at_entry(written_at):
    """{of}: written at the place of {to}, the last one stays; the rest is never written, and is {left}."""

    axis = 0


MISSED: Mapping[str, Places] = {
    f"heads of a group past the first{f' {n}' * (n > 1)}": (lambda c, n=n: np.arange(c.H) % c.group >= n)
    for n in (1, 2, 4, 8, 16)
} | {
    f"heads past the first{f' {n}' * (n > 1)}": (lambda c, n=n: np.arange(c.H) >= n) for n in (1, 2, 4, 8, 16)
} | {
    f"heads past the last whole {n}": (lambda c, n=n: np.arange(c.H) >= c.H // n * n) for n in (2, 4, 8)
} | {
    f"heads of a group past the last whole {n}": (lambda c, n=n: np.arange(c.H) % c.group >= c.group // n * n)
    for n in (2, 4, 8)
}  # fmt: skip


def _misses(case: Case, how: Any) -> bool:
    return not case.want.isdisjoint(how.of) and bool(how.missed(case).any())


@kind(_misses, "out lse dq", missed=MISSED, of={"out and lse": ("out", "lse"), "out": ("out",), "lse": ("lse",)},
      left=EMPTY, vague=True)  # fmt: skip
class heads_missed(Model):
    """Not computed are {missed}: their {of} stay {left}."""

    missed: Places
    of: tuple[str, ...] = ("out",)
    left = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        at = type(self).missed(self.given)[:, None]
        empty = {n: 0.0 if self.left == -np.inf and n != "lse" else self.left for n in self.of}
        return y | {n: np.where(at if n == "lse" else at[..., None], empty[n], y[n]) for n in self.of if n in y}


def _padded(case: Case) -> Array:
    """(H, Lq): the place of a row, if a group's heads are as many as the next power of two."""
    g = max(case.group, 1)
    wide = 1 << (g - 1).bit_length()
    return np.arange(case.Lq) * wide + np.arange(case.H)[:, None] % g


@kind(
    lambda case, how: not case.want.isdisjoint(how.of) and case.group & (case.group - 1) != 0, "out lse dq",
    of=WRITTEN, left=EMPTY,
)  # fmt: skip
class rows_past_padded_group(Model):
    """Rows lie as for a group of 2^n heads, and are counted as of those it has: {of} of the rest stay {left}."""

    of: tuple[str, ...] = ("out",)
    left = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        n = np.array(self.given.lengths[0])[:, None, None] * self.given.group
        lost = np.broadcast_to(_padded(self.given) >= n, (self.given.B, self.given.H, self.given.Lq))
        empty = {n: 0.0 if self.left == -np.inf and n != "lse" else self.left for n in self.of}
        return y | {n: np.where(lost if n == "lse" else lost[..., None], empty[n], y[n]) for n in self.of if n in y}
