"""Families of q, k, v, ordered by difficulty: one function is one family.

A family is a function of (case, rng) that returns q, k, v in float64, before they are rounded to
the case's dtype.  Flat softmax hides almost every fault (a kernel that returns the mean of v
passes), so all families but the controls `uniform` and `constant_v` give each row keys that stand
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS, round_to
from ..oracle import scale_of

__all__ = ["FAMILIES"]

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
QKV = tuple[Array, Array, Array]


def _normal(case: Case, rng: Rng) -> QKV:
    """N(0, 1); q is scaled so that scores are about N(0, 1) at any scale."""
    B, Lq, Lk = case.B, case.Lq, case.Lk
    k, v = rng.standard_normal((B, case.Hkv, Lk, case.D)), rng.standard_normal((B, case.Hkv, Lk, case.Dv))
    q = rng.standard_normal((B, case.H, Lq, case.D)) / (abs(_scale(case)) * max(case.D, 1) ** 0.5)
    return q, k, v


def _uniform(case: Case, rng: Rng) -> QKV:
    """U[0, 1), as many published tests have it: a control, in which softmax is flat."""
    q, k, v = _normal(case, rng)
    q, k, v = (np.asarray(rng.random(x.shape)) for x in (q, k, v))
    return q, k, v


def _peaked(case: Case, rng: Rng) -> QKV:
    """Each row has a visible key of weight about 1/2 and a hidden one that would win if it were seen.

    Half of them lie where the mask's edge is, so that a mask that is off by one key is seen.
    """
    q, k, v = _normal(case, rng)
    seen = case.visibility.tile()
    peak = math.log(max(case.Lk, 1)) + 1
    for allowed, height in ((seen, peak), (~seen, peak + 3)):
        key = _keys(case, k, _pick(allowed, rng))
        size = np.maximum((key * key).sum(-1, keepdims=True), case.D / 2 or 1)
        q = q + key * np.where(allowed.any(-1, keepdims=True), height / _scale(case) / size, 0.0)
    return q, k, v


def _large_logits(case: Case, rng: Rng) -> QKV:
    """Scores of N(0, 40**2), for float64 N(0, 400**2): exp overflows unless the maximum is subtracted."""
    q, k, v = _normal(case, rng)
    return q * (100 if case.dtype == "float64" else 10), k * 4, v


def _all_negative_logits(case: Case, rng: Rng) -> QKV:
    """All scores so negative that exp(score) is 0: a maximum that starts at 0 loses the row."""
    return _levels(case, rng, np.full(case.Lk, -1000.0 if case.dtype == "float64" else -150.0))


def _far_below(case: Case, rng: Rng) -> QKV:
    """Scores about -2e4: below any finite number that a running maximum is likely to start at."""
    return _levels(case, rng, np.full(case.Lk, -2e4))


def _needle(case: Case, rng: Rng) -> QKV:
    """One visible key takes all: the runner-up is about exp(-40) behind."""
    q, k, v = _normal(case, rng)
    k /= np.maximum(np.sqrt((k * k).sum(-1, keepdims=True) / max(case.D, 1)), 1e-3)
    pick = _pick(case.visibility.tile(), rng)
    key = _keys(case, k, pick)
    s = abs(_scale(case)) * key @ _repeat(case, k).swapaxes(-1, -2)
    others = np.arange(case.Lk) != pick[..., None]
    beta = 1.0
    if s.size and case.Lk > 1:
        gap = s.max(-1) - s.max(-1, initial=-np.inf, where=others)
        beta = 40 / max(float(np.median(gap)), 0.1)
    return math.copysign(min(beta, FORMATS[case.dtype].max / 8), _scale(case)) * key, k, v


def _ties(case: Case, rng: Rng) -> QKV:
    """Three distinct keys, repeated: scores of a row agree exactly."""
    q, k, v = _normal(case, rng)
    return 2 * q, k[:, :, rng.integers(0, 3, case.Lk) % max(case.Lk, 1)], v


def _near_ties(case: Case, rng: Rng) -> QKV:
    """Keys in pairs one unit in the last place apart, of different values; rows are peaked."""
    q, k, v = _peaked(case, rng)
    f = FORMATS[case.dtype]
    k = round_to(k, case.dtype)
    k[:, :, 1::2] = k[:, :, : case.Lk // 2 * 2 : 2]
    first = k[:, :, 1::2, :1]
    first += np.maximum(np.ldexp(1.0, np.frexp(first)[1] - f.bits), f.eta)
    return q, k, v


def _rising(case: Case, rng: Rng) -> QKV:
    """Scores rise along the keys: the running maximum changes in every tile, hidden keys win."""
    return _levels(case, rng, np.linspace(0.0, min(120.0, case.Lk), case.Lk))


def _falling(case: Case, rng: Rng) -> QKV:
    """Scores fall along the keys: the first tile holds the maximum, nothing is ever rescaled."""
    return _levels(case, rng, np.linspace(0.0, -min(120.0, case.Lk), case.Lk))


def _one_hot_v(case: Case, rng: Rng) -> QKV:
    """Values coded by position: small integers in column j + 3g + 5b, so that out names its keys."""
    q, k, v = _peaked(case, rng)
    b, g, j, c = np.ogrid[: case.B, : case.Hkv, : case.Lk, : case.Dv]
    n = max(case.Dv, 1)
    return q, k, np.where((j + 3 * g + 5 * b) % n == c, 1.0 + (j // n + g + b) % 7, 0.0)


def _constant_v(case: Case, rng: Rng) -> QKV:
    """Values of about 100 that are the same for all keys, under a flat softmax: a control, where sums are large."""
    q, k, v = _normal(case, rng)
    b, g, _, c = np.ogrid[: case.B, : case.Hkv, : case.Lk, : case.Dv]
    return q * 0.1, k, np.broadcast_to(96.0 + 4 * ((c + 3 * g + 5 * b) % 9), v.shape)


def _cancelling_v(case: Case, rng: Rng) -> QKV:
    """Neighbouring keys nearly agree and have values of opposite sign: out is far below sum p|v|."""
    q, k, v = _peaked(case, rng)
    half = case.Lk // 2 * 2
    k[:, :, 1::2] = k[:, :, :half:2] + 0.01 * rng.standard_normal(k[:, :, 1::2].shape)
    v[:, :, 1::2] = 0.1 * v[:, :, 1::2] / 3 - v[:, :, :half:2]
    return q, k, 30 * v


def _outliers(case: Case, rng: Rng) -> QKV:
    """Two large channels of one sign in k, a few large values: activations of language models."""
    q, k, v = _normal(case, rng)
    k[..., :2] = 8 * k[..., :2] + 40
    return q, k, np.where(rng.random(v.shape) < 0.02, 20 * v, v)


def _tiny(case: Case, rng: Rng) -> QKV:
    """Values just above the smallest normal number: out is largely subnormal."""
    q, k, v = _peaked(case, rng)
    return q, k, v * 4 * FORMATS[case.dtype].smallest_normal


def _underflow(case: Case, rng: Rng) -> QKV:
    """One late key of value 0 takes nearly all; the rest, tiny weights times large values, is the answer."""
    largest = FORMATS[case.dtype].max
    low, high, part = (20, 80, 0.9) if largest > 1e9 else (8, 15, 0.65) if largest > 1e4 else (3, 8, 0.6)
    gap = rng.uniform(low, high, case.Lk)
    gap[case.Lk * 3 // 4 :][:1] = 0.0
    q, k, v = _levels(case, rng, -gap)
    return q, k, np.where(gap[:, None] == 0, 0.0, np.sign(v) * np.exp(part * gap)[:, None])


def _sparse_q(case: Case, rng: Rng) -> QKV:
    """Queries of one nonzero coordinate, keys of -1, 0, 1: rows have three score levels."""
    q, k, v = _normal(case, rng)
    k = np.asarray(rng.integers(-1, 2, k.shape), dtype=np.float64)
    size: Array = rng.choice([-3.0, -2.0, 2.0, 3.0], (*q.shape[:-1], 1)) / _scale(case)
    return np.where(np.arange(case.D) == case.D // 2, size, 0.0), k, v


def _v_of_k(case: Case, rng: Rng) -> QKV:
    """As sparse_q, with values that depend on the level only: errors of equal weights add coherently."""
    q, k, v = _sparse_q(case, rng)
    level = k[..., case.D // 2 : case.D // 2 + 1].astype(int) + 1 if case.D else np.zeros((*k.shape[:-1], 1), int)
    return q, k, rng.standard_normal((3, case.Dv))[level[..., 0]]


def _huge_offset(case: Case, rng: Rng) -> QKV:
    """One coordinate adds the same 2**16 (131072 where 512 fits) to every q·k: float16 cannot hold it."""
    q, k, v = _peaked(case, rng)
    q[..., :1], k[..., :1] = 512.0 if FORMATS[case.dtype].max > 512 else 256.0, 256.0
    return q, k, v


def _poisoned(case: Case, rng: Rng) -> QKV:
    """Peaked, and afterwards NaN or infinity wherever nothing may be read: see `_poison`."""
    return _peaked(case, rng)


def _poisoned_pairs(case: Case, rng: Rng) -> QKV:
    """Peaked, and afterwards NaN where some rows see it and others must not: see `_poison_pairs`."""
    return _peaked(case, rng)


FAMILIES: dict[str, Callable[[Case, Rng], QKV]] = {
    f.__name__[1:]: f
    for f in (
        _uniform, _constant_v, _normal, _peaked, _one_hot_v, _needle, _ties, _near_ties, _sparse_q, _v_of_k,
        _rising, _falling, _large_logits, _all_negative_logits, _far_below, _huge_offset, _outliers, _cancelling_v,
        _tiny, _underflow, _poisoned, _poisoned_pairs,
    )
}  # fmt: skip


def _levels(case: Case, rng: Rng, levels: Array) -> QKV:
    """Scores levels[j] + N(0, 1): a direction u carries the levels, the noise is orthogonal to it."""
    q, k, v = _normal(case, rng)
    u: Array = rng.choice([-1.0, 1.0], case.D) / max(case.D, 1) ** 0.5
    size = math.sqrt(float(np.abs(levels).max(initial=0.0)) / abs(_scale(case))) or 1.0
    q = q + (size - (q @ u)[..., None]) * u
    k = k + (levels[:, None] / (size * _scale(case)) - (k @ u)[..., None]) * u
    return q, k, v


def _scale(case: Case) -> float:
    return scale_of(case.scale, case.D) or 1.0


def _repeat(case: Case, k: Array) -> Array:
    return np.repeat(k, case.H // case.Hkv if case.Hkv else 1, axis=1)


def _pick(allowed: Array, rng: Rng) -> Array:
    """An allowed key for each row (B, H, Lq), half of them beside a forbidden key or an end; 0 if none is."""
    if allowed.shape[-1] == 0:
        return np.zeros(allowed.shape[:-1], dtype=int)
    edge = np.ones_like(allowed)
    edge[..., 1:-1] = ~(allowed[..., :-2] & allowed[..., 2:])
    at_edge = rng.random((*allowed.shape[:-1], 1)) < 0.5
    picked: Array = (rng.random(allowed.shape) + (edge & at_edge) + 2.0 * allowed).argmax(-1)
    return picked


def _keys(case: Case, k: Array, pick: Array) -> Array:
    """The key (B, H, Lq, D) that each row picked, of its own head."""
    if case.Lk == 0:
        return np.zeros((*pick.shape, case.D))
    return np.take_along_axis(_repeat(case, k), pick[..., None], axis=2)
