"""Attention by definition, dense, with each decision a method: what a hypothesis gets wrong is one of them.

The kernels of the catalogue of mutants go tile by tile and head by head; hypotheses are many, are asked of small
cases, and have to be quick.  So this is the whole of a case at once, (B, H, Lq, Lk), in float64, or, given a
contract, in the arithmetic that it promises: weights and outputs rounded as it says, and all else in the
accumulators' dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import GRADIENTS, MATRICES, Case
from ..dtypes import FORMATS, round_to
from ..memory import take
from ..precision import Precision, preset
from ..score_mods import SCORE_MODS
from ..streaming import Rules, Schedule
from ..streaming.prepare import prepare, turned_back
from .dense import Array, Inputs, product, safe, wide

__all__ = ["BEFORE", "LN2", "LOG2E", "PLAIN", "Array", "Inputs", "Model", "product", "safe"]

LN2, LOG2E = float(np.log(2)), float(np.log2(np.e))
BEFORE = (
    "read", "arrays", "made", "k_heads", "v_heads", "heads", "visible", "factor", "scaled", "cap", "bias", "logits",
    "places", "hide", "to_logits",
)  # fmt: skip
"""the decisions on which the logits rest"""
PLAIN = Rules(preset("float64"), Schedule())


class Model:
    """One case solved in one way; a hypothesis is a subclass."""

    def __init__(self, inputs: Inputs, contract: Precision | None = None) -> None:
        self.inputs, self.contract, self.given = inputs, contract, inputs.case
        self.dtype: Any = np.float64 if contract is None else FORMATS[contract.accumulate].numpy
        self.before = self.capped = np.zeros(())
        self.x: dict[str, Array] = {}
        if self.honest_logits() and (self.dtype, "logits") in inputs.made:
            return  # `to_logits` takes it all
        self.case = self.read(inputs.case)
        self.x = {n: a if n == "keep" else a.astype(self.dtype, copy=False) for n, a in self.arrays().items()}
        self.q = self.x["q"]
        self.k, self.v = self.x["k"][:, self.k_heads()], self.x["v"][:, self.v_heads()]
        self.keep = self.x.get("keep")

    # what is read, and how

    def read(self, case: Case) -> Case:
        """The case as it is understood."""
        return case

    def arrays(self) -> dict[str, Array]:
        """q k v bias sinks keep dout dlse, dense."""
        return dict(self.inputs.arrays)

    def from_memory(self, handed: dict[str, Array]) -> dict[str, Array]:
        """The arrays out of the memory that they were handed over in, where a hypothesis is about that."""
        return self.made(take(self.given, handed))

    def made(self, x: dict[str, Array]) -> dict[str, Array]:
        """Dense arrays, rotated and out of their codes."""
        self.tables = x
        x = x | prepare(self.given, x, self.rules())
        return {n: wide(x[n]) for n in self.inputs.arrays}

    def rules(self) -> Rules:
        """How it dequantises and rotates."""
        return PLAIN

    def k_heads(self) -> Array:
        """The key head of each query head."""
        return self.heads()

    def v_heads(self) -> Array:
        return self.heads()

    def heads(self) -> Array:
        return np.arange(self.given.H) // max(1, self.given.H // max(1, self.given.Hkv))

    def visible(self) -> Array:
        """(B, H, Lq, Lk), without what a bias of -inf hides."""
        same = self.case is self.inputs.case
        return self.inputs.visible if same else np.asarray(self.case.visibility.tile())

    # logits

    def factor(self) -> float:
        """The scale."""
        case = self.case
        return case.scale if case.scale is not None else case.D**-0.5 if case.D else 1.0

    def scaled(self, qk: Array) -> Array:
        return qk * self.dtype(self.factor())

    def cap(self, s: Array, softcap: float) -> Array:
        return softcap * np.tanh(s / softcap)

    def bias(self, bias: Array) -> Array:
        """The bias as it is added; any shape that broadcasts."""
        return bias

    def logits(self, s: Array) -> Array:
        """Softcap, modifier, bias."""
        case = self.case
        if case.softcap is not None:
            s = self.cap(s, case.softcap)
        self.before = s
        if case.score_mod is not None:
            s = np.asarray(SCORE_MODS[case.score_mod](s, *self.places()), self.dtype)
        self.capped = s
        return s + self.bias(self.x["bias"]) if "bias" in self.x else s

    def places(self) -> tuple[Array, ...]:
        return tuple(np.ogrid[tuple(slice(n) for n in self.inputs.visible.shape)])

    def hide(self, t: Array) -> Array:
        """The logits with what hides applied."""
        return np.where(self.seen, t, -np.inf)

    # softmax

    def sink(self, sinks: Array) -> Array | None:
        """The logits of the sinks, to broadcast to (B, H, Lq)."""
        return sinks[:, None]

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        """m, l (B, H, Lq) and o (B, H, Lq, Dv): maximum, sum, and sum of weights times values."""
        m = t.max(-1, initial=-np.inf)
        p = np.exp(t - safe(m)[..., None])
        return m, p.sum(-1), self.weighed(p)

    def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
        """Weights times values, after dropout."""
        if self.keep is not None:
            p = np.where(self.keep[..., keys], p, 0)
        return product(self.low(p), self.v[:, :, keys], self.seen[..., keys])

    def join(self, m: Array, z: Array, o: Array) -> tuple[Array, Array, Array]:
        """The state once the sink has joined."""
        sink = self.sink(self.x["sinks"]) if "sinks" in self.x else None
        if sink is None:
            return m, z, o
        top = np.maximum(m, sink)
        shrink = np.exp(m - safe(top))
        return top, z * shrink + np.exp(sink - safe(top)), o * shrink[..., None]

    def undropped(self) -> float:
        p = self.given.dropout
        return 1.0 if p is None else 0.0 if p == 1 else 1 / (1 - p)

    def divided(self, o: Array, z: Array) -> Array:
        return np.where(z == 0, 0, o / np.where(z == 0, 1, z))

    def log(self, m: Array, z: Array) -> Array:
        """lse."""
        return np.where(z == 0, -np.inf, safe(m) + np.log(z))

    def written(self, out: Array) -> Array:
        return out

    @classmethod
    def honest_logits(cls) -> bool:
        """Whether nothing is wrong before the softmax."""
        if "_honest" not in cls.__dict__:
            cls._honest = all(getattr(cls, name) is getattr(Model, name) for name in BEFORE)
        return cls._honest

    _honest = True

    def to_logits(self) -> None:
        """seen, qk, s and t."""
        if self.honest_logits() and (self.dtype, "logits") in self.inputs.made:
            self.__dict__.update(self.inputs.made[self.dtype, "logits"])
            self.x = dict(self.x)
            return
        self.seen = self.visible()
        if "bias" in self.x:
            self.seen = self.seen & ~np.isneginf(self.x["bias"])
        self.qk = self.q @ self.k.swapaxes(-1, -2)
        self.s = self.scaled(self.qk)
        self.t = self.hide(self.logits(self.s))
        if self.case.score_mod is not None:
            self.seen = self.seen & ~(np.isneginf(self.t) & np.isfinite(self.before))
        if self.honest_logits():
            names = ("case", "x", "q", "k", "v", "keep", "before", "capped", "seen", "qk", "s", "t")
            self.inputs.made[self.dtype, "logits"] = {n: getattr(self, n) for n in names} | {"x": dict(self.x)}

    def forward(self) -> dict[str, Array]:
        self.to_logits()
        self.m, self.l, o = self.join(*self.attend(self.t))
        self.out = self.divided(o, self.l[..., None]) * self.dtype(self.undropped())
        y = {"out": self.written(self.out), "lse": self.log(self.m, self.l)}
        if not self.given.want.isdisjoint(MATRICES):
            y |= {"scores": self.s, "capped": self.capped, "biased": self.t, "weights": self.again()}
        return y

    # gradients

    def again(self) -> Array:
        """The weights, as the backward has them."""
        p = np.exp(self.t - safe(self.m)[..., None]) / np.where(self.l == 0, 1, self.l)[..., None]
        return np.where(self.seen, p, 0)

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

    def backward(self) -> dict[str, Array]:
        case, dout = self.case, self.x["dout"]
        p, incoming = self.again(), self.arriving() - self.delta()
        dp = self.dropped(dout @ self.v.swapaxes(-1, -2))
        dt = np.where(self.seen, self.through_softmax(p, dp, incoming), 0)
        ds = dt
        if case.score_mod is not None:
            ds = np.where(self.seen, ds * SCORE_MODS[case.score_mod].slope(self.before, *self.places()), 0)
        y: dict[str, Array] = {}
        if case.softcap is not None:
            slope, z = self.slope(self.s, case.softcap), self.s / case.softcap
            y["dsoftcap"] = np.where(self.seen, ds * (np.tanh(z) - np.where(slope == 0, 0, z * slope)), 0).sum()
            ds = np.where(self.seen, ds * slope, 0)
        y["dscale"] = np.where(self.seen, ds * self.qk, 0).sum()
        low = self.low(ds, "ds")
        y["dq"] = product(low, self.k, self.seen) * self.dtype(self.q_factor())
        across = self.seen.swapaxes(-1, -2)
        y["dk"] = self.group(product(low.swapaxes(-1, -2), self.q, across) * self.dtype(self.k_factor()))
        y["dv"] = self.group(self.dv_of(p, dout))
        if "bias" in self.x:
            y["dbias"] = self.reduced(dt)
        sink = self.sink(self.x["sinks"]) if "sinks" in self.x else None
        if sink is not None:
            share = np.where(self.l == 0, 0, np.exp(sink - safe(self.m)) / np.where(self.l == 0, 1, self.l))
            y["dsinks"] = self.dsinks(share, incoming)
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

    def low(self, x: Array, what: str = "weights") -> Array:
        """`x` as the contract stores it: weights, ds as they are, or out."""
        name = None if self.contract is None else getattr(self.contract, "weights" if what == "ds" else what)
        return x if name is None or FORMATS[name].bits >= FORMATS[self.contract_accumulate].bits else self.as_(x, name)

    @property
    def contract_accumulate(self) -> str:
        return "float64" if self.contract is None else self.contract.accumulate

    def as_(self, x: Array, name: str) -> Array:
        """`x` rounded to a format."""
        return round_to(x, name).astype(self.dtype)
