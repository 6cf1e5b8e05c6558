"""Hypotheses of too few bits in the backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model, product
from .partial_sums import STORED, Added
from .roundings import SIZES, TO, _applies, lowered

__all__: list[str] = []


@kind(lambda case, how: case.backward and _applies(case, how), "dq dk dv dbias dsinks dscale dsoftcap", rounding=True,
      what={"delta is": "delta", "dp is": "dp", "ds is": "ds", "the weights are": "p", "dp and ds are": "dp ds",
            "weights and ds are": "p ds", "weights, delta, dp and ds are": "p delta dp ds"},
      to=(*TO, "float8_e4m3fn", "float8_e5m2"))  # fmt: skip
class backward_rounded(Model):
    """In the backward {what} rounded to {to}."""

    what, to = "delta", ""

    def delta(self) -> Array:
        d = super().delta()
        return lowered(d, self.to, self.given) if "delta" in self.what else d

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        dp = lowered(dp, self.to, self.given) if "dp" in self.what else dp
        ds = super().through_softmax(p, dp, incoming)
        return lowered(ds, self.to, self.given) if "ds" in self.what else ds

    def again(self) -> Array:
        p = super().again()
        return lowered(p, self.to, self.given) if "p" in self.what.split() else p


class gradient_sum_rounded(Added):
    """The sum of {of} is rounded to {to} after each tile of {tile}."""

    of: tuple[str, ...] = ("dq",)
    tile, to = 64, ""

    def sums(self) -> dict[str, Array]:
        n = self.case.Lk if "dq" in self.of else self.case.Lq
        total = {name: x for name, x in self.of_pairs(np.zeros((), bool)).items() if name in self.of}
        head = (np.arange(self.given.H) % self.given.group)[:, None, None]
        for g in range(1 if "dq" in self.of else self.given.group):
            for first in range(0, n, self.tile):
                at = (np.arange(n) >= first) & (np.arange(n) < first + self.tile)
                part = self.of_pairs(at if "dq" in self.of else at[:, None] & (head == g))
                total = {name: lowered(total[name] + part[name], self.to, self.given) for name in self.of}
        return total


for words, names in STORED.items():
    kind(
        lambda case, how: not case.want.isdisjoint(how.of) and _applies(case, how), " ".join(names), rounding=True,
        of={words: names}, tile=SIZES, to=TO,
    )(gradient_sum_rounded)  # fmt: skip

@kind(lambda case: case.backward and case.H != case.Hkv, "dk dv", rounding=True, to=TO)
class head_gradients_rounded(Model):
    """dk and dv of each query head are rounded to {to} before the group's are added."""

    to = ""

    def group(self, y: Array) -> Array:
        return super().group(lowered(y, self.to, self.given))


TF32 = {
    "dout in dp = dout vᵀ is": ("dp d",), "dout and values in dp = dout vᵀ are": ("dp d", "dp v"),
    "dout in dv = pᵀ dout is": ("dv d",), "weights and dout in dv = pᵀ dout are": ("dv d", "dv p"),
    "dout in both products is": ("dp d", "dv d"), "ds and keys in dq = ds k are": ("dq s", "dq k"),
    "ds and queries in dk = dsᵀ q are": ("dk s", "dk q"),
    "all operands of the backward's products are":
        ("dp d", "dp v", "dv d", "dv p", "dq s", "dq k", "dk s", "dk q"),
}  # fmt: skip


@kind(lambda case: case.backward and case.dtype == "float32", "dq dk dv dbias dsinks dscale dsoftcap", rounding=True,
      of=TF32, how={"rounded": False, "cut": True})  # fmt: skip
class backward_in_tf32(Model):
    """In the backward {of} {how} to the ten bits of TF32 before they are multiplied."""

    of: tuple[str, ...] = ("dp d",)
    how = False

    def short(self, x: Array, of: str) -> Array:
        return in_tf32(x, self.how) if of in self.of else x

    def dp_of(self, dout: Array) -> Array:
        return np.asarray(self.short(dout, "dp d") @ self.short(self.v, "dp v").swapaxes(-1, -2))

    def dv_of(self, p: Array, dout: Array) -> Array:
        return super().dv_of(self.short(p, "dv p"), self.short(dout, "dv d"))

    def dq_of(self, ds: Array) -> Array:
        return product(self.short(ds, "dq s"), self.short(self.k, "dq k"), self.seen)

    def dk_of(self, ds: Array) -> Array:
        turned = self.short(ds, "dk s").swapaxes(-1, -2)
        return product(turned, self.short(self.q, "dk q"), self.seen.swapaxes(-1, -2))


def in_tf32(x: Array, cut: bool) -> Array:
    """x with ten bits after the first, cut or rounded to nearest."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    bits = bits if cut else bits + 0xFFF + (bits >> 13 & 1)
    return np.where(np.isfinite(x), (bits & np.uint32(0xFFFFE000)).view(np.float32), x).astype(x.dtype)


@kind(
    lambda case, how: "dbias" in case.want and _applies(case, how) and len(over(case, how)) > 0, "dbias",
    rounding=True, each={"entry": (0,), "head": (0, 1), "row": (0, 1, 2)}, to=TO,
)  # fmt: skip
class dbias_sum_rounded(Model):
    """The sum of dbias is rounded to {to} after each {each}."""

    each: tuple[int, ...] = (0,)
    to = ""

    def reduced(self, dt: Array) -> Array:
        axes = over(self.given, type(self))
        rest = tuple(n for a, n in enumerate(dt.shape) if a not in axes)
        parts = np.moveaxis(dt, axes, range(len(axes))).reshape(-1, *rest)
        shape = [1 if a in axes else n for a, n in enumerate(dt.shape)]
        total = super().reduced(np.zeros_like(dt))
        for part in parts:
            held = np.broadcast_to(part.reshape(shape), dt.shape) / np.prod([dt.shape[a] for a in axes])
            total = lowered(total + super().reduced(held), self.to, self.given)
        return total


def over(case: Case, how: Any) -> tuple[int, ...]:
    """Of these axes, those that the bias is broadcast over."""
    return tuple(a for a in how.each if case.bias_shape[a] == 1 < (case.B, case.H, case.Lq, case.Lk)[a])
