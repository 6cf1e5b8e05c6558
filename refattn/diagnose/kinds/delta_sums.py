"""Hypotheses on delta where it is the sum of weights and their gradients: over a part of the keys, not cleared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from .gradients import SCORED

__all__: list[str] = []

SIZES = (8, 16, 32, 64, 128)
Sum = Callable[[list[Array]], list[Array]]
"""(the sums of each tile of keys) -> delta in each tile"""
SUMS: dict[str, Sum] = {
    "of that tile alone": lambda parts: parts,
    "of the tiles so far": lambda parts: list(np.cumsum(parts, 0)),
    "of the last tile": lambda parts: parts[-1:] * len(parts),
    "of the first tile": lambda parts: parts[:1] * len(parts),
    "of all but the last tile": lambda parts: [sum(parts[:-1], 0 * parts[0])] * len(parts),
}  # fmt: skip


def _several(case: Case, how: Any) -> bool:
    return case.Lk > how.tile and not case.want.isdisjoint(SCORED.split())


@kind(_several, SCORED, tile=SIZES, how=SUMS)
class delta_of_tiles(Model):
    """In each tile of {tile} keys delta is the sum of weights and their gradients {how}."""

    tile = 64
    how: Sum

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        each, tiles = np.where(self.seen, p * dp, 0), range(0, p.shape[3], self.tile)
        found = type(self).how([each[..., j : j + self.tile].sum(-1) for j in tiles])
        sums = np.concatenate([np.broadcast_to(d[..., None], each[..., j : j + self.tile].shape)
                               for j, d in zip(tiles, found, strict=True)], 3)  # fmt: skip
        return p * (dp - sums + self.arriving()[..., None])


@kind(
    lambda case, how: not case.want.isdisjoint(SCORED.split()) and (case.B, case.H)[how.over] > 1, SCORED,
    over={"heads": 1, "entries": 0},
)  # fmt: skip
class delta_not_cleared(Model):
    """delta is not set back to 0: it goes on over {over}."""

    over = 1

    def delta(self) -> Array:
        return np.cumsum(super().delta(), self.over)


Enters = Callable[[Any, Array, Array, Array, Array], Array]
"""(model, weights, their gradients, delta, dlse) -> ds"""
ENTERS: dict[str, Enters] = {
    "added to ds, not multiplied by the weight": lambda x, p, dp, d, g: p * (dp - d) + g,
    "multiplied by the weight twice": lambda x, p, dp, d, g: p * (dp - d + p * g),
    "added before dropout falls on the gradients of weights": lambda x, p, dp, d, g: p * (dp - d + x.dropped(
        g + 0 * dp)),
    "multiplied by the scale": lambda x, p, dp, d, g: p * (dp - d + g * x.factor()),
    "multiplied by dropout's 1 / (1 - p)": lambda x, p, dp, d, g: p * (dp - d + g * x.undropped()),
    "multiplied by the row sum": lambda x, p, dp, d, g: p * (dp - d + g * x.l[..., None]),
    "divided by the row sum": lambda x, p, dp, d, g: p * (dp - d + g / np.where(x.l == 0, 1, x.l)[..., None]),
    "multiplied by delta": lambda x, p, dp, d, g: p * (dp - d * np.where(g == 0, 1, g)),
}  # fmt: skip


def _arrives(case: Case) -> bool:
    return "lse" in case.want and not case.want.isdisjoint(SCORED.split())


@kind(lambda case, how: _arrives(case) and (how.sinks or "dsinks" in case.want), SCORED, how=ENTERS,
      sinks={"": True, ", and not in dsinks": False})  # fmt: skip
class dlse_enters(Model):
    """dlse, the gradient that arrives at lse, is {how}{sinks}."""

    how: Enters
    sinks = True

    def dsinks(self, share: Array, incoming: Array) -> Array:
        return super().dsinks(share, incoming if self.sinks else incoming - self.arriving())

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        g = self.arriving()[..., None]
        return type(self).how(self, p, dp, g - incoming[..., None], g)


@kind(_arrives, SCORED, how={"lse is added in the place of dlse": 1, "lse is subtracted in the place of dlse": -1})
class lse_for_dlse(Model):
    """In delta {how}."""

    how = 1

    def arriving(self) -> Array:
        return self.how * np.where(self.l == 0, 0, self.log(self.m, self.l))


@kind(
    lambda case: not case.want.isdisjoint(SCORED.split()), SCORED, how={"added to": 1, "subtracted from": -1},
    of={"lse": lambda x: x.log(x.m, x.l), "the maximum": lambda x: x.m, "the row sum": lambda x: x.l},
)  # fmt: skip
class delta_with_others(Model):
    """{of} is {how} delta."""

    how = 1
    of: Callable[[Any], Array]

    def delta(self) -> Array:
        return super().delta() + self.how * np.where(self.l == 0, 0, type(self).of(self))
