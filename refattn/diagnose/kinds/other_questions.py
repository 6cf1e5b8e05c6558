"""Hypotheses that the answer is right, and to another question: a mask that was not asked for, another axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from ...case import Case
from ...masks import Causal
from ...visibility import Visibility
from ..hypothesis import always, kind
from ..model import Array, Model, safe

__all__: list[str] = []


def _unmasked(case: Case) -> bool:
    return case.mask is None and case.Lq > 1


@kind(_unmasked, align={"the top left": "top_left", "the bottom right": "bottom_right"})
class causal_unasked(Model):
    """It is causal, aligned at {align}, where no mask was asked for."""

    align: Literal["top_left", "bottom_right"] = "top_left"

    def visible(self) -> Array:
        case = self.inputs.case
        causal = Visibility(Causal(self.align), case.B, case.H, case.Lq, case.Lk, case.q_lens, case.k_lens)
        return super().visible() & np.asarray(causal.tile())


LIKE: Mapping[str, Callable[[Array], Array]] = {
    "1: the mean of all visible values": lambda t: np.ones_like(t),
    "1 for the largest, 0 for others": lambda t: (t == t.max(-1, keepdims=True, initial=-np.inf)) * 1.0,
    "those of a sigmoid": lambda t: 1 / (1 + np.exp(-t)),
    "the logits, where they are positive": lambda t: np.maximum(t, 0),
    "the logits": lambda t: t,
    "1 + x": lambda t: 1 + t,
    "elu(x) + 1": lambda t: np.where(t > 0, t + 1, np.exp(np.minimum(t, 0))),
    "softplus": lambda t: np.logaddexp(0, t),
    "the squares of those": lambda t: np.exp(2 * (t - safe(t.max(-1, keepdims=True, initial=-np.inf)))),
    "the square roots of those": lambda t: np.exp((t - safe(t.max(-1, keepdims=True, initial=-np.inf))) / 2),
} | {
    f"those of the {n} largest alone": (lambda t, n=n: np.exp(t - safe(t.max(-1, keepdims=True, initial=-np.inf)))
                                        * (t >= np.sort(t, -1)[..., -min(n, t.shape[-1])][..., None]))
    for n in (2, 4, 8, 16, 32, 64)
}  # fmt: skip


@kind(lambda case: case.Lk > 0, like=LIKE)
class weights_like(Model):
    """Weights, before they are divided by their sum, are not exp(x) but {like}."""

    like: Callable[[Array], Array]

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        p = np.where(np.isneginf(t), 0, type(self).like(t))
        some = self.seen.any(-1)
        return np.where(some, 0.0, -np.inf), p.sum(-1), self.weighed(p)


@kind(always, logit={"0": 0.0, "1": 1.0, "-1": -1.0})
class sink_unasked(Model):
    """A sink of logit {logit} joins the denominator that nobody asked for: softmax with one more in the sum."""

    logit = 0.0

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, z, o = super().attend(t)
        top = np.maximum(m, self.logit)
        shrink = np.exp(m - top)
        return top, z * shrink + np.exp(self.logit - top), o * shrink[..., None]


@kind(always)
class softmax_over_queries(Model):
    """The softmax is over the queries of each key, not over the keys of each query."""

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m = safe(t.max(2, keepdims=True, initial=-np.inf))
        p = np.exp(t - m)
        p = p / np.maximum(p.sum(2, keepdims=True), np.finfo(p.dtype).tiny)
        one = np.ones(p.shape[:3], p.dtype)
        return 0 * one, one, self.weighed(p)
