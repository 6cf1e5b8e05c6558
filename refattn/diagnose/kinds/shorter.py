"""Hypotheses on entries that are shorter than the arrays made for the longest: where their part of one lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

OF = {"the bias": "bias", "what dropout keeps": "keep", "the mask": "mask"}


def _shorter(case: Case, how: Any) -> bool:
    there = {"bias": case.bias is not None and case.bias_shape[how.axis] > 1, "keep": case.dropout is not None,
             "mask": case.mask is not None}  # fmt: skip
    lens, most = case.lengths[how.axis - 2], (case.Lq, case.Lk)[how.axis - 2]
    return there[how.of] and any(0 < n < most for n in lens)


@kind(_shorter, of=OF, axis={"queries": 2, "keys": 3})
class at_the_end(Model):
    """In entries of fewer {axis} than others {of} is read at the end of the array, the last of them."""

    of, axis = "bias", 3

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: self.taken(x[n]) for n in x if n == self.of and n != "mask"}

    def visible(self) -> Array:
        if self.of != "mask":
            return super().visible()
        case = self.case
        whole = np.asarray(replace(case.visibility, q_lens=None, k_lens=None).tile())
        return self.taken(whole) & np.asarray(replace(case.visibility, mask=None).tile())

    def taken(self, x: Array) -> Array:
        lens, n = np.array(self.given.lengths[self.axis - 2]), x.shape[self.axis]
        at = np.minimum(np.arange(n) + n - lens[:, None], n - 1)
        wide = np.broadcast_to(x, (self.given.B, *x.shape[1:]))
        return np.take_along_axis(wide, np.expand_dims(at, (1, 2) if self.axis == 3 else (1, 3)), self.axis)


@kind(lambda case, how: "dbias" in case.want and _shorter(case, how), of={"the bias": "bias"},
      axis={"queries": 2, "keys": 3})  # fmt: skip
class written_at_the_end(at_the_end):
    """In entries of fewer {axis} than others {of} is read, and its gradient written, at the end of the array."""

    def reduced(self, dt: Array) -> Array:
        lens, n = np.array(self.given.lengths[self.axis - 2]), dt.shape[self.axis]
        at = np.arange(n) - n + lens[:, None]
        wide = np.expand_dims(np.where(at < 0, n - 1, at), (1, 2) if self.axis == 3 else (1, 3))
        moved = np.take_along_axis(dt, wide, self.axis)
        return super().reduced(np.where(np.expand_dims(at >= 0, (1, 2) if self.axis == 3 else (1, 3)), moved, 0))
