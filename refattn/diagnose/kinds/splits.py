"""Hypotheses on splits of the keys: how they are cut, and how they are merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...case import Case
from ...masks import SinkTokens
from ..hypothesis import kind
from ..model import LOG2E, Array, Model, safe
from .alignment import Asked
from .online import State

__all__: list[str] = []

Cut = Callable[[int], tuple[int, ...]]
"""of a number of keys, where each part but the first begins"""


def _sized(size: int, n: int) -> tuple[int, ...]:
    return tuple(range(size, n, size))


def _up(n: int, parts: int) -> tuple[int, ...]:
    """As many in each, rounded up, but the last."""
    return _sized(max(-(-n // parts), 1), n)


def _even(n: int, parts: int) -> tuple[int, ...]:
    """As np.array_split cuts."""
    return tuple(sorted({i * (n // parts) + min(i, n % parts) for i in range(1, parts)} - {0, n}))


def _floor(n: int, parts: int) -> tuple[int, ...]:
    """As many in each, rounded down, and the rest with the last."""
    return tuple(sorted({i * (n // parts) for i in range(1, parts)} - {0, n}))


def _tiles(n: int, parts: int, tile: int, up: bool) -> tuple[int, ...]:
    """Whole tiles in each."""
    tiles = -(-n // tile)
    at = {i * -(-tiles // parts) if up else i * tiles // parts for i in range(1, parts)}
    return tuple(sorted({a * tile for a in at if 0 < a * tile < n}))


NUMBERS = (2, 3, 4, 8)
CUTS: dict[str, Cut] = {f"{size} keys": partial(_sized, size) for size in (16, 32, 64, 128, 256)}
CUTS |= {f"Lk / {n} keys, rounded up": partial(_up, parts=n) for n in NUMBERS}
CUTS |= {f"Lk / {n} keys, the rest with the last": partial(_floor, parts=n) for n in NUMBERS}
CUTS |= {f"Lk / {n} keys, the first ones a key longer": partial(_even, parts=n) for n in NUMBERS}
CUTS |= {f"a {n}th of the tiles of {tile} keys, rounded {'up' if up else 'down'}": partial(_tiles, parts=n,
    tile=tile, up=up)
         for tile in (16, 32, 64, 128) for n in NUMBERS for up in (True, False)}  # fmt: skip
SAME = ("cut", lambda case, how: how.cut(case.Lk))


def _chunks(case: Case, how: Any) -> bool:
    return bool(how.cut(case.Lk))


class Splits(Model):
    """Partial softmaxes over chunks of keys, each (m, l, o), and how they become one."""

    cut: Cut

    def attend(self, t: Array) -> State:
        cut = self.cut(self.case.Lk)
        key = (self.dtype, "parts", cut)
        if key not in self.inputs.made:
            self.inputs.made[key] = self.parts(t, (0, *cut, self.case.Lk))
        return self.merged(*self.inputs.made[key])

    def parts(self, t: Array, ends: tuple[int, ...]) -> State:
        """m, l and o of each chunk, stacked."""
        parts = []
        for keys in map(slice, ends, ends[1:]):
            m = t[..., keys].max(-1, initial=-np.inf)
            p = np.exp(t[..., keys] - safe(m)[..., None])
            parts.append((m, p.sum(-1), self.weighed(p, keys)))
        m, z, o = (np.stack([part[n] for part in parts]) for n in range(3))
        return m, z, o

    def merged(self, m: Array, z: Array, o: Array) -> State:
        raise NotImplementedError


def _plain(m: Array) -> tuple[Array, Array]:
    top = m.max(0)
    return top, np.exp(m - safe(top))


def _mean(z: Array, o: Array) -> Array:
    return o / np.where(z == 0, 1, z)[..., None]


def _merged(top: Array, total: Array, out: Array) -> State:
    """The state whose output is `out`."""
    return top, total, out * total[..., None]


Merge = Callable[[Array, Array, Array], State]
MERGES: dict[str, Merge] = {
    "averages their outputs": lambda m, z, o: _merged(
        *_sum(m, z), _mean(z, o).sum(0) / np.maximum((z > 0).sum(0), 1)[..., None]),
    "averages the outputs of all splits, empty ones too": lambda m, z, o: _merged(*_sum(m, z), _mean(z, o).mean(0)),
    "adds their outputs": lambda m, z, o: _merged(*_sum(m, z), _mean(z, o).sum(0)),
    "adds sums and products as they are, each relative to its own maximum":
        lambda m, z, o: (m.max(0), z.sum(0), o.sum(0)),
    "does not rescale the products": lambda m, z, o: (*_sum(m, z), o.sum(0)),
    "does not rescale the sums":
        lambda m, z, o: (m.max(0), z.sum(0), (o * _plain(m)[1][..., None]).sum(0)),
    "weighs outputs by exp(m - max), without the sums": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * _plain(m)[1][..., None]).sum(0) / _plain(m)[1].sum(0)[..., None]),
    "weighs outputs by their sums, without the maxima": lambda m, z, o: _merged(
        *_sum(m, z), o.sum(0) / np.where(z.sum(0) == 0, 1, z.sum(0))[..., None]),
    "weighs outputs by exp(lse - max lse), and does not divide by the sum of weights": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * _by(m, z, np.e)[..., None]).sum(0)),
    "weighs outputs by powers of 2 of natural lse": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * _by(m, z, 2.0)[..., None]).sum(0) / _by(m, z, 2.0).sum(0)[..., None]),
    "weighs outputs by powers of e of lse in base 2": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * _by(m, z, np.exp(LOG2E))[..., None]).sum(0) /
        _by(m, z, np.exp(LOG2E)).sum(0)[..., None]),
    "weighs outputs by lse, without exp": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * _own(m, z)[..., None]).sum(0) / _own(m, z).sum(0)[..., None]),
    "rescales by powers of 2 of natural maxima": lambda m, z, o: _powers(m, z, o, np.log(2)),
    "rescales by powers of e of maxima in base 2": lambda m, z, o: _powers(m, z, o, LOG2E),
    "exchanges the maxima": lambda m, z, o: _with(m, z, o, m[::-1]),
    "gives each split the lse of the next": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * np.roll(_by(m, z, np.e), -1, 0)[..., None]).sum(0) /
        _by(m, z, np.e).sum(0)[..., None]),
    "gives each head the partial lse of the next": lambda m, z,
    o: _weighed_by(m, z, o, np.roll(_by(m, z, np.e), -1, 2)),
    "gives each head the partial lse of head 0": lambda m, z, o: _weighed_by(m, z, o, _by(m, z, np.e)[:, :, :1]),
    "gives each row the partial lse of the next": lambda m, z, o: _weighed_by(m, z, o, np.roll(_by(m, z, np.e), -1, 3)),
    "gives each row the partial lse of the first": lambda m, z, o: _weighed_by(m, z, o, _by(m, z, np.e)[:, :, :, :1]),
    "takes the first split alone": lambda m, z, o: (m[0], z[0], o[0]),
    "takes the last split alone": lambda m, z, o: (m[-1], z[-1], o[-1]),
    "leaves out the last split": lambda m, z, o: _with(m[:-1], z[:-1], o[:-1], m[:-1]),
    "leaves out the first split": lambda m, z, o: _with(m[1:], z[1:], o[1:], m[1:]),
    "takes the split of the largest maximum alone": lambda m, z, o: tuple(
        np.take_along_axis(x, _at(m, x), 0)[0] for x in (m, z, o)),
    "is NaN where a split saw nothing": lambda m, z, o: _nan_where((z == 0).any(0), *_with(m, z, o, m)),
    "is NaN where all splits saw nothing": lambda m, z, o: _nan_where((z == 0).all(0), *_with(m, z, o, m)),
    "is NaN where the first splits saw nothing":
        lambda m, z, o: _nan_where((z == 0)[:2].all(0), *_with(m, z, o, m)),
    "counts a split that saw nothing as a sum of 1":
        lambda m, z, o: _with(np.where(z == 0, 0, m), np.where(z == 0, 1, z), o, np.where(z == 0, 0, m)),
}  # fmt: skip
OF_LSE: dict[str, Merge] = {
    "is the largest of theirs": lambda m, z, o: _lse_is(m, z, o, _own(m, z).max(0)),
    "is that of the first": lambda m, z, o: _lse_is(m, z, o, _own(m, z)[0]),
    "is that of the last": lambda m, z, o: _lse_is(m, z, o, _own(m, z)[-1]),
    "is the sum of theirs": lambda m, z, o: _lse_is(m, z, o, _own(m, z).sum(0)),
    "is the mean of theirs": lambda m, z, o: _lse_is(m, z, o, _own(m, z).mean(0)),
    "is log of the weights' sum, without the largest lse": lambda m, z, o: _lse_is(
        m, z, o, np.log(np.exp(_own(m, z) - safe(_own(m, z).max(0))).sum(0))),
}  # fmt: skip


def _own(m: Array, z: Array) -> Array:
    return m + np.log(z)


def _sum(m: Array, z: Array) -> tuple[Array, Array]:
    top, weight = _plain(m)
    return top, (z * weight).sum(0)


def _by(m: Array, z: Array, base: float) -> Array:
    lse = _own(m, z)
    return np.asarray(np.exp((lse - safe(lse.max(0))) * np.log(base)))


def _weighed_by(m: Array, z: Array, o: Array, weight: Array) -> State:
    total = weight.sum(0)
    return _merged(*_sum(m, z), (_mean(z, o) * weight[..., None]).sum(0) / np.where(total == 0, 1, total)[..., None])


def _with(m: Array, z: Array, o: Array, maxima: Array) -> State:
    if not len(m):
        empty = np.zeros(o.shape[1:])
        return np.full(o.shape[1:-1], -np.inf), np.zeros(o.shape[1:-1]), empty
    top, weight = _plain(maxima)
    return top, (z * weight).sum(0), (o * weight[..., None]).sum(0)


def _powers(m: Array, z: Array, o: Array, ln: float) -> State:
    top = m.max(0)
    weight = np.exp((m - safe(top)) * ln)
    return top, (z * weight).sum(0), (o * weight[..., None]).sum(0)


def _at(m: Array, x: Array) -> Array:
    at = m.argmax(0)[None]
    return at[..., None] if x.ndim > m.ndim else at


def _nan_where(where: Array, m: Array, z: Array, o: Array) -> State:
    return m, np.where(where, np.nan, z), np.where(where[..., None], np.nan, o)


def _lse_is(m: Array, z: Array, o: Array, lse: Array) -> State:
    """The right output, and another lse."""
    _, total, product = _with(m, z, o, m)
    out = product / np.where(total == 0, 1, total)[..., None]
    return lse, np.ones_like(lse) * (total > 0), out * (total > 0)[..., None]


@kind(_chunks, same=SAME, how=MERGES, cut=CUTS)
class merge(Splits):
    """The merge of splits of {cut} {how}."""

    how: Merge

    def merged(self, m: Array, z: Array, o: Array) -> State:
        return self.how(m, z, o)


@kind(_chunks, shows="lse", same=SAME, how=OF_LSE, cut=CUTS)
class merged_lse(Splits):
    """lse of splits of {cut} {how}."""

    how: Merge

    def merged(self, m: Array, z: Array, o: Array) -> State:
        return self.how(m, z, o)


@kind(_chunks, same=SAME, cut=CUTS, what={"left out": 0.0, "counted twice": 2.0})
class key_between_splits(Model):
    """The first key of each split of {cut} but the first is {what}."""

    cut: Cut
    what = 0.0

    def attend(self, t: Array) -> State:
        m = t.max(-1, initial=-np.inf)
        p = np.exp(t - safe(m)[..., None])
        p[..., list(self.cut(self.case.Lk))] *= self.what
        return m, p.sum(-1), self.weighed(p)


class Local(Model):
    """What is told a key's place within its split, not its index."""

    cut: Cut

    def place(self) -> Array:
        n = self.case.Lk
        ends = (0, *self.cut(n), n)
        return np.concatenate([np.arange(b - a) for a, b in zip(ends, ends[1:], strict=False)])


@kind(lambda case, how: case.mask is not None and _chunks(case, how), same=SAME, cut=CUTS)
class mask_by_place_in_split(Local):
    """The mask is told a key's place within its split of {cut}, not its index."""

    def visible(self) -> Array:
        place = self.place()
        case = self.case
        open_ = np.asarray(replace(case.visibility, mask=None).tile())
        mask = Asked(case.mask or SinkTokens(0), lambda m, b, h, i, j, lq, lk: m(b, h, i, place[j], lq, lk))
        return np.asarray(replace(case.visibility, mask=mask).tile()) & open_


@kind(
    lambda case, how: case.bias is not None and case.bias_shape[3] > 1 and _chunks(case, how), same=SAME, cut=CUTS,
)  # fmt: skip
class bias_by_place_in_split(Local):
    """The bias is indexed by a key's place within its split of {cut}, not by its index."""

    def bias(self, bias: Array) -> Array:
        return bias[..., self.place()]


@kind(lambda case, how: case.k_lens is not None and _chunks(case, how), same=SAME, cut=CUTS)
class length_by_place_in_split(Local):
    """The length of the keys is compared with a key's place within its split of {cut}."""

    def visible(self) -> Array:
        case = self.case
        wide = replace(case, k_lens=None)
        there = self.place() < np.array(case.lengths[1])[:, None, None, None]
        return np.asarray(wide.visibility.tile()) & there


@kind(lambda case, how: case.sinks is not None and _chunks(case, how), same=SAME, cut=CUTS)
class sink_per_split(Local):
    """The sink joins the denominator once in each split of {cut}."""

    def sink(self, sinks: Array) -> Array | None:
        return (sinks + np.log(1 + len(self.cut(self.case.Lk))))[:, None]
