"""Hypotheses of too few bits in what the forward leaves for the backward: lse, and the output that delta is made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from .gradients import ALL, SCORED
from .roundings import TO, _applies, lowered
from .weights_again import FromForward, _weights

__all__: list[str] = []


def _back(case: Case, how: Any) -> bool:
    return case.backward and _applies(case, how)


@kind(_back, ALL, rounding=True, of={"": "w", ", the weight of the sink too": "ws"}, to=TO)
class saved_lse_rounded(FromForward):
    """The lse by which the backward computes the weights{of} is rounded to {to}."""

    of, to = "w", ""

    def again(self) -> Array:
        return _weights(self, self.t, self.lse())

    def lse(self) -> Array:
        return lowered(self.log(self.m, self.l), self.to, self.given)

    def dsinks(self, share: Array, incoming: Array) -> Array:
        if "s" in self.of:
            lse = self.lse()
            share = np.where(self.l == 0, 0, np.exp(self.x["sinks"][:, None] - np.where(self.l == 0, 0, lse)))
        return super().dsinks(share, incoming)


OF = {"The output that delta is made of is": "o", "Output and dout that delta is made of are": "do", "dlse is": "g",
      "Each product of dout and output is, before they are summed to delta,": "p"}  # fmt: skip


@kind(_back, SCORED, rounding=True, of=OF, to=TO)
class delta_of_rounded(Model):
    """{of} rounded to {to}."""

    of, to = "o", ""

    def delta(self) -> Array:
        out = self.short(self.low(self.out, "out"), "o")
        dout = self.short(np.where(self.seen.any(-1, keepdims=True), self.x["dout"], 0), "d")
        return np.asarray(self.short(out * dout, "p").sum(-1))

    def arriving(self) -> Array:
        return self.short(super().arriving(), "g")

    def short(self, x: Array, of: str) -> Array:
        return lowered(x, self.to, self.given) if of in self.of else x
