"""The bound of out and lse, one head, tile of rows by tile of rows.

With p = exp(t - lse), B = sum p|v|, computed weights p̂_j = p_j (1 + θ_j) up to a common factor,
|θ_j| <= ē_j = expm1(e_t + e_x + (T+1) ε + T u) where e_x = u (4|x| + 2 max(|m|, |t|)), x = t - m
covers exp(s - m) and exp2(s c - m c), fused or not, and T is the number of rescalings (the exponents
of successive rescalings telescope, so that only their roundings count):

    out^ - out = [ sum p θ (v - o) + rounding of P + underflow + accumulation + |o| E_l ] / (1 - ...)

Rigorous: sum p ē |v - o| by Cauchy-Schwarz; u_P B; min(eta_P/2, p) where P is subnormal; the sums
by `rounding`, with the keys split into R = {p > u} and the rest Z: at most |R|-1 additions have an
R on both sides, all others cost no more than sum over Z of p|v|.  Never more than the hull of v, or,
where the errors of scores decide which keys lead, of theirs (`leading`).

Sharp: independent roundings, uniform on +-h and so sub-Gaussian with proxy h²/3 (Hoeffding's lemma
gives h²; the uniform law has 1/3; Higham and Mary 2019, "A new approach to probabilistic rounding
error analysis", use the former):

    LAMBDA * sqrt( sum p² v_θ (v-o)² + u_P²/3 sum p² v² + V_acc + V_l  + the ties of both sums )
    + what is coherent: a rounded scale 2u |do/dlog scale|, P's common error u_P |o|, underflow.

Where sums are truncated their drifts (`rounding`) are coherent too: those of P·V and l, and those d_j of the scores,
sum p d |v - o| by Cauchy-Schwarz, sum p d in lse; and small terms are not free, those of l apart.

Terms that differ by less than a unit of their sum round alike when they are added to it, and count
as coherent (`Ties.alike`).  Where a row's scores spread over less than four roundings of P, the
rigorous P term is used.  Where the weights may be off by more than COARSE
the errors do not add linearly, and the rigorous bound is all there is; so it is where q is scaled
and rounded beforehand, which is one error for all keys of a row, and where inputs are known but
roughly (`extras`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..precision import Precision
from .extras import NONE, Extras
from .leading import leading
from .rounding import LAMBDA, SQUARES_VANISH, Units, repetitive
from .scores import Scores, scores
from .ties import Ties

__all__ = ["COARSE", "Forward", "Tile", "forward", "row_tiles"]

Array = np.ndarray[Any, Any]
Tile = Callable[[slice, slice], Any]
"""visible(rows, keys) -> booleans, bias(rows, keys) -> floats or None"""

EVERYTHING = slice(None)
COARSE = 0.1
LARGEST = 300.0  # exponents are cut here, so that bounds stay finite; far beyond any that matters


@dataclass
class Forward:
    """Values and radii before the output is rounded; (Lq, Dv), and (Lq, 1) for those of lse."""

    out: Array
    rigorous: Array
    sharp: Array
    accumulation_variance: Array
    coherent: Array
    """the part of sharp that is no sum of independent errors, without what is proportional to out"""
    lse: Array
    lse_rigorous: Array
    lse_sharp: Array
    lse_variance: Array
    lse_drift: Array
    """the part of lse_sharp that truncation makes, all to one side"""
    deviation: Array
    """of out, were all roundings independent of one another; infinite where they are not small"""


def row_tiles(rows: int, keys: int, elements: int = 1 << 18) -> list[slice]:
    """Slices of rows such that a tile has about `elements` scores."""
    step = max(1, elements // max(1, keys))
    return [slice(i, min(rows, i + step)) for i in range(0, rows, step)]


def forward(
    q: Array, k: Array, v: Array, visible: Tile, bias: Tile, scale: float, softcap: float | None, sink: float | None,
    precision: Precision, extras: Extras = NONE,
) -> Forward:  # fmt: skip
    """Bounds of one head; q (Lq, D), k (Lk, D), v (Lk, Dv) finite float64, exact in the inputs' dtype."""
    Lq, Lk, Dv = len(q), len(k), v.shape[1]
    c = Units(precision, Lk)
    wide = ("out", "rigorous", "sharp", "accumulation_variance", "coherent", "deviation")
    sizes = {f.name: (Lq, Dv if f.name in wide else 1) for f in fields(Forward)}
    bound = Forward(**{name: np.zeros(size) for name, size in sizes.items()})
    same_q, same_k = repetitive(q), repetitive(k).T
    with np.errstate(over="ignore"):
        vabs, v2 = np.abs(v), v * v
    for rows in row_tiles(Lq, Lk):
        tile = visible(rows, EVERYTHING), bias(rows, EVERYTHING)
        with np.errstate(over="ignore", invalid="ignore"):
            s = scores(
                q[rows], k, same_q[rows] & same_k, *tile, scale, softcap, precision, c,
                extras.slack(q[rows], k, rows, EVERYTHING), extras.mod(rows, EVERYTHING),
            )  # fmt: skip
            rotated = _Rotated(k, scale, extras.slack_q[rows]) if extras.independent else None  # type: ignore[index]
            part = _tile(s, v, vabs, v2, tile[0], sink, precision, c, extras.factors(rows, EVERYTHING), extras, rotated)
        for name in sizes:
            getattr(bound, name)[rows] = getattr(part, name)
    return bound


def _tile(
    s: Scores, v: Array, vabs: Array, v2: Array, visible: Array, sink: float | None, precision: Precision, c: Units,
    kept: Array | None, extras: Extras, rotated: _Rotated | None,
) -> Forward:  # fmt: skip
    """`kept` are the factors r of dropout: out = sum p r v, and p r stands where p meets v."""
    u, u_p, eps, T = c.u, c.u_weights, c.eps, c.rescalings

    def dropped(x: Array) -> Array:
        return x if kept is None else x * kept

    m = s.t.max(1, keepdims=True, initial=-np.inf if sink is None else sink)
    dead = np.isneginf(m)
    m = np.where(dead, 0.0, m)
    x = np.where(visible, s.t - m, 0.0)
    weight = np.where(visible, np.exp(x), 0.0)  # in units of the row's largest
    total = weight.sum(1, keepdims=True) + (0.0 if sink is None else np.exp(sink - m))
    inverse = 1 / np.where(total > 0, total, 1.0)
    p = weight * inverse
    pr = dropped(p)
    o, B = pr @ v, pr @ vabs
    size = np.abs(o)

    far = np.where(visible, np.maximum(np.abs(m), np.abs(np.where(visible, s.t, 0.0))), 0.0)
    e_x = u * (4 * np.abs(x) + 2 * far)
    e = np.expm1(np.minimum(s.error + e_x + (T + 1) * eps + T * u, LARGEST))
    a = p * e
    ar = dropped(a)
    A0 = a.sum(1, keepdims=True)

    def apart_from_o(a: Array) -> Array:
        """A bound of sum a |v - o|, by Cauchy-Schwarz."""
        ar = dropped(a)
        A0, A2 = a.sum(1, keepdims=True), dropped(ar) @ v2
        about = np.maximum(A2 - 2 * o * (ar @ v) + o * o * A0, 0.0)
        about += 1e-15 * (A2 + o * o * A0)  # the cancellation just made
        return np.asarray(np.sqrt(A0) * np.sqrt(about))  # apart, since the product may underflow

    theta = apart_from_o(a)
    aV = ar @ vabs

    rounding_p = u_p * (B + aV) + c.pv_rounds * u * (B + aV)
    visible_count = visible.sum(1, keepdims=True)
    raised = 1.0 if kept is None else max(1.0, float(kept.max(initial=0.0)))
    underflow = np.zeros_like(o) + (visible_count + 4) * c.eta * raised  # subnormal products and quotients
    if u_p:
        unit = p if precision.weights_normalised else weight
        low = np.where(visible & (unit < c.weights_normal), np.minimum(c.weights_eta / 2, unit), 0.0)
        underflow = underflow + (dropped(low) @ vabs) * (1.0 if precision.weights_normalised else inverse)
    flushed = np.where(visible & (weight < c.smallest_normal), c.smallest_normal, 0.0)
    if flushed.any():
        underflow = underflow + (dropped(flushed) @ vabs) * inverse
    if extras.slack_v is not None:
        underflow = underflow + (pr + ar) @ extras.slack_v

    large = p > u
    R = large.sum(1, keepdims=True)
    small = np.where(large, 0.0, p)
    smallV = dropped(small) @ vabs
    half = (B + size) / 2  # no partial sum is larger
    many = (visible_count - R) * c.u_sum  # of the small terms: none costs more than itself, nor than u times the sum
    smallV = (smallV + np.where(large, 0.0, ar) @ vabs) * (1 + visible_count * u)
    smallV = many * (half + aV) if c.truncates else np.minimum(smallV, many * (half + aV))
    small_l = np.minimum(small.sum(1, keepdims=True), many)
    sum_v = R * c.u_sum * (half + aV) + 2 * T * u * (B + aV) + smallV
    sum_l = R * c.u_sum + small_l + 2 * T * u
    rounded_l = u_p if precision.sum_rounded_weights else 0.0
    denominator = 1 - A0 - sum_l - rounded_l
    # 1 / l, and 1 / (1 - dropout), where 1 - dropout may be had in the accumulators' dtype
    factors = (4 if kept is None else 6 + 2 * kept.max(initial=0.0)) * u
    with np.errstate(divide="ignore", over="ignore"):
        rigorous = theta + rounding_p + underflow + sum_v + size * (sum_l * (1 + A0) + rounded_l)
        rigorous = np.where(denominator > 0.01, rigorous / np.maximum(denominator, 0.01), np.inf) + factors * size
    low_v, high_v = (v.min(0), v.max(0)) if len(v) else (np.zeros(v.shape[1]), np.zeros(v.shape[1]))
    if extras.slack_v is not None and len(v):
        low_v, high_v = low_v - extras.slack_v.max(0), high_v + extras.slack_v.max(0)
    if kept is not None:
        low_v, high_v = low_v * kept.max(initial=0.0), high_v * kept.max(initial=0.0)
    if sink is not None or kept is not None:
        low_v, high_v = np.minimum(low_v, 0), np.maximum(high_v, 0)
    largest = np.maximum(np.abs(low_v), np.abs(high_v))
    away = np.maximum(high_v - o, o - low_v)
    lost = (denominator <= 0.01)[:, 0]
    if kept is None and lost.any():
        slack_v = 0.0 if extras.slack_v is None else extras.slack_v.max(0)
        error = (s.error + e_x + (T + 1) * eps + T * u)[lost]
        away[lost], largest_here = leading(np.where(visible, s.t, 0.0)[lost], error, visible[lost], v, o[lost], sink)
        away[lost] += slack_v
        largest = np.broadcast_to(largest, o.shape).copy()
        largest[lost] = largest_here + slack_v
    hull = (
        away
        + largest * (u_p + 2 * visible_count * (u + c.weights_eta + c.smallest_normal) + 2 * T * u + 4 * u)
        + (visible_count + 4) * c.eta
    )
    rigorous = np.fmin(rigorous, hull)

    # the sharp bound
    v_theta = s.variance + u * u / 3 * (4 * x * x + 2 * far * far) + c.walk * (eps * eps + u * u) / 3
    sd = np.sqrt(v_theta)
    w = p * sd
    w2 = w * w
    W0 = w2.sum(1, keepdims=True)
    w2r = dropped(w2)
    spread_o = np.maximum(dropped(w2r) @ v2 - 2 * o * (w2r @ v) + o * o * W0, 0.0)
    apart = spread_o.copy()  # the variance without ties
    S2 = (pr * pr) @ v2
    ties = Ties(np.where(visible, s.t, 0.0), c.widths(far.max(1, keepdims=True, initial=0.0)), visible & (p > 0))
    alike = ties.alike(p, np.full((len(p), 1), u))
    together_w = ties.sum_squares_of(w)
    W0 = W0 + together_w
    variance_p = (u_p * u_p + c.pv_rounds * u * u) / 3 * S2
    apart += variance_p
    coherent = np.zeros_like(o)
    if not u_p and kept is None:
        spread_o += ties.sum_squares(w, v, o)
    elif not u_p:  # (a - b)² <= 2a² + 2b²
        spread_o += 2 * ties.sum_squares(dropped(w), v) + 2 * o * o * together_w
    else:
        together = ties.sum_squares(pr, v)
        variance_p = variance_p + u_p * u_p / 3 * together
        # keys that agree have about the same v_theta, far below u_p²: (a - b)² <= 2a² + 2b² will do
        spread_o += 2 * v_theta.max(1, keepdims=True, initial=0.0) * (together + o * o * ties.sum_squares_of(p))
        mean_x = (p * x).sum(1, keepdims=True)
        narrow = (p * x * x).sum(1, keepdims=True) - mean_x * mean_x < (4 * u_p) ** 2
        coherent = np.where(narrow, rounding_p, 0.0)
    prefix = _largest_prefix(pr, v, o)
    walk = R * np.minimum(prefix**2 / 3 + S2 / 6, half**2)
    variance_sum = u * u / 3 * (walk + alike * half**2)
    apart += u * u / 3 * (walk + R / 3 * o * o)
    sum_of_l = u * u / 3 * (R / 3 + alike)
    variance_l = sum_of_l * o * o
    if precision.sum_rounded_weights:
        squares = (p * p).sum(1, keepdims=True)
        variance_l = variance_l + u_p * u_p / 3 * o * o * (squares + ties.sum_squares_of(p))
        apart += u_p * u_p / 3 * o * o * squares
    px, pw = p * x, p * s.log_scale
    sum_px, sum_pw = px.sum(1, keepdims=True), pw.sum(1, keepdims=True)
    scale_error = 2 * u * (np.abs(dropped(px) @ v - o * sum_px) + np.abs(dropped(pw) @ v - o * sum_pw))
    common_out = common_lse = second = np.zeros(())
    probable = A0
    if rotated is not None:
        pairwise = v_theta + s.slope**2 * rotated.pairwise()
        common_out, common_lse = rotated.variances(p * s.slope, dropped, v, o)
        probable = (p * np.expm1(LAMBDA * np.sqrt(pairwise))).sum(1, keepdims=True)
        bent = p * pairwise * LAMBDA**2 / 2  # what is not linear in the errors of scores
        second = dropped(bent) @ vabs + size * bent.sum(1, keepdims=True)
    deviation = np.sqrt(spread_o + variance_p + variance_sum + variance_l + common_out)
    lse_drift = np.zeros_like(m)
    if c.truncates:
        of_scores, of_l = p * s.drift, R * u
        smallV = c.drift(visible_count, prefix, S2, half) + size * of_l + apart_from_o(of_scores)
        lse_drift = of_scores.sum(1, keepdims=True) + of_l
    coherent = coherent + underflow + smallV + size * small_l + second
    sharp = LAMBDA * deviation + scale_error + coherent + (u_p + 2 * u + factors) * size
    sharp = np.fmin(sharp, rigorous)  # squares may overflow in float64: then the rigorous one
    coarse = (probable > COARSE) | (c.u_scaled_q > 0) | (extras.rough and rotated is None)
    sharp = np.where((B < SQUARES_VANISH) | coarse, rigorous, sharp)

    log_l = np.abs(np.log(np.where(total > 0, total, 1.0)))
    lse = np.where(dead, -np.inf, m + np.log(np.where(total > 0, total, 1.0)))
    final = u * (np.abs(m) + np.abs(np.where(dead, 0.0, lse)) + 2 * log_l + 4)
    lse_rigorous = final - np.log1p(-np.minimum(A0 + sum_l + rounded_l, 0.999))
    lse_rigorous = np.where(A0 + sum_l + rounded_l < 0.99, lse_rigorous, np.inf)
    # and lse moves by no more than the largest error of a score
    furthest = np.where(visible, s.error + e_x, 0.0).max(1, keepdims=True, initial=0.0) + (T + 1) * eps + T * u
    lse_rigorous = np.fmin(lse_rigorous, furthest + final - np.log1p(-np.minimum(sum_l + rounded_l, 0.999)))
    drift = 2 * u * (np.abs(sum_px) + np.abs(sum_pw)) + c.walk * eps + rounded_l + small_l
    lse_variance = W0 + sum_of_l + common_lse
    lse_sharp = np.fmin(LAMBDA * np.sqrt(lse_variance) + final + drift + lse_drift, lse_rigorous)
    lse_sharp = np.where(coarse, lse_rigorous, lse_sharp)
    lse_variance = np.where(coarse, lse_rigorous**2, lse_variance) + (final + drift) ** 2 / 3
    if precision.weights_from_lse:
        rigorous = rigorous + np.expm1(np.minimum(lse_rigorous, LARGEST)) * (B + rigorous)
        sharp = np.fmin(sharp + np.expm1(np.minimum(lse_sharp, LARGEST)) * size, rigorous)
        apart += lse_variance * o * o
    apart = np.where((B < SQUARES_VANISH) | coarse, np.inf, apart)
    zero = np.where(dead, 0.0, 1.0)
    return Forward(
        o, rigorous * zero, sharp * zero, variance_sum, coherent * zero,
        lse, lse_rigorous * zero, lse_sharp * zero, lse_variance * zero, lse_drift * zero, np.sqrt(apart),
    )  # fmt: skip


@dataclass
class _Rotated:
    """What the errors of rotated queries do, which are common to all keys of a row (`extras`)."""

    k: Array
    scale: float
    slack_q: Array

    def pairwise(self) -> Array:
        """The variance of each score, (rows, keys)."""
        return self.scale**2 / 3 * (self.slack_q**2) @ (self.k * self.k).T

    def variances(self, weight: Array, dropped: Any, v: Array, o: Array) -> tuple[Array, Array]:
        """Of out (rows, Dv) and of lse (rows, 1); weight = p slope."""
        of_out, of_lse = np.zeros(o.shape), np.zeros((len(o), 1))
        for d in np.flatnonzero(self.slack_q.any(0)):
            w = self.scale * weight * self.k[:, d]
            total = w.sum(1, keepdims=True)
            square = self.slack_q[:, d, None] ** 2 / 3
            of_out += square * (dropped(w) @ v - total * o) ** 2
            of_lse += square * total**2
        return of_out, of_lse


def _largest_prefix(p: Array, v: Array, o: Array, block: int = 64) -> Array:
    """Largest |partial sum| of p v along the keys, from either end, at the ends of blocks."""
    largest, running = np.abs(o), np.zeros_like(o)
    for j in range(0, p.shape[1] - block, block):
        running += p[:, j : j + block] @ v[j : j + block]
        largest = np.maximum(largest, np.maximum(np.abs(running), np.abs(o - running)))
    return largest
