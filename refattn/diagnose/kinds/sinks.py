"""Hypotheses on the sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...oracle import scale_of
from ..hypothesis import kind
from ..model import Array, Model, safe
from .bias import UNITS
from .scores import _capped

__all__: list[str] = []

def _sinks(case: Case) -> bool:
    return case.sinks is not None


@kind(_sinks, times=UNITS)
class sink_times(Model):
    """The sink's logit is multiplied by {times}."""

    times = 1.0

    def sink(self, sinks: Array) -> Array | None:
        return None if self.times == 0 else (sinks * self.dtype(self.times))[:, None]


@kind(lambda case: _sinks(case) and scale_of(case.scale, case.D) != 1, by={"multiplied": 1, "divided": -1})
class sink_by_scale(Model):
    """The sink's logit is {by} by the scale."""

    by = 1

    def sink(self, sinks: Array) -> Array | None:
        return (sinks * self.factor() ** self.by)[:, None]


@kind(lambda case: _sinks(case) and _capped(case))
class sink_capped(Model):
    """The sink's logit is capped, as scores are."""

    def sink(self, sinks: Array) -> Array | None:
        return self.cap(sinks, self.case.softcap or 1.0)[:, None]


@kind(_sinks, times={"2": 2.0, "3": 3.0, "4": 4.0, "8": 8.0, "Lk": 0.0, "H / Hkv": -1.0})
class sink_counted(Model):
    """The sink joins the denominator {times} times: once in each of several splits or tiles, or lanes."""

    times = 2.0

    def sink(self, sinks: Array) -> Array | None:
        c = self.case
        n = self.times if self.times > 0 else c.Lk if self.times == 0 else c.H / max(c.Hkv, 1)
        return (sinks + np.log(max(n, 1)))[:, None]


@kind(
    lambda case: _sinks(case) and case.H > 1,
    of={
        "the first head": lambda s, c: s[:1].repeat(c.H),
        "the next head": lambda s, c: np.roll(s, -1),
        "the head before": lambda s, c: np.roll(s, 1),
        "the key head": lambda s, c: s[np.arange(c.H) // c.group],
        "the head modulo the key heads": lambda s, c: s[np.arange(c.H) % max(1, c.Hkv)],
        "the place in the group": lambda s, c: s[np.arange(c.H) % c.group],
        "the group and key head exchanged": lambda s, c: s.reshape(max(1, c.Hkv), -1).T.ravel(),
        "the head counted from the last": lambda s, c: s[::-1],
        "the first head of its group": lambda s, c: s[
            np.arange(c.H) // c.group * c.group],
        "all heads together, their mean": lambda s, c: s.mean().repeat(c.H),
    },
)
class sink_of(Model):
    """Each head has the sink of {of}."""

    of: Callable[[Array, Case], Array]

    def sink(self, sinks: Array) -> Array | None:
        return type(self).of(sinks, self.case)[:, None]


SUMS: dict[str, Callable[[Any, Array, Array, Array], tuple[Array, Array, Array]]] = {
    "exp(sink) is added, without the maximum subtracted": lambda s, m, z, o: (m, z + np.exp(s), o),
    "exp(sink) is added at the maximum of the keys twice": lambda s, m, z, o: (m, z + 2 * np.exp(s - safe(m)), o),
    "1 is added to the denominator": lambda s, m, z, o: (m, z + 1, o),
    "the sink itself is added to the denominator": lambda s, m, z, o: (m, z + s, o),
    "exp(sink - m) is subtracted": lambda s, m, z, o: (m, z - np.exp(s - safe(m)), o),
    "it is left out, though dsinks is there": lambda s, m, z, o: (m, z, o),
    "the sum is not rescaled to the sink's maximum": lambda s, m, z, o: (
        np.maximum(m, s), z + np.exp(s - safe(np.maximum(m, s))), o * np.exp(m - safe(np.maximum(m, s)))[..., None]),
    "the output is not rescaled to the sink's maximum": lambda s, m, z, o: (
        np.maximum(m, s), z * np.exp(m - safe(np.maximum(m, s))) + np.exp(s - safe(np.maximum(m, s))), o),
    "nothing is rescaled to the sink's maximum": lambda s, m, z, o: (
        np.maximum(m, s), z + np.exp(s - safe(np.maximum(m, s))), o),
    "it joins lse alone: the output was divided before": lambda s, m, z, o: (
        np.maximum(m, s), z * np.exp(m - safe(np.maximum(m, s))) + np.exp(s - safe(np.maximum(m, s))),
        o * ((z * np.exp(m - safe(np.maximum(m, s))) + np.exp(s - safe(np.maximum(m, s)))) / np.where(z == 0, 1, z))[
            ..., None]),
    "it joins only rows that see a key": lambda s, m, z, o: (
        np.where(z == 0, m, np.maximum(m, s)), np.where(z == 0, 0, z * np.exp(m - safe(np.maximum(m, s))) +
                                                        np.exp(s - safe(np.maximum(m, s)))),
        o * np.exp(m - safe(np.maximum(m, s)))[..., None]),
}  # fmt: skip


@kind(_sinks, how=SUMS)
class sink_joins(Model):
    """The sink in the denominator: {how}."""

    how: Callable[[Any, Array, Array, Array], tuple[Array, Array, Array]]

    def join(self, m: Array, z: Array, o: Array) -> tuple[Array, Array, Array]:
        return type(self).how(self.x["sinks"][:, None], m, z, o)


FORGOTTEN: dict[str, tuple[Callable[[Case], bool], Callable[[Any], Array]]] = {
    "in entries without keys": (
        lambda c: any(k == 0 < q for q, k in zip(*c.lengths, strict=True)),
        lambda x: np.array(x.given.lengths[1])[:, None, None] == 0),
    "in entries of one query": (
        lambda c: 1 in c.lengths[0], lambda x: np.array(x.given.lengths[0])[:, None, None] == 1),
    "in rows that see all keys": (
        lambda c: c.mask is not None, lambda x: x.seen.sum(-1) == np.array(x.given.lengths[1])[:, None, None]),
}


@kind(lambda case, how: _sinks(case) and how.where[0](case), where=FORGOTTEN)
class sink_forgotten(Model):
    """The sink is forgotten {where}: lse and output are as if there were none, and its gradient lacks them."""

    where: tuple[Callable[[Case], bool], Callable[[Any], Array]] = FORGOTTEN["in entries without keys"]

    def sink(self, sinks: Array) -> Array | None:
        return np.where(self.where[1](self), -np.inf, sinks[:, None])
