"""Attention as an inference engine does it: prefill tile by tile, decode split over the keys, and a backward."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn.dtypes import FORMATS
from refattn.implementation import implementation
from refattn.precision import preset
from refattn.storage import Cache

from .store import Store

OUTPUTS = ("out", "lse", "k_cache", "v_cache", "dq", "dk", "dv", "dbias", "dsinks")


class Engine(Store):
    block_m, block_n = 16, 32
    decode_rows = 8  # up to so many queries are decoded
    splits, split_least = 4, 8

    def __init__(self, case, given):
        super().__init__(case, given)
        self.low = None  # what the weights are rounded to before they meet v
        if self.io.itemsize < 4:
            self.low = self.io if self.io.itemsize == 2 else FORMATS[case.out_dtype].dtype

    def run(self):
        case, want = self.case, self.case.want
        answer = {name: self.empty(name) for name in ("out", "lse", "dq", "dk", "dv") if name in want}
        if isinstance(case.storage, Cache):
            answer |= {name: self.given[name] for name in ("k_cache", "v_cache") if name in want}
        self.dbias = np.zeros(case.bias_shape, self.acc) if "dbias" in want else None
        self.dsinks = np.zeros(case.H, self.acc)
        with np.errstate(all="ignore"):
            for b in range(case.B):
                self.sequence(b, answer)
        if "dbias" in want:
            answer["dbias"] = self.dbias.astype(self.given["bias"].dtype)
        if "dsinks" in want:
            answer["dsinks"] = self.dsinks.astype(self.given["sinks"].dtype)
        return answer

    def sequence(self, b, answer):
        lq, lk = int(self.q_lens[b]), int(self.k_lens[b])
        if lq == 0 and not self.case.backward:
            return
        self.path = "decode" if lq <= self.decode_rows else "prefill"
        q = self.queries(b)
        out, lse = (self.decode if self.path == "decode" else self.prefill)(b, q, lq, lk)
        out = self.finish_out(out, b)
        if "out" in answer:
            self.put(answer["out"], "out", b, self.stored(self.ungrouped(out)), lq)
        if "lse" in answer:
            self.put(answer["lse"], "lse", b, self.ungrouped(self.returned_lse(lse)), lq)
        if self.case.backward:
            self.path = "backward"
            grads = dict(zip(("dq", "dk", "dv"), self.backward(b, q, out, lse, lq, lk), strict=True))
            for name in answer.keys() & grads.keys():
                self.put(answer[name], name, b, grads[name].astype(self.io), lq if name == "dq" else lk)

    def ungrouped(self, x):
        return x.reshape(self.case.H, *x.shape[2:])

    def finish_out(self, out, b):
        return out * self.descale("v", b)[:, None] * self.kept()

    def kept(self):
        """What the weights that dropout keeps are multiplied by."""
        p = self.case.dropout
        return 1.0 if p is None else 0.0 if p == 1 else 1.0 / (1.0 - p)

    def stored(self, out):
        return out.astype(FORMATS[self.case.out_dtype].dtype)

    def returned_lse(self, lse):
        return lse

    # -- scores

    def scores(self, b, q, i0, i1, j0, j1):
        """s (Hkv, G, rows, n), -inf where hidden; which are seen; the keys."""
        k = self.kv("k", b, j0, j1)
        seen = self.visible(b, i0, i1, j0, j1)
        s = self.scaled(self.qk(q[:, :, i0:i1], k), b)
        s = self.capped(s) if self.case.softcap else s
        return self.masked(self.biased(s, b, i0, i1, j0, j1), seen), seen, k

    def qk(self, q, k):
        return q @ self.each_head(k).swapaxes(-1, -2)

    def each_head(self, x):
        """Keys or values for each query head of the group, (Hkv, 1 or G, n, D)."""
        return x[:, None]

    def scaled(self, s, b):
        return s * (self.acc.type(self.scale) * self.descale("k", b)[:, None])

    def capped(self, s):
        return self.case.softcap * np.tanh(s / self.case.softcap)

    def cap_slope(self, s_capped):
        return 1 - (s_capped / self.case.softcap) ** 2

    def biased(self, s, b, i0, i1, j0, j1):
        return s if self.case.bias is None else s + self.bias_tile(b, i0, i1, j0, j1)

    def masked(self, s, seen):
        return np.where(seen, s, -np.inf)

    def visible(self, b, i0, i1, j0, j1):
        seen = self.seen(b, i0, i1, j0, j1)
        return seen if self.case.bias is None else seen & (self.bias_tile(b, i0, i1, j0, j1) != -np.inf)

    def bias_tile(self, b, i0, i1, j0, j1):
        x = self.given["bias"][self.bias_index(b, i0, i1, j0, j1)].astype(self.acc)
        return self.grouped(x) if len(x) == self.case.H else x[:, None]

    def bias_index(self, b, i0, i1, j0, j1):
        B, _, Q, K = self.case.bias_shape
        dims = self.case.bias.dims
        every = slice(None)
        rows, keys = (slice(i0, i1) if "Q" in dims else every), (slice(j0, j1) if "K" in dims else every)
        return (b if B > 1 else 0, every, rows, keys)

    def keep_tile(self, b, i0, i1, j0, j1):
        return self.grouped(self.given["keep"][b, :, i0:i1, j0:j1])

    # -- the online softmax

    def walk(self, b, q, i0, i1, lo, hi):
        """(m, l, o) of rows i0 to i1 over the keys [lo, hi), tile by tile."""
        shape = (*q.shape[:2], i1 - i0)
        m, l = np.full(shape, -np.inf, self.acc), np.zeros(shape, self.acc)
        o = np.zeros((*shape, self.case.Dv), self.acc)
        for j0, j1 in self.tiles(lo, hi):
            s, seen, _ = self.scores(b, q, i0, i1, j0, j1)
            m, l, o = self.update(m, l, o, s, seen, b, i0, i1, j0, j1)
        return m, l, o

    def tiles(self, lo, hi):
        """Tiles begin at multiples of block_n."""
        start = lo - lo % self.block_n
        return [(max(lo, j), min(hi, j + self.block_n)) for j in range(start, hi, self.block_n)]

    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        new = np.maximum(m, s.max(-1, initial=-np.inf))
        alpha, p = self.rescale(m, new), self.weights(s, new)
        l = l * alpha + p.sum(-1)
        if self.case.dropout is not None:
            p = np.where(self.keep_tile(b, i0, i1, j0, j1), p, 0)
        return new, l, o * alpha[..., None] + self.pv(p, self.kv("v", b, j0, j1), seen)

    def rescale(self, m, new):
        return np.exp(m - np.where(new == -np.inf, 0, new))

    def weights(self, s, m):
        return np.exp(s - np.where(m == -np.inf, 0, m)[..., None])

    def rounded(self, p):
        return p if self.low is None else p.astype(self.low).astype(self.acc)

    def pv(self, p, v, seen):
        return product(self.rounded(p), self.each_head(v), seen)

    def finish(self, m, l, o):
        return np.where(l[..., None] == 0, 0, o / l[..., None]), m + np.log(l)

    # -- the two paths

    def sink(self):
        return self.grouped(self.given["sinks"].astype(self.acc))[..., None]

    def prefill(self, b, q, lq, lk):
        parts = []
        for i0 in range(0, lq, self.block_m):
            i1 = min(lq, i0 + self.block_m)
            m, l, o = self.walk(b, q, i0, i1, *self.key_range(self.case.mask, b, i0, i1))
            if self.case.sinks is not None:
                m, l, o = self.join_sink(m, l, o)
            parts.append(self.finish(m, l, o))
        out, lse = (np.concatenate(x, 2) for x in zip(*parts, strict=True))
        return out, lse

    def join_sink(self, m, l, o):
        new = np.maximum(m, self.sink())
        alpha = Engine.rescale(self, m, new)
        return new, l * alpha + Engine.rescale(self, self.sink(), new), o * alpha[..., None]

    def decode(self, b, q, lq, lk):
        lo, hi = self.key_range(self.case.mask, b, 0, lq) if lq else (0, 0)
        parts = [self.partial(b, q, lq, j0, j1) for j0, j1 in self.split(lo, hi)]
        if self.case.sinks is not None:
            sink = np.broadcast_to(self.sink(), (*q.shape[:2], lq))
            parts.append((np.zeros((*sink.shape, self.case.Dv), self.acc), sink))
        if not parts:
            parts.append(self.partial(b, q, lq, 0, 0))
        return self.merge(np.stack([o for o, _ in parts]), np.stack([lse for _, lse in parts]))

    def split(self, lo, hi):
        size = max(self.split_least, -(-(hi - lo) // self.splits))
        return [(j, min(hi, j + size)) for j in range(lo, hi, size)]

    def partial(self, b, q, lq, j0, j1):
        return self.finish(*self.walk(b, q, 0, lq, j0, j1))

    def merge(self, outs, lses):
        """Partial results (splits, Hkv, G, rows, ...) as one."""
        top = lses.max(0)
        w = np.exp(lses - np.where(top == -np.inf, 0, top))
        total = w.sum(0)
        w = np.where(total == 0, 0, w / total)
        return (w[..., None] * np.where(w[..., None] == 0, 0, outs)).sum(0), top + np.log(total)

    # -- backward

    def backward(self, b, q, out, lse, lq, lk):
        dout, kept = self.grouped(self.rows("dout", b)), self.kept()
        delta = self.delta(dout, out, b, lq)
        dq = np.zeros_like(q)
        dk, dv = (np.zeros((self.case.Hkv, lk, n), self.acc) for n in (self.case.D, self.case.Dv))
        for j0 in range(0, lk, self.block_n):
            j1 = min(lk, j0 + self.block_n)
            v = self.kv("v", b, j0, j1)
            for i0 in range(0, lq, self.block_m):
                i1 = min(lq, i0 + self.block_m)
                if not self.meets(b, i0, i1, j0, j1):
                    continue
                s, seen, k = self.scores(b, q, i0, i1, j0, j1)
                p = self.recomputed(s, lse[:, :, i0:i1], seen)
                do = dout[:, :, i0:i1]
                dp = np.where(seen, do @ self.each_head(v).swapaxes(-1, -2), 0)
                dropped = p
                if self.case.dropout is not None:
                    keep = self.keep_tile(b, i0, i1, j0, j1)
                    dropped, dp = np.where(keep, p * kept, 0), self.dropped_dp(dp, keep, kept)
                back = seen.swapaxes(-1, -2)
                dv[:, j0:j1] += self.of_group(product(self.rounded(dropped).swapaxes(-1, -2), do, back))
                ds = np.where(seen, p * (dp - delta[:, :, i0:i1, None]), 0)
                if self.dbias is not None:
                    self.add_dbias(ds, b, i0, i1, j0, j1)
                if self.case.softcap:
                    bare = self.capped(self.scaled(self.qk(q[:, :, i0:i1], k), b))
                    ds = np.where(seen, ds * self.cap_slope(bare), 0)
                ds = self.rounded(ds)
                dq[:, :, i0:i1] += product(ds, self.each_head(k), seen) * self.scale
                dk[:, j0:j1] += self.of_group(product(ds.swapaxes(-1, -2), q[:, :, i0:i1], back)) * self.scale
        if "dsinks" in self.case.want:
            self.add_dsinks(lse, delta)
        return self.unrotated(self.ungrouped(dq), self.query_positions(b)), self.unrotated(dk, np.arange(lk)), dv

    def delta(self, dout, out, b, lq):
        """What every ds of a row is lowered by: dout . out, less the gradient of lse."""
        delta = np.where(out == 0, 0, dout * out).sum(-1)
        if "dlse" in self.given:
            delta = delta - self.dlse(b, lq)
        return delta

    def dlse(self, b, lq):
        x = self.given["dlse"]
        if "cu_seqlens_q" in self.given:
            start = int(self.given["cu_seqlens_q"][b])
            return self.grouped(x[:, start : start + lq].astype(self.acc))
        return self.grouped(x[b, :, :lq].astype(self.acc))

    def meets(self, b, i0, i1, j0, j1):
        lo, hi = self.key_range(self.case.mask, b, i0, i1)
        return j0 < hi and j1 > lo

    def recomputed(self, s, lse, seen):
        return np.where(seen, np.exp(s - lse[..., None]), 0)

    def dropped_dp(self, dp, keep, kept):
        return np.where(keep, dp * kept, 0)

    def of_group(self, x):
        return x.sum(1)

    def add_dbias(self, ds, b, i0, i1, j0, j1):
        ds = self.ungrouped(ds)
        axes = tuple(n for n, letter in enumerate("HQK") if letter not in self.case.bias.dims)
        self.dbias[self.bias_index(b, i0, i1, j0, j1)] += ds.sum(axes, keepdims=True)

    def add_dsinks(self, lse, delta):
        p = np.where(lse == -np.inf, 0, np.exp(self.sink() - lse))
        self.dsinks -= np.where(p == 0, 0, p * delta).sum(-1).reshape(-1)

    def unrotated(self, x, pos):
        return self.rope(x, pos, -1)


def product(a, b, seen):
    """a @ b, where what is not seen takes no part, be it NaN."""
    if np.isfinite(b).all():
        return a @ b
    return np.where(seen[..., None], a[..., None] * b[..., None, :, :], 0).sum(-2)


def supports(case):
    if case.score_mod is not None:
        return "score_mod: there are no callables in a fused kernel"
    if not case.want <= set(OUTPUTS):
        return f"{', '.join(sorted(case.want - set(OUTPUTS)))}: not returned by this kernel"
    return None


def precision(case):
    contract = preset(case.dtype, case.out_dtype)
    if case.backward:
        return replace(contract, weights_from_lse=True, source="the backward recomputes its weights from lse")
    return contract


def make(engine, name):
    """An implementation of a class of engines."""

    @implementation(name, outputs=OUTPUTS, supports=supports, precision=precision)
    def attention(case, given):
        return engine(case, given).run()

    return attention


attention = make(Engine, "f5")
