"""Hypotheses on lazy rescaling where a tile of rows decides together: all of its rows follow, or none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, safe
from .bounds import ROWS, SAME
from .lazy import LAZY, Kept, Lazily, _several
from .lazy_roundings import BY, ORDERS
from .loops import State
from .roundings import TO, lowered, named

__all__: list[str] = []

Some = Callable[[Array], Array]
TILES = {words: rows for words, rows in ROWS.items() if rows[0] > 1}
WHICH: dict[str, Some] = {"one": lambda x: np.asarray(x.any(-1)), "all": lambda x: np.asarray(x.all(-1))}


def _may(case: Case, how: Any) -> bool:
    return _several(case, how) and case.Lq * (case.group if how.rows[1] else 1) > 1


class Together(Lazily):
    """Rows stay as they are unless the maximum of `which` of their tile grew by much."""

    which: Some
    rows: tuple[int, bool | str] = (16, False)

    def little(self, old: Array, new: Array) -> Array:
        begun = ~np.isneginf(old)
        with np.errstate(invalid="ignore"):
            much = ~begun | (new - old >= self.by)
        return begun & ~self.of_tile(much, type(self).which)


@kind(_may, same=SAME, how=LAZY, by=BY, rows=TILES, loop=ORDERS)
class lazy_together(Together):
    """In tiles of {loop}, where none of {rows} rows grows by {by}, {how}."""

    which = staticmethod(WHICH["one"])


@kind(_may, same=SAME, by=BY, rows=TILES, loop=ORDERS)
class lazy_maximum_in_lse_together(Together, Kept):
    """Where no maximum of {rows} rows grows by {by} from tile to tile of {loop}, lse has the new one, the sums not."""

    which = staticmethod(WHICH["one"])

    def log(self, m: Array, z: Array) -> Array:
        return super().log(np.where(z == 0, m, np.maximum(m, self.t.max(-1, initial=-np.inf))), z)


@kind(lambda case, how: _may(case, how) and case.dtype != "float64", same=SAME, by=BY, rows=TILES, loop=ORDERS)
class lazy_until_all(Together, Kept):
    """From tile to tile of {loop}, it is rescaled once all of {rows} rows have grown by {by}: exp overflows."""

    which = staticmethod(WHICH["all"])


@kind(_may, same=SAME, by=BY, rows={"single": (1, False)} | TILES, loop=ORDERS)
class lazy_sum_follows(Together, Kept):
    """From tile to tile of {loop}, the sum follows each maximum, all else once one of {rows} rows grew by {by}."""

    which = staticmethod(WHICH["one"])

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = super().step(state, t, keys)
        top = np.maximum(state[0], t[..., keys].max(-1, initial=-np.inf))
        kept = (m == state[0]) & ~np.isneginf(m)
        return m, z - state[1] * np.where(kept, 1 - np.exp(m - safe(top)), 0), o


@kind(
    lambda case, how: _may(case, how) and bool(named(how.to, case)), rounding=True, same=SAME, to=TO, by=BY, rows=TILES,
    loop=ORDERS,
)  # fmt: skip
class state_rounded_together(Together, Kept):
    """From tile to tile of {loop}, the output, rescaled once one of {rows} rows grew by {by}, is rounded to {to}."""

    which = staticmethod(WHICH["one"])
    to = ""

    def step(self, state: State, t: Array, keys: slice) -> State:
        m, z, o = super().step(state, t, keys)
        return m, z, lowered(o, self.to, self.given)
