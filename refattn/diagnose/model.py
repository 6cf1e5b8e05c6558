"""The gradients by definition, with each decision a method, and the whole of a case solved."""

from __future__ import annotations

import numpy as np

from ..case import GRADIENTS
from ..score_mods import SCORE_MODS
from ..streaming.prepare import turned_back
from .dense import Array, Inputs, product, safe
from .forward import BEFORE, PLAIN, Forward

__all__ = ["BEFORE", "LN2", "LOG2E", "PLAIN", "Array", "Inputs", "Model", "product", "safe"]

LN2, LOG2E = float(np.log(2)), float(np.log2(np.e))


class Model(Forward):
    """One case solved in one way; a hypothesis is a subclass."""

    pairs_alone: Array | None = None
    """the pairs that the backward goes over, where they are not all"""

    def delta(self) -> Array:
        out = self.low(self.out, "out")
        return (out * np.where(self.seen.any(-1, keepdims=True), self.x["dout"], 0)).sum(-1)

    def arriving(self) -> Array:
        """dlse."""
        found = np.where(self.l == 0, 0, self.x.get("dlse", np.zeros_like(self.m)))
        return found

    def dropped(self, dp: Array) -> Array:
        """dp behind dropout."""
        return dp if self.keep is None else np.where(self.keep, dp * self.dtype(self.undropped()), 0)

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        return p * (dp + incoming[..., None])

    def slope(self, s: Array, softcap: float) -> Array:
        return np.cosh(s / softcap) ** -2

    def modifier_slope(self) -> Array:
        return np.asarray(SCORE_MODS[self.case.score_mod or ""].slope(self.before, *self.places()))

    def dp_of(self, dout: Array) -> Array:
        """The gradient of weights, before dropout."""
        return np.asarray(dout @ self.v.swapaxes(-1, -2))

    def dq_of(self, ds: Array) -> Array:
        return product(ds, self.k, self.seen)

    def dk_of(self, ds: Array) -> Array:
        """Of each query head."""
        return product(ds.swapaxes(-1, -2), self.q, self.seen.swapaxes(-1, -2))

    def dv_of(self, p: Array, dout: Array) -> Array:
        if self.keep is not None:
            p = np.where(self.keep, p, 0)
        return product(self.low(p).swapaxes(-1, -2), dout, self.seen.swapaxes(-1, -2)) * self.dtype(self.undropped())

    def q_factor(self) -> float:
        return self.factor()

    def k_factor(self) -> float:
        return self.factor()

    def group(self, y: Array) -> Array:
        """dk or dv of the key heads, from those of the query heads."""
        total = np.zeros((y.shape[0], self.given.Hkv, *y.shape[2:]), y.dtype)
        for h, own in enumerate(self.heads()):
            total[:, own] += y[:, h]
        return total

    def reduced(self, dt: Array) -> Array:
        """dbias."""
        shape = self.given.bias_shape
        return dt.sum(tuple(a for a, n in enumerate(shape) if n == 1 < dt.shape[a]), keepdims=True).reshape(shape)

    def dsinks(self, share: Array, incoming: Array) -> Array:
        return (share * incoming).sum((0, 2))

    def pairwise(self) -> tuple[Array, Array, Array, Array]:
        """Of each pair the weight, and the gradients of its logit, of the capped score and of the score."""
        case, dout = self.case, self.x["dout"]
        p, incoming = self.again(), self.arriving() - self.delta()
        dp = self.dropped(self.dp_of(dout))
        dt = np.where(self.seen, self.through_softmax(p, dp, incoming), 0)
        if self.pairs_alone is not None:
            p, dt = np.where(self.pairs_alone, p, 0), np.where(self.pairs_alone, dt, 0)
        capped = ds = dt
        if case.score_mod is not None:
            capped = ds = np.where(self.seen, dt * self.modifier_slope(), 0)
        if case.softcap is not None:
            ds = np.where(self.seen, ds * self.slope(self.s, case.softcap), 0)
        return p, dt, capped, ds

    def backward(self) -> dict[str, Array]:
        case, dout = self.case, self.x["dout"]
        p, dt, capped, ds = self.pairwise()
        y: dict[str, Array] = {}
        if case.softcap is not None:
            slope, z = self.slope(self.s, case.softcap), self.s / case.softcap
            y["dsoftcap"] = np.where(self.seen, capped * (np.tanh(z) - np.where(slope == 0, 0, z * slope)), 0).sum()
        y["dscale"] = np.where(self.seen, ds * self.qk, 0).sum()
        low = self.low(ds, "ds")
        y["dq"] = self.dq_of(low) * self.dtype(self.q_factor())
        y["dk"] = self.group(self.dk_of(low) * self.dtype(self.k_factor()))
        y["dv"] = self.group(self.dv_of(p, dout))
        if "bias" in self.x:
            y["dbias"] = self.reduced(dt)
        sink = self.sink(self.x["sinks"]) if "sinks" in self.x else None
        if sink is not None:
            share = np.where(self.l == 0, 0, np.exp(sink - safe(self.m)) / np.where(self.l == 0, 1, self.l))
            y["dsinks"] = self.dsinks(share, self.arriving() - self.delta())
        return y if case.rotary is None else turned_back(self.given, y, self.inputs.problem.stored, self.rules())

    # all of it

    def solve(self, want: frozenset[str]) -> dict[str, Array]:
        """The outputs of these names that it has, in float64."""
        with np.errstate(all="ignore"):
            y = self.forward()
            if not want.isdisjoint(GRADIENTS):
                y |= self.backward()
        return {n: np.asarray(x, np.float64) for n, x in self.told(y).items() if n in want}

    def goes_by(self, other: Model) -> None:
        """The backward takes what the forward of another left: maxima, sums and outputs."""
        self.m, self.l, self.out = other.m, other.l, other.out

    def rest(self, y: dict[str, Array], want: frozenset[str]) -> dict[str, Array]:
        """The outputs of a forward, with gradients where they are wanted."""
        with np.errstate(all="ignore"):
            if not want.isdisjoint(GRADIENTS):
                y = y | self.backward()
        return {n: np.asarray(x, np.float64) for n, x in y.items() if n in want}

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        """What is returned of the outputs."""
        return y
