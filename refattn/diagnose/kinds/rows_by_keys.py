"""Hypotheses on what belongs to rows, lse above all, at places that go by keys where they should go by queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case, Packed
from ...layouts import cu_seqlens
from ..hypothesis import kind
from ..model import Array, Model
from .gradients import ALL
from .row_places import OF, row_value_read

__all__: list[str] = []

Place = Callable[[Case], Array]
"""(B, H, Lq): of an array of rows, the element that is taken for each; -1 for none"""


def _starts(case: Case) -> tuple[Array, Array]:
    """Where each packed sequence begins, and the last ends, (B + 1, 1, 1): of queries and of keys."""
    gap = case.storage.gap if isinstance(case.storage, Packed) else 0
    q, k = (cu_seqlens(n, gap).astype(int)[:, None, None] for n in case.lengths)
    return q, k


def _true(case: Case) -> Array:
    return _with_rows(case, 0, 0)


def _with_rows(case: Case, of_head: int, of_entry: int) -> Array:
    """As if heads, and entries, had so many rows more."""
    b, h, i = np.ogrid[: case.B, : case.H, : case.Lq]
    if not isinstance(case.storage, Packed):
        return np.asarray(b * (case.H * (case.Lq + of_head) + of_entry) + h * (case.Lq + of_head) + i)
    q = _starts(case)[0]
    return np.asarray(h * (q[-1] + of_head) + q[:-1] + i)


def _size(case: Case) -> int:
    """How many elements such an array has."""
    return case.H * (int(_starts(case)[0][-1, 0, 0]) if isinstance(case.storage, Packed) else case.B * case.Lq)


def _more(case: Case) -> int:
    """How many keys there are more than queries: in a head, or of all packed sequences."""
    q, k = _starts(case)
    return int(k[-1, 0, 0] - q[-1, 0, 0]) if isinstance(case.storage, Packed) else case.Lk - case.Lq


def _at_keys(case: Case, past: str) -> Array:
    """Packed: where the keys of its sequence begin."""
    if not isinstance(case.storage, Packed):
        return _true(case)
    (q, k), (_, h, i) = _starts(case), np.ogrid[: case.B, : case.H, : case.Lq]
    own, most = np.array(case.lengths[0])[:, None, None], q[-1]
    at = (np.minimum(k[:-1], most - own) if past == "early" else k[:-1]) + i
    if past == "last":
        at = np.minimum(at, most - 1)
    return np.where((at < most) | (past == "next"), h * most + at, -1)


AT: dict[str, Place] = {
    "where its sequence's keys begin, and past the end of a head nowhere": lambda c: _at_keys(c, "lost"),
    "where its sequence's keys begin, and past the end of a head in the next": lambda c: _at_keys(c, "next"),
    "where its sequence's keys begin, and past the end of a head at its last": lambda c: _at_keys(c, "last"),
    "where its sequence's keys begin, or so early that it fits": lambda c: _at_keys(c, "early"),
    "as if a head had as many rows as keys": lambda c: _with_rows(c, _more(c), 0),
    "as if an entry had as many rows as heads times keys": lambda c: _with_rows(c, 0, c.H * _more(c)),
}


def _there(case: Case) -> Array:
    """(B, H, Lq): the rows that there are."""
    own = np.arange(case.Lq) < np.array(case.lengths[0])[:, None, None]
    return np.broadcast_to(own, (case.B, case.H, case.Lq))


def _elsewhere(case: Case, how: Any) -> bool:
    return bool(((how.by(case) != _true(case)) & _there(case)).any())


def _written(case: Case, how: Any) -> bool:
    return not case.want.isdisjoint(how.of) and _elsewhere(case, how)


OF_ROWS = {"lse is": ("lse",), "The output is": ("out",), "Output and lse are": ("out", "lse"), "dq is": ("dq",)}


@kind(_written, "out lse dq", of=OF_ROWS, by=AT, left={"0": 0.0, "NaN": np.nan})
class rows_written_by_keys(Model):
    """{of} written {by}; where none is, {left} stays."""

    of: tuple[str, ...] = ("lse",)
    by: Place
    left = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: self.moved(y[n]) for n in self.of if n in y}

    def moved(self, x: Array) -> Array:
        found, there = x.copy(), _there(self.given)
        true, taken = (np.broadcast_to(at, there.shape) for at in (_true(self.given), type(self).by(self.given)))
        memory = np.full((_size(self.given), *x.shape[3:]), self.left)
        fits = there & (taken >= 0) & (taken < len(memory))
        memory[taken[fits]] = x[fits]
        found[there] = memory[true[there]]
        return found


def _read(case: Case, how: Any) -> bool:
    return case.backward and ("g" not in how.of or "lse" in case.want) and _elsewhere(case, how)


@kind(_read, ALL, of={words: OF[words] for words in ("lse", "delta", "lse and delta", "dlse")}, by=AT)
class row_read_by_keys(row_value_read):
    """The backward reads {of} {by}."""

    by: Place

    def moved(self, x: Array, of: str) -> Array:
        if of not in self.of:
            return x
        there = _there(self.given)
        true, taken = (np.broadcast_to(at, x.shape) for at in (_true(self.given), type(self).by(self.given)))
        memory = np.zeros(_size(self.given) + 1, x.dtype)  # 0 where there is none
        memory[true[there]] = x[there]
        return np.where(there, memory[np.minimum(taken, memory.size - 2)], x)
