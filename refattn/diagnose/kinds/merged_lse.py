"""Hypotheses on the lse of partial softmaxes: which of them is returned, and in which base they are merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import LN2, LOG2E, Array, safe
from ..packing import of_tiles
from .cuts import SAME, USUAL, chunks
from .loops import State
from .merges import Splits

__all__: list[str] = []

Told = Callable[[Array], Array]
"""lse of the parts, (parts, B, H, Lq) -> the one that is returned"""
TOLD: dict[str, Told] = {
    "the largest of theirs": lambda x: x.max(0), "the smallest of theirs": lambda x: x.min(0),
    "that of the first": lambda x: x[0], "that of the last": lambda x: x[-1],
    "that of the second": lambda x: x[min(1, len(x) - 1)], "that of the last but one": lambda x: x[max(len(x) - 2, 0)],
    "the sum of theirs": lambda x: x.sum(0), "the mean of theirs": lambda x: x.mean(0),
    "log of the weights' sum, without the largest lse": lambda x: np.log(_weights(x, 1.0).sum(0)),
    "log of the mean of their sums, not of the sum": lambda x: safe(x.max(0)) + np.log(_weights(x, 1.0).mean(0)),
    "that of all but the last": lambda x: _of_all(x[:-1] if len(x) > 1 else x),
    "that of all but the first": lambda x: _of_all(x[1:] if len(x) > 1 else x),
}  # fmt: skip
SINK = {"": False, ", the sink as one more,": True}


def _of_all(x: Array) -> Array:
    return np.asarray(x.max(0) + np.log(_weights(x, 1.0).sum(0)))


def _weights(lse: Array, ratio: float) -> Array:
    return np.asarray(np.exp((lse - safe(lse.max(0))) * ratio))


def _splits(case: Case, how: Any) -> bool:
    return (case.sinks is not None or not how.with_sink) and chunks(case, how)


class Merged(Splits):
    """The state keeps lse as the maximum, and 1 for the sum."""

    def log(self, m: Array, z: Array) -> Array:
        return np.where(z == 0, -np.inf, m)

    def merged(self, m: Array, z: Array, o: Array) -> State:
        lse = m + np.log(z)
        weights = _weights(lse, self.ratio())[..., None]
        mean = np.where(weights == 0, 0, o / np.where(z == 0, 1, z)[..., None])
        total = weights.sum(0)
        out = (mean * weights).sum(0) / np.where(total == 0, 1, total)
        one = np.where((z > 0).any(0), 1.0, 0.0).astype(m.dtype)
        return self.returned(lse), one, out * one[..., None]

    def ratio(self) -> float:
        return 1.0

    def returned(self, lse: Array) -> Array:
        raise NotImplementedError


@kind(_splits, shows="lse", same=SAME, how=TOLD, cut=USUAL, with_sink=SINK)
class merged_lse(Merged):
    """lse of splits of {cut}{with_sink} is {how}."""

    how: Told

    def returned(self, lse: Array) -> Array:
        return type(self).how(lse)


BASES: dict[str, float] = {
    "powers of e": 1.0, "powers of 2 of natural lse": LN2, "powers of e of lse in base 2": LOG2E,
}  # fmt: skip
FOUND: dict[str, tuple[float, float]] = {
    "m + ln(l)": (1, 1), "m + log2(l)": (1, LOG2E), "m + ln 2 ln(l)": (1, LN2), "m log2(e) + ln(l)": (LOG2E, 1),
    "m ln 2 + ln(l)": (LN2, 1), "log2(e) (m + ln(l))": (LOG2E, LOG2E), "ln 2 (m + ln(l))": (LN2, LN2),
}  # fmt: skip
"""of the largest lse m, and of l, the sum of weights"""


def _wrong(case: Case, how: Any) -> bool:
    return (how.by, how.found) != (1.0, (1, 1)) and _splits(case, how)


@kind(_wrong, same=SAME, by=BASES, found=FOUND, cut=USUAL, with_sink=SINK)
class merge_in_base(Merged):
    """Splits of {cut}{with_sink} are merged by {by}, lse is {found}."""

    by = 1.0
    found = 1.0, 1.0

    def ratio(self) -> float:
        return self.by

    def returned(self, lse: Array) -> Array:
        largest = lse.max(0)
        return np.asarray(self.found[0] * largest + self.found[1] * np.log(_weights(lse, self.by).sum(0)))


@kind(
    lambda case, how: chunks(case, how) and case.Lq * case.group > 1, same=SAME, cut=USUAL, rows=(16, 32, 64, 128),
    found={"their own": False, "that of the first": True},
)  # fmt: skip
class merge_by_first_row(Merged):
    """The merge of splits of {cut} weighs all of {rows} packed rows by the lse of the first; the largest is {found}."""

    rows, found = 16, False

    def merged(self, m: Array, z: Array, o: Array) -> State:
        with np.errstate(divide="ignore"):
            own = m + np.log(z)
        lse = np.stack([of_tiles(x, self.case.lengths[0], self.case.group, self.rows, True, lambda t: t[..., 0])
                        for x in own])  # fmt: skip
        weights, mean = _weights(lse, 1.0), o / np.where(z == 0, 1, z)[..., None]
        total = weights.sum(0)
        largest = (lse if self.found else own).max(0)
        out = (mean * weights[..., None]).sum(0) / np.where(total == 0, 1, total)[..., None]
        return safe(largest) + np.log(total), np.where(total > 0, 1.0, 0.0).astype(m.dtype), out
