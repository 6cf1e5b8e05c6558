"""Hypotheses that the answer is right, and to another question: a mask that was not asked for, another axis."""

from __future__ import annotations

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


@kind(always)
class softmax_over_queries(Model):
    """The softmax is over the queries of each key, not over the keys of each query."""

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m = safe(t.max(2, keepdims=True, initial=-np.inf))
        p = np.exp(t - m)
        p = p / np.maximum(p.sum(2, keepdims=True), np.finfo(p.dtype).tiny)
        one = np.ones(p.shape[:3], p.dtype)
        return 0 * one, one, self.weighed(p)
