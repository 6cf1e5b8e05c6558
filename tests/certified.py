"""Attention and its gradients on ball arithmetic: plain loops, one element at a time.

A third derivation, which shares nothing with `refattn.oracle` or `refattn.streaming`: written from
the definition, with neither a matrix product nor a maximum subtracted, in Arb balls (python-flint)
that contain the exact result for the given float64 inputs.  A pair that is not visible is not
visited, so nothing it holds can matter.

Beside each ball stands the sum of the absolute values that were added up to make it: an element
that comes out of a cancellation is judged by what was cancelled.  With r = keep / (1 - dropout), a_ij
the absolute value of r dp_ij - delta_i + dlse_i, and g_ij = p a times the slope of the modifier, every
term taken absolutely,

    out  sum_j p r|v|        lse     1 + |lse| + sum_j p|t|, |t| with its terms taken absolutely
    dv   sum_i p r|dout|     dbias   sum p a           dsinks  sum share a
    dq   |scale| sum_j g bend |k|          dk  |scale| sum_i g bend |q|
    dscale  sum g bend |q||k|        dsoftcap  sum g (|tanh z| + |z| bend)
    scores, capped, biased  their terms (`certified_scores`)       weights  p
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from certified_scores import Scores, at, ball
from flint import arb, ctx

Array = np.ndarray[Any, Any]

U = 2.0**-53
NORMAL = 2.0**-1022  # below it p and slope are off by u * NORMAL absolutely
TINY = 2.0**-1069  # 32 of the smallest subnormals, for the last sum
MATRICES = ("scores", "capped", "biased", "weights")
UNDEFINED = object()
"""the score of a hidden pair that holds NaN or infinity"""


@dataclass
class Certified:
    """Balls, and sums of absolute values, by the name of the output; `logit` = largest |terms| of a score."""

    balls: dict[str, Array]
    sizes: dict[str, Array]
    logit: float
    softcap: float | None

    def limit(self, name: str) -> float:
        """How many units a float64 evaluation of small sizes may be off.

        Scores carry 16 units of their own.  What is made from weights inherits their error, some times
        the largest logit; what has the slope of a softcap in it inherits s / softcap as well.
        """
        if name in ("scores", "capped", "biased"):
            return 16
        bend = 1 + 2 / self.softcap if self.softcap and name in ("dq", "dk", "dscale", "dsoftcap") else 1
        return 16 + (5 if name == "weights" else 3) * bend * self.logit

    def units(self, name: str, got: Array) -> float:
        """The largest error of `got`, in units of u times the sum of absolute values; NaN counts as infinite.

        Where a visible input is NaN, so is the ball, and no finite answer is right.
        """
        balls, sizes = self.balls[name], self.sizes[name]
        if got.shape != balls.shape:
            raise ValueError(f"{name}.shape={got.shape} must be {balls.shape}")
        worst = 0.0
        for index in np.ndindex(balls.shape):
            x, exact = float(got[index]), balls[index]
            if exact is UNDEFINED:
                continue
            if exact is None:  # lse of a row that sees nothing, the biased score of a hidden pair
                error = 0.0 if x == -math.inf else math.inf
            elif not (math.isfinite(x) and exact.is_finite()):
                error = 0.0 if math.isfinite(x) == exact.is_finite() else math.inf
            else:
                over = (arb(x) - exact).abs_upper() - TINY
                error = 0.0 if over <= 0 else math.inf if sizes[index] == 0 else float(over / sizes[index]) / U
            worst = max(worst, error)
        return worst


def certify(
    q: Array, k: Array, v: Array, *,
    visible: Array | None = None, bias: Array | None = None, scale: float | None = None,
    softcap: float | None = None, sinks: Array | None = None, score_mod: str | None = None,
    dropout: float | None = None, keep: Array | None = None,
    dout: Array | None = None, dlse: Array | None = None, matrices: bool = False, bits: int = 128,
) -> Certified:  # fmt: skip
    """Balls for out and lse, given `dout` for all gradients, and on request for the scores and weights.

    Precision: `bits`, and as many more as the largest logit takes, so that exp() of it has `bits`.
    """
    before = ctx.prec
    try:
        ctx.prec = bits + 1100  # the longest logit that float64 arguments can make
        scores = Scores(q, k, visible, bias, scale, softcap, score_mod)
        logit = max(scores.largest(), *(abs(float(x)) if math.isfinite(x) else 0.0 for x in (0, *_or(sinks))))
        ctx.prec = bits + max(0, math.frexp(logit)[1])
        made = _Sums(scores, v, sinks, dropout, keep, dout, dlse, matrices)
        for b, h, i in np.ndindex(q.shape[:3]):
            made.row(b, h, i)
        return Certified(made.total, made.size, logit, softcap)
    finally:
        ctx.prec = before


def _or(x: Array | None) -> Any:
    return () if x is None else x


def _zeros(shape: tuple[int, ...]) -> Array:
    x = np.empty(shape, dtype=object)
    for index in np.ndindex(shape):
        x[index] = arb(0)
    return x


class _Sums:
    """What has been added up so far, row by row."""

    def __init__(
        self, scores: Scores, v: Array, sinks: Array | None, dropout: float | None, keep: Array | None,
        dout: Array | None, dlse: Array | None, matrices: bool,
    ) -> None:  # fmt: skip
        self.scores, self.v, self.sinks, self.keep, self.dout, self.dlse = scores, v, sinks, keep, dout, dlse
        self.matrices, self.Dv = matrices, v.shape[3]
        self.made_up_for = arb(1) if dropout is None else arb(0) if dropout == 1 else 1 / (1 - arb(dropout))
        rows = scores.shape[:3]
        shapes: dict[str, tuple[int, ...]] = {"out": (*rows, self.Dv), "lse": rows}
        if dout is not None:
            shapes |= {"dq": scores.q.shape, "dk": scores.k.shape, "dv": v.shape, "dscale": ()}
            shapes |= {} if scores.bias is None else {"dbias": scores.bias.shape}
            shapes |= {} if sinks is None else {"dsinks": sinks.shape}
            shapes |= {} if scores.softcap is None else {"dsoftcap": ()}
        if matrices:
            shapes |= dict.fromkeys(MATRICES, scores.shape)
        self.total = {name: _zeros(shape) for name, shape in shapes.items()}
        self.size = {name: _zeros(shape) for name, shape in shapes.items()}

    def add(self, name: str, index: tuple[int, ...], *factors: Any) -> None:
        """Adds a product to an element, and its absolute value to the element's size.

        A factor that is itself a sum comes as a pair (sum, sum of absolute values).
        """
        value, absolute = arb(1), arb(1)
        for x in factors:
            one, other = x if isinstance(x, tuple) else (x, abs(x))
            value, absolute = value * one, absolute * other
        self.total[name][index] += value
        self.size[name][index] += absolute

    def row(self, b: int, h: int, i: int) -> None:
        scores, hk = self.scores, h // self.scores.group
        keys = scores.keys(b, h, i)
        sink = None if self.sinks is None or self.sinks[h] == -math.inf else ball(self.sinks[h])
        pairs = {j: scores.pair(b, h, i, j) for j in keys}
        e = {j: pairs[j].biased[0].exp() for j in keys}
        z = sum(e.values(), arb(0) if sink is None else sink.exp())
        p = {j: e[j] / z for j in keys}
        if self.matrices:
            self._show(b, h, i, pairs, p)
        if not keys and sink is None:
            self.total["lse"][b, h, i] = None
            return
        share = (arb(0) if sink is None else sink.exp()) / z  # NaN if the row is
        lse = z.log()
        self.total["lse"][b, h, i] = lse
        self.size["lse"][b, h, i] = 1 + abs(lse) + sum((p[j] * pairs[j].biased[1] for j in keys), arb(0))
        if sink is not None:
            self.size["lse"][b, h, i] += share * abs(sink)
        weight = {j: (p[j], p[j] + NORMAL) for j in keys}
        kept = {j: self._kept(b, h, i, j) for j in keys}
        for j in keys:
            for d in range(self.Dv):
                self.add("out", (b, h, i, d), weight[j], kept[j], ball(self.v[b, hk, j, d]))
        if self.dout is None:
            return

        # backward: sum(out * dout) + sum(lse * dlse)
        dl = arb(0) if self.dlse is None else ball(self.dlse[b, h, i])
        dout = [ball(x) for x in self.dout[b, h, i]] if keys else []
        delta, delta_abs = arb(0), arb(0)
        for d, g in enumerate(dout):
            delta += g * self.total["out"][b, h, i, d]
            delta_abs += abs(g) * self.size["out"][b, h, i, d]
        for j in keys:
            dp, dp_abs = arb(0), arb(0)
            for d, g in enumerate(dout):
                term = g * ball(self.v[b, hk, j, d]) * kept[j]
                dp, dp_abs = dp + term, dp_abs + abs(term)
                self.add("dv", (b, hk, j, d), weight[j], kept[j], g)
            inner = (dp - delta + dl, dp_abs + delta_abs + abs(dl))
            if scores.bias is not None:
                self.add("dbias", at(scores.bias, b, h, i, j), weight[j], inner)
            one = pairs[j]
            bend = (one.bend[0], one.bend[1] + NORMAL)
            for d in range(scores.q.shape[3]):
                reaches = (scores.factor, weight[j], inner, one.slope, bend)
                self.add("dq", (b, h, i, d), *reaches, ball(scores.k[b, hk, j, d]))
                self.add("dk", (b, hk, j, d), *reaches, ball(scores.q[b, h, i, d]))
            self.add("dscale", (), weight[j], inner, one.slope, bend, one.dot)
            if scores.softcap is not None:
                self.add("dsoftcap", (), weight[j], inner, one.slope, one.by_softcap)
        if self.sinks is not None:
            self.add("dsinks", (h,), (share, share + NORMAL), (dl - delta, delta_abs + abs(dl)))

    def _kept(self, b: int, h: int, i: int, j: int) -> Any:
        return self.made_up_for if self.keep is None or self.keep[at(self.keep, b, h, i, j)] else arb(0)

    def _show(self, b: int, h: int, i: int, pairs: dict[int, Any], p: dict[int, Any]) -> None:
        """The row in each of the matrices."""
        for j in range(self.scores.shape[3]):
            index = b, h, i, j
            self.total["biased"][index] = None
            if j in pairs or self.scores.defined(b, h, i, j):
                one = pairs[j] if j in pairs else self.scores.pair(b, h, i, j)
                self.total["scores"][index], self.size["scores"][index] = one.raw
                self.total["capped"][index], self.size["capped"][index] = one.capped
            else:
                self.total["scores"][index] = self.total["capped"][index] = UNDEFINED
            if j in pairs:
                self.total["biased"][index], self.size["biased"][index] = pairs[j].biased
                self.total["weights"][index], self.size["weights"][index] = p[j], p[j] + NORMAL
