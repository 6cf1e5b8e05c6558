"""The rows that the statistics look at: up to ROWS of each key head, and only generic ones.

A problem is generic if its accumulators are float32 and nothing but a mask, a softcap, a bias or sinks stands between
q, k, v and out: with a rotation, quantised inputs or a scaled q, errors of k are common to all rows; score_mod and
dropout are left out for simplicity.  Where a softcap is flat, tanh is rounded to the same side for all rows: it may
be no more than 1/64 of a rounding of P.

A key head is generic if its rows are rounded independently: of a sample of scores (rows x PROBES keys) at least
half differ from all others, and in half of the columns they spread over 8 roundings of P from row to row.  Columns of
out that do not spread over four half units from row to row are left out: all rows are rounded alike there.  So are,
where nothing is rounded to 16 bits, those in which the mean of v is above its standard deviation: terms of one sign
round alike when they are added up.

A row is generic if no other row has the same q, and

- its scores spread: their standard deviation under p is at least 32 roundings of P, and 2^-5;
- it has at least 16 effective keys, (sum p)² / sum p²: then P is rounded in many places at once;
- scores are below 2^13, so that p in float32 is good to three digits, which is enough to weigh errors with;
- what is lost, sum of p below a unit of the sum or flushed to 0 in the format of P, is below 1/16 of a rounding;
- more than half of its elements can be judged: finite, of a finite bound, and above 64 times the smallest number of
  out's format (with flushing, four times the smallest normal), since those below are rounded to 0.

The variance of an honest error is SPREAD deviation² + h² / 3, h half a unit in the last place of out.  `deviation`
(`tolerance.forward`) has u_P p for each rounding of P, which is half a unit only at the lower end of a binade; the mean
of its square is 0.54 of that for logarithmically uniform p, and SPREAD for one that leans to that end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS
from ..inputs import Problem
from ..precision import Precision
from ..tolerance import Units, half_ulp
from ..truth import Expected, View

__all__ = ["Group", "Rows", "generic", "groups"]

Array = np.ndarray[Any, Any]

ROWS = 256
"""of a key head, evenly spaced: more would cost more than the bound does"""
SPREAD = 0.8
FEWEST = 43
"""rows below which no T can exceed its limit"""
HIDDEN = np.float32(-1e30)
TILE = 1 << 20
"""scores held at a time"""
PROBES = 32
EVERYTHING = slice(None)


def generic(problem: Problem, expected: Expected, precision: Precision) -> bool:
    """Whether the problem, as a whole, is one that the statistics are for."""
    case = problem.case
    plain = case.score_mod is case.dropout is case.rotary is case.quant is precision.scaled_q is None
    known = expected.deviation is not None and precision.accumulate == "float32"
    c = Units(precision, case.Lk)
    flat = case.softcap is not None and 64 * (c.tanh + 3 * c.u + c.u_scores) * case.softcap >= c.u_weights
    return plain and known and not flat and case.B * case.H * case.Lq >= FEWEST and case.Lk >= 16 and case.D * case.Dv > 0


@dataclass
class Rows:
    """Some generic rows (n) of one head; arrays (n, Dv) are in units of s, the deviation of an honest error."""

    z: Array
    """got - value"""
    size: Array
    """out"""
    scale: Array
    """d out / d log(scale)"""
    exponent: Array
    """the same of the exponents of exp, softcap and bias included"""
    half: Array
    """half a unit in the last place"""
    judged: Array
    """which elements are; elsewhere all of the above is 0"""
    p: Array
    """(n, Lk), float32"""
    v: Array
    """(Lk, Dv), float32"""
    per_s: Array
    """1 / s, in the unit of v, float32"""
    scale_slack: Array
    """(n,): how far the scale may be off in all rows alike"""
    size_slack: Array
    """(n,): how far out may be too large in all rows alike"""

    @cached_property
    def apart(self) -> Array:
        """z less what is along size and scale in its row."""
        return self.less(self.z, self.size, self.less(self.scale, self.size))

    @staticmethod
    def less(x: Array, *directions: Array) -> Array:
        """x less its part along directions that are orthogonal to one another, row by row."""
        for d in directions:
            square = (d * d).sum(1, keepdims=True)
            x = x - (x * d).sum(1, keepdims=True) / np.where(square > 0, square, 1.0) * d
        return x


def groups(problem: Problem, got: Array, expected: Expected, precision: Precision) -> Iterator[Group]:
    """The key heads, each with the rows that read it; rows whose out was there before are left out."""
    view = View(problem, precision)
    seen: set[float] = set()
    found = [Group(view, b, kv, got, expected, precision, seen) for b, kv in np.ndindex(view.case.B, view.case.Hkv)]
    yield from found if len(seen) >= FEWEST else ()


class Group:
    """One key head."""

    def __init__(
        self, view: View, b: int, kv: int, got: Array, expected: Expected, precision: Precision, seen: set[float]
    ) -> None:
        self.view, self.b, self.kv, self.precision = view, b, kv, precision
        self.got, self.expected = got, expected
        self.case: Case = view.case
        self.c = Units(precision, self.case.Lk)
        self.k = view.clean["k"][b, kv].astype(np.float32)
        v = view.clean["v"][b, kv]
        self.unit = float(np.abs(v).max(initial=0.0)) or 1.0  # in float32, values of any size must do
        self.v = (v / self.unit).astype(np.float32)
        self.varied = np.zeros(self.case.Dv, dtype=bool)
        self.chosen = self._chosen(seen)

    def _chosen(self, seen: set[float]) -> list[tuple[int, Array]]:
        """Heads and rows; the queries are marked as seen."""
        group, Lq, e = self.view.group, self.case.Lq, self.expected
        heads = slice(self.kv * group, (self.kv + 1) * group)
        value, ignored, q = (
            x[self.b, heads].reshape(group * Lq, -1) for x in (e.value, e.ignored, self.view.clean["q"])
        )
        at = np.flatnonzero(np.isfinite(value).all(1) & ~ignored.any(1))
        at = at[np.unique(np.linspace(0, len(at) - 1, min(ROWS, len(at))).astype(int))] if len(at) else at
        marks = (q[at] @ np.random.default_rng(0).standard_normal(q.shape[1])).astype(np.float32)
        marks, first = np.unique(marks, return_index=True)
        fresh = np.array([mark not in seen for mark in marks.tolist()], dtype=bool)
        rows = np.sort(at[first[fresh]])
        if len(rows) < 2 or not self._rounded_apart(q[rows]):
            return []
        spread = value[rows].std(0)
        self.varied = spread > 4 * half_ulp(np.abs(value[rows]).mean(0) + spread, e.dtype)
        if max(self.c.u_weights, FORMATS[e.dtype].u) == self.c.u:  # its errors are those of sums
            self.varied &= np.abs(self.v.mean(0)) < self.v.std(0)
        if 2 * np.count_nonzero(self.varied) <= len(self.varied):
            return []
        seen.update(marks.tolist())
        return [(heads.start + g, rows[rows // Lq == g] % Lq) for g in range(group)]

    def _rounded_apart(self, q: Array) -> bool:
        """Whether scores differ from one another and from row to row."""
        there = np.flatnonzero(self.k.any(1))
        if not len(there):
            return False
        keys = there[np.unique(np.linspace(0, len(there) - 1, PROBES).astype(int))]
        s = (q * self.view.scale).astype(np.float32) @ self.k[keys].T
        ascending = np.sort(s, axis=None)
        close = np.diff(ascending) <= 2.0**-20 * np.abs(ascending[1:])
        alone = np.append(~close, True) & np.append(True, ~close)
        return bool(alone.mean() >= 0.5 and np.median(s.std(0)) > 8 * self.c.u_weights)

    def chunks(self) -> Iterator[Rows]:
        """The generic rows, some at a time."""
        step = max(1, TILE // max(self.case.Lk, 1))
        for h, rows in self.chosen:
            for first in range(0, len(rows), step):
                part = self._rows(h, rows[first : first + step])
                if part is not None:
                    yield part

    def _rows(self, h: int, rows: Any) -> Rows | None:
        view, case, c, b, dtype = self.view, self.case, self.c, self.b, self.expected.dtype
        s = (view.clean["q"][b, h][rows] * view.scale).astype(np.float32) @ self.k.T
        t = s
        if case.softcap is not None:
            tanh = np.tanh(s / np.float32(case.softcap))
            t, s = np.float32(case.softcap) * tanh, s * (1 - tanh * tanh)
        added = view.tiles(b, h)[1](rows, EVERYTHING)
        if added is not None:
            t = t + added.astype(np.float32)
        if added is not None or not (case.mask is case.q_lens is case.k_lens is None):
            t = np.where(view.visible(b, h, rows, EVERYTHING), t, HIDDEN)
        m = t.max(1, keepdims=True)
        x = t - m
        weight = np.exp(x)
        total = weight.sum(1, keepdims=True)
        sink = view.sink(h)
        whole = total if sink is None else total + np.exp(np.float32(sink) - m)
        p, kept = weight / whole, total / whole
        px = p * x
        mean = px.sum(1, keepdims=True) / kept
        variance = np.einsum("ij,ij->i", px, x)[:, None] / kept - mean * mean
        spread = np.sqrt(np.maximum(variance, 0))
        effective = kept**2 / np.einsum("ij,ij->i", p, p)[:, None]
        lost = self._lost(weight, p)
        good = (np.abs(m) < 2.0**13) & (spread >= max(32 * c.u_weights, 2.0**-5)) & (effective >= 16)
        good &= lost <= max(c.u_weights, FORMATS[dtype].u) / 16
        value, e = (self._of(y, h, rows) / self.unit for y in (self.expected.value, self.got))
        e -= value
        deviation = self._of(self.expected.deviation, h, rows) / self.unit
        judged = self._judged(value, h, rows) & np.isfinite(e) & np.isfinite(deviation)
        at = np.flatnonzero(good[:, 0] & (judged.mean(1) > 0.5))
        if not len(at):
            return None
        if len(at) < len(good):
            value, e, deviation, judged = value[at], e[at], deviation[at], judged[at]
            p, px, s, t, m, kept, spread, lost = p[at], px[at], s[at], t[at], m[at], kept[at], spread[at], lost[at]
        half = half_ulp((np.abs(value) + deviation) * self.unit, dtype) / self.unit
        variance = (SPREAD if c.u_weights else 1.0) * deviation**2 + half**2 / 3
        per_s = np.where(judged, 1 / np.sqrt(np.where(judged, variance, 1.0)), 0.0)
        exponent = self._slope(px, m, value, kept)
        scale = exponent
        if case.softcap is not None or added is not None:
            s = np.where(t > HIDDEN / 2, s, 0)
            at_most = s.max(1, keepdims=True)
            scale = self._slope(p * (s - at_most), at_most, value, kept)
        parts = (np.where(judged, x, 0.0) * per_s for x in (e, value, scale, exponent, half))
        return Rows(
            *parts, judged, p, self.v, per_s.astype(np.float32),
            self._scale_slack(m, spread, lost)[:, 0], self._size_slack(lost)[:, 0],
        )  # fmt: skip

    def _scale_slack(self, m: Array, spread: Array, lost: Array) -> Array:
        """How far the scale may be off for all rows alike.

        8 u for the constants by which scores are multiplied; D u / 16 for tensor cores, which truncate (16 products
        at a time); the error of exp, as far as it grows with x; u_P² and u_s² |t| of the second order; and what is
        lost, which lies some units of x below the mean.
        """
        c = self.c
        slack = 8 * c.u + self._truncates(self.case.D) + c.eps / spread + c.u_weights**2
        return np.asarray(slack + 2 * c.u_scores**2 * np.abs(m) + 8 * lost / spread)

    def _size_slack(self, lost: Array) -> Array:
        """How far out may be too large or too small in all rows alike: the same of sums over keys."""
        c, u_out = self.c, FORMATS[self.expected.dtype].u
        return 8 * c.u + self._truncates(self.case.Lk) + c.eps + c.u_weights**2 + u_out**2 + lost

    def _truncates(self, terms: int) -> float:
        return terms * self.c.u / 16 if FORMATS[self.precision.inputs].bits <= 11 else 0.0

    def _of(self, x: Any, h: int, rows: Any) -> Array:
        return np.asarray(x[self.b, h][rows], dtype=np.float64)

    def _judged(self, value: Array, h: int, rows: Any) -> Array:
        e, f = self.expected, FORMATS[self.expected.dtype]
        floor = 4 * f.smallest_normal if self.precision.flush_subnormal else 64 * f.eta
        lo, hi, ignored, nonfinite = (y[self.b, h][rows] for y in (e.lo, e.hi, e.ignored, e.nonfinite))
        return np.asarray(
            np.isfinite(lo) & np.isfinite(hi) & ~ignored & ~nonfinite & (np.abs(value) * self.unit > floor) & self.varied
        )

    def _lost(self, weight: Array, p: Array) -> Array:
        """(n, 1): the share of what a sum or the format of P may lose altogether."""
        c = self.c
        unit = p if self.precision.weights_normalised else weight
        if p.min(initial=1.0) >= c.u and unit.min(initial=1.0) >= c.weights_eta / 2:
            return np.zeros((len(p), 1))
        return np.asarray(np.where((p < c.u) | (unit < c.weights_eta / 2), p, 0).sum(1, keepdims=True))

    def _slope(self, px: Array, m: Array, value: Array, kept: Array) -> Array:
        """sum_j p_j t_j (v_j - out), t = x + m: the derivative of out if all t grow in proportion; (n, Dv)."""
        found = px @ self.v - px.sum(1, keepdims=True) * value + m * (1 - kept) * value
        return np.asarray(found, dtype=np.float64)
