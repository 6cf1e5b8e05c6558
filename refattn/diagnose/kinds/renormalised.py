"""Hypotheses on weights that are normalised again after dropout: and how the backward goes about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

SHOWS = "out dq dk dv dbias dscale dsoftcap dsinks"
TO = {"the sum before it": False, "1": True}


def _drops(case: Case) -> bool:
    return bool(case.dropout)


@kind(_drops, SHOWS, to=TO)
class renormalised(Model):
    """What dropout keeps of a row is brought to {to}, not divided by 1 - p; lse is right."""

    to = False
    """whether that is 1, though a sink has its share"""

    def kept(self, x: Array) -> Array:
        return x if self.keep is None else np.where(self.keep, x, 0)

    def grows(self) -> Array:
        """By what each row does, (B, H, Lq, 1)."""
        p = self.again()
        kept = self.kept(p).sum(-1, keepdims=True)
        before = np.ones_like(kept) if self.to else p.sum(-1, keepdims=True)
        return np.where(kept > 0, before / np.where(kept > 0, kept, 1), 0)

    def instead(self) -> Array:
        """The same in the place of 1 / (1 - p)."""
        return np.asarray(self.grows() / self.dtype(self.undropped() or 1))

    def written(self, out: Array) -> Array:
        self.out = super().written(out) * self.instead()
        return self.out

    def delta(self) -> Array:
        """What leaves a row's sum as it is changes nothing for all keys alike."""
        return np.zeros_like(self.m) if self.to else super().delta()

    def dropped(self, dp: Array) -> Array:
        """Through the sum of what is kept too; the sum before it changes where there is a sink."""
        p = self.again()
        kept = self.kept(p).sum(-1, keepdims=True)
        mean = self.kept(np.where(self.seen, p * dp, 0)).sum(-1, keepdims=True) / np.where(kept > 0, kept, 1)
        return np.asarray(self.kept(self.grows() * (dp - mean)) + (0 if self.to else mean))

    def dv_of(self, p: Array, dout: Array) -> Array:
        return super().dv_of(p * self.instead(), dout)


Way = Callable[[Any, Array], Array]
"""(model, the gradient of weights) -> that of weights before dropout"""


def _to_own_sum(x: Any, dp: Array, hidden: bool = False) -> Array:
    there = np.asarray(replace(x.given.visibility, mask=None).tile()) if hidden else x.seen
    dp = np.where(there, dp, 0)
    kept = x.kept(dp).sum(-1, keepdims=True)
    return np.asarray(x.kept(dp) / np.where(kept == 0, 1, kept) * dp.sum(-1, keepdims=True))


def _by_factor(x: Any, dp: Array) -> Array:
    return np.asarray(x.kept(dp) * x.dtype(x.undropped()))


WAYS: dict[str, tuple[Way, bool]] = {
    "multiplied alike": (lambda x, dp: x.kept(dp) * x.grows(), False),
    "multiplied by 1 / (1 - p)": (_by_factor, False),
    "multiplied by 1 / (1 - p), and delta is sum(p dp)": (_by_factor, True),
    "brought to its own sum": (_to_own_sum, False),
    "brought to its own sum, and delta is sum(p dp)": (_to_own_sum, True),
    "brought to its own sum, with what is hidden, and delta is sum(p dp)": (
        partial(_to_own_sum, hidden=True), True),
}
"""what becomes of the gradient of weights; and whether delta is not that of the output"""


@kind(_drops, SHOWS, to=TO, way=WAYS, of={"": True, "; dv has 1 / (1 - p)": False})
class renormalised_and_back(renormalised):
    """What dropout keeps of a row is brought to {to}, not divided by 1 - p; dp is {way}{of}."""

    way = WAYS["multiplied alike"]
    of = True

    def dropped(self, dp: Array) -> Array:
        return self.way[0](self, dp)

    def delta(self) -> Array:
        if not self.way[1]:
            return Model.delta(self)
        return np.where(self.seen, self.again() * self.dropped(self.dp_of(self.x["dout"])), 0).sum(-1)

    def dv_of(self, p: Array, dout: Array) -> Array:
        return super().dv_of(p, dout) if self.of else Model.dv_of(self, p, dout)
