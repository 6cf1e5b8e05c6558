"""The rules of honest kernels that are not `refattn.streaming`'s own: other exps, other states, other roundings.

Each stays within the contract that tests/honest_variations.py declares for it; where that is not plain, the
docstring says why.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from refattn import online
from refattn.dtypes import FORMATS
from refattn.online import State
from refattn.precision import Precision
from refattn.streaming import Rules

Array = np.ndarray[Any, Any]
LOG2E = np.log2(np.e)


# exps: of float32


class Polynomial(Rules):
    """2**f, |f| <= 1/2, by Taylor's polynomial of degree 7 in float32 (5e-9 of truncation): within 2 ulp."""

    terms = tuple(float(np.log(2.0) ** n / np.prod(np.arange(1.0, n + 1))) for n in range(8))
    whole = staticmethod(np.rint)

    def exp(self, x: Array, shift: Array) -> Array:
        y = np.asarray(x - shift)
        t = y.astype(np.float64) * LOG2E  # as a reduction in two steps has it
        whole = self.whole(np.where(np.isfinite(t), t, 0))
        f = (t - whole).astype(np.float32)
        value = np.full_like(f, self.terms[-1])
        for term in self.terms[-2::-1]:
            value = value * f + np.float32(term)
        found = np.ldexp(value, np.clip(whole, -1000, 1000).astype(int)).astype(np.float32)
        return np.where(np.isfinite(t), found, np.exp(y))


class Cubic(Polynomial):
    """A minimax cubic on [0, 1), as kernels for 16 bits have it: off by 8.6e-5 = 1440 u."""

    terms = (1.0, 0.69511663, 0.22764568, 0.07706641)
    whole = staticmethod(np.floor)


class NoisyExp(Rules):
    """Off by -3 to 3 u by the argument's bits, and rounded: within 4 u; but exp(0) is 1.

    Were it not, each tile that leaves the maximum where it was would drift by as much: the sharp bound takes it for
    granted, as the PTX ISA has it of ex2.approx.
    """

    def exp(self, x: Array, shift: Array) -> Array:
        y = np.asarray(x - shift)
        bits = y.astype(np.float32).view(np.uint32) * np.uint32(2654435761) >> np.uint32(16)
        off = np.where(y == 0, 0.0, (bits % np.uint32(7)).astype(np.float64) - 3)
        return np.asarray((np.exp(y.astype(np.float64)) * (1 + off * 2.0**-24)).astype(np.float32))


class HighExp(Rules):
    """3 u too large, and rounded: within 4 u; but exp(0) is 1."""

    def exp(self, x: Array, shift: Array) -> Array:
        y = np.asarray(x - shift).astype(np.float64)
        return np.asarray((np.exp(y) * np.where(y == 0, 1.0, 1 + 3 * 2.0**-24)).astype(np.float32))


class Log2Domain(Rules):
    """t log2(e) is rounded once, where exp(t - m) has its difference rounded; lse goes back by one rounding more."""

    def hide(self, s: Array, visible: Array | None) -> Array:
        return super().hide(np.asarray((s.astype(np.float64) * LOG2E).astype(s.dtype)), visible)

    def sink(self, sinks: Array, h: int) -> Array | None:
        return np.asarray((np.float64(sinks[h]) * LOG2E).astype(self.dtype))

    def exp(self, x: Array, shift: Array) -> Array:
        return np.asarray(np.exp2((x - shift).astype(np.float64)).astype(self.dtype))

    def finish(self, state: State) -> tuple[Array, Array]:
        out, _ = online.finish(state)
        with np.errstate(divide="ignore"):
            lse = state.m.astype(np.float64) / LOG2E + np.log(state.l.astype(np.float64))
        return out, lse.astype(self.dtype)

    def from_forward(self, shift: Array, factor: Array) -> tuple[Array, Array]:
        return (shift.astype(np.float64) * LOG2E).astype(self.dtype), factor


# states


class Lazy(Rules):
    """The maximum lags behind by up to 8 ln 2.

    Within the contract: the difference to an older maximum costs at most 8 ln 2 u = 5.6 u more, and a
    rescaling that is left out saves exp's 4 u and a rounding.
    """

    behind = 8 * np.log(2.0)

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        new = np.maximum(state.m, t.max(-1, initial=-np.inf))
        m = np.where(new - np.where(np.isneginf(state.m), 0, state.m) <= self.behind, state.m, new)
        m = np.where(np.isneginf(state.m), new, m).astype(self.dtype)
        shift = online.shift_of(m)
        keep = self.exp(state.m, shift)
        sums, products = self.weigh(self.exp(t, shift[..., None]), v, visible, kept)
        return State(m, state.l * keep + sums, state.o * keep[..., None] + products)


class Sentinel(Rules):
    """A row that saw nothing still has the sentinel: its lse is that plus log 0."""

    def start(self, rows: int, Dv: int) -> State:
        m, total, o = super().start(rows, Dv)
        return State(np.full_like(m, np.finfo(self.dtype).min), total, o)



class NormalisedParts(Rules):
    """A part is (lse, 1, out); rounding lse costs u |lse|, where the bound has 2 u max(|m|, |t|) and T (exp + 1) u."""

    def merge(self, a: State, b: State) -> State:
        return self.normalised(super().merge(self.normalised(a), self.normalised(b)))

    def normalised(self, state: State) -> State:
        out, lse = online.finish(state)
        return State(lse, np.where(np.isneginf(lse), 0, 1).astype(self.dtype), out)


class Reciprocal(Rules):
    def finish(self, state: State) -> tuple[Array, Array]:
        out, lse = super().finish(state)
        inverse = 1 / np.where(state.l == 0, 1, state.l).astype(self.dtype)
        return np.asarray(state.o * inverse[..., None]), lse


# roundings


class Double(Rules):
    """The accumulators are of float64, and outputs of the dtypes that the contract says."""

    def contract(self, precision: Precision) -> Precision:
        return replace(precision, accumulate="float64")


class Unrounded(Rules):
    def contract(self, precision: Precision) -> Precision:
        return replace(precision, weights=None)


class HalfWeights(Rules):
    """float16 has more bits and, below 1, a narrower range: its subnormal weights are smaller than 2**-14, and
    off by 2**-25 at most, which a bfloat16 weight is only below 2**-16; so small ones stay as they are."""

    def round(self, x: Array, name: str | None) -> Array:
        if name != "bfloat16" or name != self.precision.weights:
            return super().round(x, name)
        fine = super().round(x, "float16")
        ok = (np.abs(x) >= 2.0**-14) & np.isfinite(fine)
        return np.where(ok, fine, super().round(x, name))


class WideRotation(Rules):
    def contract(self, precision: Precision) -> Precision:
        return replace(precision, rotated=None)


class PerHead(Rules):
    def add_head(self, total: Array, part: Array) -> Array:
        return total + self.round(part, self.precision.out)


class Flushed(Rules):
    """Numbers below the smallest normal one of the format are 0 wherever one is rounded."""

    def round(self, x: Array, name: str | None) -> Array:
        y = super().round(x, name)
        if name is None or y is x:
            return y
        return np.where(np.abs(y) < FORMATS[name].smallest_normal, np.copysign(self.dtype.type(0), y), y)


class RoughTanh(Rules):
    """tanh.approx: relative error up to 2**-11, of a sign that depends on the argument."""

    def capped(self, s: Array, softcap: float | None) -> tuple[Array, Array | None]:
        if softcap is None:
            return s, None
        cap = self.dtype.type(softcap)
        in_caps = s / cap
        off = np.where(np.floor(in_caps * 37) % 2 == 0, 1, -1) * self.dtype.type(0.99 * 2.0**-11)
        return cap * np.clip(np.tanh(in_caps) * (1 + off), -1, 1).astype(self.dtype), in_caps
