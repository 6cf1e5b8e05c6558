"""Hypotheses on what is made of a row's sums: the output and lse, and where they are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ..hypothesis import always, kind
from ..model import LN2, LOG2E, Array, Model, safe
from .sinks import _sinks

__all__: list[str] = []

@kind(
    always, shows="out",
    how={
        "not divided by the row sum": lambda x, o: o * x.l[..., None],
        "divided by the row sum twice": lambda x, o: o / x.l[..., None],
        "divided by exp(lse): the maximum is counted twice": lambda x, o: o * np.exp(-safe(x.m))[..., None],
        "divided by the row sum of the next row": lambda x, o: o * (x.l / np.roll(x.l, -1, 2))[..., None],
        "divided by the row sum of the row before": lambda x, o: o * (x.l / np.roll(x.l, 1, 2))[..., None],
        "divided by the row sum of the first row": lambda x, o: o * (x.l / x.l[:, :, :1])[..., None],
        "divided by the row sum of the next head": lambda x, o: o * (x.l / np.roll(x.l, -1, 1))[..., None],
        "divided by the row sum of head 0": lambda x, o: o * (x.l / x.l[:, :1])[..., None],
        "divided by the row sum of entry 0": lambda x, o: o * (x.l / x.l[:1])[..., None],
        "divided by the largest weight's share": lambda x, o: o * x.l[..., None] / x.again().max(-1, keepdims=True),
        "divided by the square root of the row sum": lambda x, o: o * np.sqrt(x.l)[..., None],
        "divided by lse": lambda x, o: o * (x.l / (safe(x.m) + np.log(x.l)))[..., None],
        "multiplied by the scale": lambda x, o: o * x.factor(),
        "twice as large": lambda x, o: 2 * o,
        "half as large": lambda x, o: o / 2,
        "divided by the number of keys": lambda x, o: o * x.l[..., None] / max(x.case.Lk, 1),
        "divided by the row sum + 1": lambda x, o: o * (x.l / (x.l + 1))[..., None],
        "divided by the row sum + 1e-6": lambda x, o: o * (x.l / (x.l + 1e-6))[..., None],
        "divided by the row sum + 1e-5": lambda x, o: o * (x.l / (x.l + 1e-5))[..., None],
        "divided by the row sum + 1e-3": lambda x, o: o * (x.l / (x.l + 1e-3))[..., None],
        "448 times too large": lambda x, o: o * 448, "448 times too small": lambda x, o: o / 448,
        "127 times too large": lambda x, o: o * 127, "127 times too small": lambda x, o: o / 127,
        "multiplied by the square root of the size of a key": lambda x, o: o * max(x.case.D, 1) ** 0.5,
        "divided by the number of heads of a group": lambda x, o: o * max(x.case.Hkv, 1) / max(x.case.H, 1),
        "added to that of the head before": lambda x, o: np.concatenate([o[:, :1], o[:, 1:] + o[:, :-1]], 1),
        "added to those of all heads before": lambda x, o: np.cumsum(o, 1),
        "added to those of all entries before": lambda x, o: np.cumsum(o, 0),
        "written with entries and queries exchanged":
            lambda x, o: np.ascontiguousarray(o.swapaxes(0, 2)).reshape(o.shape),
        "written in the order (entry, head, size, query), and read as (entry, head, query, size)":
            lambda x, o: np.ascontiguousarray(o.swapaxes(2, 3)).reshape(o.shape),
        "that of the next query": lambda x, o: np.roll(o, -1, 2),
        "that of the query before": lambda x, o: np.roll(o, 1, 2),
        "negative": lambda x, o: -o,
        "written with group and key head exchanged":
            lambda x, o: o[:, np.arange(x.case.H).reshape(max(x.case.Hkv, 1), -1).T.ravel()] if x.case.H else o,
        "written with key head and group exchanged":
            lambda x, o: o[:, np.arange(x.case.H).reshape(-1, max(x.case.Hkv, 1)).T.ravel()] if x.case.H else o,
        "written with heads and queries exchanged":
            lambda x, o: np.ascontiguousarray(o.swapaxes(1, 2)).reshape(o.shape),
        "written with entries and heads exchanged":
            lambda x, o: np.ascontiguousarray(o.swapaxes(0, 1)).reshape(o.shape),
        "written with columns reversed": lambda x, o: o[..., ::-1],
        "written for the first entry alone": lambda x, o: np.concatenate([o[:1], 0 * o[1:]]),
        "that of the first entry for all": lambda x, o: np.repeat(o[:1], len(o), 0),
        "that of head 0 for all": lambda x, o: np.repeat(o[:, :1], o.shape[1], 1),
        "written over by the next head": lambda x, o: np.roll(o, -1, 1),
    },
)  # fmt: skip
class out(Model):
    """The output is {how}."""

    how: Callable[[Any, Array], Array]

    def written(self, out: Array) -> Array:
        return np.where((self.l == 0)[..., None], 0, type(self).how(self, out))


@kind(
    always, shows="lse",
    how={
        "a logarithm of base 2": lambda x, m, z: (safe(m) + np.log(z)) * LOG2E,
        "multiplied by ln 2": lambda x, m, z: (safe(m) + np.log(z)) * LN2,
        "the logarithm of the sum alone: the maximum is missing": lambda x, m, z: np.log(z),
        "the maximum alone": lambda x, m, z: safe(m) + 0 * z,
        "the sum, without logarithm": lambda x, m, z: z,
        "m + log2(l)": lambda x, m, z: safe(m) + np.log2(z),
        "m log2(e) + log(l)": lambda x, m, z: safe(m) * LOG2E + np.log(z),
        "m ln 2 + log(l)": lambda x, m, z: safe(m) * LN2 + np.log(z),
        "m + ln 2 log(l)": lambda x, m, z: safe(m) + np.log(z) * LN2,
        "m - log(l)": lambda x, m, z: safe(m) - np.log(z),
        "negative": lambda x, m, z: -(safe(m) + np.log(z)),
        "m + l": lambda x, m, z: safe(m) + z,
        "m + log1p(l)": lambda x, m, z: safe(m) + np.log1p(z),
        "m + log(l), m times the scale": lambda x, m, z: safe(m) * x.factor() + np.log(z),
        "m + log(l), m divided by the scale": lambda x, m, z: safe(m) / x.factor() + np.log(z),
        "exp of itself": lambda x, m, z: np.exp(safe(m)) * z,
        "that of the next query": lambda x, m, z: np.roll(safe(m) + np.log(z), -1, 2),
        "that of the query before": lambda x, m, z: np.roll(safe(m) + np.log(z), 1, 2),
        "that of the next head": lambda x, m, z: np.roll(safe(m) + np.log(z), -1, 1),
        "that of the head before": lambda x, m, z: np.roll(safe(m) + np.log(z), 1, 1),
        "that of head 0": lambda x, m, z: np.repeat((safe(m) + np.log(z))[:, :1], z.shape[1], 1),
        "that of the first head of the group": lambda x, m, z: (safe(m) + np.log(z))[
            :, np.arange(x.case.H) // x.case.group * x.case.group],
        "that of the key head's index": lambda x, m, z: (safe(m) + np.log(z))[
            :, np.arange(x.case.H) // x.case.group],
        "written with group and key head exchanged": lambda x, m, z: (safe(m) + np.log(z))[
            :, np.arange(x.case.H).reshape(max(x.case.Hkv, 1), -1).T.ravel()],
        "written with key head and group exchanged": lambda x, m, z: (safe(m) + np.log(z))[
            :, np.arange(x.case.H).reshape(-1, max(x.case.Hkv, 1)).T.ravel()],
        "written with heads and queries exchanged":
            lambda x, m, z: np.ascontiguousarray((safe(m) + np.log(z)).swapaxes(1, 2)).reshape(z.shape),
        "written with entries and heads exchanged":
            lambda x, m, z: np.ascontiguousarray((safe(m) + np.log(z)).swapaxes(0, 1)).reshape(z.shape),
        "that of entry 0 for all": lambda x, m, z: np.repeat((safe(m) + np.log(z))[:1], len(z), 0),
        "0": lambda x, m, z: 0 * z,
    },
)  # fmt: skip
class lse(Model):
    """lse is {how}."""

    how: Callable[[Any, Array, Array], Array]

    def log(self, m: Array, z: Array) -> Array:
        return np.where(z == 0, -np.inf, type(self).how(self, m, z))


LACKS: dict[str, tuple[str, Callable[[Any], Array]]] = {
    "without softcap": ("softcap", lambda x: x.lacking(softcap=None)),
    "without the modifier": ("score_mod", lambda x: x.lacking(score_mod=None)),
    "without the bias": ("bias", lambda x: x.t - np.where(np.isneginf(x.x["bias"]), 0, x.x["bias"])),
    "without the mask": ("mask", lambda x: np.where(x.real(), x.logits(x.s), -np.inf)),
}


@kind(lambda case, how: getattr(case, how.of[0]) is not None, shows="lse", of=LACKS)
class lse_lacks(Model):
    """lse is that of logits {of}, though the output has it."""

    of: tuple[str, Callable[[Any], Array]] = LACKS["without the bias"]

    def lacking(self, **nothing: Any) -> Array:
        true, self.case = self.case, dataclasses.replace(self.case, want=self.case.want - {"dsoftcap"}, **nothing)
        t = np.where(self.seen, self.logits(self.s), -np.inf)
        self.case = true
        return t

    def real(self) -> Array:
        return np.asarray(dataclasses.replace(self.case.visibility, mask=None).tile())

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        t = self.of[1](self)
        m = t.max(-1, initial=-np.inf)
        m, total, _ = self.join(m, np.exp(t - safe(m)[..., None]).sum(-1), np.zeros((*t.shape[:3], 0)))
        return y | {"lse": self.log(m, total)}


@kind(
    lambda case, how: case.scale is not None or case.D > 1, shows="lse",
    by={"without the scale": None, "with the scale twice": 2},
)  # fmt: skip
class lse_of_scores(Model):
    """lse is that of scores {by}."""

    by: int | None = None

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        times = 1.0 if self.by is None else self.factor() ** self.by
        t = self.hide(self.logits(self.qk * times))
        o = np.zeros((*t.shape[:3], 0))
        m = t.max(-1, initial=-np.inf)
        m, total, _ = self.join(m, np.exp(t - safe(m)[..., None]).sum(-1), o)
        return y | {"lse": self.log(m, total)}


@kind(_sinks, shows="lse", how={"lacks": 0.0, "has twice": 2.0})
class lse_and_sink(Model):
    """lse {how} the sink, though the output has it."""

    how = 0.0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        m = self.t.max(-1, initial=-np.inf)
        total = np.exp(self.t - safe(m)[..., None]).sum(-1)
        if self.how:
            sink = self.x["sinks"][:, None]
            top = np.maximum(m, sink)
            m, total = top, total * np.exp(m - safe(top)) + self.how * np.exp(sink - safe(top))
        return y | {"lse": self.log(m, total)}


@kind(lambda case: bool(case.dropout), shows="lse")
class lse_after_dropout(Model):
    """lse is taken after weights were dropped."""

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        kept = np.where(self.x["keep"], np.exp(self.t - safe(self.m)[..., None]), 0).sum(-1)
        return y | {"lse": self.log(self.m, kept)}
