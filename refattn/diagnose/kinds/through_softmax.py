"""Hypotheses on the way back through softmax and softcap: delta, dlse, ds, dv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..hypothesis import kind
from ..model import LN2, Array, Model
from .gradients import SCORED

__all__: list[str] = []

Delta = Callable[[Any, Array], Array]
DELTAS: dict[str, Delta] = {
    "missing": lambda x, d: 0 * d,
    "added": lambda x, d: -d,
    "that of the next row": lambda x, d: np.roll(d, -1, 2),
    "that of the row before": lambda x, d: np.roll(d, 1, 2),
    "that of the first row": lambda x, d: np.repeat(d[:, :, :1], d.shape[2], 2),
    "that of head 0": lambda x, d: np.repeat(d[:, :1], d.shape[1], 1),
    "that of the next head": lambda x, d: np.roll(d, -1, 1),
    "that of the head before": lambda x, d: np.roll(d, 1, 1),
    "that of entry 0": lambda x, d: np.repeat(d[:1], len(d), 0),
    "that of the key head": lambda x, d: d[:, x.heads()],
    "of the first 8 columns alone": lambda x, d: x.delta_of(slice(8)),
    "of the first 16 columns alone": lambda x, d: x.delta_of(slice(16)),
    "of the first 32 columns alone": lambda x, d: x.delta_of(slice(32)),
    "of the first 64 columns alone": lambda x, d: x.delta_of(slice(64)),
    "of as many columns as a key has": lambda x, d: x.delta_of(slice(x.given.D)),
    "without the last column": lambda x, d: x.delta_of(slice(-1)),
    "without the first column": lambda x, d: x.delta_of(slice(1, None)),
    "that of heads and queries exchanged in memory":
        lambda x, d: np.ascontiguousarray(d.swapaxes(1, 2)).reshape(d.shape),
    "that of entries and heads exchanged in memory":
        lambda x, d: np.ascontiguousarray(d.swapaxes(0, 1)).reshape(d.shape),
    "that of the first head of the group": lambda x, d: d[:, np.arange(x.given.H) // x.size() * x.size()],
    "that of the next entry": lambda x, d: np.roll(d, -1, 0),
    "added up over tiles of rows, as it is not reset": lambda x, d: np.cumsum(d, 2),
    "sum(|out · dout|)": lambda x, d: np.abs(x.out * x.x["dout"]).sum(-1),
    "of the product with the output of the next row": lambda x, d: (np.roll(x.out, -1, 2) * x.x["dout"]).sum(-1),
    "of the product with the output of the next head": lambda x, d: (np.roll(x.out, -1, 1) * x.x["dout"]).sum(-1),
    "twice as large": lambda x, d: 2 * d, "half as large": lambda x, d: d / 2,
    "multiplied by the scale": lambda x, d: d * x.factor(),
    "multiplied by ln 2": lambda x, d: d * LN2,
    "sum(out²)": lambda x, d: (x.out * x.out).sum(-1),
    "the sum of weights and their gradients before dropout": lambda x, d: x.of_weights(lambda dp: dp),
    "the sum of weights and their gradients, dropped twice": lambda x, d: x.of_weights(lambda dp: x.dropped(
        x.dropped(dp))),
    "the sum of weights and their gradients, dropped and not divided by 1 - p":
        lambda x, d: x.of_weights(lambda dp: dp if x.keep is None else np.where(x.keep, dp, 0)),
    "sum(dout)": lambda x, d: x.x["dout"].sum(-1),
    "the mean of out · dout": lambda x, d: d / max(x.v.shape[3], 1),
    "without dropout's 1 / (1 - p)": lambda x, d: d / x.undropped() if x.undropped() else d,
    "with dropout's 1 / (1 - p) twice": lambda x, d: d * x.undropped(),
    "of the output before it is divided by the row sum": lambda x, d: d * x.l,
    "of the output divided by the row sum twice": lambda x, d: d / np.where(x.l == 0, 1, x.l),
    "of the output without the sink": lambda x, d: d / x.of_keys(), "of the output with the sink twice":
        lambda x, d: d / (2 - x.of_keys()),
} | {
    f"of whole blocks of {n} columns alone": (lambda x, d, n=n: x.delta_of(slice(x.v.shape[3] // n * n)))
    for n in (4, 8, 16, 32, 64)
}  # fmt: skip


@kind(lambda case: not case.want.isdisjoint(SCORED.split()), SCORED, how=DELTAS)
class delta(Model):
    """delta = out · dout, which softmax subtracts, is {how}."""

    how: Delta

    def delta(self) -> Array:
        return self.how(self, super().delta())

    def delta_of(self, columns: slice) -> Array:
        return np.asarray((self.out * self.x["dout"])[..., columns].sum(-1))

    def of_weights(self, how: Callable[[Array], Array]) -> Array:
        p = self.again()
        return np.asarray(np.where(self.seen, p * how(self.dp_of(self.x["dout"])), 0).sum(-1))

    def size(self) -> int:
        return self.given.group

    def of_keys(self) -> Array:
        """The weight of all keys together, 1 less that of the sink."""
        total = np.asarray(self.again().sum(-1))
        return np.where(total == 0, 1, total)


@kind(
    lambda case: case.backward and "lse" in case.want, SCORED,
    how={
        "ignored": lambda g: 0 * g, "subtracted": lambda g: -g, "added twice": lambda g: 2 * g,
        "multiplied by ln 2": lambda g: g * LN2, "divided by ln 2": lambda g: g / LN2,
        "that of the next row": lambda g: np.roll(g, -1, 2), "that of the next head": lambda g: np.roll(g, -1, 1),
        "that of head 0": lambda g: np.repeat(g[:, :1], g.shape[1], 1),
        "that of the row before": lambda g: np.roll(g, 1, 2), "that of entry 0": lambda g: np.repeat(g[:1], len(g), 0),
        "that of heads and queries exchanged in memory":
            lambda g: np.ascontiguousarray(g.swapaxes(1, 2)).reshape(g.shape),
        "that of entries and heads exchanged in memory":
            lambda g: np.ascontiguousarray(g.swapaxes(0, 1)).reshape(g.shape),
    },
)  # fmt: skip
class dlse(Model):
    """dlse, the gradient that arrives at lse, is {how}."""

    how: Callable[[Array], Array]

    def arriving(self) -> Array:
        return self.how(super().arriving())


def _kept(x: Any, p: Array) -> Array:
    """The weights that dropout keeps."""
    return p if x.keep is None else np.where(x.keep, p, 0)


Through = Callable[[Any, Array, Array, Array], Array]
SOFTMAX: dict[str, Through] = {
    "p dp - delta: p falls on dp alone": lambda x, p, dp, i: p * dp + i,
    "dp - delta: p is missing": lambda x, p, dp, i: dp + i,
    "p² (dp - delta)": lambda x, p, dp, i: p * p * (dp + i),
    "p (1 - p) dp": lambda x, p, dp, i: p * (1 - p) * dp,
    "p (1 - p) (dp - delta)": lambda x, p, dp, i: p * (1 - p) * (dp + i),
    "p dp": lambda x, p, dp, i: p * dp,
    "p (delta - dp)": lambda x, p, dp, i: -p * (dp + i),
    "p (dp - delta), p not divided by the row sum": lambda x, p, dp, i: p * x.l[..., None] * (dp + i),
    "p (dp - delta), p divided by the row sum twice": lambda x, p, dp, i: p / x.l[..., None] * (dp + i),
    "p (dp - delta), p dropped": lambda x, p, dp, i: _kept(x, p) * (dp + i),
    "p (dp - delta), p dropped and divided by 1 - p":
        lambda x, p, dp, i: _kept(x, p) * x.undropped() * (dp + i),
    "p (dp - delta), where dropout falls on dp - delta": lambda x, p, dp, i: p * np.where(
        x.kept(), dp + i * x.undropped(), 0),
    "p (dp - delta), and p delta where it is dropped": lambda x, p, dp, i: p * np.where(x.kept(), dp + i, -i),
    "p (dp - delta), where dropout falls on delta too": lambda x, p, dp, i: p * (dp + x.dropped(i + 0 * dp)),
}


@kind(lambda case: not case.want.isdisjoint(SCORED.split()), SCORED, how=SOFTMAX)
class through_softmax(Model):
    """ds is {how}."""

    how: Through

    def kept(self) -> Array:
        return np.ones((), bool) if self.keep is None else self.keep

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        return self.how(self, p, dp, incoming[..., None])


@kind(
    lambda case: "dv" in case.want, "dv",
    how={
        "without the mask of dropout": lambda x, p, f: p * f,
        "without dropout": lambda x, p, f: p,
        "without dropout's 1 / (1 - p)": lambda x, p, f: _kept(x, p),
        "with dropout's 1 / (1 - p) twice": lambda x, p, f: _kept(x, p) * f * f,
        "of weights that are not divided by the row sum":
            lambda x, p, f: _kept(x, p) * f * x.l[..., None],
        "of weights divided by the row sum twice":
            lambda x, p, f: _kept(x, p) * f / x.l[..., None],
        "of scores": lambda x, p, f: np.where(x.seen, x.t, 0),
        "of weights of the next head": lambda x, p, f: np.roll(_kept(x, p) * f, -1, 1),
        "of weights of the head before": lambda x, p, f: np.roll(_kept(x, p) * f, 1, 1),
        "of weights of the first head of the group":
            lambda x, p, f: (_kept(x, p) * f)[:, np.arange(x.given.H) // x.given.group * x.given.group],
    },
)  # fmt: skip
class dv(Model):
    """dv is {how}."""

    how: Callable[[Any, Array, float], Array]

    def dv_of(self, p: Array, dout: Array) -> Array:
        w = self.how(self, p, self.undropped())
        return np.asarray(self.low(w).swapaxes(-1, -2) @ dout)


@kind(
    lambda case: case.softcap is not None and not case.want.isdisjoint(("dq", "dk", "dscale", "dsoftcap")),
    "dq dk dscale dsoftcap",
    how={
        "missing": lambda s, c: np.ones_like(s),
        "1 - (s / softcap)², without tanh": lambda s, c: 1 - (s / c) ** 2,
        "1 - tanh(s)²": lambda s, c: 1 - np.tanh(s) ** 2,
        "1 - tanh": lambda s, c: 1 - np.tanh(s / c),
        "1 + tanh²": lambda s, c: 1 + np.tanh(s / c) ** 2,
        "1 - (softcap tanh)²: of the capped score": lambda s, c: 1 - (c * np.tanh(s / c)) ** 2,
        "divided by softcap": lambda s, c: (1 - np.tanh(s / c) ** 2) / c,
        "multiplied by softcap": lambda s, c: (1 - np.tanh(s / c) ** 2) * c,
        "squared": lambda s, c: (1 - np.tanh(s / c) ** 2) ** 2,
        "tanh²": lambda s, c: np.tanh(s / c) ** 2,
        "of scores in base 2": lambda s, c: 1 - np.tanh(s / LN2 / c) ** 2,
    },
)  # fmt: skip
class softcap_slope(Model):
    """The backward's slope of softcap, 1 - tanh², is {how}."""

    how: Callable[[Array, float], Array]

    def slope(self, s: Array, softcap: float) -> Array:
        return self.how(s, softcap)


@kind(
    lambda case: case.softcap is not None and not case.want.isdisjoint(("dq", "dk", "dscale", "dsoftcap")),
    "dq dk dscale dsoftcap",
    of={
        "the capped score": lambda x: x.before, "q·k, before the scale": lambda x: x.qk,
        "scores with the scale twice": lambda x: x.s * x.factor(),
        "the logits, with the bias": lambda x: np.where(x.seen, x.t, 0),
        "the capped logits, with the bias": lambda x: np.where(x.seen, x.t, 0) / x.case.softcap,
    },
)  # fmt: skip
class softcap_slope_of(Model):
    """The backward's slope of softcap, 1 - tanh², is that of {of}."""

    of: Callable[[Any], Array]

    def slope(self, s: Array, softcap: float) -> Array:
        return super().slope(type(self).of(self), softcap)


@kind(lambda case: case.softcap is not None and "dbias" in case.want, "dbias")
class dbias_capped(Model):
    """dbias is that of the bias within softcap: it is multiplied by its slope, 1 - tanh²."""

    def reduced(self, dt: Array) -> Array:
        return super().reduced(dt * self.slope(self.s, self.case.softcap or 1.0))
