"""The bound of the gradients of one key head and the query heads that read it.

    dq: |scale| (rounded dS, |k|),  dk: |scale| (rounded dS, |q|),  dv: (rounded P, |dout|)

with the errors of P and dS that `pairs` derives.  Sharp: variances of independent errors add.  The
errors of lse and delta are common to a row and enter dq coherently, as v_Δ (P k)² + v_lse (dS k)²;
to dk and dv the rows contribute independently.  Keys whose scores agree, or rows (of any head of
the group) in which a key has the same score, add coherently (`ties`).  dbias and dsinks have the
rigorous bound alone; dscale and dsoftcap: `scalars`.

First a pass over tiles of rows (dq, and what a row knows), then one over tiles of keys (dk, dv).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..precision import Precision
from .forward import COARSE, EVERYTHING, LARGEST, row_tiles
from .pairs import Head, Keys, Pairs, Rows, Slopes, delta_errors, pairs, rows_of, slopes
from .rounding import LAMBDA, SQUARES_VANISH, Units
from .scalars import Scalars
from .ties import NoTies, Ties

__all__ = ["Backward", "Bound", "Head", "backward"]

Array = np.ndarray[Any, Any]


class Bound(NamedTuple):
    value: Array
    rigorous: Array
    sharp: Array


class Backward(NamedTuple):
    dq: list[Bound]
    dk: Bound
    dv: Bound
    dsink: list[tuple[Array, Array]]
    """value and rigorous error of each head's sum"""
    scalars: list[Scalars]


@dataclass
class _Sum:
    """A sum of products on its way: value, bounds, and its terms' absolute and square sums."""

    value: Array
    rigorous: Array
    variance: Array
    coherent: Array
    terms: Array
    squares: Array
    alike: Array
    """how many pairs of terms round alike (`Ties.alike`)"""

    @classmethod
    def zeros(cls, shape: tuple[int, int]) -> _Sum:
        return cls(*(np.zeros(shape) for _ in range(7)))

    def put(self, rows: slice, *parts: Array) -> None:
        arrays = (
            self.value, self.rigorous, self.variance, self.coherent, self.terms, self.squares, self.alike,
        )  # fmt: skip
        for mine, part in zip(arrays, parts, strict=True):
            mine[rows] = part

    def finish(
        self, count: Array, blocks: int, apart: Array, c: Units, scale: float = 1.0, vanishing: float = SQUARES_VANISH
    ) -> Bound:  # fmt: skip
        """Add the accumulation of `count` terms, across `blocks` and heads `apart` in the output's dtype.

        The sharp bound is the rigorous one where the terms are less than `vanishing`, before they are scaled.
        """
        u, x = c.u, np.abs(self.value)
        grid = (count > 0) * (count + 4) * c.eta * max(1.0, abs(scale))  # subnormal products
        rigorous = self.rigorous + grid + count * c.u_sum * (self.terms + self.rigorous) + 4 * u * self.terms
        walk = count * (x * x / 3 + self.squares / 6) + self.alike * ((self.terms + x) / 2) ** 2
        variance = self.variance + u * u / 3 * walk
        coherent = self.coherent + grid + 4 * u * x + c.drift(count, x, self.squares, (self.terms + x) / 2)
        if blocks > 1:
            n, u_out = blocks - 1, c.u_out
            rigorous = rigorous * (1 + u_out) + n * (u_out * (self.terms + x) / 2 + c.eta_out / 2)
            variance = variance + n * u_out**2 / 3 * (x * x + self.squares)
            coherent = coherent + n * c.eta_out / 2
        rounded = c.u_out * apart + (apart > 0) * c.eta_out  # heads rounded before they are added
        sharp = np.fmin(LAMBDA * np.sqrt(variance) + coherent + rounded, rigorous + rounded)
        sharp = np.where(self.terms < vanishing * max(1.0, abs(scale)), rigorous + rounded, sharp)
        return Bound(self.value, rigorous + rounded, sharp)


def backward(
    heads: list[Head], k: Array, v: Array, scale: float, softcap: float | None, precision: Precision
) -> Backward:  # fmt: skip
    """Bounds of the gradients of one key head k (Lk, D), v (Lk, Dv) and of its query heads."""
    g = Keys(k, v, scale, softcap, precision, Units(precision, len(k)))
    with np.errstate(over="ignore", invalid="ignore"):
        known = [rows_of(h) for h in heads]
        scalars = [Scalars() for _ in heads]
        dq = [_rows_pass(h, r, g, sums) for h, r, sums in zip(heads, known, scalars, strict=True)]
        dk, dv = _keys_pass(heads, known, g)
        return Backward(dq, dk, dv, [_dsink(h, r, g.c) for h, r in zip(heads, known, strict=True)], scalars)


def _blocks(n: int, size: int, heads: int = 1) -> int:
    """How many parts are added up in the output dtype: blocks are of one head, whatever is left of them."""
    return heads * -(-n // size) if size else 1


def _rows_pass(h: Head, r: Rows, g: Keys, scalars: Scalars) -> Bound:
    """dq of a head; fills in what each row knows of delta's error."""
    c, k = g.c, g.k
    total = _Sum.zeros(h.q.shape)
    count = np.zeros((len(h.q), 1))
    for rows in row_tiles(len(h.q), len(k)):
        p = pairs(h, r, g, rows, EVERYTHING)
        ties = Ties(p.t, c.widths(p.far.max(1, keepdims=True, initial=0.0)), p.visible & (p.P > 0))
        delta_errors(p, h, r, rows, ties, c)
        s = slopes(p, h, r, g, rows)
        if h.on_dt is not None:
            h.on_dt(rows, s.dT, s.e_dT)
        if h.scalars:
            slack = h.extras.product_slack(h.q[rows], k, rows, EVERYTHING)
            scalars.add(p, s, r, g, h.q[rows], rows, _dependent(p.t, p.P, p.e, c) | h.extras.rough, slack)
        total.put(rows, *_dq_sums(p, s, ties, h, r, g, rows))
        count[rows] = p.visible.sum(1, keepdims=True)
    return total.finish(count, _blocks(len(k), g.precision.grad_k_block), np.zeros_like(total.value), c, g.scale)


def _dq_sums(
    p: Pairs, s: Slopes, ties: Ties | NoTies, h: Head, r: Rows, g: Keys, rows: slice
) -> tuple[Array, ...]:  # fmt: skip
    """What `_Sum` has of dq, of a tile of rows and all keys."""
    c, k, size = g.c, g.k, abs(g.scale)
    kabs, k2 = np.abs(k), k * k
    value = s.dS @ k
    PK = (p.P * p.slope) @ k
    variance = (s.relative**2 + s.absolute**2) @ k2
    variance += ties.sum_squares(s.relative, k) + ties.sum_squares(s.absolute, k)
    variance += r.v_delta[rows] * PK**2 + r.v_lse[rows] * value**2
    coherent = r.b_delta[rows] * np.abs(PK) + s.low @ kabs + c.u_weights * np.abs(value)
    rigorous = _times(s.e_dS, kabs)
    if h.extras.slack_k is not None:
        rigorous = rigorous + _times(np.abs(s.dS) + s.e_dS, h.extras.slack_k)
    dependent = _dependent(p.t, p.P, p.e, c) | h.extras.rough
    coherent = np.where(dependent | np.isinf(rigorous), rigorous, coherent)
    return (
        g.scale * value, _scaled(size, rigorous), size**2 * variance, _scaled(size, coherent),
        size * (np.abs(s.dS) @ kabs), size**2 * ((s.dS * s.dS) @ k2),
        ties.alike(p.P, c.u * p.P.sum(-1, keepdims=True)),
    )  # fmt: skip


def _scaled(size: float, x: Array) -> Array:
    """size x, endless where x is, even if size is 0: 0 times an overflow is NaN."""
    return np.where(np.isinf(x), np.inf, size * x)


def _times(e: Array, x: Array) -> Array:
    """e @ x for nonnegative arrays, in which an infinite error of a pair makes the whole sum's infinite."""
    endless = np.isinf(e)
    if not endless.any():
        return e @ x
    return np.where(endless.any(-1, keepdims=True), np.inf, np.where(endless, 0.0, e) @ x)


def _dependent(t: Array, P: Array, e: Array, c: Units) -> Array:
    """Rows (rows, 1) in which errors are not independent, or do not add linearly.

    Their scores spread over less than four roundings of P, their weights may be off by COARSE, or q
    was rounded beforehand.
    """
    if c.u_scaled_q:
        return np.ones((*t.shape[:-1], 1), dtype=bool)
    total = np.maximum(P.sum(-1, keepdims=True), 1e-300)
    coarse = np.asarray((P * e).sum(-1, keepdims=True) > COARSE * total)
    if not c.u_weights:
        return coarse
    mean = (P * t).sum(-1, keepdims=True) / total
    return coarse | ((P * (t - mean) ** 2).sum(-1, keepdims=True) / total < (4 * c.u_weights) ** 2)


class _Columns(NamedTuple):
    """What the keys need of a head's pairs, (keys, rows)."""

    x: Array
    visible: Array
    far: Array
    P: Array
    e: Array
    dS: Array
    e_dS: Array
    relative: Array
    absolute: Array
    coherent: Array
    kept: Array
    """P after dropout, which meets dout; its errors are those of the next three"""
    e_P: Array
    low: Array
    sd_P: Array


def _columns(p: Pairs, s: Slopes, r: Rows, c: Units) -> _Columns:
    u_p = c.u_weights
    low = np.where(p.visible & (p.P < c.weights_normal), np.minimum(c.weights_eta / 2, p.P), 0.0)
    low = low + p.flushed + (p.P * p.drift if c.truncates else 0.0)
    relative = np.copysign(np.hypot(s.relative, s.dS * np.sqrt(r.v_lse)), s.dS)
    absolute = np.hypot(s.absolute, p.P * p.slope * np.sqrt(r.v_delta))
    coherent = s.low + p.P * np.abs(p.slope) * r.b_delta
    e_P = np.where(p.burst, np.inf, p.P * p.e + u_p * p.P * (1 + p.e) + low)
    sd_P = p.P * np.sqrt(p.v + r.v_lse + u_p * u_p / 3)
    x = np.where(p.visible, p.t - r.lse, 0.0)
    onto_v = [p.P, e_P, low, sd_P]
    if p.kept is not None:
        onto_v = [np.where(p.kept > 0, a * p.kept, 0.0) for a in onto_v]
        own = (2 + p.kept) * c.u * onto_v[0]
        onto_v[1] += own
        onto_v[3] = np.hypot(onto_v[3], own)
    found = (x, p.visible, p.far, p.P, p.e, s.dS, s.e_dS, relative, absolute, coherent, *onto_v)
    return _Columns(*(a.swapaxes(-1, -2) for a in found))


def _keys_pass(heads: list[Head], known: list[Rows], g: Keys) -> tuple[Bound, Bound]:
    """dk and dv; the rows of all heads stand side by side, so that those of equal heads are seen to tie."""
    c, size = g.c, abs(g.scale)
    q, dout = np.concatenate([h.q for h in heads]), np.concatenate([h.dout for h in heads])
    slacks = [h.extras.slack_q for h in heads if h.extras.slack_q is not None]
    slack_q = np.concatenate(slacks) if slacks else None
    dk, dv = _Sum.zeros(g.k.shape), _Sum.zeros(g.v.shape)
    apart_k, apart_v = np.zeros(g.k.shape), np.zeros(g.v.shape)
    count, raised = np.zeros((len(g.k), 1)), 1.0
    for keys in row_tiles(len(g.k), len(q)):
        found = []
        for h, r in zip(heads, known, strict=True):
            p = pairs(h, r, g, EVERYTHING, keys)
            raised = raised if p.kept is None else max(raised, float(p.kept.max(initial=0.0)))
            found.append(_columns(p, slopes(p, h, r, g, EVERYTHING), r, c))
        if g.precision.grad_per_head:
            for h, one in zip(heads, found, strict=True):
                apart_k[keys] += size * np.abs(one.dS @ h.q)
                apart_v[keys] += np.abs(one.kept @ h.dout)
        x = _Columns(*(np.concatenate(parts, axis=1) for parts in zip(*found, strict=True)))
        ties = Ties(x.x, c.widths(x.far.max(1, keepdims=True, initial=0.0)), x.visible & (x.P > 0))
        of_dk, of_dv = _dk_dv_sums(x, ties, q, dout, slack_q, g, heads[0].extras.rough)
        dk.put(keys, *of_dk)
        dv.put(keys, *of_dv)
        count[keys] = x.visible.sum(1, keepdims=True)
    blocks = _blocks(len(heads[0].q), g.precision.grad_q_block, len(heads))
    return dk.finish(count, blocks, apart_k, c, g.scale), dv.finish(count, blocks, apart_v, c, raised)


def _dk_dv_sums(
    x: _Columns, ties: Ties | NoTies, q: Array, dout: Array, slack_q: Array | None, g: Keys, rough: bool
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:  # fmt: skip
    """What `_Sum` has of dk and dv, of a tile of keys and all rows."""
    c, u_p, size = g.c, g.c.u_weights, abs(g.scale)
    qabs, q2, dabs, d2 = np.abs(q), q * q, np.abs(dout), dout * dout
    alike = ties.alike(x.P, c.u * x.P.sum(-1, keepdims=True))
    dependent = _dependent(x.x, x.P, x.e, c) | rough

    value = x.dS @ q
    variance = (x.relative**2 + x.absolute**2) @ q2
    variance += ties.sum_squares(x.relative, q) + ties.sum_squares(x.absolute, q)
    rigorous = _times(x.e_dS, qabs)
    if slack_q is not None:
        rigorous = rigorous + _times(np.abs(x.dS) + x.e_dS, slack_q)
    coherent = x.coherent @ qabs + u_p * np.abs(value)
    coherent = np.where(dependent | np.isinf(rigorous), rigorous, coherent)
    of_dk = (
        g.scale * value, _scaled(size, rigorous), size**2 * variance, _scaled(size, coherent),
        size * (np.abs(x.dS) @ qabs), size**2 * ((x.dS * x.dS) @ q2), alike,
    )  # fmt: skip

    value = x.kept @ dout
    variance = (x.sd_P * x.sd_P) @ d2 + ties.sum_squares(x.sd_P, dout)
    rigorous = _times(x.e_P, dabs)
    coherent = np.where(dependent | np.isinf(rigorous), rigorous, x.low @ dabs + u_p * np.abs(value))
    return of_dk, (value, rigorous, variance, coherent, x.kept @ dabs, (x.kept * x.kept) @ d2, alike)


def _dsink(h: Head, r: Rows, c: Units) -> tuple[Array, Array]:
    """sum over rows of exp(sink - lse)(dlse - delta), and its rigorous error."""
    if h.sink is None:
        return np.zeros(()), np.zeros(())
    u = c.u
    away = np.abs(h.sink - r.lse)
    share = np.where(np.isneginf(h.forward.lse), 0.0, np.exp(np.minimum(h.sink - r.lse, 0.0)))
    far = np.maximum(np.abs(h.sink), np.abs(r.lse))
    e = np.expm1(np.minimum(r.e_lse + u * (4 * away + 2 * far) + c.eps, LARGEST))
    incoming = h.dlse - r.delta
    endless = np.isinf(r.e_delta) & ~np.isneginf(h.forward.lse)
    e_delta = np.where(endless, 0.0, r.e_delta)
    error = share * (e * np.abs(incoming) + (1 + e) * (e_delta + 2 * u * (np.abs(h.dlse) + np.abs(r.delta))))
    error = np.where(endless, np.inf, error)
    terms = np.abs(share * incoming)
    error = error + c.smallest_normal * np.abs(incoming) + h.q.shape[-2] * c.u_sum * (terms + error)
    return (share * incoming).sum((-2, -1)), error.sum((-2, -1))
