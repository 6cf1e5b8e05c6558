"""Hypotheses on tiles that are taken for full, and not masked, by a test that looks at little of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ...masks import Causal, Mask, Window
from ...mutants import rewritten
from ..hypothesis import kind
from ..model import Array
from ..packing import cut
from .alignment import ALIGNED, Asked
from .bounds import KEYS, ROWS, SAME, Bounds, geometric, hides

__all__: list[str] = []

Test = tuple[Callable[[Any], Mask] | None, Callable[[Array], Array], Callable[[Array], Array]]
"""(the mask that is asked, if it is another; over a tile's keys, over its rows -> whether it is taken for full)"""


def _all(x: Array) -> Array:
    return np.asarray(x.all(-1))


def _any(x: Array) -> Array:
    return np.asarray(x.any(-1))


def _first(x: Array) -> Array:
    return x[..., 0]


def _last(x: Array) -> Array:
    return x[..., -1]


def _corners(x: Array) -> Array:
    return np.asarray(x[..., 0] & x[..., -1])


def _right_side(m: Any) -> Mask:
    return replace(m, left=None) if isinstance(m, Window) else m


def _left_side(m: Any) -> Mask:
    if isinstance(m, Causal):
        return Window(None, None, "top_left")
    return replace(m, right=None) if isinstance(m, Window) else m


def _further(m: Any) -> Mask:
    return Asked(m, lambda m, b, h, i, j, lq, lk: m(b, h, i + 1, j, lq, lk)) if isinstance(m, ALIGNED) else m


def _earlier(m: Any) -> Mask:
    return Asked(m, lambda m, b, h, i, j, lq, lk: m(b, h, i - 1, j, lq, lk)) if isinstance(m, ALIGNED) else m


TESTS: dict[str, Test] = {
    "no key of it is past the right edge, be some before the left one": (_right_side, _all, _all),
    "no key of it is before the left edge, be some past the right one": (_left_side, _all, _all),
    "each query would see it all if it stood one further": (_further, _all, _all),
    "each query would see it all if it stood one earlier": (_earlier, _all, _all),
    "its first query sees its last key": (None, _last, _first),
    "its last query sees its first key": (None, _first, _last),
    "its first query sees its first key": (None, _first, _first),
    "its last query sees its last key": (None, _last, _last),
    "its first query sees some of it": (None, _any, _first),
    "its first query sees all of it": (None, _all, _first),
    "its first and last query see its first and last key": (None, _corners, _corners),
    "its last query sees all of it": (None, _all, _last),
    "all its queries see some of it": (None, _any, _all),
    "all its queries see its first key": (None, _first, _all),
}  # fmt: skip


def _tiled(case: Case, how: Any) -> bool:
    if how.test[0] in (_right_side, _left_side) and "Window(" not in repr(case.mask):
        return False
    if how.test[2] is not _all and case.Lq * (case.group if how.rows[1] else 1) == 1:
        return False  # there is one row to ask
    return case.mask is not None and case.Lk > 1 and APPLIES[how.within](case)


WITHIN = {"": "", " within its bounds": "bounds", " where all its keys are an entry's": "keys"}

APPLIES: dict[str, Callable[[Case], bool]] = {"": lambda case: True, "bounds": hides, "keys": geometric}


@kind(_tiled, same=SAME, test=TESTS, rows=ROWS, keys=KEYS, within=WITHIN)
class taken_for_full(Bounds):
    """A tile of {rows} queries and {keys} keys is not masked{within} if {test}."""

    test: Test = (None, _all, _all)
    within = ""
    """bounds: tiles are cut off at the first and the last key that one of the queries sees; keys: a tile that goes on
    past an entry's keys is masked"""

    def visible(self) -> Array:
        case, (change, over_keys, over_rows) = self.case, self.test
        real = np.asarray(replace(case.visibility, mask=None).tile())
        seen = asked = super().visible()
        if change is not None:
            asked = np.asarray(replace(case.visibility, mask=rewritten(case.mask, change)).tile())
        gone = self.gone_over()
        parts = []
        for first, part in enumerate(cut(asked, self.keys)):
            there = (real & gone)[..., first * self.keys :][..., : part.shape[-1]]
            open_ = part | ~there if over_keys is _all else part  # keys that an entry has not are in no tile
            on = there.any(-1)
            if self.within == "keys":
                on = on & (first * self.keys + self.keys <= np.array(case.lengths[1]))[:, None, None]
            full = self.of_tile(over_keys(open_) & on, over_rows)
            parts.append(np.broadcast_to(full[..., None], part.shape))
        return np.asarray(seen | (np.concatenate(parts, -1) & real & gone))

    def gone_over(self) -> Array:
        """The keys from the first to the last that one of a tile's rows may see, or the key tiles."""
        if not hides(self.case):
            return np.ones((1, 1, 1, 1), bool)
        first, last = self.ends(self.reach())
        low, high = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
        low, high, j = low[..., None], high[..., None], np.arange(self.case.Lk)
        return (j >= low) & (j < high) if self.within == "bounds" else (j >= self.down(low)) & (j < self.up(high))
