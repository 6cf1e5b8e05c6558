"""Hypotheses on how the partial softmaxes of splits of the keys become one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..hypothesis import kind
from ..model import LOG2E, Array, Model, safe
from .cuts import AND_EMPTY, CUTS, SAME, Cut, chunks, ends
from .loops import State

__all__ = ["Splits", "with_maxima"]


class Splits(Model):
    """Partial softmaxes over chunks of keys, each (m, l, o), and how they become one."""

    cut: Cut
    with_sink = False
    """whether the sink is one more of them, of lse the sink and output 0"""

    def attend(self, t: Array) -> State:
        """Of each entry by its own length."""
        of_entries = ends(self.case, self.cut)
        m, z = np.full(t.shape[:3], -np.inf, t.dtype), np.zeros(t.shape[:3], t.dtype)
        o = np.zeros((*t.shape[:3], self.v.shape[3]), t.dtype)
        for own in set(of_entries):
            at = np.array([parts == own for parts in of_entries])
            for x, part in zip((m, z, o), self.merged(*self.parts_of(t, own)), strict=True):
                x[at] = part[at]
        return m, z, o

    def parts_of(self, t: Array, of: tuple[int, ...]) -> State:
        key = (self.dtype, "parts", of)
        if key not in self.inputs.made:
            self.inputs.made[key] = self.parts(t, of)
        found: State = self.inputs.made[key]
        return self.and_sink(*found) if self.with_sink else found

    def and_sink(self, m: Array, z: Array, o: Array) -> State:
        sink = self.sink(self.x["sinks"]) if "sinks" in self.x else None
        if sink is None:
            return m, z, o
        logit = np.broadcast_to(sink, m.shape[1:])[None].astype(m.dtype)
        return np.append(m, logit, 0), np.append(z, np.ones_like(logit), 0), np.append(o, np.zeros_like(o[:1]), 0)

    def join(self, m: Array, z: Array, o: Array) -> State:
        return (m, z, o) if self.with_sink else super().join(m, z, o)

    def parts(self, t: Array, of: tuple[int, ...]) -> State:
        """m, l and o of each chunk, stacked."""
        parts = []
        for keys in map(slice, of, of[1:]):
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


Factors = tuple[Array, Array]


def _one_by_one(
    of_sums: Callable[[Array, Array], Factors], of_products: Callable[[Array, Array], Factors],
    maximum: Callable[[Array, Array], Array] = np.maximum, nan: bool = False,
) -> Merge:  # fmt: skip
    """Splits join what is merged so far, whose factor x and that of the split y are handed on as others.

    With `nan` a row that has a sum and the maximum -inf is NaN.
    """

    def merge(m: Array, z: Array, o: Array) -> State:
        top, total, out = m[0], z[0], o[0]
        for own, sums, products in zip(m[1:], z[1:], o[1:], strict=True):
            new = maximum(top, own)
            x, y = (np.exp(a - safe(new)) for a in (top, own))
            a, b = of_sums(x, y)
            total = total * a + sums * b
            a, b = of_products(x, y)
            top, out = new, out * a[..., None] + products * b[..., None]
        lost = np.isneginf(top) & (total > 0) & nan
        return top, np.where(lost, np.nan, total), np.where(lost[..., None], np.nan, out)

    return merge


def _right(x: Array, y: Array) -> Factors:
    return x, y


Merge = Callable[[Array, Array, Array], State]
PAIRS: dict[str, Callable[[Array, Array], Factors]] = {
    "by the factor of the first": lambda x, y: (x, x),
    "by the factor of the second": lambda x, y: (y, y),
    "by the factor of the other": lambda x, y: (y, x),
    "by its factor, but not those of the second": lambda x, y: (x, np.ones_like(y)),
    "by its factor, but not those of the first": lambda x, y: (np.ones_like(x), y),
}
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
    "weighs outputs by exp(m - max), without the sums, which lse lacks too": lambda m, z, o: with_maxima(
        m, np.where(z > 0, 1.0, 0.0), _mean(z, o), m),
    "weighs outputs by exp(m - max) times their sums, products as they are":
        lambda m, z, o: with_maxima(m, z, o * z[..., None], m),
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
    "exchanges the maxima": lambda m, z, o: with_maxima(m, z, o, m[::-1]),
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
    "leaves out the last split": lambda m, z, o: with_maxima(m[:-1], z[:-1], o[:-1], m[:-1]),
    "leaves out the first split": lambda m, z, o: with_maxima(m[1:], z[1:], o[1:], m[1:]),
    "finds partial results with split and head exchanged in memory": lambda m, z, o: with_maxima(
        _exchanged(m, 2), _exchanged(z, 2), _exchanged(o, 2), _exchanged(m, 2)),
    "finds partial lse with split and head exchanged in memory":
        lambda m, z, o: _weighed_by(m, z, o, _exchanged(_by(m, z, np.e), 2)),
    "finds partial lse with split and row exchanged in memory":
        lambda m, z, o: _weighed_by(m, z, o, _exchanged(_by(m, z, np.e), 3)),
    "finds partial outputs with split and head exchanged in memory": lambda m, z, o: _weighed_by(
        m, z, _exchanged(_mean(z, o), 2) * z[..., None], _by(m, z, np.e)),
    "counts one more split, of lse 0 and output 0": lambda m, z, o: with_maxima(
        _and(m, 0), _and(z, 1), _and(o, 0), _and(m, 0)),
    "takes the first two splits alone": lambda m, z, o: with_maxima(m[:2], z[:2], o[:2], m[:2]),
    "adds the first split twice": lambda m, z, o: _counted(m, z, o, 0),
    "adds the last split twice": lambda m, z, o: _counted(m, z, o, -1),
    "takes the sum of the first split for all": lambda m, z, o: with_maxima(m, z[:1] + 0 * z, o, m),
    "does not subtract the largest lse from the weights: they overflow": lambda m, z, o: _merged(
        *_sum(m, z), (_mean(z, o) * np.exp(_own(m, z).astype(np.float32))[..., None]).sum(0)
        / np.exp(_own(m, z).astype(np.float32)).sum(0)[..., None]),
    "takes the split of the largest maximum alone": lambda m, z, o: tuple(
        np.take_along_axis(x, _at(m, x), 0)[0] for x in (m, z, o)),
}  # fmt: skip
TWO_BY_TWO: dict[str, Merge] = {}
for words, wrong in PAIRS.items():
    TWO_BY_TWO |= {
        f"scales the products of each {words}": _one_by_one(_right, wrong),
        f"scales the sums of each {words}": _one_by_one(wrong, _right),
        f"scales sums and products of each {words}": _one_by_one(wrong, wrong),
    }
MAXIMA: dict[str, Callable[[Array, Array], Array]] = {
    "keeps the maximum of the first": lambda a, b: a, "keeps the maximum of the second": lambda a, b: b,
    "takes the smaller maximum": np.minimum,
}
TWO_BY_TWO |= {f"{words}, {end} where it is that of nothing": _one_by_one(_right, _right, of, nan)
               for words, of in MAXIMA.items() for end, nan in {"-inf": False, "NaN": True}.items()}  # fmt: skip


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


def with_maxima(m: Array, z: Array, o: Array, maxima: Array) -> State:
    if not len(m):
        empty = np.zeros(o.shape[1:])
        return np.full(o.shape[1:-1], -np.inf), np.zeros(o.shape[1:-1]), empty
    top, weight = _plain(maxima)
    return top, (z * weight).sum(0), (o * weight[..., None]).sum(0)


def _and(x: Array, value: float) -> Array:
    """With one more split, of the same value everywhere."""
    return np.concatenate([x, np.full_like(x[:1], value)])


def _exchanged(x: Array, axis: int) -> Array:
    return np.ascontiguousarray(x.swapaxes(0, axis)).reshape(x.shape)


def _counted(m: Array, z: Array, o: Array, which: int) -> State:
    """With one of the splits counted twice."""
    times = np.ones(len(m))
    times[which] = 2
    times = times.reshape(-1, *(1 for _ in m.shape[1:]))
    return with_maxima(m, z * times, o * times[..., None], m)


def _powers(m: Array, z: Array, o: Array, ln: float) -> State:
    top = m.max(0)
    weight = np.exp((m - safe(top)) * ln)
    return top, (z * weight).sum(0), (o * weight[..., None]).sum(0)


def _at(m: Array, x: Array) -> Array:
    at = m.argmax(0)[None]
    return at[..., None] if x.ndim > m.ndim else at


@kind(chunks, same=SAME, how=MERGES, cut=CUTS)
class merge(Splits):
    """The merge of splits of {cut} {how}."""

    how: Merge

    def merged(self, m: Array, z: Array, o: Array) -> State:
        return self.how(m, z, o)


@kind(chunks, same=SAME, how=TWO_BY_TWO, cut=CUTS | AND_EMPTY)
class merge_two_by_two(merge):
    """The merge of splits of {cut}, two by two, {how}."""
