"""Hypotheses on products of the backward in which what is hidden takes part, times 0: a NaN there spreads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from .gradients import ALL

__all__: list[str] = []

PRODUCTS = {
    "dp = dout vᵀ, where weights of 0 do not clear it": "dp", "dq = ds k": "dq", "dk = dsᵀ q": "dk",
    "dv = pᵀ dout": "dv", "dq = ds k and dk = dsᵀ q": "dq dk",
}  # fmt: skip


def _may(case: Case, how: Any) -> bool:
    return case.backward and ("poisoned" in case.family or case.bias is not None)


def _any(x: Array, axis: int) -> Array:
    return np.asarray(x.any(axis))


@kind(_may, ALL, of=PRODUCTS, where={"": True, ", past an entry's length too": False})
class hidden_in_backward(Model):
    """In {of} what is hidden counts times 0{where}: where it is NaN, so is the sum."""

    of, where = "dp", True

    def lost(self, x: Array, rows: bool) -> Array:
        """Pairs that are hidden, of a key or a row that is not finite."""
        there = np.asarray(replace(self.case.visibility, mask=None).tile()) if self.where else np.ones((), bool)
        bad = np.asarray(~np.isfinite(x).all(-1))
        return np.asarray((bad[..., None] if rows else bad[:, :, None]) & there & ~self.seen)

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        ds = super().through_softmax(p, dp, incoming)
        self.spread: dict[str, Array] = {n: np.zeros((), bool) for n in ("dq", "dk", "dv")}
        if self.of == "dp":
            lost = self.lost(self.v, False)
            self.spread |= {"dq": _any(lost, 3), "dk": _any(lost, 2)}
        if "dq" in self.of:
            self.spread |= {"dq": _any(self.lost(self.k, False), 3)}
        if "dk" in self.of:
            self.spread |= {"dk": _any(self.lost(self.q, True), 2)}
        if self.of == "dv":
            self.spread |= {"dv": _any(self.lost(self.x["dout"], True), 2)}
        return ds

    def dq_of(self, ds: Array) -> Array:
        return np.where(self.spread["dq"][..., None], np.nan, super().dq_of(ds))

    def dk_of(self, ds: Array) -> Array:
        return np.where(self.spread["dk"][..., None], np.nan, super().dk_of(ds))

    def dv_of(self, p: Array, dout: Array) -> Array:
        return np.where(self.spread["dv"][..., None], np.nan, super().dv_of(p, dout))
