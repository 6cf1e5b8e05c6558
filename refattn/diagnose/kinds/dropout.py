"""Hypotheses on dropout: which weights are kept, and what makes up for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..hypothesis import kind
from ..model import Array, Model, safe
from .arrays import Move
from .gradients import ALL

__all__: list[str] = []

@kind(
    lambda case, how: bool(case.dropout) and (case.Lk if how.of == 3 else case.Lq) > how.n,
    n=(4, 8, 16, 32, 64, 128), of={"key": 3, "query": 2},
)  # fmt: skip
class kept_by_place_in_tile(Model):
    """Which weights dropout keeps is looked up by a {of}'s place within its tile of {n}."""

    n, of = 64, 3

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {"keep": np.take(x["keep"], np.arange(x["keep"].shape[self.of]) % self.n, self.of)}


KEPT: dict[str, Move] = {
    "those of the next key": lambda x: np.roll(x, -1, 3), "those of the key before": lambda x: np.roll(x, 1, 3),
    "those of the next query": lambda x: np.roll(x, -1, 2), "those of the query before": lambda x: np.roll(x, 1, 2),
    "those of head 0": lambda x: np.repeat(x[:, :1], x.shape[1], 1),
    "those of entry 0": lambda x: np.repeat(x[:1], len(x), 0),
    "those of entry and head exchanged": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).reshape(x.shape),
    "those of the next head": lambda x: np.roll(x, -1, 1), "those of the next entry": lambda x: np.roll(x, -1, 0),
    "read with rows and columns exchanged": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).reshape(x.shape),
    "those of the last head": lambda x: np.repeat(x[:, -1:], x.shape[1], 1),
    "those of the first row": lambda x: np.repeat(x[:, :, :1], x.shape[2], 2),
    "those of head and query exchanged": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape),
    "the other ones": lambda x: ~x, "all": lambda x: x | True,
}  # fmt: skip


@kind(lambda case: bool(case.dropout), how=KEPT)
class kept(Model):
    """The weights that dropout keeps are {how}."""

    how: Move

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {"keep": self.how(x["keep"])}


@kind(lambda case: bool(case.dropout) and case.H > case.Hkv > 0, of={
    "key head": lambda c, g: np.arange(c.H) // g, "group's first head": lambda c, g: np.arange(c.H) // g * g,
    "place in the group": lambda c, g: np.arange(c.H) % g, "number modulo Hkv": lambda c, g: np.arange(c.H) % c.Hkv,
})  # fmt: skip
class kept_of_head(Model):
    """Which weights dropout keeps is looked up for a head by its {of}."""

    of: Callable[[Any, int], Array]

    def arrays(self) -> dict[str, Array]:
        x, group = super().arrays(), self.given.group
        return x | {"keep": x["keep"][:, type(self).of(self.given, group)]}


@kind(lambda case: bool(case.dropout), value={"-inf": -np.inf, "0": 0.0, "-1e9": -1e9})
class dropped_before_softmax(Model):
    """Dropout falls on logits: those that are dropped are {value}, and the softmax is of the others."""

    value = -np.inf

    def hide(self, t: Array) -> Array:
        return super().hide(np.where(self.x["keep"], t, self.value))


@kind(lambda case: bool(case.dropout) and case.dropout != 1, times={
    "1: what is kept is not divided by 1 - p": lambda p: 1.0, "1 / p": lambda p: 1 / p, "1 - p": lambda p: 1 - p,
    "1 / (1 - p) squared": lambda p: (1 - p) ** -2, "1 + p": lambda p: 1 + p,
})  # fmt: skip
class dropout_factor(Model):
    """What dropout keeps is multiplied by {times}."""

    times: Callable[[float], float]

    def undropped(self) -> float:
        return self.times(self.given.dropout or 0.5)


@kind(lambda case: bool(case.dropout), over={
    "": "p", ", and those that are kept divided by 1 - p": "pz", ", which are not divided by 1 - p": ""})
class dropout_in_sum(Model):
    """The row sum, and lse, are taken after weights were dropped{over}."""

    over = "p"
    """what is divided by 1 - p: weights, their sum"""

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, _, o = super().attend(t)
        z = np.where(self.x["keep"], np.exp(t - safe(m)[..., None]), 0).sum(-1)
        return m, z * self.dtype(self.undropped()) if "z" in self.over else z, o

    def undropped(self) -> float:
        return super().undropped() if self.over else 1.0


@kind(
    lambda case: case.backward and bool(case.dropout), ALL,
    how={
        "the mask and the factor are forgotten in dp": lambda x, dp, f: dp,
        "the mask is forgotten in dp": lambda x, dp, f: dp * f,
        "the factor 1 / (1 - p) is forgotten in dp": lambda x, dp, f: np.where(x.keep, dp, 0),
        "the factor in dp is 1 - p": lambda x, dp, f: np.where(x.keep, dp / f if f else dp, 0),
        "the factor in dp is there twice": lambda x, dp, f: np.where(x.keep, dp * f * f, 0),
        "dp is dropped where it should be kept": lambda x, dp, f: np.where(x.keep, 0, dp * f),
        "the factor in dp is 1 / p": lambda x, dp, f: np.where(x.keep, dp / (x.given.dropout or 1.0), 0),
    },
)  # fmt: skip
class dropout_in_dp(Model):
    """Dropout: {how}."""

    how: Callable[[Any, Array, float], Array]

    def dropped(self, dp: Array) -> Array:
        return self.how(self, dp, self.undropped())


def _of_place(axis: int, n: int) -> Move:
    return lambda x: np.take(x, np.arange(x.shape[axis]) % n, axis)


def _around(axis: int, n: int, by: int) -> Move:
    """Moved within each tile of n, whose end goes on at its beginning."""

    def move(x: Array) -> Array:
        at = np.arange(x.shape[axis])
        begin = at // n * n
        return np.take(x, begin + (at - begin - by) % np.minimum(n, x.shape[axis] - begin), axis)

    return move


PLACED = {f"those of a {words}'s place in its tile of {n}": _of_place(axis, n)
          for words, axis in (("query", 2), ("key", 3)) for n in (8, 16, 32, 64)}  # fmt: skip
BESIDE = ("query before", 2, 1), ("next query", 2, -1), ("key before", 3, 1), ("next key", 3, -1)
PLACED |= {f"those of the {words}, around in its tile of {n}": _around(axis, n, by)
           for words, axis, by in BESIDE for n in (8, 16, 32, 64, 128)}  # fmt: skip


@kind(
    lambda case: case.backward and bool(case.dropout), ALL,
    of={"gradients of weights": "dp", "weights, for dv,": "dv", "weights and their gradients in the backward": "dp dv"},
    how=KEPT | PLACED,
)  # fmt: skip
class kept_in_backward(Model):
    """What dropout keeps of {of} is {how}, not those that the forward kept."""

    of = "dp"
    how: Move

    def others(self, of: str) -> None:
        if of in self.of and self.keep is not None:
            self.keep = type(self).how(self.x["keep"])

    def dropped(self, dp: Array) -> Array:
        true = self.keep
        self.others("dp")
        dp, self.keep = super().dropped(dp), true
        return dp

    def dv_of(self, p: Array, dout: Array) -> Array:
        true = self.keep
        self.others("dv")
        dv, self.keep = super().dv_of(p, dout), true
        return dv


@kind(lambda case: case.dropout == 1)
class dropped_by_one(Model):
    """1 / (1 - p) is computed for p = 1 too, where nothing is kept: infinity times 0 is NaN."""

    def undropped(self) -> float:
        return float("inf")
