"""Hypotheses on a loop over key tiles that begins or ends where it should not: at a hidden tile, or at a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, Bounds, hides

__all__: list[str] = []


def _gaps(case: Case, how: Any) -> bool:
    return case.Lk > how.keys and (case.mask is not None or case.bias is not None)


END = {
    "of which they see nothing": (False, False, False),
    "of which they see nothing, from key 0 on": (False, False, True),
    "of which they see nothing after one that they see": (True, False, True),
    "of which they see nothing, from the last one on": (False, True, False),
}


@kind(_gaps, same=SAME, rows=ROWS, keys=KEYS, end=END)
class loop_ends_at_hidden(Bounds):
    """The loop over tiles of {keys} keys that {rows} queries go over ends at the first {end}."""

    end = False, False, False

    def visible(self) -> Array:
        (after, backwards, whole), case, seen = self.end, self.case, np.array(super().visible())
        own = seen & ~np.isneginf(self.x["bias"]) if "bias" in self.x else seen
        first, last = self.ends(self.reach() if hides(case) and not whole else np.ones_like(seen))
        low, high = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
        going, met = np.ones(seen.shape[:3], bool), np.full(seen.shape[:3], not after)
        for j in range(0, case.Lk, self.keys)[:: -1 if backwards else 1]:
            tile = slice(j, j + self.keys)
            some = self.of_tile(own[..., tile].any(-1), lambda x: x.any(-1))
            met = met | some
            going = going & ~((j + self.keys > low) & (j < high) & ~some & met)
            seen[..., tile] &= going[..., None]
        return seen


def _moved(case: Case, how: Any) -> bool:
    return hides(case) and case.Lk > 1 and ("Window(" in repr(case.mask) or "Chunked(" in repr(case.mask))


@kind(_moved, same=SAME, rows=ROWS, keys=(1, *KEYS), begin={"from key 0 on": True, "from their first one on": False})
class loop_by_number(Bounds):
    """{rows} queries go over tiles of {keys} keys {begin}, and end at the number of keys that they see."""

    begin = True

    def visible(self) -> Array:
        first, last = self.ends(self.reach())
        low, high = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
        seen, j = super().visible(), np.arange(self.case.Lk)
        seen = seen & (j < self.up(np.maximum(high - self.down(low), 0))[..., None])
        return seen if self.begin else seen & (j >= self.down(low)[..., None])


OF_ENTRIES = {"the first": lambda n: n[:1], "the shortest": lambda n: n.min(keepdims=True)}


@kind(
    lambda case, how: len(set(case.lengths[1])) > 1 and bool((how.of(np.array(case.lengths[1])) < case.Lk).all()),
    of=OF_ENTRIES, tile={"a tile of 16": 16, "a tile of 32": 32, "a tile of 64": 64, "a tile of 128": 128},
)  # fmt: skip
class loop_ends_as_another(Bounds):
    """The loop over keys ends, for all entries, where that of {of} does, to the end of {tile}."""

    of: Any
    tile = 16

    def visible(self) -> Array:
        n = -(-type(self).of(np.array(self.given.lengths[1])) // self.tile) * self.tile
        return super().visible() & (np.arange(self.given.Lk) < n[:, None, None, None])
