"""Hypotheses on the gradient of the sinks: by which lse its weight is had, of which rows and heads, and which delta."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import LN2, Array, Model, safe

__all__: list[str] = []


def _wanted(case: Case) -> bool:
    return "dsinks" in case.want


Share = Callable[[Any, Array, Array, Array], Array]
"""(model, sinks (H, 1), lse, lse of the keys alone) -> the weight of the sink, (B, H, Lq)"""


def _exp(x: Array) -> Array:
    return np.where(np.isfinite(x), np.exp(x), 0)


SHARES: dict[str, Share] = {
    "exp(sink - lse) by the lse of the keys alone": lambda x, s, lse, bare: _exp(s - bare),
    "exp(sink - m) / l of the keys alone, and 1 without keys":
        lambda x, s, lse, bare: np.where(np.isneginf(bare), 1, _exp(s - bare)),
    "exp(sink - lse), the sink counted twice in lse": lambda x, s, lse, bare: _exp(s - np.logaddexp(lse, s)),
    "exp(sink - m) by the largest logit of the keys": lambda x, s, lse, bare: _exp(s - x.largest()),
    "exp(sink - m), not divided by the row sum": lambda x, s, lse, bare: _exp(s - np.maximum(x.largest(), s)),
    "exp(sink)": lambda x, s, lse, bare: _exp(s + 0 * bare),
    "1: it is forgotten": lambda x, s, lse, bare: np.ones_like(lse),
    "its derivative, p (1 - p)": lambda x, s, lse, bare: _exp(s - lse) * (1 - _exp(s - lse)),
    "exp(sink - lse), by powers of 2": lambda x, s, lse, bare: _exp((s - lse) * LN2),
    "exp(sink - lse), lse in base 2": lambda x, s, lse, bare: _exp(s - lse / LN2),
    "exp(sink - lse), the sink times the scale": lambda x, s, lse, bare: _exp(s * x.factor() - lse),
    "exp(lse - sink)": lambda x, s, lse, bare: _exp(lse - s),
    "exp(-lse), without the sink": lambda x, s, lse, bare: _exp(-lse) + 0 * s,
    "sink - lse, without exp": lambda x, s, lse, bare: np.where(np.isfinite(lse), s - lse, 0),
    "1 - exp(sink - lse)": lambda x, s, lse, bare: 1 - _exp(s - lse),
    "exp(sink - lse) by the lse of the next row": lambda x, s, lse, bare: _exp(s - np.roll(lse, -1, 2)),
    "exp(sink - lse) by the lse of the row before": lambda x, s, lse, bare: _exp(s - np.roll(lse, 1, 2)),
    "exp(sink - lse) by the lse of the first row": lambda x, s, lse, bare: _exp(s - lse[:, :, :1] + 0 * lse),
    "exp(sink - lse) by the lse of the last row": lambda x, s, lse, bare: _exp(s - lse[:, :, -1:] + 0 * lse),
    "exp(sink - lse) by the lse of the next head": lambda x, s, lse, bare: _exp(s - np.roll(lse, -1, 1)),
    "exp(sink - lse) by the lse of the head before": lambda x, s, lse, bare: _exp(s - np.roll(lse, 1, 1)),
    "exp(sink - lse) by the lse of head 0": lambda x, s, lse, bare: _exp(s - lse[:, :1] + 0 * lse),
    "exp(sink - lse) by the lse of entry 0": lambda x, s, lse, bare: _exp(s - lse[:1] + 0 * lse),
    "exp(sink - lse) by the sink of the next head": lambda x, s, lse, bare: _exp(np.roll(s, -1, 0) - lse),
    "exp(sink - lse) by the sink of head 0": lambda x, s, lse, bare: _exp(s[:1] - lse),
}  # fmt: skip


@kind(_wanted, "dsinks", share=SHARES)
class sinks_weight(Model):
    """In dsinks the weight of the sink is {share}."""

    share: Share

    def largest(self) -> Array:
        return np.asarray(self.t.max(-1, initial=-np.inf))

    def dsinks(self, share: Array, incoming: Array) -> Array:
        m = self.largest()
        bare = m + np.log(np.exp(self.t - safe(m)[..., None]).sum(-1))
        sinks = self.x["sinks"][:, None]
        return super().dsinks(type(self).share(self, sinks, self.log(self.m, self.l), bare), incoming)


Rows = Callable[[Any, Array, Array], Array]
"""(model, share times what arrives (B, H, Lq), share) -> dsinks"""


def _by_group(x: Any, y: Array, how: Callable[[Array], Array]) -> Array:
    apart = y.sum((0, 2)).reshape(-1, x.given.group)
    return np.broadcast_to(how(apart), apart.shape).ravel()


SUMS: dict[str, Rows] = {
    "that of the first entry": lambda x, y, s: y[0].sum(1), "that of the last entry": lambda x, y, s: y[-1].sum(1),
    "that of the first query": lambda x, y, s: y[:, :, 0].sum(0),
    "that of the last query": lambda x, y, s: y[:, :, -1].sum(0),
    "the mean over queries": lambda x, y, s: y.mean(2).sum(0),
    "the mean over entries": lambda x, y, s: y.sum(2).mean(0),
    "that of rows that see a key": lambda x, y, s: (y * x.seen.any(-1)).sum((0, 2)),
    "that without delta": lambda x, y, s: (y + s * x.delta()).sum((0, 2)),
    "that without dlse": lambda x, y, s: (y - s * x.arriving()).sum((0, 2)),
    "that with dlse subtracted": lambda x, y, s: (y - 2 * s * x.arriving()).sum((0, 2)),
    "multiplied by the scale": lambda x, y, s: y.sum((0, 2)) * x.factor(),
    "that of the next head": lambda x, y, s: np.roll(y.sum((0, 2)), -1),
    "that of the head before": lambda x, y, s: np.roll(y.sum((0, 2)), 1),
    "that of the head counted from the last": lambda x, y, s: y.sum((0, 2))[::-1],
    "the sum over all heads": lambda x, y, s: np.repeat(y.sum(), y.shape[1]),
    "the sum over the heads of a group": lambda x, y, s: _by_group(x, y, lambda g: g.sum(1, keepdims=True)),
    "that of the first head of the group": lambda x, y, s: _by_group(x, y, lambda g: g[:, :1]),
    "that of the last head of the group": lambda x, y, s: _by_group(x, y, lambda g: g[:, -1:]),
    "that of heads of group and key head exchanged":
        lambda x, y, s: y.sum((0, 2)).reshape(-1, x.given.group).T.ravel(),
    "that of key head and group exchanged": lambda x, y, s: y.sum((0, 2)).reshape(x.given.group, -1).T.ravel(),
    "the sum of all heads so far, as it is not reset": lambda x, y, s: np.cumsum(y.sum((0, 2))),
    "added to that of head h % Hkv": lambda x, y, s: x.by_head(y, lambda h, g, n: h % n),
    "added to that of head h // group": lambda x, y, s: x.by_head(y, lambda h, g, n: h // g),
    "added to that of the first head of the group": lambda x, y, s: x.by_head(y, lambda h, g, n: h // g * g),
    "that of entries that have keys": lambda x, y, s: x.of_entries(y, np.array(x.given.lengths[1]) > 0),
    "that with dlse twice": lambda x, y, s: (y + s * x.arriving()).sum((0, 2)),
    "that by the delta of the output without the sink": lambda x, y, s: (
        s * (x.arriving() - x.delta() / np.where(s == 1, 1, 1 - s))).sum((0, 2)),
    "that with delta twice": lambda x, y, s: (y - s * x.delta()).sum((0, 2)),
    "that of dlse alone, in rows that see a key": lambda x, y, s: (s * x.arriving() * x.seen.any(-1)).sum((0, 2)),
} | {
    f"{words} tile of {n} rows alone": (lambda x, y, s, n=n, last=last: x.of_rows(y, n, last))
    for words, last in (("that of the last", True), ("that of the first", False)) for n in (16, 32, 64, 128)
} | {
    f"that of the {words} tile of {n} rows of the last entry alone": (
        lambda x, y, s, n=n, last=last: x.of_rows(y[-1:], n, last, -1))
    for words, last in (("last", True), ("first", False)) for n in (16, 32, 64, 128)
} | {
    f"counted once for each tile of {n} keys of an entry": (lambda x, y, s, n=n: x.of_entries(
        y, -(-np.array(x.given.lengths[1]) // n))) for n in (16, 32, 64, 128)
}  # fmt: skip


@kind(_wanted, "dsinks", how=SUMS)
class sinks_sum(Model):
    """dsinks, the sum over rows, is {how}."""

    how: Rows

    def dsinks(self, share: Array, incoming: Array) -> Array:
        return np.asarray(type(self).how(self, share * incoming, share))

    def by_head(self, y: Array, to: Callable[[Array, int, int], Array]) -> Array:
        found, each = np.zeros(y.shape[1], y.dtype), y.sum((0, 2))
        np.add.at(found, to(np.arange(len(each)), self.given.group, max(1, self.given.Hkv)), each)
        return found

    def of_entries(self, y: Array, times: Array) -> Array:
        return np.asarray((y.sum(2) * times[:, None]).sum(0))

    def of_rows(self, y: Array, size: int, last: bool, entries: int = 0) -> Array:
        own, i = np.array(self.given.lengths[0])[entries:, None, None], np.arange(y.shape[2])
        first = np.maximum(own - 1, 0) // size * size if last else 0 * own
        return np.where((i >= first) & (i < first + size), y, 0).sum((0, 2))
