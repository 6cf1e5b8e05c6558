"""Attention and its gradients on ball arithmetic: every output that a case wants, to some 200 bits.

Arrays of Arb balls (python-flint): dtype object, elements that contain the exact result for the given
inputs.  Written from the definition: no maximum is subtracted, since exp of a ball does not overflow.

    s = scale q·k, softcap tanh(s / softcap), score_mod, + bias      e = exp(s) where visible
    z = sum e + exp(sink)      p = e / z      out = (p r) v      lse = log z
    dt = p (r dout·v - delta + dlse), delta = out·dout      ds = dt slope
    dq = scale ds k    dk = scale dsᵀ q    dv = (p r)ᵀ dout    dbias = dt    dsinks = (exp(sink) / z) (dlse - delta)

with r = keep / (1 - dropout), and slope that of modifier and softcap.  What is not finite is taken for
0 here, and is told by the caller (`refattn.nonfinite`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..case import CACHES, MATRICES, Case
from ..inputs import Problem
from ..inputs.transforms import cached, query_positions
from ..score_mods import SCORE_MODS
from .dyadic import Refused

__all__ = ["BITS", "nearest", "scale_of", "solve"]

Array = np.ndarray[Any, Any]

BITS = 256


def solve(problem: Problem) -> dict[str, Array]:
    """Balls by the name of each output that the case wants."""
    with _precision():
        return _Solver(problem).outputs()


def nearest(exact: Array, t: Array, what: str) -> Array:
    """The float64 nearest to each exact result, 0 where that is less than 2**-60 of the tolerance t.

    Refused if a ball does not tell which one it is; for what is exactly 0, as gradients are where a row sees
    one key, there is a ball about 0.
    """
    value = np.empty(exact.size)
    with _precision():
        for n, (x, free) in enumerate(zip(exact.ravel(), (t * 2.0**-60).ravel().tolist(), strict=True)):
            value[n] = 0.0 if float(x.abs_upper()) < free else float(x)
            if value[n] and not float(x.lower()) == float(x.upper()):
                raise Refused(f"{what}: element {n} is not certain to 53 bits: {x}; take another seed")
    return value.reshape(exact.shape) + 0.0


@contextmanager
def _precision() -> Iterator[None]:
    try:
        from flint import ctx
    except ImportError:
        raise ModuleNotFoundError("vectors are written with ball arithmetic: pip install python-flint") from None
    before, ctx.prec = ctx.prec, BITS
    try:
        yield
    finally:
        ctx.prec = before


def scale_of(case: Case) -> float:
    """The scale as a float64: that of the case, or the nearest to D**-0.5 (of D = 0: 1)."""
    if case.scale is not None or case.D == 0:
        return 1.0 if case.scale is None else case.scale
    with _precision():
        return float(1 / balls(case.D).item().sqrt())


def balls(x: Any) -> Array:
    """The numbers of an array as exact balls; what is not finite as 0."""
    from flint import arb

    x = np.asarray(x, dtype=np.float64)
    made = np.empty(x.size, dtype=object)
    made[:] = [arb(y) for y in np.where(np.isfinite(x), x, 0.0).ravel().tolist()]
    return made.reshape(x.shape)


def _zeros(*shape: int) -> Array:
    return balls(np.zeros(shape))


def _product(a: Array, b: Array) -> Array:
    """The matrix product a b."""
    from flint import arb_mat

    if 0 in (*a.shape, *b.shape):
        return _zeros(a.shape[0], b.shape[1])
    made = arb_mat(a.tolist()) * arb_mat(b.tolist())
    return np.array(made.tolist(), dtype=object)


def _sum(x: Array, axis: int | tuple[int, ...], keep: bool = False) -> Array:
    return np.asarray(x.sum(axis, keepdims=keep, initial=balls(0.0).item()), dtype=object)


class _Solver:
    def __init__(self, problem: Problem) -> None:
        self.case = case = problem.case
        self.x = {name: a for name, a in problem.logical.items() if name not in "qkv"}
        self.stored = problem.stored
        self.q, self.k, self.v = _inputs(problem)
        self.group = case.H // case.Hkv if case.Hkv else 1
        self.seen = case.visibility.tile()
        if "bias" in self.x:
            self.bias = np.broadcast_to(self.x["bias"].astype(np.float64), self.seen.shape)
            self.seen = self.seen & ~np.isneginf(self.bias)
        self.scale = balls(scale_of(case)).item()
        shapes = {"dbias": (case.B, case.H, case.Lq, case.Lk)}  # until it is summed
        self.made = {name: _zeros(*shapes.get(name, case.shape_of(name))) for name in sorted(case.want)}

    def outputs(self) -> dict[str, Array]:
        case, made = self.case, self.made
        for b, h in np.ndindex(case.B, case.H):
            self._head(b, h)
        if "dbias" in made:
            stretched = tuple(axis for axis, n in enumerate(case.bias_shape) if n == 1)
            made["dbias"] = _sum(made["dbias"], stretched, keep=True) if stretched else made["dbias"]
        for name in case.want.intersection(CACHES):
            made[name] = {"k": self.k, "v": self.v}[name[0]]
        if case.rotary is not None and case.Lk:
            cos, sin, at = balls(self.stored["cos"]), balls(self.stored["sin"]), query_positions(case)
            for name, c, s in (("dq", cos[at], sin[at]), ("dk", cos, sin)):
                if name in made:
                    made[name] = _turned(made[name], c, -s, case.rotary.interleaved)
        return made

    def _head(self, b: int, h: int) -> None:
        case, made, g = self.case, self.made, h // self.group
        q, k, v, seen = self.q[b, h], self.k[b, g], self.v[b, g], self.seen[b, h]
        place = b, h, np.arange(case.Lq)[:, None], np.arange(case.Lk)
        dot = _product(q, k.T)
        raw = self.scale * dot
        bend: Any = 1
        if case.softcap is None:
            capped = raw
        else:
            cap = balls(case.softcap).item()
            tanh = np.tanh(raw / cap)
            capped, bend = cap * tanh, 1 - tanh * tanh
        mod = None if case.score_mod is None else SCORE_MODS[case.score_mod]
        slope = 1 if mod is None else mod.slope(capped, *place)
        capped = capped if mod is None else mod(capped, *place)
        if mod is not None and mod.hides is not None:
            seen = seen & ~mod.hides(*place)
        biased = capped + balls(self.bias[b, h]) if "bias" in self.x else capped
        e = _zeros(case.Lq, case.Lk)
        e[seen] = np.exp(biased[seen])
        sink = self._sink(h)
        z = _sum(e, 1, keep=True) + sink
        empty = np.array([not seen[i].any() and sink == 0 for i in range(case.Lq)], dtype=bool)
        whole = np.where(empty[:, None], 1 + 0 * z, z)
        p = e / whole
        r: Any = 1
        if case.dropout is not None:
            kept = 1 / (1 - balls(case.dropout).item()) if case.dropout < 1 else 0
            r = balls(self.x["keep"][b, h]) * kept
        if "lse" in made:
            lse = np.log(whole[:, 0])
            lse[empty] = _minus_inf()
            made["lse"][b, h] = lse
        if "out" in made:
            made["out"][b, h] = _product(p * r, v)
        matrices = {"scores": raw, "capped": capped, "biased": np.where(seen, biased, _minus_inf()), "weights": p}
        for name in case.want.intersection(MATRICES):
            made[name][b, h] = matrices[name]
        if not case.backward:
            return
        dout = balls(self.x["dout"][b, h])
        dlse = balls(self.x["dlse"][b, h])[:, None] if "dlse" in self.x else _zeros(case.Lq, 1)
        dp = _product(dout, v.T) * r
        delta = _sum(p * dp, 1, keep=True)
        dt = p * (dp - delta + dlse)
        ds = dt * slope * bend
        if "dq" in made:
            made["dq"][b, h] = self.scale * _product(ds, k)
        if "dk" in made:
            made["dk"][b, g] += self.scale * _product(ds.T, q)
        if "dv" in made:
            made["dv"][b, g] += _product((p * r).T, dout)
        if "dbias" in made:
            made["dbias"][b, h] = dt
        if "dsinks" in made:
            made["dsinks"][h] += _sum(sink / whole * (dlse - delta), (0, 1)).item() if sink != 0 else 0
        if "dscale" in made:
            made["dscale"][()] += _sum(ds * dot, (0, 1)).item()
        if "dsoftcap" in made:
            made["dsoftcap"][()] += _sum(dt * slope * (tanh - raw / cap * bend), (0, 1)).item()

    def _sink(self, h: int) -> Any:
        if "sinks" not in self.x or np.isneginf(float(self.x["sinks"][h])):
            return balls(0.0).item()
        return balls(float(self.x["sinks"][h])).item().exp()


def _minus_inf() -> Any:
    from flint import arb

    return arb.neg_inf()


def _inputs(problem: Problem) -> tuple[Array, Array, Array]:
    """q, k, v, rotated here where the case rotates them."""
    case, stored = problem.case, problem.stored
    q, k, v = (balls(problem.logical[name]) for name in "qkv")
    if case.rotary is not None and case.Lk:
        cos, sin, at = balls(stored["cos"]), balls(stored["sin"]), query_positions(case)
        q = _turned(balls(stored["q"]), cos[at], sin[at], case.rotary.interleaved)
        k = np.where(cached(case), k, _turned(balls(stored["k"]), cos, sin, case.rotary.interleaved))
    return q, k, v


def _turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x (..., L, D) with its pairs turned by the angles of cos and sin (..., L, dim / 2)."""
    half = cos.shape[-1]
    first = slice(0, 2 * half, 2) if interleaved else slice(half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    a, b, y = x[..., first], x[..., second], x.copy()
    y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
    return y
