"""Attention and its gradients on ball arithmetic: plain loops, one element at a time.

A third derivation, which shares nothing with `refattn.oracle`: written from the definition, with
neither a matrix product nor a maximum subtracted, in Arb balls (python-flint) that contain the
exact result for the given float64 inputs.  A pair that is not visible is not visited, so nothing
it holds can matter.

Beside each ball stands the sum of the absolute values that were added up to make it: an element
that comes out of a cancellation is judged by what was cancelled.  With a_ij the absolute value of
dp_ij - delta_i + dlse_i, every term taken absolutely,

    out  sum_j p|v|          lse     1 + |lse| + sum_j p|t|, |t| with its terms taken absolutely
    dv   sum_i p|dout|       dbias   sum p a           dsinks  sum share a
    dq   |scale| sum_j p a slope |k|         dk  |scale| sum_i p a slope |q|
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from flint import arb, ctx

Array = np.ndarray[Any, Any]

U = 2.0**-53
NORMAL = 2.0**-1022  # below it p and slope are off by u * NORMAL absolutely
TINY = 2.0**-1069  # 32 of the smallest subnormals, for the last sum


@dataclass
class Certified:
    """Balls, and sums of absolute values, by the name of the output; `logit` = largest |terms| of a score."""

    balls: dict[str, Array]
    sizes: dict[str, Array]
    logit: float

    def units(self, name: str, got: Array) -> float:
        """The largest error of `got`, in units of u times the sum of absolute values; NaN counts as infinite."""
        balls, sizes = self.balls[name], self.sizes[name]
        if got.shape != balls.shape:
            raise ValueError(f"{name}.shape={got.shape} must be {balls.shape}")
        worst = 0.0
        for index in np.ndindex(balls.shape):
            x, ball = float(got[index]), balls[index]
            if ball is None:  # lse of a row that sees nothing
                error = 0.0 if x == -math.inf else math.inf
            elif not math.isfinite(x):
                error = math.inf
            else:
                over = (arb(x) - ball).abs_upper() - TINY
                error = 0.0 if over <= 0 else math.inf if sizes[index] == 0 else float(over / sizes[index]) / U
            worst = max(worst, error)
        return worst


def certify(
    q: Array, k: Array, v: Array, *,
    visible: Array | None = None, bias: Array | None = None, scale: float | None = None,
    softcap: float | None = None, sinks: Array | None = None,
    dout: Array | None = None, dlse: Array | None = None, bits: int = 128,
) -> Certified:  # fmt: skip
    """Balls for out and lse, and given `dout` for dq, dk, dv, dbias and dsinks.

    Precision: `bits`, and as many more as the largest logit takes, so that exp() of it has `bits`.
    """
    before = ctx.prec
    try:
        ctx.prec = bits + 1100  # the longest logit that float64 arguments can make
        logit = _largest_logit(q, k, visible, bias, scale, sinks)
        ctx.prec = bits + max(0, math.frexp(logit)[1])
        return _certify(q, k, v, visible, bias, scale, softcap, sinks, dout, dlse, logit)
    finally:
        ctx.prec = before


def _at(x: Array, *index: int) -> tuple[int, ...]:
    """The index into x of what it holds for `index` when it is broadcast: aligned right, 1 stretches."""
    return tuple(0 if n == 1 else at for n, at in zip(x.shape, index[len(index) - x.ndim :], strict=True))


def _keys(visible: Array | None, bias: Array | None, b: int, h: int, i: int, Lk: int) -> list[int]:
    def seen(j: int) -> bool:
        hidden = visible is not None and not visible[_at(visible, b, h, i, j)]
        return not hidden and not (bias is not None and bias[_at(bias, b, h, i, j)] == -math.inf)

    return [j for j in range(Lk) if seen(j)]


def _factor(scale: float | None, D: int) -> Any:
    if scale is not None:
        return arb(scale)
    return 1 / arb(D).sqrt() if D else arb(1)


def _largest_logit(
    q: Array, k: Array, visible: Array | None, bias: Array | None, scale: float | None, sinks: Array | None
) -> float:
    """max over visible pairs of |scale| sum_d |q k| + |bias|, and |sink|."""
    largest = 0.0
    for b, h, i in np.ndindex(q.shape[:3]):
        for j in _keys(visible, bias, b, h, i, k.shape[2]):
            terms = arb(0)
            for d in range(q.shape[3]):
                terms += abs(arb(float(q[b, h, i, d])) * arb(float(k[b, h // (q.shape[1] // k.shape[1]), j, d])))
            terms *= abs(_factor(scale, q.shape[3]))
            if bias is not None:
                terms += abs(arb(float(bias[_at(bias, b, h, i, j)])))
            largest = max(largest, float(terms.abs_upper()))
    for sink in [] if sinks is None else sinks:
        largest = max(largest, abs(float(sink)) if math.isfinite(sink) else 0.0)
    return largest


def _zeros(shape: tuple[int, ...]) -> Array:
    x = np.empty(shape, dtype=object)
    for index in np.ndindex(shape):
        x[index] = arb(0)
    return x


def _balls(x: Array) -> Array:
    """The float64 values as exact balls."""
    y = _zeros(x.shape)
    for index in np.ndindex(x.shape):
        y[index] = arb(float(x[index]))
    return y


def _certify(
    q: Array, k: Array, v: Array, visible: Array | None, bias: Array | None, scale: float | None,
    softcap: float | None, sinks: Array | None, dout: Array | None, dlse: Array | None, logit: float,
) -> Certified:  # fmt: skip
    (B, H, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    Q, K, V = _balls(q), _balls(k), _balls(v)
    factor = _factor(scale, D)
    shapes: dict[str, tuple[int, ...]] = {"out": (B, H, Lq, Dv), "lse": (B, H, Lq)}
    if dout is not None:
        shapes |= {"dq": q.shape, "dk": k.shape, "dv": v.shape}
        if bias is not None:
            shapes["dbias"] = bias.shape
        if sinks is not None:
            shapes["dsinks"] = sinks.shape
    total = {name: _zeros(shape) for name, shape in shapes.items()}
    size = {name: _zeros(shape) for name, shape in shapes.items()}

    def add(name: str, index: tuple[int, ...], *factors: Any) -> None:
        """Adds a product to an element, and its absolute value to the element's size.

        A factor that is itself a sum comes as a pair (sum, sum of absolute values).
        """
        value, absolute = arb(1), arb(1)
        for x in factors:
            one, other = x if isinstance(x, tuple) else (x, abs(x))
            value, absolute = value * one, absolute * other
        total[name][index] += value
        size[name][index] += absolute

    for b, h, i in np.ndindex(B, H, Lq):
        hk = h // (H // Hkv)
        keys = _keys(visible, bias, b, h, i, Lk)
        sink = None if sinks is None or sinks[h] == -math.inf else arb(float(sinks[h]))

        # scores t, the absolute values of their terms, and the slope dt/ds of the softcap
        t, terms, slope = {}, {}, {}
        for j in keys:
            s, a = arb(0), arb(0)
            for d in range(D):
                s += Q[b, h, i, d] * K[b, hk, j, d]
                a += abs(Q[b, h, i, d] * K[b, hk, j, d])
            s, a = factor * s, abs(factor) * a
            if softcap is None:
                t[j], slope[j] = s, arb(1)
            else:
                t[j] = arb(softcap) * (s / softcap).tanh()
                slope[j] = (2 / ((s / softcap).exp() + (-s / softcap).exp())) ** 2
            if bias is not None:
                t[j] += arb(float(bias[_at(bias, b, h, i, j)]))
                a += abs(arb(float(bias[_at(bias, b, h, i, j)])))
            terms[j] = a

        # softmax
        e = {j: t[j].exp() for j in keys}
        z = sum(e.values(), arb(0) if sink is None else sink.exp())
        if not keys and sink is None:
            total["lse"][b, h, i] = None
            continue
        p = {j: e[j] / z for j in keys}
        share = arb(0) if sink is None else sink.exp() / z
        lse = z.log()
        total["lse"][b, h, i] = lse
        size["lse"][b, h, i] = 1 + abs(lse) + sum((p[j] * terms[j] for j in keys), arb(0))
        if sink is not None:
            size["lse"][b, h, i] += share * abs(sink)
        for j in keys:
            for d in range(Dv):
                add("out", (b, h, i, d), (p[j], p[j] + NORMAL), V[b, hk, j, d])
        if dout is None:
            continue

        # backward: sum(out * dout) + sum(lse * dlse)
        dl = arb(0) if dlse is None else arb(float(dlse[b, h, i]))
        delta, delta_abs = arb(0), arb(0)
        for d in range(Dv) if keys else ():
            g = arb(float(dout[b, h, i, d]))
            delta += g * total["out"][b, h, i, d]
            delta_abs += abs(g) * size["out"][b, h, i, d]
        for j in keys:
            weight, bend = (p[j], p[j] + NORMAL), (slope[j], slope[j] + NORMAL)
            dp, dp_abs = arb(0), arb(0)
            for d in range(Dv):
                g = arb(float(dout[b, h, i, d]))
                dp += g * V[b, hk, j, d]
                dp_abs += abs(g * V[b, hk, j, d])
                add("dv", (b, hk, j, d), weight, g)
            inner = (dp - delta + dl, dp_abs + delta_abs + abs(dl))
            for d in range(D):
                add("dq", (b, h, i, d), factor, weight, inner, bend, K[b, hk, j, d])
                add("dk", (b, hk, j, d), factor, weight, inner, bend, Q[b, h, i, d])
            if bias is not None:
                add("dbias", _at(bias, b, h, i, j), weight, inner)
        if sinks is not None:
            add("dsinks", (h,), (share, share + NORMAL), (dl - delta, delta_abs + abs(dl)))
    return Certified(total, size, logit)
