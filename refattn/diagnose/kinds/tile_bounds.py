"""Hypotheses on which tiles a kernel goes over: it skips some that a row sees, or leaves some unmasked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ...masks import And, Causal, Dilated, GlobalTokens, Mask, Prefix, Window
from ...mutants import rewritten
from ...visibility import Or
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, Bounds, geometric, hides
from .patterns import joined

__all__: list[str] = []

SOME = {words: rows for words, rows in ROWS.items() if rows[0] > 1}


def _bounded(case: Case, how: Any) -> bool:
    return hides(case) and case.Lk > 1


def _rows(case: Case, how: Any) -> bool:
    """Whether a tile has several rows."""
    return case.Lq * (case.group if how.rows[1] else 1) > 1


def _tiled(case: Case, how: Any) -> bool:
    return _bounded(case, how) and case.Lk > how.keys


@kind(
    lambda case, how: _bounded(case, how) and (not how.whole or geometric(case)), same=SAME, rows=ROWS, keys=KEYS,
    whole={"": False, ", but where the last key is the entry's": True},
)  # fmt: skip
class last_tile_rounded_down(Bounds):
    """The number of key tiles of {keys} that {rows} queries go over is rounded down: a partial one is lost{whole}."""

    whole = False
    """whether tiles that end with the keys of an entry are counted rightly"""

    def visible(self) -> Array:
        seen = super().visible()
        last = self.of_tile(self.ends(self.reach())[1], lambda x: x.max(-1))
        n = np.array(self.case.lengths[1])[:, None, None]
        last = np.where(self.whole & (last >= n), last, self.down(last))
        return seen & (np.arange(seen.shape[-1]) < last[..., None])


FEW = {words: ROWS[words] for words in ("16", "64", "128", "64 packed", "128 packed")}


def _same_if_hidden(case: Case, how: Any) -> Any:
    return hides(case) and SAME[1](case, how)


@kind(lambda case: case.Lk > 1, same=("rows", _same_if_hidden), rows=FEW, keys=KEYS)
class tiles_rounded_down(last_tile_rounded_down):
    """The number of key tiles of {keys} that {rows} queries go over is rounded down, with a mask or without any."""


@kind(_bounded, same=SAME, rows=ROWS, keys=KEYS)
class first_tile_rounded_up(Bounds):
    """The first key tile of {keys} that {rows} queries go over is rounded up: the first, partial one is lost."""

    def visible(self) -> Array:
        seen = super().visible()
        first = self.up(self.of_tile(self.ends(self.reach())[0], lambda x: x.min(-1)))
        return seen & (np.arange(seen.shape[-1]) >= first[..., None])


ROW = {"first": lambda x: x[..., 0], "middle": lambda x: x[..., x.shape[-1] // 2], "last": lambda x: x[..., -1]}


def _by_row(case: Case, how: Any) -> bool:
    bounded = _bounded(case, how) if how.end[1] == 2 else _tiled(case, how)
    if how.row is ROW["last"] and not how.end[0] and (case.group < 2 or not how.rows[1]):
        return False  # it reaches furthest
    return bounded and _rows(case, how)


@kind(
    _by_row, same=SAME, rows=SOME, keys=(1, *KEYS), row=ROW,
    end={"last key tile": (False, 1), "first key tile": (True, 0), "first and last key tile": (True, 1),
         "last key, and the first key tile": (True, 2)},
)  # fmt: skip
class tiles_by_row(Bounds):
    """The {end} of {keys} that {rows} queries go over is found by the {row} of them alone."""

    end = (False, 1)
    """whether the first goes by it; and the last: 0 not, 1 by its tile, 2 to the key"""
    row: Callable[[Array], Array]

    def visible(self) -> Array:
        seen = super().visible()
        first, last = self.ends(self.reach())
        j = np.arange(seen.shape[-1])
        if self.end[0]:
            seen = seen & (j >= self.down(self.of_tile(first, type(self).row))[..., None])
        if not self.end[1]:
            return seen
        last = self.of_tile(last, type(self).row)
        return seen & (j < (last if self.end[1] == 2 else self.up(last))[..., None])


@kind(_tiled, same=SAME, rows=SOME, keys=KEYS)
class mask_in_last_tile_alone(Bounds):
    """The mask is applied in the last key tile of {keys} of each {rows} queries, and not in those before it."""

    def visible(self) -> Array:
        seen = super().visible()
        last = self.of_tile(self.ends(self.reach())[1], lambda x: x.max(-1))
        begin = self.down(np.maximum(last - 1, 0))
        real = np.asarray(replace(self.case.visibility, mask=None).tile())
        return (seen | (np.arange(seen.shape[-1]) < begin[..., None])) & real


@kind(
    _bounded, same=SAME, rows=ROWS, keys=KEYS,
    edge={"last key": (False, True), "first key": (True, False), "first and last key": (True, True)},
)  # fmt: skip
class edge_not_masked(Bounds):
    """{rows} queries see whole tiles of {keys} keys: up to the {edge} the tile is not masked."""

    edge = (False, True)

    def visible(self) -> Array:
        seen = super().visible()
        first, last = self.ends(self.reach())
        some, j = (first < last)[..., None], np.arange(seen.shape[-1])
        low = self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None]
        high = self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None]
        before, after = (j >= low) & (j < first[..., None]), (j >= last[..., None]) & (j < high)
        real = np.asarray(replace(self.case.visibility, mask=None).tile())
        return seen | ((self.edge[0] & before | self.edge[1] & after) & some & real)


@kind(
    lambda case, how: _bounded(case, how) and _rows(case, how), same=SAME, rows=SOME,
    edge={"the first key": (True, False), "the last key": (False, True), "the first and the last key": (True, True)},
)  # fmt: skip
class edge_of_tile(edge_not_masked):
    """The mask hides what is past {edge} that any of {rows} queries sees, for all of them, and nothing else there."""

    keys = 1


@kind(
    lambda case, how: case.Lk > how.keys, same=SAME, rows=ROWS, keys=KEYS,
    end={"first": 0, "last": -1},
)  # fmt: skip
class tile_lost(Bounds):
    """Of the key tiles of {keys} that {rows} queries see, the {end} one is left out."""

    end = 0

    def visible(self) -> Array:
        seen = super().visible()
        first, last = self.ends(self.reach())
        j = np.arange(seen.shape[-1])
        if self.end == 0:
            return seen & (j >= self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None] + self.keys)
        return seen & (j < self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None] - self.keys)


def right_side(mask: Mask | None) -> int | None:
    """How far beyond the diagonal a mask lets see at most; None if it has no such end."""
    if isinstance(mask, And):
        sides = [n for n in (right_side(mask.left), right_side(mask.right)) if n is not None]
        return min(sides, default=None)
    return 0 if isinstance(mask, Causal) else mask.right if isinstance(mask, Window) else None


def _with_offset(case: Case, how: Any) -> bool:
    uneven = any(lq != lk for lq, lk in zip(*case.lengths, strict=True))
    return hides(case) and uneven and case.Lk > how.keys and "bottom_right" in repr(case.mask)


class MovedEnd(Bounds):
    """One end of the keys that a tile of rows goes over is found where it is not; the mask is right."""

    end = -1

    def wrong(self) -> Array:
        """By how many keys, to broadcast to (B, H, Lq)."""
        raise NotImplementedError

    def visible(self) -> Array:
        seen, lk = super().visible(), np.array(self.case.lengths[1])[:, None, None]
        first, last = self.ends(self.reach())
        some, j = first < last, np.arange(seen.shape[-1])
        if self.end == 0:
            first = np.where(some & (first > 0), first + self.wrong(), first)
            return seen & (j >= self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None])
        bounded = (last < lk) | (right_side(self.case.mask) is not None)
        last = np.where(some & bounded, last + self.wrong(), last)
        return seen & (j < self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None])


@kind(
    _with_offset, same=SAME, rows=ROWS, keys=(1, *KEYS), end={"first": 0, "last": -1},
    by={"leaves out the offset lk - lq": "none", "is that of the padded lengths": "padded", "is lq - lk": "negative"},
)  # fmt: skip
class bound_without_offset(MovedEnd):
    """The {end} key tile of {keys} that {rows} queries go over is found by a diagonal that {by}; the mask is right."""

    by = "none"

    def wrong(self) -> Array:
        case = self.case
        lq, lk = (np.array(n)[:, None, None] for n in case.lengths)
        return {"none": 0 * lk, "padded": 0 * lk + case.Lk - case.Lq, "negative": lq - lk}[self.by] - (lk - lq)


@kind(
    lambda case, how: case.mask is not None and _rows(case, how), same=SAME, rows=SOME, keys=KEYS,
    row={"first": 0, "last": -1},
)  # fmt: skip
class tile_skipped_by_row(Bounds):
    """A tile of {keys} keys is skipped for {rows} queries where the {row} of them sees none of it."""

    row = 0

    def visible(self) -> Array:
        seen = np.array(super().visible())
        for j in range(0, seen.shape[3], self.keys):
            tile = seen[..., j : j + self.keys]
            tile &= self.of_tile(tile.any(-1), lambda x: x[..., self.row])[..., None]
        return seen


def _causal(m: Any) -> Mask:
    return Causal(m.align)


PARTS: dict[str, tuple[type[Mask], Callable[[Any], Mask]]] = {
    "the diagonal of a prefix": (Prefix, _causal),
    "the first of two masks of which either is enough": (Or, lambda m: m.left),
    "the second of two masks of which either is enough": (Or, lambda m: m.right),
    "both of two masks of which either is enough": (Or, lambda m: m.left & m.right),
    "the diagonal of global tokens": (GlobalTokens, _causal),
    "the window that a dilated one spans, one step too short": (
        Dilated, lambda m: replace(m, window=max(0, m.window - 1))),
}  # fmt: skip


def _has_part(case: Case, how: Any) -> bool:
    words = "|" if how.part[0] is Or else f"{how.part[0].__name__}("
    return case.Lk > how.keys and words in repr(case.mask)


@kind(_has_part, same=SAME, part=PARTS, rows=ROWS, keys=(1, *KEYS), end=("first", "last", "first and last"))
class tiles_of_part_of_mask(Bounds):
    """The {end} tile of {keys} keys that {rows} queries go over is found by {part}."""

    part: Any = (Prefix, _causal)
    end = "last"

    def visible(self) -> Array:
        seen, (of, change) = super().visible(), self.part
        over = joined if of in (And, Or) else rewritten
        mask = over(self.case.mask, lambda m: change(m) if isinstance(m, of) else m)
        first, last = self.ends(np.asarray(replace(self.case.visibility, mask=mask).tile()))
        j = np.arange(seen.shape[-1])
        if "first" in self.end:
            seen = seen & (j >= self.down(self.of_tile(first, lambda x: x.min(-1)))[..., None])
        if "last" in self.end:
            seen = seen & (j < self.up(self.of_tile(last, lambda x: x.max(-1)))[..., None])
        return seen
