"""Attention as a framework's CPU back end has it: a graph of small operators over one sequence at a time.

Keys and values lie in a cache of tokens that a slot mapping finds (dense, packed, paged, appended, ring); V is kept
transposed.  Prefill goes in chunks of queries; decode splits the keys and merges the partial results.  The backward
is operator by operator.  Every operator is a method, so that a back end may override it.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace as Seq

import numpy as np

from refattn.case import MATRICES, NAMES, Cache, Packed
from refattn.implementation import implementation
from refattn.precision import preset
from refattn.score_mods import SCORE_MODS

from .sequence import INF, Sequences


def supports(case):
    if case.quant is not None and case.quant.of == "qkv":
        return "activations are not quantised, only the cache is"
    return None


def precision(case):
    p = preset(case.dtype, case.out_dtype)
    if p.weights is None:
        return p
    return replace(p, weights_normalised=True, source="softmax is an operator of its own, its result is cast")


class Backend(Sequences):
    chunk = 16  # queries of a prefill step
    decode_rows = 4  # up to so many queries the keys are split
    split = 32  # keys of a split

    # ---- the driver -------------------------------------------------------------------------------------------
    def __call__(self, case, given):
        with np.errstate(all="ignore"):
            ans = self.allocate(case, given)
            for b in range(case.B):
                x = self.load(case, given, b)
                self.forward(case, x, ans)
                if case.backward:
                    self.backward(case, x, ans)
                self.store(case, given, x, ans)
            return self.finish(case, given, ans)

    def allocate(self, case, given):
        f, out = self.compute_type(case), given_type(case.out_dtype)
        ans = Seq(f=f, mats={})
        if isinstance(case.storage, Packed):
            tq, tk = int(given["cu_seqlens_q"][-1]), int(given["cu_seqlens_k"][-1])
            shape = {"q": (tq, case.H), "k": (tk, case.Hkv), "lse": (case.H, tq)}
        else:
            shape = {"q": (case.B, case.H, case.Lq), "k": (case.B, case.Hkv, case.Lk), "lse": (case.B, case.H, case.Lq)}
        ans.out = np.zeros((*shape["q"], case.Dv), out)
        ans.lse = np.zeros(shape["lse"], f)
        for n in MATRICES:
            if n in case.want:
                ans.mats[n] = np.full((case.B, case.H, case.Lq, case.Lk), -INF if n == "biased" else 0, out)
        if case.backward:
            ans.dq = np.zeros((*shape["q"], case.D), given["q"].dtype)
            ans.dk = np.zeros((*shape["k"], case.D), given["k"].dtype)
            ans.dv = np.zeros((*shape["k"], case.Dv), given["v"].dtype)
            ans.dbias = np.zeros(case.bias_shape, f)
            ans.dsinks = np.zeros(case.H, f)
            ans.dscale, ans.dsoftcap = f.type(0), f.type(0)
        return ans

    def finish(self, case, given, ans):
        r = {"out": ans.out, "lse": ans.lse, **ans.mats}
        if isinstance(case.storage, Cache):
            r |= {"k_cache": given["k_cache"], "v_cache": given["v_cache"]}
        if case.backward:
            r |= {n: getattr(ans, n) for n in ("dq", "dk", "dv", "dsinks", "dscale", "dsoftcap")}
            r |= {"d" + n: r.get("d" + n, ans.dbias).astype(given[n].dtype) for n in ("bias", "sinks") if n in given}
        return {n: a for n, a in r.items() if n in case.want}

    # ---- forward ----------------------------------------------------------------------------------------------
    def forward(self, case, x, ans):
        x.out, x.lse = np.zeros((case.H, x.lq, case.Dv), x.f), np.zeros((case.H, x.lq), x.f)
        x.tape = []
        for i0 in range(0, x.lq, self.chunk):
            i = np.arange(i0, min(i0 + self.chunk, x.lq))
            j = self.columns(case, x, i)
            if x.lq <= self.decode_rows and len(j) > self.split and not self.needs_all(case):
                x.out[:, i], x.lse[:, i] = self.decode(case, x, i, j)
                continue
            n = self.scores(case, x, i, j)
            n.p, n.share, n.lse = self.softmax(n.t, x)
            n.p = self.hide(n.p, n.seen)
            n.w = self.cast_weights(case, x, self.dropout(case, x, n.p, i, j))
            x.out[:, i], x.lse[:, i] = self.weigh(x, n.w, n.seen, j), n.lse
            self.keep_matrices(ans, x, i, j, scores=n.s, capped=n.c, biased=n.t, weights=n.p)
            x.tape.append((i, j, n))

    def scores(self, case, x, i, j):
        n = Seq(seen=self.visible(case, x, i, j))
        n.raw = self.qk(x, i, j)
        n.s = n.raw * x.scale
        n.z = self.softcap(case, n.s)
        n.c = self.score_mod(case, x, n.z, i, j)
        n.t = self.add_mask(self.add_bias(x, n.c, i, j), n.seen)
        return n

    def group(self, x, t):
        return t.reshape(x.Hkv, x.G, *t.shape[1:])

    def qk(self, x, i, j):
        s = self.group(x, x.q[:, i]) @ x.k[:, j].swapaxes(1, 2)[:, None]
        if x.k_col is not None:
            s = s * self.columns_of(x.k_col, j)
        return s.reshape(x.H, len(i), len(j))

    def columns_of(self, s, j):
        return (s if s.shape[-1] == 1 else s[..., j])[:, None]

    def softcap(self, case, s):
        if case.softcap is None:
            return s
        cap = s.dtype.type(case.softcap)
        return cap * np.tanh(s / cap)

    def score_mod(self, case, x, s, i, j):
        if case.score_mod is None:
            return s
        h = np.arange(case.H).reshape(-1, 1, 1)
        return SCORE_MODS[case.score_mod].value(s, x.b, h, i[:, None], j).astype(s.dtype)

    def add_bias(self, x, t, i, j):
        return t if x.bias is None else t + self.part(x.bias, i, j)

    def add_mask(self, t, seen):
        return np.where(seen, t, -INF)

    def hide(self, p, seen):
        return np.where(seen, p, 0)

    def exp(self, t):
        return np.exp(t)

    def softmax(self, t, x):
        """Weights, that of the sink, lse; the sink is a column more, dropped afterwards."""
        if x.sinks is not None:
            t = np.concatenate([t, np.broadcast_to(x.sinks[:, None, None], (*t.shape[:2], 1))], -1)
        m = self.guard(t.max(-1, initial=-INF, keepdims=True))
        e = self.exp(t - m)
        total = e.sum(-1, keepdims=True)
        lse = (m + np.log(total))[..., 0]
        p = e / np.where(total == 0, 1, total)
        return (p, None, lse) if x.sinks is None else (p[..., :-1], p[..., -1], lse)

    def guard(self, m):
        return np.where(m == -INF, 0, m).astype(m.dtype)

    def dropout(self, case, x, p, i, j):
        if case.dropout is None:
            return p
        return p * (self.part(x.keep, i, j) * x.f.type(self.inverse_keep(case)))

    def inverse_keep(self, case):
        return 0.0 if case.dropout == 1 else 1 / (1 - case.dropout)

    def cast_weights(self, case, x, w):
        return w.astype(x.at).astype(x.f) if case.dtype in ("float16", "bfloat16") and case.quant is None else w

    def weigh(self, x, w, seen, j):
        if x.v_col is not None:
            w = (self.group(x, w) * self.columns_of(x.v_col, j)).reshape(w.shape)
        y = product(self.group(x, w), x.vt[:, :, j].swapaxes(1, 2)[:, None], self.group(x, seen))
        return y.reshape(x.H, *y.shape[2:])

    def keep_matrices(self, ans, x, i, j, **mats):
        for name, a in ans.mats.items():
            a[x.b][:, i[0] : i[-1] + 1, : x.lk] = mats[name]

    # ---- decode: splits of the keys, and their merge ----------------------------------------------------------
    def decode(self, case, x, i, j):
        parts = [self.partial(case, x, i, j[j0 : j0 + self.split]) for j0 in range(0, len(j), self.split)]
        if x.sinks is not None:
            m = np.broadcast_to(x.sinks[:, None, None], parts[0][0].shape)
            parts.append((m, np.ones_like(m), np.zeros_like(parts[0][2])))
        m, total, acc = self.merge(parts)
        return acc / np.where(total == 0, 1, total), (m + np.log(total))[..., 0]

    def partial(self, case, x, i, j):
        n = self.scores(case, x, i, j)
        m = n.t.max(-1, initial=-INF, keepdims=True)
        e = self.exp(n.t - self.guard(m))
        return m, e.sum(-1, keepdims=True), self.weigh(x, self.dropout(case, x, e, i, j), n.seen, j)

    def merge(self, parts):
        m = self.guard(np.max([p[0] for p in parts], axis=0))
        share = [np.exp(p[0] - m) for p in parts]
        return m, *(sum(s * p[n] for s, p in zip(share, parts, strict=True)) for n in (1, 2))

    # ---- backward, operator by operator -----------------------------------------------------------------------
    def backward(self, case, x, ans):
        x.dq, x.dk = np.zeros_like(x.q), np.zeros_like(x.k)
        x.dv = np.zeros((x.Hkv, x.lk, case.Dv), x.f)
        for i, j, n in x.tape:
            g, do = Seq(), x.dout[:, i]
            x.dv += self.group_sum(x, product(n.w.swapaxes(1, 2), do, n.seen.swapaxes(1, 2)))
            g.p = (self.group(x, do) @ x.vt[:, None]).reshape(n.p.shape)
            g.p = self.dropout_grad(case, x, g.p, i, j)
            g.t = self.softmax_grad(case, x, n, g.p, i, ans)
            self.bias_grad(case, x, g.t, i, j, ans)
            g.s = self.softcap_grad(case, n, self.score_mod_grad(case, x, n, g.t, i, j), ans)
            ans.dscale += np.where(n.seen, g.s * n.raw, 0).sum()
            g.s = self.cast_weights(case, x, g.s)
            y = product(self.group(x, g.s), x.k[:, None], self.group(x, n.seen))
            x.dq[:, i] = x.scale * y.reshape(x.H, *y.shape[2:])
            dk = product(g.s.swapaxes(1, 2), x.q[:, i], n.seen.swapaxes(1, 2))
            x.dk += x.scale * self.group_sum(x, dk)

    def group_sum(self, x, t):
        return self.group(x, t).sum(1)

    def dropout_grad(self, case, x, dp, i, j):
        return self.dropout(case, x, dp, i, j)

    def softmax_grad(self, case, x, n, dp, i, ans):
        delta = np.where(n.seen, n.p * dp, 0).sum(-1, keepdims=True)
        incoming = x.dlse[:, i, None] - delta
        if x.sinks is not None:
            ans.dsinks += self.sink_grad(n, incoming)
        return np.where(n.seen, n.p * (dp + incoming), 0)

    def sink_grad(self, n, incoming):
        return np.where(n.share == 0, 0, n.share * incoming[..., 0]).sum(-1)

    def bias_grad(self, case, x, dt, i, j, ans):
        if case.bias is None:
            return
        B, H, Q, K = case.bias_shape
        d = dt if H > 1 else dt.sum(0, keepdims=True)
        d = d if K > 1 else d.sum(2, keepdims=True)
        d = d if Q > 1 else d.sum(1, keepdims=True)
        ans.dbias[x.b if B > 1 else 0, :, i if Q > 1 else slice(None), : x.lk] += d.swapaxes(0, 1) if Q > 1 else d

    def score_mod_grad(self, case, x, n, dt, i, j):
        if case.score_mod is None:
            return dt
        h = np.arange(case.H).reshape(-1, 1, 1)
        slope = SCORE_MODS[case.score_mod].slope(n.z, x.b, h, i[:, None], j)
        return np.where(n.seen, dt * slope, 0).astype(dt.dtype)

    def softcap_grad(self, case, n, dc, ans):
        if case.softcap is None:
            return dc
        z = n.s / n.s.dtype.type(case.softcap)
        bend = np.cosh(z) ** -2
        ans.dsoftcap += np.where(n.seen, dc * (np.tanh(z) - np.where(bend == 0, 0, z * bend)), 0).sum()
        return np.where(n.seen, dc * bend, 0)

    # ---- results out ------------------------------------------------------------------------------------------
    def store(self, case, given, x, ans):
        if case.backward and case.rotary is not None:
            back = {"cos": given["cos"], "sin": -given["sin"]}
            x.dq = self.rope(case, back, x.dq, x.pos, x.f)
            x.dk = self.rope(case, back, x.dk, np.arange(x.lk), x.f)
        q, k = ("out", "dq"), ("dk", "dv")
        for name in q + k if case.backward else q[:1]:
            n, t, a = x.lq if name in q else x.lk, getattr(x, name), getattr(ans, name)
            if isinstance(case.storage, Packed):
                start = x.q0 if name in q else int(given["cu_seqlens_k"][x.b])
                a[start : start + n] = t.swapaxes(0, 1)
            else:
                a[x.b, :, :n] = t
        if isinstance(case.storage, Packed):
            ans.lse[:, x.q0 : x.q0 + x.lq] = x.lse
        else:
            ans.lse[x.b, :, : x.lq] = x.lse


def given_type(name):
    from refattn.dtypes import FORMATS

    return FORMATS[name].dtype


def product(a, x, seen):
    """a @ x, where what is not finite in x reaches only the rows that see it."""
    finite = np.isfinite(x)
    if finite.all():
        return a @ x
    y = a @ np.where(finite, x, 0)
    return np.where(seen.astype(y.dtype) @ (~finite).astype(y.dtype) > 0, y.dtype.type(np.nan), y)


def make(backend, name="graph"):
    """An implementation of a back end."""

    @implementation(name, outputs=NAMES, supports=supports, precision=precision)
    def attention(case, given):
        return backend(case, given)

    return attention


attention = make(Backend())
