"""Where alone something may be wrong: some entries, heads, rows, keys or columns; and a hypothesis held there alone.

A hypothesis that explains every element that is wrong, and would make others wrong that are right, may hold in a
part of the problem alone.  Which part is not searched for: each of a list is tried, all that a kernel's author
treats apart: the first and the last of something, what is past the first tile, or in one that is not whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from ..case import GRADIENTS, Case
from ..precision import Precision
from .alone import right
from .dense import Array, Inputs
from .hypothesis import Answer, Hypothesis
from .packing import place

__all__ = ["REGIONS", "Region", "within"]

ROWS, KEYS = ("out", "lse", "dq"), ("dk", "dv")
"""the outputs of which a row belongs to a query, or to a key"""
SIZES, FEW = (16, 32, 64, 128), (1, 4, 8, 16)


@dataclass(frozen=True)
class Region:
    """Some rows (B, H, Lq) or keys (B, Hkv, Lk) of a problem, or some columns of as many as there are."""

    words: str
    rows: Callable[[Inputs], Array] | None = None
    keys: Callable[[Inputs], Array] | None = None
    columns: Callable[[int], Array] | None = None

    @property
    def where(self) -> str:
        return self.words if self.words.startswith("of the ") else f"in {self.words}"

    def of(self, name: str, inputs: Inputs) -> Array | None:
        """Which elements of an output belong to it, to broadcast; None if that cannot be said of them."""
        case, key = inputs.case, (self, name in KEYS)
        if self.columns is not None:
            return self.columns(case.D if name in ("dq", "dk") else case.Dv) if name in ("out", "dq", *KEYS) else None
        how = self.keys if name in KEYS else self.rows
        if how is None or name not in (*ROWS, *KEYS):
            return None
        if key not in inputs.made:
            shape = (case.B, case.Hkv, case.Lk) if name in KEYS else (case.B, case.H, case.Lq)
            inputs.made[key] = np.broadcast_to(how(inputs), shape)
        return inputs.made[key] if name == "lse" else inputs.made[key][..., None]


def _entries(how: Callable[[Case, Array], Any]) -> dict[str, Callable[[Inputs], Array]]:
    """A region of both rows and keys, by the index of their entry."""

    def at(x: Inputs) -> Array:
        return np.asarray(how(x.case, np.arange(x.case.B)))[:, None, None]

    return {"rows": at, "keys": at}


def _heads(how: Callable[[Case, Array], Any]) -> Callable[[Inputs], Array]:
    return lambda x: np.asarray(how(x.case, np.arange(x.case.H)))[:, None]


def _key_heads(how: Callable[[Case, Array], Any]) -> dict[str, Callable[[Inputs], Array]]:
    def rows(x: Inputs) -> Array:
        return np.asarray(how(x.case, np.arange(x.case.H) // x.case.group))[:, None]

    return {"rows": rows, "keys": lambda x: np.asarray(how(x.case, np.arange(x.case.Hkv)))[:, None]}


def _places(how: Callable[[Array, Array], Array], which: int) -> Callable[[Inputs], Array]:
    """Of rows or keys, by their index and the length of their entry."""

    def at(x: Inputs) -> Array:
        n = x.case.Lk if which else x.case.Lq
        return how(np.arange(n), np.array(x.case.lengths[which])[:, None, None])

    return at


def _unreached(x: Inputs, n: int) -> Array:
    """Rows of a query and a head that no packed row is, if the head is counted from the tile's first row."""
    g, Lq = x.case.group, x.case.Lq
    r = np.arange(Lq * g)
    there = np.zeros((Lq, g), bool)
    there[r // g, r % n % g] = True
    return ~np.tile(there.T, (max(x.case.Hkv, 1), 1))


def _not_the_last(x: Inputs, n: int) -> Array:
    first = np.maximum(np.array(x.case.lengths[1]) - 1, 0) // n * n
    return ~(x.visible & (np.arange(x.case.Lk) >= first[:, None, None, None])).any(-1)


def _seen(how: Callable[[Array], Array]) -> Callable[[Inputs], Array]:
    """Of rows, by how many keys each sees."""
    return lambda x: how(x.visible.sum(-1))


def _ragged(case: Case, b: Array, n: int) -> Array:
    return np.asarray(np.array(case.lengths[1]) % n != 0)


def _long(case: Case, b: Array, n: int, which: int = 1) -> Array:
    return np.asarray(np.array(case.lengths[which]) > n)


def _short(case: Case, b: Array, n: int, which: int = 1) -> Array:
    return ~_long(case, b, n, which)


BOTH: dict[str, dict[str, Callable[[Inputs], Array]]] = {
    "all entries but the first": _entries(lambda c, b: b > 0),
    "the first entry": _entries(lambda c, b: b == 0),
    "the last entry": _entries(lambda c, b: b == c.B - 1),
    "every other entry": _entries(lambda c, b: b % 2 == 1),
    "entries of fewer keys than others": _entries(lambda c, b: np.array(c.lengths[1]) < c.Lk),
    "entries of fewer queries than others": _entries(lambda c, b: np.array(c.lengths[0]) < c.Lq),
    "entries without keys": _entries(lambda c, b: np.array(c.lengths[1]) == 0),
    "entries of more queries than keys": _entries(lambda c, b: np.array(c.lengths[0]) > np.array(c.lengths[1])),
    "entries of more keys than queries": _entries(lambda c, b: np.array(c.lengths[0]) < np.array(c.lengths[1])),
    "all key heads but the first": _key_heads(lambda c, h: h > 0),
    "the first key head": _key_heads(lambda c, h: h == 0),
    "the last key head": _key_heads(lambda c, h: h == c.Hkv - 1),
} | {
    f"entries whose last tile of {n} keys is not whole": _entries(partial(_ragged, n=n)) for n in SIZES
} | {
    f"entries of more than {n} keys": _entries(partial(_long, n=n)) for n in SIZES
} | {
    f"entries of at most {n} keys": _entries(partial(_short, n=n)) for n in SIZES
} | {
    f"entries of at most {n} queries": _entries(partial(_short, n=n, which=0)) for n in FEW
} | {
    f"entries of more than {n} queries": _entries(partial(_long, n=n, which=0)) for n in FEW
}  # fmt: skip

HEADS: dict[str, Callable[[Case, Array], Any]] = {
    "all heads but the first": lambda c, h: h > 0,
    "the first head": lambda c, h: h == 0,
    "the last head": lambda c, h: h == c.H - 1,
    "all heads of a group but the first": lambda c, h: h % c.group > 0,
    "the first head of each group": lambda c, h: h % c.group == 0,
    "the last head of each group": lambda c, h: h % c.group == c.group - 1,
    "every other head": lambda c, h: h % 2 == 1,
    "heads past the first Hkv": lambda c, h: h >= c.Hkv,
    "heads past the largest power of two": lambda c, h: h >= 1 << (max(c.H, 1).bit_length() - 1),
}

PLACES: dict[str, Callable[[Array, Array], Array]] = {
    "the first": lambda i, n: (i == 0) & (n > 0),
    "all but the first": lambda i, n: (i > 0) & (n > 0),
    "the last": lambda i, n: i == n - 1,
    "every other": lambda i, n: (i % 2 == 1) & (n > 0),
} | {
    f"those past the last whole tile of {m}": (lambda i, n, m=m: i >= n // m * m) for m in (4, 8, *SIZES)
} | {
    f"those past the last whole tile of {m}, where there is one": (lambda i, n, m=m: (i >= n // m * m) & (n > m))
    for m in SIZES
} | {
    f"the last tile of {m}": (lambda i, n, m=m: i >= (n - 1) // m * m) for m in SIZES
} | {
    f"those past the first {m}": (lambda i, n, m=m: (i >= m) & (n > 0)) for m in (1, 4, 8, *SIZES)
} | {
    f"the first {m}": (lambda i, n, m=m: (i < m) & (n > 0)) for m in SIZES
} | {
    f"every other tile of {m}": (lambda i, n, m=m: i // m % 2 == 1) for m in SIZES
} | {
    f"the first of each tile of {m}": (lambda i, n, m=m: i % m == 0) for m in SIZES
} | {
    f"the last of each tile of {m}": (lambda i, n, m=m: i % m == m - 1) for m in SIZES
}  # fmt: skip

SEEN: dict[str, Callable[[Inputs], Array]] = {
    "rows that see nothing": _seen(lambda n: n == 0),
    "rows that see a key": _seen(lambda n: n > 0),
    "rows that see one key": _seen(lambda n: n == 1),
    "rows that see all keys": lambda x: x.visible.sum(-1) == np.array(x.case.lengths[1])[:, None, None],
    "rows that do not see all keys": lambda x: x.visible.sum(-1) < np.array(x.case.lengths[1])[:, None, None],
    "rows past the number of queries of the first entry": lambda x: np.arange(x.case.Lq) >= x.case.lengths[0][0],
    "rows past the number of queries of the shortest entry": lambda x: np.arange(x.case.Lq) >= min(x.case.lengths[0]),
    "rows past the number of keys": lambda x: np.arange(x.case.Lq) >= np.array(x.case.lengths[1])[:, None, None],
    "rows before the first key, aligned at the last": lambda x: np.arange(x.case.Lq) < np.array(
        x.case.lengths[0])[:, None, None] - np.array(x.case.lengths[1])[:, None, None],
    "rows that do not see the first key": lambda x: ~x.visible[..., :1].any(-1),
    "rows that see the first key": lambda x: x.visible[..., :1].any(-1),
} | {
    f"rows that see more than {n} keys": _seen(partial(np.less, n)) for n in SIZES
} | {
    f"rows that see nothing in the first tile of {n} keys": (
        lambda x, n=n: ~x.visible[..., :n].any(-1) & x.visible.any(-1)) for n in SIZES
} | {
    f"rows that see nothing in the last tile of {n} keys": partial(_not_the_last, n=n) for n in SIZES
} | {
    f"rows, {n} of them packed from a group's heads, past the first {n}": (lambda x, n=n: place(x.case, True) >= n)
    for n in SIZES
} | {
    f"rows, {n} of them packed from a group's heads, past the last whole tile": (
        lambda x, n=n: place(x.case, True) >= np.array(x.case.lengths[0])[:, None, None] * x.case.group // n * n)
    for n in SIZES
}  # fmt: skip

SEEN |= {
    f"rows that are not reached where each tile of {n} packed rows begins with the first head of its group": (
        partial(_unreached, n=n)) for n in SIZES
}  # fmt: skip

COLUMNS: dict[str, Callable[[int], Array]] = {
    "the last column": lambda n: np.arange(n) == n - 1,
    "the first column": lambda n: np.arange(n) == 0,
    "every other column": lambda n: np.arange(n) % 2 == 1,
    "the second half of the columns": lambda n: np.arange(n) >= n // 2,
} | {
    f"columns past the first {m}": (lambda n, m=m: np.arange(n) >= m) for m in (4, 8, *SIZES)
} | {
    f"columns past the last whole block of {m}": (lambda n, m=m: np.arange(n) >= n // m * m) for m in (2, 4, 8, *SIZES)
}  # fmt: skip

REGIONS: tuple[Region, ...] = (
    *(Region(words, both["rows"], both["keys"]) for words, both in BOTH.items()),
    *(Region(words, rows=_heads(how)) for words, how in HEADS.items()),
    *(Region(words, rows=how) for words, how in SEEN.items()),
    *(Region(f"of the rows {words}", rows=_places(how, 0)) for words, how in PLACES.items()),
    *(Region(f"of the keys {words}", keys=_places(how, 1)) for words, how in PLACES.items()),
    *(Region(words, columns=how) for words, how in COLUMNS.items()),
)


@cache
def within(h: Hypothesis, region: Region) -> Hypothesis:
    """The same wrong in a region alone."""

    def solve(inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
        gradients = not want.isdisjoint(GRADIENTS)
        if region.rows is None or not gradients:
            return _mixed(h.solve(inputs, contract, want), right(inputs, contract, want), region, inputs)
        if h.made is None:
            return {}  # gradients of some rows alone take a model
        inside = np.broadcast_to(region.rows(inputs), inputs.visible.shape[:3])
        y = h.solve(_fed(inputs, (region, True), inside), contract, want)
        z = right(_fed(inputs, (region, False), ~inside), contract, want)
        return _mixed(y, z, region, inputs) | {n: y[n] + z[n] for n in GRADIENTS if n in y and n in z}

    return replace(
        h, name=f"{h.name} {region.where}", narrow=1, solve=solve,
        what=f"{h.what.rstrip('.')}: {region.where} alone", same=None, family=None, members=(), made=None,
    )  # fmt: skip


def _mixed(wrong: Answer, rest: Answer, region: Region, inputs: Inputs) -> dict[str, Array]:
    """The wrong answer in the region, the right one elsewhere; an output that has no such parts is right."""
    found = {}
    for n in wrong:
        if n in rest and wrong[n].shape == rest[n].shape:
            inside = region.of(n, inputs)
            found[n] = rest[n] if inside is None else np.where(inside, wrong[n], rest[n])
    return found


def _fed(inputs: Inputs, of: tuple[Region, bool], held: Array) -> Inputs:
    """The problem with the gradients that arrive at some rows alone: all gradients are linear in them."""
    key = ("fed", of)
    if key not in inputs.made:
        x = Inputs.__new__(Inputs)
        vars(x).update(vars(inputs))
        x.made = {}
        x.arrays = inputs.arrays | {
            n: np.where(held[..., None] if n == "dout" else held, a, 0)
            for n, a in inputs.arrays.items() if n in ("dout", "dlse")
        }  # fmt: skip
        inputs.made[key] = x
    return inputs.made[key]
