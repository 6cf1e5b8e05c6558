"""The rows that the statistics look at: up to ROWS of each key head, with the directions in which out may be off.

The variance of an honest error is SPREAD deviation² + h² / 3, h half a unit in the last place of out.  `deviation`
(`tolerance.forward`) has u_P p for each rounding of P, which is half a unit only at the lower end of a binade; the mean
of its square is 0.54 of that for logarithmically uniform p, and SPREAD for one that leans to that end.

Weights are had again, in float32: a matrix product, exp, and one more product for each direction.
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
from .gates import FEWEST, fresh, generic_rows, has_copies, judged, spread_out, varied

__all__ = ["Group", "Rows", "groups"]

Array = np.ndarray[Any, Any]

ROWS = 256
"""of a key head, evenly spaced: more would cost more than the bound does"""
SPREAD = 0.8
HIDDEN = np.float32(-1e30)
TILE = 1 << 20
"""scores held at a time"""
EVERYTHING = slice(None)


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
    def turned(self) -> Array:
        """scale less what is along size in its row."""
        return self.less(self.scale, self.size)

    @cached_property
    def apart(self) -> Array:
        """z less what is along size and scale in its row."""
        return self.less(self.z, self.size, self.turned)

    @staticmethod
    def less(x: Array, *directions: Array) -> Array:
        """x less its part along directions that are orthogonal to one another, row by row."""
        for d in directions:
            square = (d * d).sum(1, keepdims=True)
            x = x - (x * d).sum(1, keepdims=True) / np.where(square > 0, square, 1.0) * d
        return x


def groups(problem: Problem, got: Array, expected: Expected, precision: Precision) -> list[Group]:
    """The key heads, each with the rows that read it; none if there are too few rows."""
    view = View(problem, precision)
    seen: set[float] = set()
    found = [Group(view, b, kv, got, expected, precision, seen) for b, kv in np.ndindex(view.case.B, view.case.Hkv)]
    return found if sum(len(rows) for group in found for _, rows in group.chosen) >= FEWEST else []


class Group:
    """One key head; queries that were `seen` in another are left out."""

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
        """Heads and rows."""
        group, Lq, e = self.view.group, self.case.Lq, self.expected
        heads = slice(self.kv * group, (self.kv + 1) * group)
        value, ignored, q = (
            x[self.b, heads].reshape(group * Lq, -1) for x in (e.value, e.ignored, self.view.clean["q"])
        )
        at = np.flatnonzero(np.isfinite(value).all(1) & ~ignored.any(1))
        if not len(at) or has_copies(self.k):
            return []
        at = at[np.unique(np.linspace(0, len(at) - 1, min(ROWS, len(at))).astype(int))]
        rows = at[fresh(q[at], seen)]
        if len(rows) < 2:
            return []
        self.varied = varied(value[rows], self.v, e.dtype, self.c)
        if 2 * np.count_nonzero(self.varied) <= len(self.varied):
            return []
        return [(heads.start + g, rows[rows // Lq == g] % Lq) for g in range(group)]

    def chunks(self) -> Iterator[Rows]:
        """The generic rows, some at a time."""
        step = max(1, TILE // max(self.case.Lk, 1))
        for h, rows in self.chosen:
            for first in range(0, len(rows), step):
                part = self._rows(h, rows[first : first + step])
                if part is not None:
                    yield part

    def _rows(self, h: int, rows: Any) -> Rows | None:
        view, c, dtype = self.view, self.c, self.expected.dtype
        t, s = self._logits(h, rows)
        m = t.max(1, keepdims=True)
        x = t - m
        weight = np.exp(x)
        total = weight.sum(1, keepdims=True)
        sink = np.float32(-np.inf if view.sink(h) is None else view.sink(h))
        whole = total + np.exp(sink - m)
        p, kept = weight / whole, total / whole  # kept = sum p
        px = p * x
        mean = px.sum(1, keepdims=True) / kept
        spread = np.sqrt(np.maximum(np.einsum("ij,ij->i", px, x)[:, None] / kept - mean * mean, 0))
        effective = kept**2 / np.einsum("ij,ij->i", p, p)[:, None]
        lost = self._lost(weight if sink <= m.min() else weight * np.exp(np.minimum(m - sink, 0)), p) / kept
        good = generic_rows(m, spread, effective, kept, lost, dtype, c)[:, 0]

        value, got, deviation = (self._of(y, h, rows) for y in (self.expected.value, self.got, self.expected.deviation))
        e = got - value
        some = judged(self.expected, (self.b, h, rows), self.precision) & self.varied
        some &= np.isfinite(e) & np.isfinite(deviation)
        at = np.flatnonzero(good & (some.mean(1) > 0.5))
        if not len(at) or not spread_out(x[at[:: max(1, len(at) // 64)]], c):
            return None
        if len(at) < len(good):
            value, e, deviation, some = value[at], e[at], deviation[at], some[at]
            p, px, m, kept, spread, lost = p[at], px[at], m[at], kept[at], spread[at], lost[at]
        half = half_ulp((np.abs(value) + deviation) * self.unit, dtype) / self.unit
        variance = (SPREAD if c.u_weights else 1.0) * deviation**2 + half**2 / 3
        per_s = np.where(some, 1 / np.sqrt(np.where(some, variance, 1.0)), 0.0)
        scale = exponent = self._slope(px, m, value, kept)
        if s is not t:
            s = s[at]
            highest = s.max(1, keepdims=True)
            scale = self._slope(p * (s - highest), highest, value, kept)
        z, size, scale, exponent, half = (np.where(some, y, 0.0) * per_s for y in (e, value, scale, exponent, half))
        slacks = self._scale_slack(m, spread, lost)[:, 0], self._size_slack(lost)[:, 0]
        return Rows(z, size, scale, exponent, half, some, p, self.v, per_s.astype(np.float32), *slacks)

    def _logits(self, h: int, rows: Any) -> tuple[Array, Array]:
        """t, HIDDEN where hidden, and dt / d log(scale), which is t itself without softcap and bias; float32."""
        view, case, b = self.view, self.case, self.b
        s = (view.clean["q"][b, h][rows] * view.scale).astype(np.float32) @ self.k.T
        t = s
        if case.softcap is not None:
            tanh = np.tanh(s / np.float32(case.softcap))
            t, s = np.float32(case.softcap) * tanh, s * (1 - tanh * tanh)
        bias = view.tiles(b, h)[1](rows, EVERYTHING)
        if bias is not None:
            t = t + bias.astype(np.float32)
        if bias is None and case.mask is case.q_lens is case.k_lens is None:
            return t, s
        visible = view.visible(b, h, rows, EVERYTHING)
        hidden = np.where(visible, t, HIDDEN)
        return hidden, hidden if s is t else np.where(visible, s, 0)

    def _of(self, x: Any, h: int, rows: Any) -> Array:
        return np.asarray(x[self.b, h][rows] / self.unit, dtype=np.float64)

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

    def _scale_slack(self, m: Array, spread: Array, lost: Array) -> Array:
        """How far the scale may be off for all rows alike, (n, 1).

        8 u for the constants by which scores are multiplied; D u / 16 for tensor cores, which truncate (16 products
        at a time; D u where the contract truncates each); the error of exp, as far as it grows with x; u_P² and
        u_s² |t| of the second order; and what is lost, which lies some units of x below the mean.
        """
        c = self.c
        slack = 8 * c.u + self._truncates(self.case.D) + c.eps / spread + c.u_weights**2
        return np.asarray(slack + 2 * c.u_scores**2 * np.abs(m) + 8 * lost / spread)

    def _size_slack(self, lost: Array) -> Array:
        """How far out may be too large or too small for all rows alike, (n, 1): the same of sums over keys."""
        c, u_out = self.c, FORMATS[self.expected.dtype].u
        return np.asarray(8 * c.u + self._truncates(self.case.Lk) + c.eps + c.u_weights**2 + u_out**2 + lost)

    def _truncates(self, terms: int) -> float:
        if self.c.truncates:
            return terms * self.c.u
        return terms * self.c.u / 16 if FORMATS[self.precision.inputs].bits <= 11 else 0.0
