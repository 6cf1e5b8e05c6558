"""Hypotheses on places within a tile: rows, keys or columns that lanes, fragments or swizzles put elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import always, kind
from ..model import Array, Model, safe

__all__: list[str] = []

Places = Callable[[int], Array]
"""of so many, where each is looked for"""


def _within(n: int, at: Array) -> Array:
    """Those that are there; one that is not stays."""
    return np.where(at < n, at, np.arange(n))


def _apart(n: int, size: int, back: bool) -> Array:
    """In blocks of a size the even ones first, then the odd ones; or the other way round."""
    i = np.arange(n)
    p, half = i % size, size // 2
    other = p // 2 + p % 2 * half if back else p % half * 2 + p // half
    return _within(n, i - p + other)


PLACES: Mapping[str, Places] = {
    f"of each two times {m} the two halves are exchanged": (lambda n, m=m: _within(n, np.arange(n) ^ m))
    for m in (1, 2, 4, 8, 16, 32)
} | {
    f"in each {m} the even ones come first": (lambda n, m=m: _apart(n, m, False)) for m in (4, 8, 16, 32)
} | {
    f"in each {m} the first and second half are interleaved": (lambda n, m=m: _apart(n, m, True))
    for m in (4, 8, 16, 32)
} | {
    f"in each {m} the order is reversed": (lambda n, m=m: _within(n, np.arange(n) // m * m + m - 1 - np.arange(n) % m))
    for m in (4, 8, 16, 32, 64)
}  # fmt: skip


def _moves(n: int, places: Places) -> bool:
    return n > 0 and not np.array_equal(places(n), np.arange(n))


READ: dict[str, tuple[tuple[str, ...], int]] = {
    "the columns of q": (("q",), 3), "the columns of k": (("k",), 3), "the columns of v": (("v",), 3),
    "the rows of q": (("q",), 2), "the rows of k": (("k",), 2), "the rows of v": (("v",), 2),
    "the rows of q and dout": (("q", "dout"), 2), "the rows of dout": (("dout",), 2),
    "the columns of dout": (("dout",), 3), "the rows of the bias": (("bias",), 2),
    "the columns of the bias": (("bias",), 3), "the rows of what dropout keeps": (("keep",), 2),
    "the columns of what dropout keeps": (("keep",), 3),
}  # fmt: skip
SIZES: dict[tuple[str, int], Callable[[Case], int]] = {
    ("q", 3): lambda c: c.D, ("k", 3): lambda c: c.D, ("v", 3): lambda c: c.Dv, ("q", 2): lambda c: c.Lq,
    ("k", 2): lambda c: c.Lk, ("v", 2): lambda c: c.Lk, ("dout", 2): lambda c: c.Lq * c.backward,
    ("dout", 3): lambda c: c.Dv * c.backward, ("bias", 2): lambda c: 0 if c.bias is None else c.bias_shape[2],
    ("bias", 3): lambda c: 0 if c.bias is None else c.bias_shape[3],
    ("keep", 2): lambda c: 0 if c.dropout is None else c.Lq, ("keep", 3): lambda c: 0 if c.dropout is None else c.Lk,
}  # fmt: skip


def _reads(case: Case, how: Any) -> bool:
    names, axis = how.of
    return all(_moves(SIZES[n, axis](case), how.order) for n in names)


def _size(case: Case, how: Any) -> Any:
    names, axis = how.of
    return how.order(SIZES[names[0], axis](case)).tobytes()


@kind(_reads, same=("order", _size), of=READ, order=PLACES)
class places_read(Model):
    """Within a tile {of} are read in another order: {order}."""

    of: Any = (("v",), 3)
    order: Places

    def arrays(self) -> dict[str, Array]:
        x, (names, axis) = super().arrays(), self.of
        return x | {n: np.take(x[n], self.order(x[n].shape[axis]), axis) for n in names if n in x}


WRITTEN: dict[str, tuple[tuple[str, ...], int]] = {
    "the rows of out": (("out",), 2), "the rows of out and lse": (("out", "lse"), 2), "lse": (("lse",), 2),
    "the columns of out": (("out",), 3), "the rows of dq": (("dq",), 2), "the columns of dq": (("dq",), 3),
    "the rows of dk": (("dk",), 2), "the rows of dv": (("dv",), 2), "the rows of dk and dv": (("dk", "dv"), 2),
    "the columns of dk": (("dk",), 3), "the columns of dv": (("dv",), 3),
}  # fmt: skip


def _length(case: Case, how: Any) -> int:
    names, axis = how.of
    if axis == 2:
        return case.Lk if names[0] in ("dk", "dv") else case.Lq
    return case.D if names[0] in ("dq", "dk") else case.Dv


def _writes(case: Case, how: Any) -> bool:
    return not case.want.isdisjoint(how.of[0]) and _moves(_length(case, how), how.order)


@kind(
    _writes, "out lse dq dk dv", same=("order", lambda case, how: how.order(_length(case, how)).tobytes()),
    of=WRITTEN, order=PLACES,
)  # fmt: skip
class places_written(Model):
    """Within a tile {of} are written in another order: {order}."""

    of: Any = (("out",), 3)
    order: Places

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        names, axis = self.of
        return y | {n: np.take(y[n], self.order(y[n].shape[axis]), axis) for n in names if n in y}


ROWS: dict[str, str] = {
    "divided by the row sum": "out", "subtracted by delta": "delta", "given the lse in the backward": "lse",
}


@kind(
    lambda case, how: _moves(case.Lq, how.order) and (how.of == "out" or case.backward),
    same=("order", lambda case, how: how.order(case.Lq).tobytes()), of=ROWS, order=PLACES,
)  # fmt: skip
class of_row_within_tile(Model):
    """A row is {of} of another one in its tile: {order}."""

    of = "out"
    order: Places

    def other(self, x: Array) -> Array:
        return np.take(x, self.order(x.shape[2]), 2)

    def written(self, out: Array) -> Array:
        if self.of != "out":
            return super().written(out)
        z = np.where(self.l == 0, 1, self.l)
        return out * (z / self.other(z))[..., None]

    def delta(self) -> Array:
        d = super().delta()
        return self.other(d) if self.of == "delta" else d

    def again(self) -> Array:
        if self.of != "lse":
            return super().again()
        lse = safe(self.m) + np.log(np.where(self.l == 0, 1, self.l))
        return np.where(self.seen, np.exp(self.t - self.other(lse)[..., None]), 0)


SWIZZLES = {f"{b} columns, by the row's place in {r}": (b, r) for b in (4, 8, 16) for r in (2, 4, 8)}


@kind(
    lambda case, how: (case.D if how.of[0] in "qk" else case.Dv) > 4 and case.Lk > 0,
    of={"q": ("q",), "k": ("k",), "v": ("v",)}, how=SWIZZLES,
)  # fmt: skip
class swizzle_forgotten(Model):
    """{of} is read in another order of blocks of columns than it was written: swizzled in blocks of {how}."""

    of: tuple[str, ...] = ("v",)
    how = 8, 8

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        for n in self.of:
            (rows, size), (block, period) = x[n].shape[2:], self.how
            at = np.arange(size) ^ (np.arange(rows)[:, None] % period * block)
            at = np.where(at < size, at, np.arange(size))
            x[n] = np.take_along_axis(x[n], np.broadcast_to(at, x[n].shape), 3)
        return x


@kind(always, times={"2": 2.0, "4": 4.0, "8": 8.0, "32": 32.0, "1/2": 0.5, "1/4": 0.25})
class row_sum_times(Model):
    """The row sum is {times} times as large, in the output and in lse: lanes are added up too often, or not all."""

    times = 2.0

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, z, o = super().attend(t)
        return m, z * self.dtype(self.times), o


LANES: Mapping[str, Callable[[Array], Array]] = {
    f"the second half of each {m} keys": (lambda j, m=m: j % m >= m // 2) for m in (2, 4, 8, 16, 32, 64, 128)
} | {
    f"the first half of each {m} keys": (lambda j, m=m: j % m < m // 2) for m in (2, 4, 8, 16, 32, 64, 128)
} | {
    f"all but the first two of each {m} keys": (lambda j, m=m: j % m >= 2) for m in (8, 16)
} | {
    f"all but the first of each {m} keys": (lambda j, m=m: j % m >= 1) for m in (4, 8, 16, 32)
}  # fmt: skip


@kind(
    lambda case, how: case.Lk > 0 and bool(how.lanes(np.arange(case.Lk)).any()), lanes=LANES,
    same=("lanes", lambda case, how: how.lanes(np.arange(case.Lk)).tobytes()),
    what={"are left out of the row sum": "z", "are left out of the output": "o",
          "are left out of the row sum and the output": "zo"},
)  # fmt: skip
class lanes_not_summed(Model):
    """Of the keys {lanes} {what}: lanes are not added up."""

    lanes: Callable[[Array], Array]
    what = "z"

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m = t.max(-1, initial=-np.inf)
        p = np.exp(t - safe(m)[..., None])
        some = np.where(type(self).lanes(np.arange(t.shape[-1])), 0, p)
        return m, (some if "z" in self.what else p).sum(-1), self.weighed(some if "o" in self.what else p)


COLUMNS: dict[str, Callable[[int], Array]] = {
    f"the last block of {m}": (lambda n, m=m: np.arange(n) >= (n - 1) // m * m) for m in (8, 16, 32, 64)
} | {
    f"the first block of {m}": (lambda n, m=m: np.arange(n) < m) for m in (8, 16, 32, 64)
} | {
    "the second half": lambda n: np.arange(n) >= n // 2, "the first half": lambda n: np.arange(n) < n // 2,
    "every other": lambda n: np.arange(n) % 2 == 1,
}  # fmt: skip


def _some(case: Case, how: Any) -> bool:
    at = how.columns(case.D)
    return bool(at.any()) and not at.all()


@kind(
    _some, same=("columns", lambda case, how: how.columns(case.D).tobytes()), columns=COLUMNS,
    times={"left out": 0.0, "counted twice": 2.0},
)  # fmt: skip
class columns_of_scores(Model):
    """In the products of queries and keys {columns} of the columns is {times}."""

    columns: Callable[[int], Array]
    times = 0.0

    def to_logits(self) -> None:
        true = self.k
        self.k = np.where(type(self).columns(true.shape[3]), true * self.dtype(self.times), true)
        super().to_logits()
        self.k = true


OTHERS = {
    "q and k are read in as many columns as a value has": ("q", "k"),
    "v is read in as many columns as a key has": ("v",),
}  # fmt: skip


@kind(lambda case, how: (case.D > case.Dv > 0) if "q" in how.of else (case.Dv > case.D > 0), of=OTHERS)
class columns_of_another(Model):
    """{of}."""

    of: tuple[str, ...] = ("v",)

    def arrays(self) -> dict[str, Array]:
        x, n = super().arrays(), min(self.given.D, self.given.Dv)
        return x | {a: np.where(np.arange(x[a].shape[3]) < n, x[a], 0) for a in self.of}


@kind(lambda case: case.Dv > case.D > 0, "out", left={"0": 0.0, "NaN": np.nan})
class out_in_columns_of_key(Model):
    """The output is written in as many columns as a key has; the rest stays {left}."""

    left = 0.0

    def written(self, out: Array) -> Array:
        return np.where(np.arange(out.shape[3]) < self.given.D, out, self.left)
