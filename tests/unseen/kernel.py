"""A flash attention kernel in NumPy, written as one writes it for a GPU: a program for each (batch entry, key head).

The query heads of a group are packed into the rows of one tile ("pack GQA"): row r is head r // lq, query r % lq.
Forward: tiles of BLOCK_M rows by BLOCK_N keys, online softmax; when there is but one tile of rows the keys are split,
and the partial (m, l, acc) are merged.  Backward: from lse, keys outside, rows inside, dq by accumulation.
Each step is a method, so that a variant of the kernel overrides one.
"""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn.case import Cache
from refattn.implementation import implementation
from refattn.memory import answer_shape
from refattn.precision import preset
from refattn.score_mods import SCORE_MODS

from .loads import INF, Loads, np_dtype

LEAVES = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")


class Kernel(Loads):
    SPLITS = 3

    # ---- arithmetic
    def scores(self, b, h, i, q, k, j):
        """(scores with -inf where hidden, visible, their derivative by the scaled product, the raw product)."""
        raw = self.product(q, k)
        s, slope = raw * self.scale, self.acc(1)
        if self.case.softcap is not None:
            s, slope = self.softcap(s)
        if self.case.score_mod is not None:
            mod, at = SCORE_MODS[self.case.score_mod], (b, h[:, None], i[:, None], j[None, :])
            slope = slope * mod.slope(s, *at).astype(self.acc)
            s = mod(s, *at).astype(self.acc)
        seen = self.visible(b, h, i, j)
        if "bias" in self.given:
            bias = self.load_bias(b, h, i, j)
            s, seen = s + bias, seen & (bias != -INF)
        return np.where(seen, s, -INF).astype(self.acc), seen, slope, raw

    def product(self, q, k):
        return q @ k.T

    def softcap(self, s):
        cap = self.acc(self.case.softcap)
        t = np.tanh(s / cap)
        return cap * t, 1 - t * t

    def round(self, x):
        return x if self.w is None else x.astype(self.w).astype(self.acc)

    def dot(self, p, x, seen):
        """p @ x, where x that is not finite counts only where it is seen: 0 * NaN is not let through."""
        finite = np.isfinite(x)
        if finite.all():
            return p @ x
        y = p @ np.where(finite, x, self.acc(0))
        y[seen.astype(self.acc) @ (~finite).astype(self.acc) > 0] = np.nan
        return y

    def update(self, state, s, seen, v, keep):
        m, l, o = state
        new = np.maximum(m, s.max(1))
        ref = np.where(new == -INF, self.acc(0), new)
        p, alpha = np.exp(s - ref[:, None]), np.exp(m - ref)
        l = l * alpha + p.sum(1)
        p = self.round(p)
        if keep is not None:
            p = p * keep
        return new, l, o * alpha[:, None] + self.dot(p, v, seen)

    def attend(self, b, g, h, i, q, lo, hi):
        state = self.initial(i.size)
        for j0 in self.key_blocks(lo, hi):
            j = self.key_tile(j0, hi)
            k, v = self.load_kv(b, g, j)
            s, seen, _, _ = self.scores(b, h, i, q, k, j)
            keep = self.load_keep(b, h, i, j) if "keep" in self.given else None
            state = self.update(state, s, seen, v, keep)
        return state

    def initial(self, n):
        return np.full(n, -INF, self.acc), np.zeros(n, self.acc), np.zeros((n, self.case.Dv), self.acc)

    def key_blocks(self, lo, hi):
        return range(lo, hi, self.BN)

    def key_tile(self, j0, hi):
        return np.arange(j0, min(j0 + self.BN, hi))

    def split(self, lo, hi, n_tiles):
        """The ranges of keys, in whole tiles, that run in parallel."""
        blocks = -(-(hi - lo) // self.BN)
        if n_tiles > 1 or blocks < 2:
            return [(lo, hi)]
        step = -(-blocks // self.SPLITS) * self.BN
        return [(start, min(start + step, hi)) for start in range(lo, hi, step)]

    def merge(self, parts):
        m = np.max([p[0] for p in parts], 0)
        ref = np.where(m == -INF, self.acc(0), m)
        w = [np.exp(p[0] - ref) for p in parts]
        acc = sum(x[:, None] * p[2] for x, p in zip(w, parts, strict=True))
        return m, sum(x * p[1] for x, p in zip(w, parts, strict=True)), acc

    def add_sink(self, state, h):
        m, l, o = state
        sink = self.load_sink(h)
        new = np.maximum(m, sink)
        ref = np.where(new == -INF, self.acc(0), new)
        alpha = np.exp(m - ref)
        return new, l * alpha + np.exp(sink - ref), o * alpha[:, None]

    def finish(self, state):
        m, l, o = state
        safe = np.where(l == 0, self.acc(1), l)
        return o / safe[:, None] * self.rp, np.where(l == 0, -INF, m + np.log(safe)).astype(self.acc)

    # ---- programs
    def rows(self, b, g):
        """Tiles of rows of one group: (query heads, queries)."""
        lq = self.q_len(b)
        for r0 in range(0, self.G * lq, self.BM):
            r = np.arange(r0, min(r0 + self.BM, self.G * lq))
            yield g * self.G + r // lq, r % lq

    def forward(self, b, g):
        tiles = list(self.rows(b, g))
        for h, i in tiles:
            q = self.load_q(b, h, i)
            lo, hi = self.key_range(b, i)
            parts = [self.attend(b, g, h, i, q, *part) for part in self.split(lo, hi, len(tiles))]
            state = self.merge(parts) if len(parts) > 1 else parts[0] if parts else self.initial(i.size)
            if "sinks" in self.given:
                state = self.add_sink(state, h)
            out, lse = self.finish(state)
            self.out[self.q_at(b, h, i)] = out.astype(self.out.dtype)
            self.lse[self.lse_at(b, h, i)] = lse
            if self.case.backward:
                self.delta[self.lse_at(b, h, i)] = self.row_delta(b, h, i, out)

    def row_delta(self, b, h, i, out):
        dout = self.given["dout"][self.q_at(b, h, i)].astype(self.acc)
        return np.where(out != 0, dout * out, self.acc(0)).sum(1)

    def d_lse(self, b, h, i):
        return self.given["dlse"][self.lse_at(b, h, i)].astype(self.acc) if "dlse" in self.given else self.acc(0)

    def backward(self, b, g):
        for j0 in range(0, self.k_end(b), self.BN):
            j = self.key_tile(j0, self.k_end(b))
            k, v = self.load_kv(b, g, j)
            dk, dv = np.zeros_like(k), np.zeros_like(v)
            for h, i in self.rows(b, g):
                lo, hi = self.key_range(b, i)
                if not lo <= j0 < hi:
                    continue
                a, c = self.backward_tile(b, h, i, j, k, v)
                dk, dv = dk + a, dv + c
            if self.case.rotary is not None:
                dk = self.rotate(dk, j, -1)
            self.store_dkv(b, g, j, dk, dv)
        if "sinks" in self.given:
            for h, i in self.rows(b, g):
                self.sink_grad(b, h, i)

    def store_dkv(self, b, g, j, dk, dv):
        self.dk[self.dkv_at(b, g, j)], self.dv[self.dkv_at(b, g, j)] = dk, dv

    def backward_tile(self, b, h, i, j, k, v):
        q, dout = self.load_q(b, h, i), self.given["dout"][self.q_at(b, h, i)].astype(self.acc)
        lse, delta = self.lse[self.lse_at(b, h, i)], self.delta[self.lse_at(b, h, i)]
        s, seen, slope, raw = self.scores(b, h, i, q, k, j)
        p = self.recompute(s, lse, seen)
        drop = self.load_keep(b, h, i, j) if "keep" in self.given else self.acc(1)
        dv = self.to_keys(h, self.round(p * drop), dout, seen) * self.rp
        dp = self.d_weights(dout @ v.T, drop)
        ds = np.where(seen, p * (dp - (delta - self.d_lse(b, h, i))[:, None]), self.acc(0))
        if "bias" in self.given:
            self.bias_grad(b, h, i, j, ds)
        ds = np.where(seen, ds * slope, self.acc(0))
        self.dscale += np.where(seen, ds * raw, self.acc(0)).sum()
        ds = self.round(ds)
        self.dq[self.q_at(b, h, i)] += self.dot(ds, k, seen) * self.scale
        return self.to_keys(h, ds, q, seen) * self.scale, dv

    def to_keys(self, h, weights, x, seen):
        """The sum over the tile's rows, of all heads of the group."""
        return self.dot(weights.T, x, seen.T)

    def recompute(self, s, lse, seen):
        return np.where(seen, np.exp(s - np.where(lse == -INF, INF, lse)[:, None]), self.acc(0))

    def d_weights(self, dp, drop):
        return dp * drop * self.rp

    def bias_grad(self, b, h, i, j, ds):
        np.add.at(self.dbias, tuple(np.broadcast_arrays(*self.bias_at(b, h, i, j))), ds)

    def sink_grad(self, b, h, i):
        lse, delta = self.lse[self.lse_at(b, h, i)], self.delta[self.lse_at(b, h, i)]
        p = np.exp(self.load_sink(h) - np.where(lse == -INF, INF, lse))
        np.add.at(self.dsinks, h, np.where(p > 0, p * (self.d_lse(b, h, i) - delta), self.acc(0)))

    def alloc(self, name, dtype):
        return np.zeros(answer_shape(self.case, name, self.case.shape_of(name)), dtype)

    def run(self):
        c, groups = self.case, [(b, g) for b in range(self.case.B) for g in range(self.case.Hkv)]
        self.out, self.lse = self.alloc("out", np_dtype(c.out_dtype)), self.alloc("lse", self.acc)
        self.delta = np.zeros_like(self.lse)
        if isinstance(c.storage, Cache):
            self.append()
        for b, g in groups:
            self.forward(b, g)
        answer = {"out": self.out, "lse": self.lse}
        answer |= {n: self.given[n] for n in ("k_cache", "v_cache") if n in c.want}
        if not c.backward:
            return answer
        self.dq, self.dk, self.dv = (self.alloc(n, self.acc) for n in ("dq", "dk", "dv"))
        self.dsinks, self.dscale = np.zeros(c.H, self.acc), self.acc(0)
        self.dbias = np.zeros(c.bias_shape, self.acc) if "bias" in self.given else None
        for b, g in groups:
            self.backward(b, g)
        if c.rotary is not None:
            self.unrotate_dq()
        answer |= {n: getattr(self, n).astype(self.given[n[1:]].dtype) for n in ("dq", "dk", "dv")}
        if self.dbias is not None:
            answer["dbias"] = self.dbias.astype(self.given["bias"].dtype)
        if "sinks" in self.given:
            answer["dsinks"] = self.dsinks.astype(self.given["sinks"].dtype)
        answer["dscale"] = np.asarray(self.dscale, self.acc)
        return {n: x for n, x in answer.items() if n in c.want}

    def unrotate_dq(self):
        for b in range(self.case.B):
            for g in range(self.case.Hkv):
                for h, i in self.rows(b, g):
                    at = self.q_at(b, h, i)
                    self.dq[at] = self.rotate(self.dq[at], self.q_position(b, i), -1)


def supports(case):
    if case.quant is not None and case.quant.kind in ("q8_0", "q4_0"):
        return f"quant={case.quant.kind}: no code for blocks along D"
    missing = case.want & {"scores", "capped", "biased", "weights", "dsoftcap"}
    if missing and not case.want & set(LEAVES):
        return f"{' '.join(sorted(missing))}: never leaves the chip"
    return None


def precision(case):
    p = preset(case.dtype, case.out_dtype)
    return replace(p, weights_from_lse=True, source="the backward has exp(s - lse)") if case.backward else p


def build(kernel=Kernel, name="f3"):
    @implementation(name, outputs=LEAVES, supports=supports, precision=precision)
    def attention(case, given):
        with np.errstate(all="ignore"):
            return kernel(case, given).run()

    return attention


attention = build()
