"""Hypotheses on the products of the backward: what is multiplied with what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..dense import wide
from ..hypothesis import kind
from ..model import Array, Model, product
from .gradients import SCORED

__all__: list[str] = []

Operand = Callable[[Any], Array]


def _next(x: Array, axis: int) -> Array:
    return np.roll(x, -1, axis)


def _first_of_group(x: Any, y: Array) -> Array:
    size = x.given.group
    return y[:, np.arange(x.given.H) // size * size]


def _wants(name: str) -> Callable[[Case], bool]:
    return lambda case: name in case.want


KEYS: dict[str, Operand] = {
    "values": lambda x: x.v, "keys of the next head": lambda x: _next(x.k, 1),
    "keys of the next row": lambda x: _next(x.k, 2), "keys of the row before": lambda x: np.roll(x.k, 1, 2),
    "keys of head 0": lambda x: np.repeat(x.k[:, :1], x.given.H, 1),
    "keys of entry 0": lambda x: np.repeat(x.k[:1], x.given.B, 0),
    "keys of key head h % Hkv": lambda x: x.x["k"][:, np.arange(x.given.H) % max(1, x.given.Hkv)],
}
QUERIES: dict[str, Operand] = {
    "dout": lambda x: x.x["dout"], "outputs": lambda x: x.out,
    "queries of the next head": lambda x: _next(x.q, 1), "queries of the next row": lambda x: _next(x.q, 2),
    "queries of the row before": lambda x: np.roll(x.q, 1, 2),
    "queries of head 0": lambda x: np.repeat(x.q[:, :1], x.given.H, 1),
    "queries of the first head of the group": lambda x: _first_of_group(x, x.q),
    "queries of entry 0": lambda x: np.repeat(x.q[:1], x.given.B, 0),
}
DOUT: dict[str, Operand] = {
    "outputs": lambda x: x.out, "queries": lambda x: x.q, "dout of the next head": lambda x: _next(x.x["dout"], 1),
    "dout of the next row": lambda x: _next(x.x["dout"], 2),
    "dout of the row before": lambda x: np.roll(x.x["dout"], 1, 2),
    "dout of head 0": lambda x: np.repeat(x.x["dout"][:, :1], x.given.H, 1),
    "dout of the first head of the group": lambda x: _first_of_group(x, x.x["dout"]),
    "dout of entry 0": lambda x: np.repeat(x.x["dout"][:1], x.given.B, 0),
    "dout divided by the row sum": lambda x: x.x["dout"] / np.where(x.l == 0, 1, x.l)[..., None],
}


@kind(lambda case: case.rotary is not None and "dq" in case.want, "dq", of={
    "keys before their rotation": lambda x: wide(x.inputs.problem.stored["k"])[:, x.k_heads()]})
@kind(_wants("dq"), "dq", of=KEYS)
class dq_of_others(Model):
    """dq is the product of ds with {of}, not with keys."""

    of: Operand

    def dq_of(self, ds: Array) -> Array:
        return product(ds, self.of(self), self.seen)


@kind(lambda case: case.rotary is not None and "dk" in case.want, "dk", of={
    "queries before their rotation": lambda x: wide(x.inputs.problem.stored["q"])})
@kind(_wants("dk"), "dk", of=QUERIES)
class dk_of_others(Model):
    """dk is the product of ds, transposed, with {of}, not with queries."""

    of: Operand

    def dk_of(self, ds: Array) -> Array:
        return product(ds.swapaxes(-1, -2), self.of(self), self.seen.swapaxes(-1, -2))


@kind(_wants("dv"), "dv", of=DOUT)
class dv_of_others(Model):
    """dv is the product of weights, transposed, with {of}, not with dout."""

    of: Operand

    def dv_of(self, p: Array, dout: Array) -> Array:
        return super().dv_of(p, self.of(self))


PAIRS: dict[str, tuple[Operand, Operand]] = {
    f"{words} and values": (how, lambda x: x.v) for words, how in DOUT.items()
} | {
    "dout and keys": (lambda x: x.x["dout"], lambda x: x.k),
    "dout and values of the next head": (lambda x: x.x["dout"], lambda x: _next(x.v, 1)),
    "dout and values of the next row": (lambda x: x.x["dout"], lambda x: _next(x.v, 2)),
    "dout and values of head 0": (lambda x: x.x["dout"], lambda x: np.repeat(x.v[:, :1], x.given.H, 1)),
    "dout and values of key head h % Hkv": (
        lambda x: x.x["dout"], lambda x: x.x["v"][:, np.arange(x.given.H) % max(1, x.given.Hkv)]),
}  # fmt: skip


@kind(lambda case: not case.want.isdisjoint(SCORED.split()), SCORED, of=PAIRS)
class dp_of_others(Model):
    """dp, the gradient of weights, is the product of {of}, not of dout and values."""

    of: tuple[Operand, Operand] = (lambda x: x.x["dout"], lambda x: x.v)

    def dp_of(self, dout: Array) -> Array:
        return np.asarray(self.of[0](self) @ self.of[1](self).swapaxes(-1, -2))


@kind(
    lambda case: case.backward, "dq dk dv",
    what={"dq is that of weights, not of ds": "dq", "dk is that of weights, not of ds": "dk",
          "dv is that of ds, not of weights": "dv", "dv is that of dp, not of weights": "dp",
          "dq is that of dp, not of ds": "dq dp", "dk is that of dp, not of ds": "dk dp"},
)  # fmt: skip
class weights_for_ds(Model):
    """{what}."""

    what = "dq"

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        self.dp, self.ds = dp, super().through_softmax(p, dp, incoming)
        self.p = p
        return self.ds

    def dq_of(self, ds: Array) -> Array:
        other = {"dq": self.p, "dq dp": self.dp}.get(self.what)
        return super().dq_of(ds if other is None else np.where(self.seen, other, 0))

    def dk_of(self, ds: Array) -> Array:
        other = {"dk": self.p, "dk dp": self.dp}.get(self.what)
        return super().dk_of(ds if other is None else np.where(self.seen, other, 0))

    def dv_of(self, p: Array, dout: Array) -> Array:
        other = {"dv": self.ds, "dp": self.dp}.get(self.what)
        return super().dv_of(p if other is None else np.where(self.seen, other, 0), dout)


SLOPES: dict[str, Callable[[Any, Array], Array]] = {
    "missing": lambda x, y: 1 + 0 * y, "squared": lambda x, y: y * y, "negative": lambda x, y: -y,
    "its inverse": lambda x, y: 1 / y, "taken at the modified scores": lambda x, y: x.slope_at(x.capped),
    "taken at q·k, before the scale": lambda x, y: x.slope_at(x.qk),
    "taken at the next key": lambda x, y: np.roll(y, -1, 3), "taken at the next query": lambda x, y: np.roll(y, -1, 2),
    "taken at the next head": lambda x, y: np.roll(y, -1, 1),
}  # fmt: skip


@kind(lambda case: case.score_mod is not None and case.backward, "dq dk dscale dsoftcap", how=SLOPES)
class modifier_slope(Model):
    """The backward's slope of the modifier of scores is {how}."""

    how: Callable[[Any, Array], Array]

    def modifier_slope(self) -> Array:
        return self.how(self, super().modifier_slope())

    def slope_at(self, s: Array) -> Array:
        true, self.before = self.before, s
        found = super().modifier_slope()
        self.before = true
        return found
