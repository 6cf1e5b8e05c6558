"""Hypotheses on an early return: where there is nothing to attend to, rows are left as they were."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..dense import ANYTHING
from ..hypothesis import kind
from ..model import Array
from .bounds import Bounds
from .rows import _may_be_empty

__all__: list[str] = []

LEFT: dict[str, dict[str, float]] = {
    "out and lse stay NaN": {"out": np.nan, "lse": np.nan}, "out stays NaN": {"out": np.nan},
    "lse stays NaN": {"lse": np.nan}, "out and lse stay 0": {"out": 0.0, "lse": 0.0}, "lse is +inf": {"lse": np.inf},
    "lse is -inf, without the sink": {"lse": -np.inf}, "out stays NaN and lse 0": {"out": np.nan, "lse": 0.0},
    "out, lse and dq stay NaN": {"out": np.nan, "lse": np.nan, "dq": np.nan}, "dq stays NaN": {"dq": np.nan},
}  # fmt: skip
WHERE: dict[str, Any] = {
    **{f"In tiles of {n} rows that see nothing": (n, False) for n in (8, 16, 32, 64, 128)},
    **{f"In tiles of {n} rows, packed head by head, that see nothing": (n, "heads") for n in (8, 16, 32, 64, 128)},
    **{f"In tiles of {n} rows, packed query by query, that see nothing": (n, True) for n in (8, 16, 32, 64, 128)},
}


def _may(case: Case, how: Any) -> bool:
    if case.want.isdisjoint(how.left) or (how.left.get("lse") == -np.inf and case.sinks is None):
        return False
    if how.where is None:
        return any(k == 0 < q for q, k in zip(*case.lengths, strict=True))
    return case.mask is not None and _may_be_empty(case)


def _same(case: Case, how: Any) -> Any:
    if how.where is None or case.mask is None:
        return None
    size, packed = how.where
    group = case.group if packed else 1
    return min(size, case.Lq * group), packed if group > 1 else False


@kind(_may, "out lse dq", where={"In entries without keys": None}, left=LEFT)
class left_early(Bounds):
    """{where} the kernel returns early: {left}."""

    where: Any = None
    left: dict[str, float] = LEFT["out and lse stay NaN"]

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        none = np.broadcast_to(self.nothing(), self.m.shape)
        return y | {n: np.where(none if n == "lse" else none[..., None], x, y[n])
                    for n, x in self.left.items() if n in y}  # fmt: skip

    def nothing(self) -> Array:
        if self.where is None:
            return np.array(self.given.lengths[1])[:, None, None] == 0
        self.rows = self.where
        return ~self.of_tile(self.seen.any(-1), lambda x: x.any(-1))


@kind(_may, "out lse dq", same=("where", _same), where=WHERE, left=LEFT)
class tiles_left_early(left_early):
    """{where} the kernel returns early: {left}."""


@kind(_may, "out lse dq", same=("where", _same), where={words.split(" that")[0][3:]: at for words, at in WHERE.items()},
      left={words: left for words, left in LEFT.items() if "without" not in words})  # fmt: skip
class rows_beside_others(left_early):
    """Rows that see nothing, in {where} of which another sees some key, are left: {left}."""

    def nothing(self) -> Array:
        self.rows = self.where
        some = self.seen.any(-1)
        return ~some & np.asarray(self.of_tile(some, lambda x: x.any(-1)))


AS_IT_WAS: dict[str, dict[str, float]] = {
    "out and lse": {"out": ANYTHING, "lse": ANYTHING}, "out": {"out": ANYTHING}, "lse": {"lse": ANYTHING},
    "out, lse and dq": {"out": ANYTHING, "lse": ANYTHING, "dq": ANYTHING}, "dq": {"dq": ANYTHING},
}  # fmt: skip


@kind(_may, "out lse dq", vague=True, same=("where", _same), where={"In entries without keys": None} | WHERE,
      left=AS_IT_WAS)  # fmt: skip
class left_as_it_was(left_early):
    """{where} the kernel returns early: {left} stay as memory was, whatever it held."""


@kind(
    lambda case, how: not case.want.isdisjoint(how.left) and _may_be_empty(case), "out lse dq", vague=True,
    left=AS_IT_WAS,
)  # fmt: skip
class rows_left_as_they_were(left_early):
    """{left} of rows that see nothing stay as memory was, whatever it held."""

    def nothing(self) -> Array:
        return np.asarray(~self.seen.any(-1))
