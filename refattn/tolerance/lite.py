"""A cheap bound of out and lse: `forward` without ties, of all heads at once or tile by tile of keys.

Ties only add to the full bound, so that without them, and with |sum ē p v| in place of sum ē p |v|, and 0 of it
over small terms, this one is no looser.  An answer within it is within the full bound, and what is not, the full
form decides.  Radii are 2^-10 shorter than that, so that float64 roundings of either form do not matter.

Nothing is sorted, so that arrays may have leading dimensions: small heads are bounded side by side.  Long rows
are gone over twice, for m and l first, by tiles that stay in the caches; tiles that are wholly hidden are skipped,
and threads share the tiles of rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..precision import Precision
from .blas import one_thread_each
from .extras import NONE, Extras
from .forward import LARGEST, Tile
from .lite_radii import Ends, Lite, Rotated, Sums, radii
from .rounding import LAMBDA, Units, repetitive
from .scores import Scores, scores

__all__ = ["forward_lite"]

Array = np.ndarray[Any, Any]

ROWS, KEYS = 256, 512
"""of a tile of a long head"""
HELD = 1 << 18  # scores that are held at once
THREADED = 1 << 22  # scores from which threads pay
PREFIX = 64  # keys from one prefix to the next, as `forward` has them
ALL = np.ones((), dtype=bool)
"""in place of a tile's mask that hides nothing"""
NONE_OF = slice(0, 0)


def forward_lite(
    q: Array, k: Array, v: Array, visible: Tile, bias: Tile, scale: float, softcap: float | None, sink: Array | None,
    precision: Precision, extras: Extras = NONE, backward: bool = False,
) -> Lite | None:  # fmt: skip
    """Bounds of heads; q (..., Lq, D), k (..., Lk, D), v (..., Lk, Dv), tiles (..., rows, keys), sink (..., 1, 1).

    A sink of -inf is none.  With `backward` there is all that `Forward` has.
    None where sums are truncated, whose drifts it does not know.
    """
    c = Units(precision, k.shape[-2])
    if c.truncates:
        return None
    heads = _Heads(q, k, v, visible, bias, scale, softcap, sink, precision, extras, c)
    *lead, Lq, _ = q.shape
    Dv = v.shape[-1]
    sizes = (Dv, Dv, Dv, Dv, Dv * backward, Dv * backward, 1, 1, 1, 1 * backward)
    bound = Lite(*(np.empty((*lead, Lq, n)) for n in sizes))

    def work(rows: slice) -> None:
        with np.errstate(all="ignore"):
            part = heads.bound(rows)
        for mine, found in zip(bound, part, strict=True):
            mine[..., rows, :] = found[..., : mine.shape[-1]]

    row = max(1, k.shape[-2] * math.prod(lead))
    step = max(HELD // row, min(ROWS, Lq))
    tasks = [slice(i, min(i + step, Lq)) for i in range(0, Lq, step)]
    if len(tasks) > 1 and row * Lq > THREADED:
        with one_thread_each(), ThreadPoolExecutor(_cores()) as pool:
            list(pool.map(work, reversed(tasks)))  # where the mask is causal the longest come first
    else:
        list(map(work, tasks))
    return bound


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class _Heads:
    q: Array
    k: Array
    v: Array
    visible: Tile
    bias: Tile
    scale: float
    softcap: float | None
    sink: Array | None
    precision: Precision
    extras: Extras
    c: Units

    def __post_init__(self) -> None:
        self.same_q = repetitive(self.q)
        self.same_k = repetitive(self.k).swapaxes(-1, -2) if self.same_q.any() else np.zeros((1, 1, 1), dtype=bool)
        v, slack = self.v if self.v.shape[-2] else np.zeros((1, self.v.shape[-1])), 0.0
        if self.extras.slack_v is not None and self.extras.slack_v.shape[-2]:
            slack = self.extras.slack_v.max(-2, keepdims=True)
        zero = np.asarray(self.extras.kept is not None)
        if self.sink is not None:
            zero = zero | ~np.isneginf(self.sink)
        self.ends = Ends(v.min(-2, keepdims=True) - slack, v.max(-2, keepdims=True) + slack, zero)
        self.plain = self.softcap is None and self.extras.score_mod is None and self.bias(NONE_OF, NONE_OF) is None

    def bound(self, rows: slice) -> Lite:
        """The bounds of some rows."""
        Lk, (*lead, n, _) = self.k.shape[-2], self.q[..., rows, :].shape
        z = Sums(o=np.zeros((*lead, n, self.v.shape[-1])))
        start = np.full((*lead, n, 1), -np.inf) if self.sink is None else np.zeros((*lead, n, 1)) + self.sink
        step = Lk if math.prod(lead) * n * Lk <= HELD else KEYS
        tiles = [slice(j, min(j + step, Lk)) for j in range(0, Lk, max(1, step))]
        seen = [(keys, visible) for keys in tiles if (visible := self.mask(rows, keys)).any()]
        slack_q = self.extras.slack_q if self.extras.independent else None
        rotated = None if slack_q is None else Rotated(slack_q[..., rows, :])
        if len(seen) == 1:
            ((keys, visible),) = seen
            s = self.scores(rows, keys, visible)
            m, total = self.softmax(start, [s.t])
            self.add(z, s, rows, keys, visible, m, total, rotated)
        else:
            m, total = self.softmax(start, (self.logits(rows, *tile) for tile in seen))
            for keys, visible in seen:
                self.add(z, self.scores(rows, keys, visible), rows, keys, visible, m, total, rotated)
        if rotated is not None:
            z.common_out, z.common_lse = rotated.variances(z.o)
        if self.plain:  # there dt/dlog scale = t = x + m
            shift = np.where(np.isneginf(m), 0.0, m)
            z.ps, z.psv = z.px + shift * z.p, z.pxv + shift * z.o
        return radii(z, m, total, self.ends, self.precision, self.c, self.extras)

    def mask(self, rows: slice, keys: slice) -> Array:
        """Which pairs of a tile are visible; ALL if all are."""
        visible = self.visible(rows, keys)
        return ALL if visible.all() and visible.size else visible

    def scores(self, rows: slice, keys: slice, visible: Array) -> Scores:
        q, k = self.q[..., rows, :], self.k[..., keys, :]
        return scores(
            q, k, self.repeats(rows, keys), visible, self.bias(rows, keys), self.scale, self.softcap, self.precision,
            self.c, self.extras.slack(q, k, rows, keys), self.extras.mod(rows, keys),
        )  # fmt: skip

    def repeats(self, rows: slice, keys: slice) -> Array:
        """Which pairs have products that repeat."""
        return self.same_q[..., rows, :] & (self.same_k[..., keys] if self.same_k.shape[-1] > 1 else self.same_k)

    def logits(self, rows: slice, keys: slice, visible: Array) -> Array:
        """t of a tile, -inf where hidden."""
        t = self.scale * (self.q[..., rows, :] @ self.k[..., keys, :].swapaxes(-1, -2))
        if self.softcap is not None:
            t = self.softcap * np.tanh(t / self.softcap)
        mod, bias = self.extras.mod(rows, keys), self.bias(rows, keys)
        if mod is not None:
            t = mod.f.value(t, *mod.place)
        t = t if bias is None else t + bias
        return t if visible is ALL else np.where(visible, t, -np.inf)

    def softmax(self, m: Array, logits: Iterable[Array]) -> tuple[Array, Array]:
        """m, -inf in empty rows, and the sum of exp(t - m); it starts from the sink, or from -inf."""
        total = np.where(np.isneginf(m), 0.0, 1.0)
        for t in logits:
            new = np.maximum(m, t.max(-1, keepdims=True, initial=-np.inf))
            shift = np.where(np.isneginf(new), 0.0, new)
            total = total * np.exp(m - shift) + np.exp(t - shift).sum(-1, keepdims=True)
            m = new
        return m, total

    def add(
        self, z: Sums, s: Scores, rows: slice, keys: slice, visible: Array, m: Array, total: Array,
        rotated: Rotated | None,
    ) -> None:  # fmt: skip
        """Add a tile of keys to the sums."""
        c, u, precision = self.c, self.c.u, self.precision
        kept = self.extras.factors(rows, keys)
        v = self.v[..., keys, :]
        vabs, v2 = np.abs(v), v * v

        def dropped(x: Array) -> Array:
            return x if kept is None else x * kept

        def shown(x: Array) -> Array:
            return x if visible is ALL else np.where(visible, x, 0.0)

        def total_of(x: Array) -> Array:
            return x.sum(-1, keepdims=True)

        m = np.where(np.isneginf(m), 0.0, m)
        inverse = 1 / np.where(total > 0, total, 1.0)
        x = shown(s.t - m)
        weight = shown(np.exp(x))
        p = weight * inverse
        pr = dropped(p)
        far = shown(np.maximum(np.abs(m), np.abs(shown(s.t))))
        off = s.error + u * (4 * np.abs(x) + 2 * far)
        z.furthest = np.maximum(z.furthest, off.max(-1, keepdims=True, initial=0.0))
        a = p * np.expm1(np.minimum(off + ((c.rescalings + 1) * c.eps + c.rescalings * u), LARGEST))
        px = p * x
        far *= far
        far += 2 * (x * x)
        far *= 2 * u * u / 3
        far += s.variance
        far += c.walk * (c.eps * c.eps + u * u) / 3  # v_theta by now
        if rotated is not None:
            k, weight_k = self.k[..., keys, :], self.scale * s.slope
            pairwise = far + rotated.pairwise(weight_k, k)
            bent = p * pairwise * LAMBDA**2 / 2  # what is not linear in the errors of scores
            likely = total_of(p * np.expm1(LAMBDA * np.sqrt(pairwise)))
            z.probable = likely if z.probable is None else z.probable + likely
            z.bent, z.bentV = z.bent + total_of(bent), z.bentV + dropped(bent) @ vabs
            rotated.add(p * weight_k, dropped(p * weight_k), k, v)
        squares = p * p
        w2 = squares * far

        z.p, z.px = z.p + total_of(p), z.px + total_of(px)
        z.a, z.w2 = z.a + total_of(a), z.w2 + total_of(w2)
        if c.u_weights:
            z.pxx = z.pxx + total_of(px * x)
        if precision.sum_rounded_weights:
            z.p2 = z.p2 + total_of(squares)
        if kept is not None:
            z.raised = np.maximum(z.raised, kept.max(-1, keepdims=True, initial=0.0))
        for j in range(0, p.shape[-1], PREFIX):
            z.lowest, z.highest = np.minimum(z.lowest, z.o), np.maximum(z.highest, z.o)
            z.o = z.o + pr[..., j : j + PREFIX] @ v[..., j : j + PREFIX, :]
        z.B, z.S2 = z.B + pr @ vabs, z.S2 + (squares if kept is None else pr * pr) @ v2
        ar, w2r = dropped(a), dropped(w2)
        z.av, z.avv = z.av + ar @ v, z.avv + dropped(ar) @ v2
        z.wv, z.wvv = z.wv + w2r @ v, z.wvv + dropped(w2r) @ v2
        z.pxv = z.pxv + dropped(px) @ v
        if self.extras.slack_v is not None:
            z.underflow = z.underflow + (pr + ar) @ self.extras.slack_v[..., keys, :]
        if not self.plain:
            ps = p * s.log_scale
            z.ps, z.psv = z.ps + total_of(ps), z.psv + dropped(ps) @ v

        if visible is ALL and p.min() > max(u, c.weights_normal):  # none is small
            z.count, z.large = z.count + p.shape[-1], z.large + p.shape[-1]
            return
        large = p > u
        small = np.where(large, 0.0, p)
        z.count = z.count + total_of(np.broadcast_to(visible, p.shape))
        z.large, z.small = z.large + total_of(large), z.small + total_of(small)
        z.smallV = z.smallV + dropped(small) @ vabs
        lost = np.where(weight < c.smallest_normal, c.smallest_normal, 0.0) * inverse
        if c.u_weights:
            unit, back = (p, 1.0) if precision.weights_normalised else (weight, inverse)
            lost = lost + np.where(unit < c.weights_normal, np.minimum(c.weights_eta / 2, unit), 0.0) * back
        z.underflow = z.underflow + dropped(shown(lost)) @ vabs
