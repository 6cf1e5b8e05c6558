"""Hypotheses on keys that are counted from the first one that a tile of rows goes over, where their index is meant."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, Bounds

__all__: list[str] = []

LOOKED_UP = {
    "the bias is": ("bias",), "what dropout keeps is": ("dropout",), "the modifier's key is": ("score_mod",),
    "bias and what dropout keeps are": ("bias", "dropout"),
}  # fmt: skip


def _begins_later(case: Case, how: Any) -> bool:
    by_key = "bias" not in how.of or (case.bias is not None and case.bias_shape[3] > 1)
    return case.mask is not None and by_key and all(getattr(case, name) for name in how.of)


@kind(_begins_later, same=SAME, of=LOOKED_UP, rows=ROWS, keys=(1, *KEYS))
class by_place_in_range(Bounds):
    """{of} looked up by a key's place in the range that {rows} rows go over, in tiles of {keys} keys, not its index."""

    of: tuple[str, ...] = ("bias",)

    def places_in_range(self) -> Array:
        """(B, H, Lq, Lk)"""
        first, _ = self.ends(np.asarray(self.case.visibility.tile()))
        low = self.down(self.of_tile(first, lambda x: x.min(-1)))
        return np.maximum(np.arange(self.case.Lk) - low[..., None], 0)

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        if "dropout" not in self.of:
            return x
        return x | {"keep": np.take_along_axis(x["keep"], self.places_in_range(), 3)}

    def bias(self, bias: Array) -> Array:
        bias = super().bias(bias)
        if "bias" not in self.of:
            return bias
        at = self.places_in_range()
        return np.take_along_axis(np.broadcast_to(bias, at.shape), at, 3)

    def places(self) -> tuple[Array, ...]:
        b, h, i, j = super().places()
        return b, h, i, self.places_in_range() if "score_mod" in self.of else j
