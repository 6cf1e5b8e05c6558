"""The forward by definition, dense, with each decision a method: what a hypothesis gets wrong is one of them.

The kernels of the catalogue of mutants go tile by tile and head by head; hypotheses are many, are asked of small
cases, and have to be quick.  So this is the whole of a case at once, (B, H, Lq, Lk), in float64, or, given a
contract, in the arithmetic that it promises: weights and outputs rounded as it says, and all else in the
accumulators' dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import MATRICES, Case
from ..dtypes import FORMATS, round_to
from ..memory import take
from ..precision import Precision, preset
from ..score_mods import SCORE_MODS
from ..streaming import Rules, Schedule
from ..streaming.prepare import prepare
from .dense import Array, Inputs, product, safe, wide

__all__ = ["BEFORE", "PLAIN", "Forward"]

BEFORE = (
    "read", "arrays", "made", "k_heads", "v_heads", "heads", "visible", "factor", "scaled", "cap", "bias", "logits",
    "places", "hide", "to_logits",
)  # fmt: skip
"""the decisions on which the logits rest"""
PLAIN = Rules(preset("float64"), Schedule())


class Forward:
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
        return np.arange(self.given.H) // self.given.group

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
            cls._honest = all(getattr(cls, name) is getattr(Forward, name) for name in BEFORE)
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

    def again(self) -> Array:
        """The weights, as the backward has them."""
        p = np.exp(self.t - safe(self.m)[..., None]) / np.where(self.l == 0, 1, self.l)[..., None]
        return np.where(self.seen, p, 0)

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
