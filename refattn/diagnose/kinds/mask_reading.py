"""Hypotheses on where a mask is looked up: another head, entry or row, or a place within a tile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ...case import Case
from ...masks import Causal, Chunked, Mask, Prefix, SinkTokens, Window
from ...mutants import rewritten
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import SIZES, Asked

__all__: list[str] = []

def _masked(case: Case) -> bool:
    return case.mask is not None


@kind(
    _masked,
    how={
        "those of head 0 for all heads": lambda m, b, h, i, j, lq, lk: m(b, h * 0, i, j, lq, lk),
        "those of entry 0 for all entries": lambda m, b, h, i, j, lq, lk: m(b * 0, h, i, j, lq, lk),
        "rows and columns are exchanged": lambda m, b, h, i, j, lq, lk: m(b, h, j, i, lk, lq),
        "that of the first row for all rows": lambda m, b, h, i, j, lq, lk: m(b, h, i * 0, j, lq, lk),
        "True and False are exchanged": lambda m, b, h, i, j, lq, lk: ~m(b, h, i, j, lq, lk),
        "nowhere: it is not applied": lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) | True,
        "that of the next key": lambda m, b, h, i, j, lq, lk: m(b, h, i, np.minimum(j + 1, j.max(initial=0)), lq, lk),
        "that of the next row": lambda m, b, h, i, j, lq, lk: m(b, h, np.minimum(i + 1, i.max(initial=0)), j, lq, lk),
        "those of the next head": lambda m, b, h, i, j, lq, lk: m(b, (h + 1) % (h.max(initial=0) + 1), i, j, lq, lk),
        "those of the next entry": lambda m, b, h, i, j, lq, lk: m((b + 1) % (b.max(initial=0) + 1), h, i, j, lq, lk),
        "rows and their place in the group are one index, as they are packed": None,
        "that of the row before": lambda m, b, h, i, j, lq, lk: m(b, h, np.maximum(i - 1, 0), j, lq, lk),
        "that of the key before": lambda m, b, h, i, j, lq, lk: m(b, h, i, np.maximum(j - 1, 0), lq, lk),
    },
)  # fmt: skip
class mask_read(Model):
    """The mask is read from another place: {how}."""

    how: Callable[..., Array] | None

    def packed(self, m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        group = self.case.group
        return m(b, h, i * group + h % group, j, lq, lk)

    def visible(self) -> Array:
        mask = Asked(self.case.mask or SinkTokens(0), self.how or self.packed)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


@kind(lambda case: _masked(case) and case.H > case.Hkv > 0, of={
    "its key head": lambda c, g: np.arange(c.H) // g,
    "the first head of its group": lambda c, g: np.arange(c.H) // g * g,
    "its place in the group": lambda c, g: np.arange(c.H) % g, "h % Hkv": lambda c, g: np.arange(c.H) % c.Hkv,
})  # fmt: skip
class mask_of_head(Model):
    """The mask of a head is that of {of}."""

    of: Callable[[Case, int], Array]

    def visible(self) -> Array:
        return super().visible()[:, type(self).of(self.given, self.given.H // self.given.Hkv)]


@kind(
    lambda case: _masked(case) or case.k_lens is not None or case.q_lens is not None,
    how={
        "those of entry 0 for all entries": lambda x: np.repeat(x[:1], len(x), 0),
        "those of the next entry": lambda x: np.roll(x, -1, 0),
        "those of the entry before": lambda x: np.roll(x, 1, 0),
        "those of head 0 for all heads": lambda x: np.repeat(x[:, :1], x.shape[1], 1),
        "those of the next head": lambda x: np.roll(x, -1, 1),
        "those of entry and head exchanged in memory":
            lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).reshape(x.shape),
        "those of query and key exchanged in memory": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).reshape(x.shape),
        "the opposite": lambda x: ~x,
        "with the last key hidden": lambda x: x & (np.arange(x.shape[3]) < x.shape[3] - 1),
        "with the first key hidden": lambda x: x & (np.arange(x.shape[3]) > 0),
        "all hidden": lambda x: x & False,
    },
)  # fmt: skip
class pairs_seen(Model):
    """What a query sees, mask and lengths, is {how}."""

    how: Callable[[Array], Array]

    def visible(self) -> Array:
        return self.how(super().visible())


DIAGONAL = (Causal, Window, Prefix, Chunked)
TOLD: dict[str, tuple[type[Mask], ...]] = {
    "mask": (), "mask of a diagonal, as of causal masks, windows, prefixes and chunks,": DIAGONAL,
}  # fmt: skip


def _told(case: Case, of: tuple[type[Mask], ...]) -> bool:
    return _masked(case) if not of else any(f"{m.__name__}(" in repr(case.mask) for m in of)


class Asking(Model):
    """A mask, or those parts of it, told other queries and keys."""

    of: tuple[type[Mask], ...] = ()

    def asked(self, how: Callable[..., Array]) -> Array:
        mask = self.case.mask or SinkTokens(0)
        of = self.of
        other = rewritten(mask, lambda m: Asked(m, how) if isinstance(m, of) else m) if of else Asked(mask, how)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=other).tile())


@kind(lambda case, how: _told(case, how.of) and case.Lk > how.tile, of=TOLD, tile=(4, 8, *SIZES))
class mask_by_place_in_key_tile(Asking):
    """The {of} is told a key's place within its tile of {tile}, not its index."""

    tile = 64

    def visible(self) -> Array:
        return self.asked(lambda m, b, h, i, j, lq, lk: m(b, h, i, j % self.tile, lq, lk))


@kind(lambda case, how: _told(case, how.of) and case.Lq > how.tile, of=TOLD, tile=(4, 8, *SIZES))
class mask_by_place_in_query_tile(Asking):
    """The {of} is told a query's place within its tile of {tile}, not its index."""

    tile = 64

    def visible(self) -> Array:
        return self.asked(lambda m, b, h, i, j, lq, lk: m(b, h, i % self.tile, j, lq, lk))


WRAPPED: dict[str, Callable[[Array], Array]] = {
    "8 bits": lambda x: x % 256, "8 bits, one of which is the sign": lambda x: (x + 128) % 256 - 128,
    "7 bits": lambda x: x % 128,
}  # fmt: skip
MOST = {"8 bits": 256, "8 bits, one of which is the sign": 128, "7 bits": 128}
OF = {"of keys": (0, 1), "of queries": (1, 0), "of both": (1, 1)}


@kind(
    lambda case, how: _masked(case) and (case.Lq * how.of[0] > how.bits[1] or case.Lk * how.of[1] > how.bits[1]),
    of=OF, bits={words: (wrapped, MOST[words]) for words, wrapped in WRAPPED.items()},
)  # fmt: skip
class mask_told_in_bits(Model):
    """The mask is told indices {of} of {bits}."""

    of = 0, 1
    bits: tuple[Callable[[Array], Array], int] = WRAPPED["8 bits"], 256

    def visible(self) -> Array:
        wrap, (queries, keys) = self.bits[0], self.of
        mask = Asked(self.case.mask or SinkTokens(0), lambda m, b, h, i, j, lq, lk: m(
            b, h, wrap(i) if queries else i, wrap(j) if keys else j, lq, lk))  # fmt: skip
        open_ = np.asarray(dataclasses.replace(self.case.visibility, mask=None).tile())
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile()) & open_


@kind(
    lambda case, how: (case.mask is not None or case.k_lens is not None)
    and (case.Lq * how.of[0] > how.bits or case.Lk * how.of[1] > how.bits),
    of=OF, bits={words: most for words, most in MOST.items() if "sign" not in words},
)  # fmt: skip
class bounds_told_in_bits(Model):
    """The mask, and the test of what exists, are told indices {of} of {bits}."""

    of = 0, 1
    bits = 256

    def visible(self) -> Array:
        queries, keys = self.of
        i, j = np.arange(self.case.Lq), np.arange(self.case.Lk)
        rows = super().visible()[:, :, i % self.bits if queries else i]
        return np.asarray(rows[..., j % self.bits if keys else j])
