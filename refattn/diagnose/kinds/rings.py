"""Hypotheses on rings: a window's keys in fewer slots than its queries need, where a later key lies over an earlier."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...case import GRADIENTS, MATRICES, Case
from ...masks import Window
from ..hypothesis import kind
from ..model import Array
from .bounds import Bounds

__all__: list[str] = []

SLOTS: dict[str, Callable[[Array, int], Array]] = {
    "one slot less than they need": lambda need, left: need - 1,
    "two slots less than they need": lambda need, left: need - 2,
    "as many slots as a query sees keys": lambda need, left: np.minimum(need, left + 1),
    "as many slots as the window has keys before a query": lambda need, left: np.minimum(need, left),
}


def _ring(case: Case, how: type[Bounds]) -> bool:
    """Whether it is a forward with a window that keys can leave."""
    window = isinstance(case.mask, Window) and case.mask.left is not None
    return window and case.Lk > 1 and case.want.isdisjoint((*GRADIENTS, *MATRICES))


@kind(
    _ring, "out lse", slots=SLOTS,
    rows={str(n): (n, False) for n in (1, 4, 8, 16, 32, 64, 128)} | {"all": (2**20, False)},
    lost={"the newest keys lie over the oldest": "oldest", "the newest keys find none": "newest"},
)  # fmt: skip
class ring_too_short(Bounds):
    """The ring for the keys that {rows} queries of a window need has {slots}: {lost}."""

    slots: Callable[[Array, int], Array]
    lost = "oldest"

    def visible(self) -> Array:
        seen = super().visible()
        mask, (first, last) = self.case.mask, self.ends(self.reach())
        left = mask.left if isinstance(mask, Window) and mask.left is not None else 0
        low = self.of_tile(first, lambda x: x.min(-1))[..., None]
        high = self.of_tile(last, lambda x: x.max(-1))[..., None]
        n = np.maximum(type(self).slots(high - low, left), 1)
        j = np.arange(seen.shape[-1])
        return seen & ((j + n >= high) if self.lost == "oldest" else (j < low + n))
