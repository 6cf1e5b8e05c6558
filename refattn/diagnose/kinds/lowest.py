"""Hypotheses on a finite number for -inf that no logit comes up to: rows that see nothing average what is gone over."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...case import Case
from ...masks import Padding, Window
from ...mutants import rewritten
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, READ, ROWS, SAME, Bounds, geometric
from .loops import State

__all__: list[str] = []


@lru_cache(maxsize=4096)
def _empty(case: Case) -> bool:
    """Whether some row sees no key; of a bias that is not known."""
    there = np.arange(case.Lq) < np.array(case.lengths[0])[:, None]
    return case.bias is not None or not (case.visibility.tile().any(-1) | ~there[:, None]).all()


def _same(case: Case, how: Any) -> Any:
    return SAME[1](case, how) if geometric(case) else None


@kind(
    lambda case, how: case.Lk > 0 and _empty(case), same=("rows", _same),
    value={"-1e9": -1e9, "-1e30": -1e30}, rows=ROWS, keys=(1, *KEYS),
    past={"": False, ", and beyond the last key too": True},
    back={"its gradient goes back": True, "no gradient goes back": False},
)  # fmt: skip
class lowest_in_visited(Bounds):
    """Hidden logits are {value}: rows that see nothing average tiles of {keys} that {rows} rows see{past}; {back}."""

    value, past, back = -1e30, False, True

    def hide(self, t: Array) -> Array:
        case, seen, n = self.case, self.seen, np.array(self.case.lengths[1])[:, None, None]
        real, padded = np.asarray(replace(case.visibility, mask=None).tile()), self.padded()
        none, j = np.asarray(~seen.any(-1)), np.arange(case.Lk)
        low, high = np.zeros_like(none, int), np.broadcast_to(n, none.shape)
        if geometric(case):
            first, last = self.ends(self.reach())
            low, high = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
        high = np.minimum(high, padded)
        low = np.minimum(low, high)
        low, high = self.down(low), np.where(high > 0, self.up(high), 0)
        self.leak = none[..., None] & real & (j >= low[..., None]) & (j < high[..., None])
        self.more = np.where(none & self.past, np.maximum(high - np.maximum(n, low), 0), 0)
        self.seen = seen | self.leak
        return np.where(seen, t, np.where(self.leak, self.value, -np.inf))

    def padded(self) -> Array:
        """(B, 1, 1): the number of keys that the padding of the mask leaves, where a kernel knows it."""
        if "Padding(" not in repr(self.case.mask) or any(word in repr(self.case.mask) for word in (*READ, " | ")):
            return np.array(self.case.lengths[1])[:, None, None]
        mask = rewritten(self.case.mask, lambda m: m if isinstance(m, Padding) else Window(None, None, "top_left"))
        return np.asarray(replace(self.case.visibility, mask=mask).tile().any((1, 2)).sum(-1))[:, None, None]

    def attend(self, t: Array) -> State:
        m, z, o = super().attend(t)
        return m, z + np.where(np.isneginf(m), 0, self.more), o

    def again(self) -> Array:
        """From lse, in which the logarithm of the number of keys is lost: each has weight 1."""
        found = super().again()
        with np.errstate(invalid="ignore"):
            dtype = np.float64 if self.given.dtype == "float64" else np.float32
            weights = np.exp(dtype(self.value) - self.log(self.m, self.l).astype(dtype))[..., None]
        return np.where(self.leak, weights, found)

    def low(self, x: Array, what: str = "weights") -> Array:
        return super().low(np.where(self.leak, 0, x) if what == "ds" and not self.back else x, what)
