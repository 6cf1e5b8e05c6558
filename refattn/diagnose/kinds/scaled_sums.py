"""Hypotheses on sums of gradients that something falls on once for each tile, and not once at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...oracle import scale_of
from ..hypothesis import kind
from ..model import LN2, Array, Model
from .partial_sums import Added

__all__: list[str] = []

SIZES = (8, 16, 32, 64, 128)
OF = {"dq": ("dq", 3), "dk": ("dk", 2)}
TIMES: dict[str, Callable[[float], float]] = {
    "the scale": lambda s: s, "ln 2": lambda s: LN2, "1 / ln 2": lambda s: 1 / LN2}  # fmt: skip


def _several(case: Case, how: Any) -> bool:
    name, axis = how.of
    parts = case.Lk > how.tile if axis == 3 else case.Lq > how.tile
    return parts and name in case.want and how.times(scale_of(case.scale, case.D)) != 1


class sum_scaled_each_time(Added):
    """{of}: all that was added up so far is multiplied by {times} after each tile of {tile}, not once at the end."""

    of: Any = ("dq", 3)
    times: Callable[[float], float]
    tile = 64

    def sums(self) -> dict[str, Array]:
        name, axis = self.of
        n, s = self.seen.shape[axis], self.factor()
        by = type(self).times(s)
        total = np.zeros_like(self.whole[name])
        once = by if by != s else 1.0  # the scale is in each part once
        for first in range(0, n, self.tile):
            at = (np.arange(n) >= first) & (np.arange(n) < first + self.tile)
            part = self.of_pairs(at if axis == 3 else at[:, None])[name]
            total = total * by + part * once
        return {name: total}


for words, of in OF.items():
    kind(_several, of[0], of={words: of}, times=TIMES, tile=SIZES)(sum_scaled_each_time)


def _by_head(case: Case, y: Array, to: Callable[[Array, int], Array]) -> Array:
    found = np.zeros_like(y)
    h = np.arange(case.H)
    np.add.at(found.swapaxes(0, 1), to(h, case.group), y.swapaxes(0, 1))
    return found


HEADS: dict[str, Callable[[Case, Array], Array]] = {
    "the sum over its group, in the group's first head": lambda c, y: _by_head(c, y, lambda h, g: h // g * g),
    "the sum over its group": lambda c, y: _by_head(c, y, lambda h, g: h // g * g)[
        :, np.arange(c.H) // c.group * c.group],
    "that of the group's last head, in its first": lambda c, y: np.where(
        (np.arange(c.H) % c.group == 0)[:, None, None], np.roll(y, 1 - c.group, 1), 0),
    "that of the group's first head": lambda c, y: y[:, np.arange(c.H) // c.group * c.group],
    "that of heads of group and key head exchanged":
        lambda c, y: y[:, np.arange(c.H).reshape(-1, c.group).T.ravel()],
    "that of key head and group exchanged": lambda c, y: y[:, np.arange(c.H).reshape(c.group, -1).T.ravel()],
    "added to head h // group": lambda c, y: _by_head(c, y, lambda h, g: h // g),
    "added to head h % Hkv": lambda c, y: _by_head(c, y, lambda h, g: h % max(1, len(h) // g)),
}  # fmt: skip


@kind(lambda case: case.H > case.Hkv > 0 and "dq" in case.want, "dq", how=HEADS)
class dq_of_group(Model):
    """dq of a head is {how}."""

    how: Callable[[Case, Array], Array]

    def dq_of(self, ds: Array) -> Array:
        return type(self).how(self.given, super().dq_of(ds))
