"""The bounds of dscale and dsoftcap: one number each, a sum over all pairs.

    dscale = sum dS x,   x = q·k;          dsoftcap = sum dC g,   g = tanh z - z / cosh² z,   z = s / softcap

with dC = dT * slope of score_mod.  Rigorous, whether dscale is had pair by pair or as sum q · (dS k):

    sum e_dS A + n u sum (|dS| + e_dS) A,   A = |q|·|k|ᵀ
    sum e_dC (|g| + e_g) + |dC| e_g + n u sum |dC| (|tanh z| + |z| / cosh² z),   e_g = 0.7 e_z + evaluation

(|g'| = 2 |z tanh z| / cosh² z < 0.7), n the additions that a term goes through.

Sharp, as `backward` has it: variances of independent errors add; pairs of the head whose t - lse agree
round alike and add coherently; the errors of delta and lse are common to a row, and to rows that
have the same lse and delta; rows in which errors are not independent count with their rigorous error.
Where sums are truncated the rigorous bound is all there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .pairs import Keys, Pairs, Rows, Slopes
from .rounding import LAMBDA, SQUARES_VANISH
from .ties import Ties

__all__ = ["Scalars", "Total"]

Array = np.ndarray[Any, Any]


@dataclass
class Total:
    """One sum so far."""

    value: float = 0.0
    rigorous: float = 0.0
    variance: float = 0.0
    coherent: float = 0.0
    terms: float = 0.0
    squares: float = 0.0
    count: float = 0.0
    alike: bool = False
    """whether terms err alike when they are added: many are the same number, or sums are truncated"""

    def __add__(self, other: Total) -> Total:
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "alike"}
        return Total(**sums, alike=self.alike or other.alike)

    def along(self, other: Total) -> Total:
        """The sum where the errors of both may be the same: deviations add, not variances."""
        return replace(self + other, variance=(math.sqrt(self.variance) + math.sqrt(other.variance)) ** 2)

    @classmethod
    def of(cls, parts: Iterable[Total]) -> Total:
        """The sum over heads; those that are copies of one another, to 12 digits, err alike."""
        copies: dict[str, Total] = {}
        for part in parts:
            key = f"{part.value:.11e} {part.terms:.11e}"
            copies[key] = copies[key].along(part) if key in copies else part
        return sum(copies.values(), cls())

    def radii(self, u: float) -> tuple[float, float]:
        """Rigorous, and the one that decides, the additions included; `terms` each go through few or many."""
        rigorous = self.rigorous + 4 * u * self.terms
        if not math.isfinite(self.terms * self.terms * self.count):
            return rigorous, rigorous
        walk = self.count * (self.value * self.value / 3 + self.squares / 6)
        sharp = LAMBDA * (self.variance + u * u / 3 * walk) ** 0.5 + self.coherent + 8 * u * abs(self.value)
        alone = self.alike or self.terms < SQUARES_VANISH or not sharp <= rigorous
        return rigorous, rigorous if alone else sharp


class Scalars:
    """dscale and dsoftcap of one head."""

    def __init__(self) -> None:
        self.dscale, self.dsoftcap = Total(), Total()

    def add(
        self, p: Pairs, s: Slopes, r: Rows, g: Keys, q: Array, rows: slice, dependent: Array, slack: Array | None
    ) -> None:  # fmt: skip
        """A tile of rows and all keys; `dependent` (rows, 1): errors are not independent there; `slack` of q·k."""
        c, D = g.c, q.shape[1]
        n = len(r.lse) + len(g.k) + D + 8
        tile = _Tile(p, r, rows, dependent)
        x, A = q @ g.k.T, np.abs(q) @ np.abs(g.k).T
        terms = np.abs(s.dS) * A
        # x itself is off where q and k are, and where scores are stored low, before or after scaling
        off = np.zeros_like(x) if slack is None else slack
        if c.u_scores:
            off = off + c.u_scores * np.abs(x) + c.scores_eta * (1 + 1 / max(abs(g.scale), 1e-300))
        error = _product(s.e_dS, A + off) + np.abs(s.dS) * off
        spread: tuple[Array, ...] = (s.relative * x, s.absolute * x, s.dS * (D * c.u * A + off))
        largest = max(1.0, *(float(np.abs(a).max(initial=0.0)) for a in (s.dS, q, g.k)))
        lost = np.where(p.visible, D * c.eta * largest, 0.0)  # subnormal products, whichever two are multiplied first
        squares = s.dS * s.dS * ((q * q) @ (g.k * g.k).T + x * x)
        self.dscale = self.dscale.along(tile.total(
            s.dS * x, error + n * c.u_sum * (terms + error) + lost, spread, p.slope * x, s.low * A + lost, terms,
            squares, D, c.u_weights,
        ))  # fmt: skip
        if g.softcap is None:
            return
        z = p.scores.s / g.softcap
        size, tanh, sech2 = np.abs(z), np.abs(np.tanh(z)), 1 / np.cosh(np.minimum(np.abs(z), 300)) ** 2
        value = np.sign(z) * (tanh - size * sech2)
        parts = tanh + size * sech2
        e_z = p.scores.s_error / g.softcap + c.u * size
        e_g = 0.7 * e_z + c.tanh * tanh + size * (2 * tanh * c.tanh + 4 * c.u) + 4 * c.u * parts
        dC = s.dT * p.scores.outer
        e_dC = _product(s.e_dT, np.abs(p.scores.outer) + p.scores.outer_error)
        e_dC = e_dC + np.abs(s.dT) * p.scores.outer_error + 2 * c.u * np.abs(dC)
        error = np.where(p.visible, _product(e_dC, np.abs(value) + e_g) + np.abs(dC) * e_g, 0.0)
        terms = np.where(p.visible, np.abs(dC) * parts, 0.0)
        relative = np.sqrt(p.v + 4 * c.u**2) * dC
        spread = (relative * value, s.spread * p.scores.outer * value, s.dT * p.scores.outer_error * value, dC * e_g)
        self.dsoftcap = self.dsoftcap.along(tile.total(
            dC * value, error + n * c.u_sum * (terms + error), spread, p.scores.outer * value,
            p.flushed * np.abs(p.dP) * parts, terms, terms * terms, 1, 0.0,
        ))  # fmt: skip


class _Tile:
    """What both sums have in common."""

    def __init__(self, p: Pairs, r: Rows, rows: slice, dependent: Array) -> None:
        self.p, self.r, self.rows, self.dependent = p, r, rows, dependent
        away = np.where(p.visible, p.t - r.lse[rows], 0.0)
        active = p.visible & (p.P > 0) & ~dependent
        widest = np.asarray(p.far.max(initial=0.0)).reshape(1, 1)
        self.ties = Ties(away.reshape(1, -1), p.c.widths(widest), active.reshape(1, -1))

    def total(
        self, value: Array, rigorous: Array, spread: tuple[Array, ...], onto: Array, low: Array, terms: Array,
        squares: Array, D: int, u_weights: float,
    ) -> Total:  # fmt: skip
        """`spread` are standard deviations of the terms' errors, `onto` what P times an error of delta meets."""
        p, r, rows, free = self.p, self.r, self.rows, ~self.dependent
        variance = 0.0
        for deviation in spread:
            deviation = np.where(free & p.visible, deviation, 0.0)
            variance += float((deviation * deviation).sum() + self.ties.sum_squares_of(deviation.reshape(1, -1)).sum())
        of_delta = np.where(free, (p.P * onto).sum(1, keepdims=True), 0.0)
        of_lse = np.where(free, value.sum(1, keepdims=True), 0.0)
        same = np.unique(np.hstack([r.lse[rows], r.delta[rows]]), axis=0, return_inverse=True)[1].reshape(-1)
        of_row = r.b_delta[rows] * np.abs(of_delta) + u_weights * np.abs(of_lse)  # coherent in a row, not across
        for common in (np.sqrt(r.v_delta[rows]) * of_delta, np.sqrt(r.v_lse[rows]) * of_lse, of_row):
            together = np.bincount(same, common[:, 0], minlength=1)
            variance += float((common * common).sum() + (together * together).sum())
        by_row = rigorous.sum(1, keepdims=True)
        coherent = np.where(free, low.sum(1, keepdims=True), by_row)
        seen = np.abs(value[p.visible & (value != 0)])
        return Total(
            float(value.sum()), float(rigorous.sum()), variance,
            float(coherent.sum()), float(terms.sum()), float(squares.sum()),
            float(p.visible.sum() * D),
            p.c.truncates or bool(len(np.unique(seen)) < len(seen) / 8 or len(seen) < 8),
        )  # fmt: skip


def _product(e: Array, x: Array) -> Array:
    """e x, where an endless e times 0 is endless."""
    return np.where(np.isinf(e), np.inf, e * x)
