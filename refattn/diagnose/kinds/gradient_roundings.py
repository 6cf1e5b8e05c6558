"""Hypotheses of too few bits in the backward."""

from __future__ import annotations

import numpy as np

from ..hypothesis import kind
from ..model import Array, Model
from .partial_sums import Held
from .roundings import SIZES, TO, _applies, lowered

__all__: list[str] = []

@kind(lambda case, how: case.backward and _applies(case, how), "dq dk dv dbias dsinks dscale dsoftcap", rounding=True,
      what={"delta": "delta", "dp": "dp", "ds": "ds", "the weights": "p"}, to=TO)  # fmt: skip
class backward_rounded(Model):
    """In the backward {what} rounded to {to}."""

    what, to = "delta", ""

    def delta(self) -> Array:
        d = super().delta()
        return lowered(d, self.to, self.given) if self.what == "delta" else d

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        dp = lowered(dp, self.to, self.given) if self.what == "dp" else dp
        ds = super().through_softmax(p, dp, incoming)
        return lowered(ds, self.to, self.given) if self.what == "ds" else ds

    def again(self) -> Array:
        p = super().again()
        return lowered(p, self.to, self.given) if self.what == "p" else p


@kind(
    lambda case, how: case.backward and _applies(case, how), "dq dk dv", rounding=True,
    of={"dq": ("dq",), "dk and dv": ("dk", "dv"), "dk": ("dk",), "dv": ("dv",)}, tile=SIZES, to=TO,
)  # fmt: skip
class gradient_sum_rounded(Held):
    """The sum of {of} is rounded to {to} after each tile of {tile}."""

    of: tuple[str, ...] = ("dq",)
    tile, to = 64, ""

    def backward(self) -> dict[str, Array]:
        y = super().backward()
        n = self.case.Lk if "dq" in self.of else self.case.Lq
        total = {name: np.zeros_like(y[name]) for name in self.of}
        for first in range(0, n, self.tile):
            at = (np.arange(n) >= first) & (np.arange(n) < first + self.tile)
            part = self.of_pairs(at if "dq" in self.of else at[:, None])
            total = {name: lowered(total[name] + part[name], self.to, self.given) for name in self.of}
        return y | total


@kind(lambda case: case.backward and case.H != case.Hkv, "dk dv", rounding=True, to=TO)
class head_gradients_rounded(Model):
    """dk and dv of each query head are rounded to {to} before the group's are added."""

    to = ""

    def group(self, y: Array) -> Array:
        return super().group(lowered(y, self.to, self.given))
