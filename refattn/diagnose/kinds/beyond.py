"""Hypotheses on keys past the end: more or fewer than an entry has, and what memory holds behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import MATRICES, Cache, Case, Dense, Packed, Paged, Storage, Strided
from ...visibility import Mask
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import Asked
from .bounds import Bounds
from .storage import _in

__all__: list[str] = []

Taken = Callable[[Case, Array], Array]
"""(case, how many keys each entry has) -> how many it is taken to have"""
TABLES = ("Dense(", "Documents(", "BlockSparse(", "Gathered(", "Tree(", "Padding(")
"""masks that are looked up in a table, where a key past the end has the entry of the last"""


def _up(n: Array, size: int) -> Array:
    return -(-n // size) * size


def _with_gap(case: Case, n: Array) -> Array:
    return n + case.storage.gap if isinstance(case.storage, Packed) else n


def _ends(case: Case, n: Array) -> Array:
    return np.asarray(np.cumsum(_with_gap(case, n))) if isinstance(case.storage, Packed) else n


def _in_cache(case: Case, n: Array, fewer: int) -> Array:
    return n - fewer if isinstance(case.storage, Cache) else n


TAKEN: dict[str, Taken] = {
    "the end of its last page": lambda c, n: _up(n, c.storage.page_size) if isinstance(c.storage, Paged) else n,
    "where the next entry begins, over what is unused": _with_gap,
    "where the next entry begins, over what is unused, up to the longest":
        lambda c, n: np.minimum(_with_gap(c, n), c.Lk),
    "the length of the next entry": lambda c, n: np.roll(n, -1),
    "the length of the entry before": lambda c, n: np.roll(n, 1),
    "the length of the first entry": lambda c, n: 0 * n + n[:1].sum(),
    "the length of the last entry": lambda c, n: 0 * n + n[-1:].sum(),
    "the length of the longest": lambda c, n: 0 * n + n.max(initial=0),
    "the length of the shortest": lambda c, n: 0 * n + n.min(initial=c.Lk),
    "the end of the padded array": lambda c, n: 0 * n + c.Lk if isinstance(c.storage, Dense) else n,
    "the number of its queries": lambda c, n: np.array(c.lengths[0]),
    "the place where it ends, cu_seqlens of the next": lambda c, n: np.minimum(_ends(c, n), c.Lk),
    "all that its pages have room for": lambda c, n: (
        0 * n + _up(n.max(initial=0), c.storage.page_size) if isinstance(c.storage, Paged) else n),
    "the last one of the cache, and not to the new ones": lambda c, n: _in_cache(c, n, c.Lq),
    "the last new one but one": lambda c, n: _in_cache(c, n, 1),
    "one past its end": lambda c, n: n + (n > 0),
    "its length modulo 128, as a signed byte holds it": lambda c, n: n % 128,
    "its length modulo 256, as a byte holds it": lambda c, n: n % 256,
} | {
    f"the end of its last tile of {s}": (lambda c, n, s=s: _up(n, s) if isinstance(c.storage, Packed) else n)
    for s in (16, 32, 64, 128)
}  # fmt: skip


def _others(case: Case, how: Any) -> bool:
    true = np.array(case.lengths[1])
    turned = case.rotary is not None and (how.how[0] or not isinstance(case.storage, Dense))
    plain = not turned and not isinstance(case.storage, Strided)
    taken = how.taken(case, true)
    return plain and case.Lk >= (0 if case.rotary is None else taken.max(initial=0)) and not np.array_equal(taken, true)


@kind(
    _others, taken=TAKEN,
    how={"the diagonal goes by them": (True, False), "the diagonal stays where it is": (False, False)},
)  # fmt: skip
class keys_taken(Model):
    """The keys of an entry go on to {taken}, {how}."""

    taken: Taken
    how = (True, False)

    def numbers(self) -> Array:
        return np.maximum(type(self).taken(self.given, np.array(self.given.lengths[1])), 0)

    def total(self) -> int:
        return max(self.given.Lk, int(self.numbers().max(initial=0)))

    def visible(self) -> Array:
        case, n = self.given, self.numbers()
        table = any(word in repr(case.mask) for word in TABLES)
        last = case.Lk - 1 if table else self.total()
        lens = n if self.how[0] and not table else np.array(case.lengths[1])

        def told(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            return m(b, h, i, np.minimum(j, last), lq, lens[b])

        mask = None if case.mask is None else Asked(case.mask, told)
        seen = replace(case.visibility, mask=mask, Lk=self.total(), k_lens=tuple(map(int, n)))
        return np.asarray(seen.tile())

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        more = np.minimum(np.arange(self.total()), self.given.Lk - 1)
        x |= {n: x[n][..., more] for n in ("bias", "keep") if n in x and x[n].shape[-1] == self.given.Lk}
        if self.total() > self.given.Lk or isinstance(self.given.storage, (Packed, Paged)):
            x |= {n: self.behind(n, x[n]) for n in "kv"}
        return x

    def places(self) -> tuple[Array, ...]:
        return (*super().places()[:3], np.arange(self.total()).reshape(1, 1, 1, -1))

    def behind(self, name: str, x: Array) -> Array:
        """k or v, (B, Hkv, total, size), with what memory holds past the end of each entry; 0 past the end of all."""
        case, handed, j = self.given, self.inputs.handed(), np.arange(self.total())
        memory = handed[name]
        if case.quant is not None:  # what is unused holds the largest code, or NaN where there is one
            largest = handed[f"{name}_scale"][:, :, -1:] * 127.0 if case.quant.kind == "int8" else np.nan
            more = np.zeros((*x.shape[:2], len(j) - case.Lk, x.shape[3]))
            return np.where((j < np.array(case.lengths[1])[:, None])[:, None, :, None], np.append(x, more, 2), largest)
        if isinstance(case.storage, Paged):
            size = case.storage.page_size
            return np.asarray(memory[_in(handed["block_table"].astype(np.int64), j // size), j % size].swapaxes(1, 2))
        if isinstance(case.storage, Packed):
            wide = np.concatenate([memory, np.zeros_like(memory[:1])])
            at = np.minimum(handed["cu_seqlens_k"].astype(np.int64)[:-1, None] + j, len(memory))
            return np.asarray(wide[at].swapaxes(1, 2))
        rows = np.concatenate([x.reshape(-1, x.shape[3]), np.zeros_like(x[0, 0, :1])])
        first = np.arange(case.B * case.Hkv).reshape(case.B, case.Hkv, 1) * case.Lk
        return rows[np.minimum(first + j, len(rows) - 1)]

    def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
        if not self.how[1]:
            return super().weighed(p, keys)
        seen = self.seen
        self.seen = np.broadcast_to(np.arange(self.total()) < self.numbers()[:, None, None, None], seen.shape)
        found = super().weighed(p, keys)
        self.seen = seen
        return found

    def group(self, y: Array) -> Array:
        return super().group(y[:, :, : self.given.Lk])

    def reduced(self, dt: Array) -> Array:
        return super().reduced(dt[..., : self.given.Lk])

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: y[n][..., : self.given.Lk] for n in MATRICES if n in y}


@kind(
    _others, taken=TAKEN,
    how={"the diagonal goes by them": (True, True), "the diagonal stays where it is": (False, True)},
)  # fmt: skip
class keys_taken_leaking(keys_taken):
    """The keys of an entry go on to {taken}, {how}; NaN there leaks, 0 times NaN."""


@kind(
    lambda case, how: any(n % how.tile for n in case.lengths[1]) and case.rotary is case.score_mod is None,
    tile=(16, 32, 64, 128), most={"": False, ", or of the longest": True},
)  # fmt: skip
class tail_counts(keys_taken):
    """Keys past the end of an entry count to the end of its last tile of {tile}{most}, as keys and values of zeros."""

    tile, most, how = 64, False, (False, False)

    def numbers(self) -> Array:
        n = np.array(self.given.lengths[1])
        return np.minimum(_up(n, self.tile), self.given.Lk) if self.most else _up(n, self.tile)

    def arrays(self) -> dict[str, Array]:
        x, there = super().arrays(), np.arange(self.total()) < np.array(self.given.lengths[1])[:, None]
        return x | {n: np.where(there[:, None, :, None], x[n], 0) for n in "kv"}

    def behind(self, name: str, x: Array) -> Array:
        return np.append(x, np.zeros((*x.shape[:2], self.total() - x.shape[2], x.shape[3])), 2)


REACH: dict[str, tuple[int, bool] | None] = {
    "all rows": None, "rows that go so far": (1, False),
    **{f"tiles of {n} rows that go so far": (n, False) for n in (16, 64, 128)},
    **{f"tiles of {n} rows, packed, that go so far": (n, True) for n in (16, 64, 128)},
}  # fmt: skip
STORAGES: dict[str, tuple[type[Storage], ...]] = {
    "": (Dense, Strided, Packed, Paged, Cache), "in pages, ": (Paged,), "in caches, ": (Cache,),
    "in pages and caches, ": (Paged, Cache), "in packed sequences, ": (Packed,),
}  # fmt: skip
UNITS: dict[str, tuple[int, bool]] = {f"tiles of {n} keys": (n, False) for n in (16, 32, 64, 128)}
UNITS |= {f"tiles of {n} keys, or smaller pages": (n, True) for n in (16, 32, 64, 128)}
UNITS |= {"pages": (2**20, True)}


def _size(case: Case, how: Any) -> int:
    size, paged = how.unit
    return min(size, case.storage.page_size) if paged and isinstance(case.storage, Paged) else int(size)


def _partial(case: Case, how: Any) -> bool:
    pages = Paged in how.of and not (how.unit[1] and not isinstance(case.storage, Paged) and how.of == (Paged,))
    if not isinstance(case.storage, how.of) or (how.unit[1] and not pages) or _size(case, how) == 2**20:
        return False
    return any(n % _size(case, how) for n in case.lengths[1])


def _tail(case: Case, how: Any) -> Any:
    """Which entries it is about, and how far the last tile begins before their end."""
    size = _size(case, how)
    return tuple(n % size for n in case.lengths[1]), "" if how.where is None else how.where


@kind(_partial, same=("unit", _tail), unit=UNITS, of=STORAGES, where=REACH)
class tail_of_values_not_cleared(Bounds):
    """Past the end of the last of {unit}, {of}V is not cleared: 0 times NaN is NaN, in {where}."""

    unit: tuple[int, bool] = (64, False)
    of: tuple[type[Storage], ...] = (Dense,)
    where: tuple[int, bool] | None = None

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, z, o = super().attend(t)
        n = np.array(self.given.lengths[1])[:, None, None]
        size = _size(self.given, type(self))
        dirty = np.broadcast_to(n % size != 0, m.shape)
        if self.where is not None:
            self.keys, self.rows = size, self.where
            dirty = dirty & (self.ends_of_tiles() > n // size * size)
        return m, z, np.where(dirty[..., None], np.nan, o)

    def ends_of_tiles(self) -> Array:
        return self.of_tile(self.ends(self.seen)[1], lambda x: x.max(-1))
