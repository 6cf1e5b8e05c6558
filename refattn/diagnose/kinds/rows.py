"""Hypotheses on what hides, and on rows that see nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import always, kind
from ..model import Array, Model, safe

__all__: list[str] = []

def _hides(case: Case) -> bool:
    return not (case.mask is case.q_lens is case.k_lens is case.bias is None)


SENTINELS = {
    "-1e4": -1e4, "-1e9": -1e9, "-1e30": -1e30, "-65504": -65504.0, "-1e5": -1e5, "-1e6": -1e6, "-1e3": -1e3,
    "-100": -100.0,
    "-50": -50.0, "-1e38": -1e38, "the lowest float32": float(np.finfo(np.float32).min), "0": 0.0,
    "-30000": -3e4, "-32768": -32768.0, "-1e7": -1e7, "-1e8": -1e8, "-1e10": -1e10, "-1e12": -1e12, "-1e20": -1e20,
    "half the lowest float32": float(np.finfo(np.float32).min) / 2,
}  # fmt: skip


@kind(_hides, value=SENTINELS)
class hidden_logit(Model):
    """Hidden logits are {value}, not -inf: rows that see nothing are a mean of values, and low logits drown."""

    value = -1e9

    def hide(self, t: Array) -> Array:
        seen = self.seen
        self.seen = np.ones_like(seen)
        return np.where(seen, t, self.value)


@kind(_hides, value=SENTINELS)
class hidden_logit_added(Model):
    """{value} is added to hidden logits, which stay in play where others are as low."""

    value = -1e9

    def hide(self, t: Array) -> Array:
        seen = self.seen
        self.seen = np.ones_like(seen)
        t = np.where(np.isneginf(t), 0, t)
        return np.where(seen, t, t + self.value)


@kind(_hides, value=SENTINELS)
class hidden_logit_within_lengths(Model):
    """Logits that the mask hides are {value}, not -inf, those beyond the lengths are left out."""

    value = -1e9

    def hide(self, t: Array) -> Array:
        seen = self.seen
        self.seen = np.array(dataclasses.replace(self.case.visibility, mask=None).tile())
        return np.where(seen, t, np.where(self.seen, self.value, -np.inf))


@kind(
    lambda case, how: (case.softcap is not None) if how.given_value is None else _hides(case),
    given_value={"-1e9": -1e9, "-1e4": -1e4, "-1e30": -1e30, "0": 0.0, "-softcap": None}, tile=(16, 32, 64, 128),
)  # fmt: skip
class hidden_logit_in_tiles(Model):
    """Hidden logits are {given_value}, not -inf, up to the end of the last tile of {tile} keys, filled with zeros."""

    given_value: float | None = -1e9
    tile = 64

    @property
    def value(self) -> float:
        return -(self.given.softcap or 0.0) if self.given_value is None else self.given_value

    def hide(self, t: Array) -> Array:
        n, j = np.array(self.case.lengths[1])[:, None, None, None], np.arange(t.shape[-1])
        self.v = np.where((j < n)[:, 0, 0, None, :, None], self.v, 0)
        seen, self.seen = self.seen, np.broadcast_to(j < -(-n // self.tile) * self.tile, t.shape)
        return np.where(seen, t, np.where(self.seen, self.value, -np.inf))

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        n = np.array(self.case.lengths[1])[:, None, None]
        more = np.maximum(-(-n // self.tile) * self.tile - t.shape[-1], 0)
        m, z, o = super().attend(t)
        top = np.where(more > 0, np.maximum(m, self.value), m)
        shrink = np.exp(m - safe(top))
        return top, z * shrink + np.where(more > 0, more * np.exp(self.value - safe(top)), 0), o * shrink[..., None]


EMPTY: dict[str, Callable[[Any, Array], Any]] = {
    "NaN": lambda x, out: np.nan,
    "the mean of all values": lambda x, out: np.where(np.isfinite(x.v), x.v, 0).mean(2, keepdims=True),
    "the mean of the values of this entry":
        lambda x, out: np.stack([np.where(np.isfinite(v[:, :n]), v[:, :n], 0).mean(1, keepdims=True) if n else
                                 np.zeros_like(v[:, :1]) for v, n in zip(x.v, x.given.lengths[1], strict=True)]),
    "the first value": lambda x, out: x.v[:, :, :1],
    "the last value": lambda x, out: x.v[:, :, -1:],
    "the sum of all values": lambda x, out: np.where(np.isfinite(x.v), x.v, 0).sum(2, keepdims=True),
    "inf": lambda x, out: np.inf,
    "1": lambda x, out: 1.0,
}  # fmt: skip


@lru_cache(maxsize=8192)
def _may_be_empty(case: Case) -> bool:
    """Whether some row sees no key; of a bias that is not known."""
    return case.bias is not None or not case.visibility.tile().any(-1).all()


@kind(_may_be_empty, shows="out", how=EMPTY)
class empty_rows(Model):
    """The output of a row that sees nothing is {how}."""

    how: Callable[[Any, Array], Any]

    def written(self, out: Array) -> Array:
        return np.where((self.l == 0)[..., None], type(self).how(self, out), out)


@kind(_may_be_empty, shows="out lse", how={"NaN": np.nan})
class empty_rows_and_lse(Model):
    """The output and the lse of a row that sees nothing are {how}."""

    how = np.nan

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        none = self.l == 0
        return y | {"out": np.where(none[..., None], self.how, y["out"]), "lse": np.where(none, self.how, y["lse"])}


@kind(_may_be_empty, shows="lse", value={"+inf": np.inf, "NaN": np.nan, "0": 0.0, **SENTINELS})
class empty_lse(Model):
    """The lse of a row that sees nothing is {value}, not -inf."""

    value = np.inf

    def log(self, m: Array, z: Array) -> Array:
        return np.where(z == 0, self.value, super().log(m, z))


@kind(lambda case: case.sinks is not None and _may_be_empty(case))
class sink_alone_is_empty(Model):
    """A row that sees a sink alone is taken for one that sees nothing."""

    def join(self, m: Array, z: Array, o: Array) -> tuple[Array, Array, Array]:
        top, total, product = super().join(m, z, o)
        return np.where(z == 0, m, top), np.where(z == 0, 0, total), product


@kind(always, to={"hidden: the maximum swallows it": -np.inf, "0": 0.0})
class nan_swallowed(Model):
    """A logit that is NaN is taken for {to}."""

    to = 0.0

    def hide(self, t: Array) -> Array:
        lost = np.isnan(t) & self.seen
        self.seen = self.seen & ~(lost & np.isinf(self.to))
        return super().hide(np.where(lost, self.to, t))


@kind(_hides, shown={"and in lse": True, "and not in lse": False},
      weights={"all keys of an entry": False, "all keys up to Lk": True})  # fmt: skip
class hidden_in_sum(Model):
    """Hidden keys are left out of the output alone: {weights} count in the row sum, {shown}."""

    shown, weights = True, False

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, z, o = super().attend(t)
        there = np.asarray(dataclasses.replace(self.case.visibility, mask=None).tile()) | self.weights
        self.right = m, z
        logits = self.logits(self.s)
        return m, np.where(there, np.exp(logits - safe(m)[..., None]), 0).sum(-1), o

    def log(self, m: Array, z: Array) -> Array:
        return super().log(m, z) if self.shown else super().log(*self.right)
