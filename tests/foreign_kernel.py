"""A tiled attention kernel in NumPy, written by somebody who has not seen the catalogue of bugs.

Each line that `tests.foreign_bugs` gets wrong is a method of its own here.  float64 inputs are computed in
float64, the others in float32, with weights rounded to the 16-bit dtype before they meet the values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from refattn.case import Cache, Case, Packed, Paged
from refattn.dtypes import FORMATS
from refattn.implementation import Function, implementation
from refattn.score_mods import SCORE_MODS

Array = np.ndarray[Any, Any]
OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "dscale", "dsoftcap")


def multiply(w: Array, x: Array, seen: Array) -> Array:
    """w @ x, in which an infinity or NaN of x counts only where it is seen."""
    good = np.isfinite(x)
    if good.all():
        return w @ x
    y = w @ np.where(good, x, 0)
    for n in np.flatnonzero(~good.all((0, 1, 3))):
        bad = seen[..., :, n, None] & ~good[..., n, None, :]
        y = y + np.where(bad, w[..., :, n, None] * x[..., n, None, :], 0)
    return y


def turn(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    half = cos.shape[-1]
    first, second = np.arange(half), np.arange(half) + half
    if interleaved:
        first, second = 2 * np.arange(half), 2 * np.arange(half) + 1
    y = x.copy()
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


class Kernel:
    """The honest one."""

    tile = 32
    rows = 64

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            x = self.load(case, given)
            self.forward(x)
            found = {"out": self.finish(x), "lse": self.lse(x)}
            if case.backward:
                found |= self.backward(x)
            return {n: self.store(x, n, y) for n, y in found.items() if n in case.want}

    # what is read, and how

    def believe(self, case: Case) -> Case:
        return case

    def scale(self, case: Case) -> float:
        return max(case.D, 1) ** -0.5 if case.scale is None else case.scale

    def heads(self, case: Case) -> Array:
        return np.arange(case.H) // max(1, case.H // max(1, case.Hkv))

    def v_heads(self, case: Case) -> Array:
        return self.heads(case)

    def dense(self, x: SimpleNamespace, name: str, y: Array) -> Array:
        case, given = x.case, x.given
        if isinstance(case.storage, Packed) and name in ("q", "k", "v", "dout", "dlse"):
            of, lens = ("k", case.lengths[1]) if name in ("k", "v") else ("q", case.lengths[0])
            y = y.swapaxes(0, 1) if name != "dlse" else y
            wide = np.zeros((case.B, y.shape[0], max((case.Lq, case.Lk)[of == "k"], *lens), *y.shape[2:]), y.dtype)
            for b, n in enumerate(lens):
                start = self.starts(x, of)[b]
                part = y[:, start : start + n]
                wide[b, :, : part.shape[1]] = part
            return wide[:, :, : (case.Lq, case.Lk)[of == "k"]]
        if isinstance(case.storage, Paged) and name in ("k", "v"):
            wide = np.zeros((case.B, y.shape[2], case.Lk, y.shape[3]), y.dtype)
            for b, n in enumerate(given["seqused_k"]):
                token = np.arange(n)
                wide[b, :, :n] = y[self.page(x, b, token, y.shape[1]), token % y.shape[1]].swapaxes(0, 1)
            return wide
        return y

    def starts(self, x: SimpleNamespace, of: str) -> Array:
        return x.given["cu_seqlens_" + of]

    def page(self, x: SimpleNamespace, b: int, token: Array, size: int) -> Array:
        return x.given["block_table"][b, token // size]

    def code_scale(self, x: SimpleNamespace, name: str) -> Array:
        return x.given[name + "_scale"].astype(x.acc)

    def decode(self, x: SimpleNamespace, name: str, codes: Array) -> Array:
        kind, scale = x.case.quant.kind, self.code_scale(x, name)
        if kind == "q4_0":
            blocks = codes.reshape(*codes.shape[:3], -1, 16).astype(np.int64)
            codes = (np.concatenate([blocks % 16, blocks // 16], -1) - 8).reshape(*codes.shape[:3], -1)
        if kind in ("q8_0", "q4_0"):
            scale = np.repeat(scale, 32, axis=3)
        elif scale.shape[2] > 1:
            scale = np.repeat(scale, 64, axis=2)[:, :, : codes.shape[2]]
        return codes.astype(x.acc) * scale

    def load(self, case: Case, given: Mapping[str, Any]) -> SimpleNamespace:
        acc = np.float64 if case.dtype == "float64" else np.float32
        x = SimpleNamespace(case=self.believe(case), given=given, acc=acc, lengths=case.lengths)
        x.out_dtype = FORMATS[case.out_dtype].numpy
        narrow = case.out_dtype if FORMATS[case.dtype].bits <= 4 else case.dtype
        x.weights = acc if FORMATS[narrow].bits > 11 else FORMATS[narrow].numpy
        for name in ("q", "k", "v", "dout", "dlse", "bias", "sinks", "keep"):
            y = given.get(name)
            if y is not None and case.quant is not None and f"{name}_scale" in given:
                y = self.decode(x, name, self.dense(x, name, y))
            elif y is not None:
                y = self.dense(x, name, y)
            setattr(x, name, y if y is None or name == "keep" else np.asarray(y, acc))
        if case.rotary is not None:
            x.cos, x.sin = given["cos"].astype(acc), given["sin"].astype(acc)
            x.at = self.positions(case)
            x.q = turn(x.q, x.cos[x.at][:, None], x.sin[x.at][:, None], self.interleaved(case))
            x.k = turn(x.k, x.cos, x.sin, self.interleaved(case))
        x.k, x.v = x.k[:, self.heads(case)], x.v[:, self.v_heads(case)]
        x.factor = acc(self.scale(case))
        return x

    def positions(self, case: Case) -> Array:
        last = np.array([lk - lq for lq, lk in zip(*case.lengths, strict=True)]).reshape(-1, 1)
        return np.minimum(np.arange(case.Lq) + last, case.Lk - 1)

    def interleaved(self, case: Case) -> bool:
        return bool(case.rotary is not None and case.rotary.interleaved)

    # one tile

    def tiles(self, x: SimpleNamespace) -> Iterator[slice]:
        for start in range(0, x.case.Lk, self.tile):
            yield slice(start, min(start + self.tile, x.case.Lk))

    def seen(self, x: SimpleNamespace, keys: slice) -> Array:
        return x.case.visibility.tile(keys=keys)

    def bias(self, x: SimpleNamespace, keys: slice) -> Array:
        return x.bias if x.bias.shape[3] == 1 else x.bias[..., keys]

    def cap(self, x: SimpleNamespace, s: Array) -> Array:
        return x.case.softcap * np.tanh(s / x.case.softcap)

    def scaled(self, x: SimpleNamespace, products: Array) -> Array:
        return products * x.factor

    def modify(self, x: SimpleNamespace, s: Array, keys: slice) -> tuple[Array, Array]:
        """Scores before and after score_mod."""
        before = s if x.case.softcap is None else self.cap(x, s)
        if x.case.score_mod is None:
            return before, before
        b, h, i, j = np.ogrid[tuple(slice(n) for n in s.shape)]
        return before, SCORE_MODS[x.case.score_mod](before, b, h, i, j + keys.start).astype(x.acc)

    def add_bias(self, x: SimpleNamespace, s: Array, keys: slice) -> Array:
        return s + self.bias(x, keys)

    def scores(self, x: SimpleNamespace, keys: slice) -> SimpleNamespace:
        y = SimpleNamespace(keys=keys, seen=self.seen(x, keys))
        y.products = x.q @ x.k[:, :, keys].swapaxes(-1, -2)
        y.s = self.scaled(x, y.products)
        y.before, y.c = self.modify(x, y.s, keys)
        t = y.c if x.bias is None else self.add_bias(x, y.c, keys)
        hides = np.zeros((), bool) if x.case.score_mod is None else np.isneginf(y.c) & np.isfinite(y.before)
        if x.bias is not None:
            hides = hides | np.isneginf(self.bias(x, keys))
        y.seen = y.seen & ~hides
        y.t = np.where(y.seen, t, -np.inf)
        return y

    # online softmax

    def safe(self, m: Array) -> Array:
        return np.where(np.isneginf(m), 0, m).astype(m.dtype)

    def keep_max(self, m: Array) -> Array:
        return m

    def rescale(self, total: Array, acc: Array, shrink: Array) -> tuple[Array, Array]:
        return total * shrink, acc * shrink

    def dropped(self, x: SimpleNamespace, p: Array, keys: slice) -> Array:
        return p if x.keep is None else np.where(x.keep[..., keys], p, 0)

    def factor_kept(self, x: SimpleNamespace) -> float:
        p = x.case.dropout
        return 1.0 if p is None else 0.0 if p == 1 else 1 / (1 - p)

    def row_sum(self, x: SimpleNamespace, p: Array, keys: slice) -> Array:
        return p.sum(-1, keepdims=True)

    def accumulated(self, x: SimpleNamespace, acc: Array) -> Array:
        return acc

    def sink(self, x: SimpleNamespace) -> Array:
        return x.sinks[:, None, None]

    def forward(self, x: SimpleNamespace) -> None:
        rows = x.q.shape[:3]
        x.m = np.full((*rows, 1), -np.inf, x.acc)
        x.l, x.o = np.zeros((*rows, 1), x.acc), np.zeros((*rows, x.v.shape[3]), x.acc)
        x.some = np.zeros((*rows, 1), bool)
        for keys in self.tiles(x):
            y = self.scores(x, keys)
            x.now = m = np.maximum(x.m, y.t.max(-1, keepdims=True))
            p = np.where(y.seen, np.exp(y.t - self.safe(m)), 0)
            x.l, x.o = self.rescale(x.l, x.o, np.exp(x.m - self.safe(m)))
            x.l = x.l + self.row_sum(x, p, keys)
            w = self.dropped(x, p, keys).astype(x.weights).astype(x.acc)
            x.o = self.accumulated(x, x.o + multiply(w, x.v[:, :, keys], y.seen))
            x.m, x.some = self.keep_max(m), x.some | y.seen.any(-1, keepdims=True)
        if x.sinks is not None:
            self.join_sink(x)

    def join_sink(self, x: SimpleNamespace) -> None:
        m = np.maximum(x.m, self.sink(x))
        x.l, x.o = self.rescale(x.l, x.o, np.exp(x.m - self.safe(m)))
        x.l, x.m = x.l + np.exp(self.sink(x) - self.safe(m)), m

    def empty(self, x: SimpleNamespace, out: Array) -> Array:
        return np.where(x.l == 0, 0, out)

    def finish(self, x: SimpleNamespace) -> Array:
        x.full = self.empty(x, x.o / x.l * x.acc(self.factor_kept(x)))
        return x.full

    def lse(self, x: SimpleNamespace) -> Array:
        return (self.safe(x.m) + np.log(x.l))[..., 0]

    # backward

    def delta(self, x: SimpleNamespace) -> Array:
        return (x.full * np.where(x.some, x.dout, 0)).sum(-1, keepdims=True)

    def incoming(self, x: SimpleNamespace) -> Array:
        return (0 if x.dlse is None else x.dlse[..., None]) - self.delta(x)

    def dp(self, x: SimpleNamespace, dp: Array, keys: slice) -> Array:
        return self.dropped(x, dp, keys) * x.acc(self.factor_kept(x))

    def bend(self, x: SimpleNamespace, s: Array) -> Array:
        return np.cosh(s / x.case.softcap) ** -2

    def group(self, x: SimpleNamespace, y: Array, heads: Array) -> Array:
        summed = np.zeros((y.shape[0], x.case.Hkv, *y.shape[2:]), y.dtype)
        for h, of in enumerate(heads):
            summed[:, of] += y[:, h]
        return summed

    def q_factor(self, x: SimpleNamespace) -> Any:
        return x.factor

    def k_factor(self, x: SimpleNamespace) -> Any:
        return x.factor

    def reduce_bias(self, x: SimpleNamespace, dt: Array) -> Array:
        axes = tuple(a for a, n in enumerate(x.bias.shape) if n == 1)
        return dt.sum(axes, keepdims=True)

    def dsinks(self, x: SimpleNamespace, incoming: Array) -> Array:
        share = np.exp(self.sink(x) - self.safe(x.m)) / x.l
        return np.where(x.l == 0, 0, share * incoming).sum((0, 2, 3))

    def slope(self, x: SimpleNamespace, y: SimpleNamespace) -> Array:
        b, h, i, j = np.ogrid[tuple(slice(n) for n in y.s.shape)]
        return SCORE_MODS[x.case.score_mod].slope(y.before, b, h, i, j + y.keys.start)

    def backward(self, x: SimpleNamespace) -> dict[str, Array]:
        dq, dk, dv = np.zeros_like(x.q), np.zeros_like(x.k), np.zeros_like(x.v)
        incoming, keep = self.incoming(x), x.acc(self.factor_kept(x))
        dbias = np.zeros((*x.q.shape[:3], x.case.Lk), x.acc)
        dscale, dsoftcap = x.acc(0), x.acc(0)
        for keys in self.tiles(x):
            y = self.scores(x, keys)
            p = np.where(y.seen, np.exp(y.t - self.safe(x.m)) / x.l, 0)
            dp = self.dp(x, x.dout @ x.v[:, :, keys].swapaxes(-1, -2), keys)
            dt = np.where(y.seen, p * (dp + incoming), 0)
            w = self.dropped(x, p, keys).astype(x.weights).astype(x.acc)
            dv[:, :, keys] = multiply(w.swapaxes(-1, -2), x.dout, y.seen.swapaxes(-1, -2)) * keep
            dc = dt if x.case.score_mod is None else np.where(y.seen, dt * self.slope(x, y), 0).astype(x.acc)
            ds = dc
            if x.case.softcap is not None:
                bend, z = self.bend(x, y.s), y.s / x.case.softcap
                ds = np.where(y.seen, dc * bend, 0)
                dsoftcap += np.where(y.seen, dc * (np.tanh(z) - np.where(bend == 0, 0, z * bend)), 0).sum()
            dscale += np.where(y.seen, ds * y.products, 0).sum()
            ds = ds.astype(x.weights).astype(x.acc)
            dq += multiply(ds, x.k[:, :, keys], y.seen)
            dk[:, :, keys] = multiply(ds.swapaxes(-1, -2), x.q, y.seen.swapaxes(-1, -2))
            dbias[..., keys] = dt
        dq, dk = dq * self.q_factor(x), dk * self.k_factor(x)
        dk, dv = self.group(x, dk, self.heads(x.case)), self.group(x, dv, self.v_heads(x.case))
        if x.case.rotary is not None:
            dq = turn(dq, x.cos[x.at][:, None], -x.sin[x.at][:, None], self.interleaved(x.case))
            dk = turn(dk, x.cos, -x.sin, self.interleaved(x.case))
        found = {"dq": dq, "dk": dk, "dv": dv, "dscale": dscale, "dsoftcap": dsoftcap}
        if x.bias is not None:
            found["dbias"] = self.reduce_bias(x, dbias)
        if x.sinks is not None:
            found["dsinks"] = self.dsinks(x, incoming)
        return found

    # what is written

    def store(self, x: SimpleNamespace, name: str, y: Array) -> Array:
        wide = x.acc if name in ("lse", "dscale", "dsoftcap") else x.out_dtype
        if name in ("dq", "dk", "dv", "dbias", "dsinks"):
            wide = x.given[name[1:]].dtype
        y = np.asarray(y).astype(wide)
        if not isinstance(x.case.storage, Packed) or name not in ("out", "lse", "dq", "dk", "dv"):
            return y
        of, lens = ("k", x.lengths[1]) if name in ("dk", "dv") else ("q", x.lengths[0])
        tokens = x.given[of].shape[0]
        packed = np.zeros((y.shape[1], tokens, *y.shape[3:]), y.dtype)
        for b, n in enumerate(lens):
            start = x.given["cu_seqlens_" + of][b]
            packed[:, start : start + n] = y[b, :, :n]
        return packed if name == "lse" else packed.swapaxes(0, 1)


def supports(case: Case) -> str | None:
    if isinstance(case.storage, Cache):
        return "cache"
    return "packed rotary" if case.rotary is not None and isinstance(case.storage, Packed | Paged) else None


def made(kernel: Kernel, name: str) -> Function:
    def attention(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return kernel(case, given)

    return implementation(name, outputs=OUTPUTS, supports=supports)(attention)
