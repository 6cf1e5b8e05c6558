"""Hypotheses on the bias, and on ALiBi."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...alibi import slopes
from ...case import Case
from ...oracle import scale_of
from ..hypothesis import kind
from ..model import LN2, LOG2E, Array, Model
from .scores import _power

__all__: list[str] = []

UNITS = {
    "ln 2: it is not brought to base 2, as the scores are": LN2,
    "log2(e): it is brought to base 2 where it should not": LOG2E,
    "2: it enters twice": 2.0,
    "1/2": 0.5,
    "-1": -1.0,
    "0: it is not applied": 0.0,
}


def _biased(case: Case) -> bool:
    return case.bias is not None


@kind(_biased, times=UNITS)
class bias_times(Model):
    """The bias is multiplied by {times}."""

    times = 1.0

    def bias(self, bias: Array) -> Array:
        return np.where(np.isneginf(bias), bias, bias * self.times)


@kind(_biased, how={"added to the weights, after the softmax": 0, "multiplied with the weights": 1})
class bias_after_softmax(Model):
    """The bias is {how}."""

    how = 0

    def logits(self, s: Array) -> Array:
        t = super().logits(s)
        bias = np.broadcast_to(self.x["bias"], t.shape)
        self.later = np.where(np.isneginf(bias), 0, bias)
        return t - self.later

    def weighed(self, p: Array, keys: slice = slice(None)) -> Array:
        p = p * self.later[..., keys] if self.how else p + self.later[..., keys] * p.sum(-1, keepdims=True)
        return super().weighed(np.where(self.seen[..., keys], p, 0), keys)


@kind(_biased)
class bias_multiplied(Model):
    """The bias is multiplied with the scores, not added to them."""

    def logits(self, s: Array) -> Array:
        bias = np.broadcast_to(self.x["bias"], s.shape)
        t = super().logits(s)
        return np.where(np.isneginf(bias), bias, (t - np.where(np.isneginf(bias), 0, bias)) * bias)


@kind(lambda case: _biased(case) and scale_of(case.scale, case.D) != 1, by={"multiplied": 1, "divided": -1})
class bias_by_scale(Model):
    """The bias is {by} by the scale."""

    by = 1

    def bias(self, bias: Array) -> Array:
        return np.where(np.isneginf(bias), bias, bias * self.factor() ** self.by)


def _over(case: Case, how: Any) -> bool:
    return _biased(case) and case.bias_shape[how.axis] > 1


AXES = {"batch entry": 0, "head": 1, "query": 2, "key": 3}


class Elsewhere(Model):
    """The bias is read from elsewhere, and what hides there is hidden."""

    def taken(self, bias: Array) -> Array:
        raise NotImplementedError

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | ({"bias": self.taken(x["bias"])} if "bias" in x else {})


@kind(_over, axis=AXES, place={"that of the first": 0, "that of the last": -1})
class bias_of_one(Elsewhere):
    """The bias for each {axis} is {place}: a stride is taken for 0."""

    axis, place = 0, 0

    def taken(self, bias: Array) -> Array:
        return np.take(bias, [self.place], self.axis)


@kind(_over, axis=AXES, by={"the next": -1, "the one before": 1})
class bias_shifted(Elsewhere):
    """The bias for each {axis} is that of {by}."""

    axis, by = 0, 1

    def taken(self, bias: Array) -> Array:
        return np.roll(bias, self.by, self.axis)


@kind(
    lambda case, how: _biased(case) and case.bias_shape[how.axis] > how.tile,
    axis={"query": 2, "key": 3}, tile=(4, 8, 16, 32, 64, 128),
)  # fmt: skip
class bias_by_place_in_tile(Elsewhere):
    """The bias is indexed by a {axis}'s place within its tile of {tile}: the tile's offset is missing."""

    axis, tile = 3, 64

    def taken(self, bias: Array) -> Array:
        return np.take(bias, np.arange(bias.shape[self.axis]) % self.tile, self.axis)


def _per_head(case: Case) -> bool:
    return _biased(case) and case.bias_shape[1] > 1


@kind(
    _per_head,
    of={
        "key head": lambda c: np.arange(c.H) // c.group,
        "place in the group": lambda c: np.arange(c.H) % c.group,
        "head modulo the key heads": lambda c: np.arange(c.H) % max(1, c.Hkv),
        "group's first head": lambda c: np.arange(c.H) // c.group * c.group,
        "head counted from the last": lambda c: np.arange(c.H)[::-1],
    },
)
class bias_head(Elsewhere):
    """The bias of a head is that of its {of}."""

    of: Callable[[Case], Array]

    def taken(self, bias: Array) -> Array:
        return bias[:, type(self).of(self.given)]


@kind(
    lambda case: _biased(case) and min(case.bias_shape[2:]) > 1,
    how={
        "read with rows and columns exchanged in memory":
            lambda b: np.ascontiguousarray(b.swapaxes(2, 3)).reshape(b.shape),
        "read from its transpose": lambda b: b.reshape(*b.shape[:2], b.shape[3], b.shape[2]).swapaxes(2, 3),
        "that of the entry and the head exchanged":
            lambda b: np.ascontiguousarray(b.swapaxes(0, 1)).reshape(b.shape),
        "counted from the last key": lambda b: b[..., ::-1],
        "counted from the last query": lambda b: b[:, :, ::-1],
        "that of queries aligned at the last key": lambda b: np.roll(b, b.shape[3] - b.shape[2], 2),
    },
)  # fmt: skip
class bias_read(Elsewhere):
    """The bias is {how}."""

    how: Callable[[Array], Array]

    def taken(self, bias: Array) -> Array:
        return type(self).how(bias)


PLANES: dict[str, Callable[[Any, Any, Case, int], Any]] = {
    "(b H + h) % planes": lambda b, h, c, n: (b * c.H + h) % n,
    "b H + h, up to the last": lambda b, h, c, n: np.minimum(b * c.H + h, n - 1),
    "(h B + b) % planes": lambda b, h, c, n: (h * c.B + b) % n,
    "(b + h) % planes": lambda b, h, c, n: (b + h) % n,
    "h % planes": lambda b, h, c, n: h % n + 0 * b,
    "b % planes": lambda b, h, c, n: b % n + 0 * h,
}


def _planes(case: Case, how: Any) -> bool:
    if not _biased(case) or 0 in case.bias_shape:
        return False
    (B, H), (b, h) = case.bias_shape[:2], np.ogrid[: case.B, : case.H]
    true = np.minimum(b, B - 1) * H + np.minimum(h, H - 1)
    return not np.array_equal(how.at(b, h, case, B * H), true)


@kind(_planes, at=PLANES)
class bias_plane(Elsewhere):
    """The bias, taken for so many planes of queries and keys, is indexed by {at}."""

    at: Callable[[Any, Any, Case, int], Any]

    def taken(self, bias: Array) -> Array:
        planes = bias.reshape(-1, *bias.shape[2:])
        b, h = np.ogrid[: self.given.B, : self.given.H]
        return planes[type(self).at(b, h, self.given, len(planes))]


def _alibi(case: Case) -> bool:
    return case.bias is not None and case.bias.family.startswith("alibi") and case.bias_shape[1] > 1


@kind(
    _alibi,
    how={
        "2**(-8 h / H), from h = 0": lambda h, H: 2.0 ** (-8 * h / H),
        "2**(-8 (h + 1) / H)": lambda h, H: 2.0 ** (-8 * (h + 1) / H),
        "2**(-(h + 1))": lambda h, H: 2.0 ** -(h + 1.0),
        "2**(-8 (h + 1) / H), H rounded up to a power of two": lambda h, H: 2.0 ** (-8 * (h + 1) / _power(H)),
        "1 / (h + 1)": lambda h, H: 1 / (h + 1.0),
        "those of the next head": lambda h, H: np.roll(_slopes(H), -1)[h],
        "those of the head before": lambda h, H: np.roll(_slopes(H), 1)[h],
        "those in the order of size": lambda h, H: np.sort(_slopes(H))[::-1][h],
        "of half as many heads": lambda h, H: _slopes(max(H // 2, 1))[h % max(H // 2, 1)],
    },
)  # fmt: skip
class alibi_slopes(Model):
    """The slopes of ALiBi are {how}."""

    how: Callable[[Array, int], Array]

    def bias(self, bias: Array) -> Array:
        H = self.case.H
        ratio = type(self).how(np.arange(H), H) / _slopes(H)
        return np.where(np.isneginf(bias), bias, bias * ratio[:, None, None])


def _slopes(H: int) -> Array:
    return slopes(H)


@kind(_alibi, how=("i - j as it is", "|i - j|, from the top left", "|i - j|, from the bottom right", "-j"))
class alibi_distance(Model):
    """The distance of ALiBi is {how}."""

    how = ""

    def bias(self, bias: Array) -> Array:
        case = self.case
        i, j = np.arange(case.Lq)[:, None], np.arange(case.Lk)
        signed = case.bias is not None and case.bias.family == "alibi_signed"
        offset = {"|i - j|, from the bottom right": case.Lk - case.Lq}.get(self.how, 0)
        d = i + offset - j
        d = {"-j": -j + 0 * i, "i - j as it is": d * (1 if signed else -1)}.get(self.how, -np.abs(d))
        return _slopes(case.H)[:, None, None] * d
