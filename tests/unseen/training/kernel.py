"""A training attention in the manner of FlashAttention-2/3 and Triton's fused attention.

Forward: one program for each block of queries, keys from the right to the left with an online softmax in base 2;
blocks outside the mask are skipped, blocks inside it are not masked.  Backward: `preprocess` (delta), `dkdv` by
blocks of keys, `dq` by blocks of queries, `finish` sums the query heads of a group.  16-bit types go through
shared memory as 16 bits: the weights and dS are rounded before they are multiplied, out is read back rounded.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from refattn.case import Cache, Packed, Paged
from refattn.dtypes import FORMATS
from refattn.implementation import implementation
from refattn.precision import Conventions, preset
from refattn.score_mods import SCORE_MODS

from .blocks import INF, Band, Blocks

LOG2E = 1.4426950408889634
OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks")


def supports(case):
    """None, or why a fused training kernel does not do it."""
    if case.want.isdisjoint(OUTPUTS):
        return "the kernel returns " + " ".join(OUTPUTS)
    if not case.want.isdisjoint(("scores", "capped", "biased", "weights")):
        return "scores and weights are never in memory"
    if isinstance(case.storage, (Paged, Cache)):
        return "no cache of keys in training"
    if case.quant is not None or case.dtype.startswith("float8"):
        return "no 8-bit inputs in training"
    if case.rotary is not None:
        return "rotate q and k before the kernel"
    return None


class Kernel(Blocks):
    """The three kernels and the launcher; each step is a method."""

    # ---- memory ----
    def rows(self, x, r0, n, limit, dtype):
        """n rows of x (Hkv, G, L, D) from r0 on, zero from `limit` on."""
        out = np.zeros((*x.shape[:2], n, x.shape[3]), dtype)
        m = max(0, min(r0 + n, limit) - r0)
        out[:, :, :m] = x[:, :, r0 : r0 + m]
        return out

    def line(self, x, r0, n, limit, fill):
        """n numbers of each row of x (Hkv, G, L), `fill` from `limit` on."""
        out = np.full((*x.shape[:2], n), fill, x.dtype)
        m = max(0, min(r0 + n, limit) - r0)
        out[:, :, :m] = x[:, :, r0 : r0 + m]
        return out

    def low(self, p, w):
        """What goes through shared memory to the tensor cores."""
        return w if p.acc == p.low else w.astype(p.low).astype(p.acc)

    # ---- scores ----
    def scores(self, p, x, q, k, m0, n0):
        """s of a tile, -inf where hidden, and d s / d (q k)."""
        bm, bn = q.shape[2], k.shape[2]
        i, j = np.arange(m0, m0 + bm), np.arange(n0, n0 + bn)
        s = self.scaled(p, q @ k.swapaxes(-1, -2))
        slope = None
        if p.softcap is not None:
            s, slope = self.capped(p, s)
        if p.mod is not None:
            place = (x.b, p.heads[:, :, None, None], i[:, None], j[None, :])
            s, slope = p.mod.value(s, *place), p.mod.slope(s, *place) * (1 if slope is None else slope)
            if p.mod.hides is not None:
                s = np.where(p.mod.hides(*place), -INF, s)
        s = self.biased(p, x, s, i, j)
        if not self.inside(x, m0, min(m0 + bm, x.lq), n0, n0 + bn):
            s = np.where(self.visible(p, x, i, j), s, -INF)
        return s.astype(p.acc, copy=False), None if slope is None else slope.astype(p.acc, copy=False)

    def scaled(self, p, s):
        return s * p.acc(p.scale)

    def capped(self, p, s):
        t = np.tanh(s / p.acc(p.softcap))
        return p.acc(p.softcap) * t, 1 - t * t

    def biased(self, p, x, s, i, j):
        if p.slopes is not None:
            return s + self.alibi(p, x, i[:, None], j[None, :])
        if x.bias is not None:
            bias = self.tile(x.bias, i[0], i.size, j[0], j.size).astype(p.acc)
            s = np.where(bias == -INF, -INF, s + bias)
        return s

    def alibi(self, p, x, i, j):
        distance = j - i if p.signed else -np.abs(i + p.Lk - p.Lq - j)
        return p.slopes[:, :, None, None] * distance.astype(p.acc)

    def slopes(self, H):
        n = 1 << (H.bit_length() - 1)
        return np.array(
            [2.0 ** (-8 * (h + 1) / n) if h < n else 2.0 ** (-8 * (2 * (h - n) + 1) / (2 * n)) for h in range(H)]
        )

    # ---- forward ----
    def forward(self, p, x, m0):
        bm, bn = p.blocks["fwd"]
        q = self.rows(x.q, m0, bm, x.lq, p.acc)
        st = SimpleNamespace(
            m=np.full(q.shape[:3], -INF, p.acc),
            l=np.zeros(q.shape[:3], p.acc),
            o=np.zeros((*q.shape[:3], x.v.shape[3]), p.acc),
        )
        for n0 in self.key_blocks(x.g, m0, min(m0 + bm, x.lq), bn):
            k, v = (self.rows(y, n0, bn, x.lk, p.acc) for y in (x.k, x.v))
            s, _ = self.scores(p, x, q, k, m0, n0)
            self.update(p, x, st, s, v, m0, n0)
        out, lse = self.epilogue(p, st)
        end = min(bm, x.lq - m0)
        x.out[:, :, m0 : m0 + end], x.lse[:, :, m0 : m0 + end] = out[:, :, :end], lse[:, :, :end]

    def finite(self, m):
        return np.where(m == -INF, 0, m)

    def update(self, p, x, st, s, v, m0, n0):
        m = np.maximum(st.m, s.max(-1))
        safe = self.finite(m)
        alpha, w = np.exp2((st.m - safe) * p.log2e), np.exp2((s - safe[..., None]) * p.log2e)
        st.l = st.l * alpha + w.sum(-1)
        if x.keep is not None:
            w = np.where(self.kept(x, m0, n0, w), w, 0)
        st.o = st.o * alpha[..., None] + self.low(p, w) @ v
        st.m = m

    def kept(self, x, m0, n0, w):
        return self.tile(x.keep, m0, w.shape[2], n0, w.shape[3])

    def epilogue(self, p, st):
        if p.sinks is not None:
            self.add_sink(p, st)
        empty = st.l == 0
        out = st.o / np.where(empty, 1, st.l)[..., None]
        return out * p.rp, np.where(empty, -INF, self.finite(st.m) + np.log(np.where(empty, 1, st.l)))

    def add_sink(self, p, st):
        sink = p.sinks[..., None]
        m = np.maximum(st.m, sink)
        alpha, one = (np.exp2((y - self.finite(m)) * p.log2e) for y in (st.m, sink))
        st.l, st.o = st.l * alpha + one, st.o * alpha[..., None]
        st.m = m

    # ---- backward ----
    def preprocess(self, p, x):
        """delta = dout . out - dlse, by row; and dsinks, which needs nothing else."""
        x.delta = (x.dout.astype(p.acc) * x.out.astype(p.acc)).sum(-1)
        if x.dlse is not None:
            x.delta = x.delta - np.where(x.lse == -INF, 0, x.dlse)
        if p.sinks is not None:
            p.dsinks += self.sink_grad(p, x)

    def sink_grad(self, p, x):
        return -(np.exp2((p.sinks[..., None] - x.lse) * p.log2e) * x.delta).sum(-1)

    def weights(self, p, x, q, k, m0, n0):
        """p of a tile from the scores and lse; 0 in rows that see nothing and beyond the last."""
        s, slope = self.scores(p, x, q, k, m0, n0)
        lse = self.line(np.where(x.lse == -INF, INF, x.lse), m0, q.shape[2], x.lq, INF)
        return np.exp2((s - lse[..., None]) * p.log2e), slope

    def dropped(self, p, x, w, m0, n0):
        return w if x.keep is None else np.where(self.kept(x, m0, n0, w), w * p.rp, 0)

    def ds(self, p, x, w, slope, dout, v, m0, n0):
        """The gradient of the scores, before (biased) and after softcap and score_mod."""
        dp = self.dropped(p, x, dout @ v.swapaxes(-1, -2), m0, n0)
        delta = self.line(x.delta, m0, w.shape[2], x.lq, 0)
        ds = w * (dp - delta[..., None])
        return ds, ds if slope is None else ds * slope

    def dkdv(self, p, x, n0):
        bm, bn = p.blocks["dkdv"]
        k, v = (self.rows(y, n0, bn, x.lk, p.acc) for y in (x.k, x.v))
        dk, dv = (np.zeros((*x.q.shape[:2], bn, y.shape[3]), p.acc) for y in (k, v))
        for m0 in self.query_blocks(x.g, n0, min(n0 + bn, x.lk), x.lq, bm):
            q, dout = (self.rows(y, m0, bm, x.lq, p.acc) for y in (x.q, x.dout))
            w, slope = self.weights(p, x, q, k, m0, n0)
            dv += self.low(p, self.dropped(p, x, w, m0, n0)).swapaxes(-1, -2) @ dout
            dk += self.low(p, self.ds(p, x, w, slope, dout, v, m0, n0)[1]).swapaxes(-1, -2) @ q
        end = min(bn, x.lk - n0)
        x.dk[:, :, n0 : n0 + end], x.dv[:, :, n0 : n0 + end] = dk[:, :, :end] * p.acc(p.scale), dv[:, :, :end]

    def dq(self, p, x, m0):
        bm, bn = p.blocks["dq"]
        q, dout = (self.rows(y, m0, bm, x.lq, p.acc) for y in (x.q, x.dout))
        dq, end = np.zeros_like(q), min(bm, x.lq - m0)
        for n0 in self.key_blocks(x.g, m0, min(m0 + bm, x.lq), bn):
            k, v = (self.rows(y, n0, bn, x.lk, p.acc) for y in (x.k, x.v))
            w, slope = self.weights(p, x, q, k, m0, n0)
            before, ds = self.ds(p, x, w, slope, dout, v, m0, n0)
            dq += self.low(p, ds) @ k
            if x.dbias is not None:
                self.add_dbias(x, before[:, :, :end, : x.lk - n0], m0, n0)
        x.dq[:, :, m0 : m0 + end] = dq[:, :, :end] * p.acc(p.scale)

    def add_dbias(self, x, ds, m0, n0):
        """Adds a tile to the gradient of the bias, summed over the dimensions that the bias does not have."""
        h, i, j = x.dbias.shape
        ds = ds.reshape(-1, *ds.shape[2:])
        for axis, n in enumerate((h, i, j)):
            if n == 1:
                ds = ds.sum(axis, keepdims=True)
        x.dbias[
            :,
            slice(0, 1) if i == 1 else slice(m0, m0 + ds.shape[1]),
            slice(0, 1) if j == 1 else slice(n0, n0 + ds.shape[2]),
        ] += ds

    def finish(self, p, per_head):
        """dk or dv (tokens, Hkv, G, D) or (B, Hkv, G, L, D) of the query heads, added in a group."""
        axis = 2 if per_head.ndim == 5 else -2
        if per_head.shape[axis] == 1:
            return per_head.squeeze(axis).copy()
        return per_head.astype(p.acc).sum(axis).astype(per_head.dtype)

    # ---- launch ----
    def parameters(self, case, given):
        acc = np.float64 if case.dtype == "float64" else np.float32
        heads = (case.Hkv, case.group)
        p = SimpleNamespace(
            acc=acc,
            low=FORMATS[case.dtype].numpy,
            log2e=acc(LOG2E),
            blocks=self.blocks(case),
            heads=np.arange(case.H).reshape(heads),
            Lq=case.Lq,
            Lk=case.Lk,
            softcap=case.softcap,
            mod=SCORE_MODS[case.score_mod] if case.score_mod else None,
            slopes=None,
            signed=False,
            scale=self.scale(case),
            sinks=None,
            dsinks=np.zeros(heads, acc),
            rp=acc(1),
        )
        if case.dropout is not None:
            p.rp = acc(0 if case.dropout == 1 else 1 / (1 - case.dropout))
        if case.sinks is not None:
            p.sinks = given["sinks"].astype(acc).reshape(heads)
        bias = case.bias
        if bias and bias.family.startswith("alibi") and bias.dims == "HQK" and "dbias" not in case.want and case.H:
            p.slopes, p.signed = self.slopes(case.H).astype(acc).reshape(heads), bias.family == "alibi_signed"
        return p

    def scale(self, case):
        return case.scale if case.scale is not None else case.D**-0.5 if case.D else 1.0

    def sequence(self, case, given, b):
        """Where sequence b starts, and how long it is: (q start, k start, lq, lk)."""
        lq, lk = (lens[b] for lens in case.lengths)
        if isinstance(case.storage, Packed):
            return int(given["cu_seqlens_q"][b]), int(given["cu_seqlens_k"][b]), lq, lk
        return b, b, lq, lk

    def __call__(self, case, given):
        with np.errstate(all="ignore"):
            return self.launch(case, given)

    def launch(self, case, given):
        p, packed, backward = self.parameters(case, given), isinstance(case.storage, Packed), case.backward
        heads, out_dtype = (case.Hkv, case.group), FORMATS[case.out_dtype].numpy
        tq, tk = (given[n].shape[0] for n in "qk") if packed else (case.Lq, case.Lk)

        def memory(shape, L, D, dtype):
            return np.zeros((L, *shape, D) if packed else (case.B, *shape, L, D), dtype)

        def view(y, start, n):
            """(Hkv, G or 1, L, D) of sequence b"""
            y = y[start : start + n] if packed else y[start]
            if y.ndim == 3:
                y = y.swapaxes(0, 1) if packed else y
                return y.reshape(case.Hkv, y.shape[0] // case.Hkv, *y.shape[1:])
            return np.moveaxis(y, 0, 2) if packed else y

        new = {"out": memory(heads, tq, case.Dv, out_dtype)}
        if backward:
            new |= {
                "dq": memory(heads, tq, case.D, p.low),
                "dk": memory(heads, tk, case.D, p.low),
                "dv": memory(heads, tk, case.Dv, p.low),
            }
        lse = np.zeros((*heads, tq) if packed else (case.B, *heads, tq), p.acc)
        dbias = np.zeros(given["bias"].shape, p.acc) if "dbias" in case.want else None
        for b in range(case.B if case.H else 0):
            qs, ks, lq, lk = self.sequence(case, given, b)
            x = SimpleNamespace(
                b=b,
                lq=lq,
                lk=lk,
                g=self.band(case.mask, b, lq, lk),
                mask=None,
                bias=None,
                keep=None,
                dlse=None,
                dbias=None,
                lse=lse[:, :, qs : qs + lq] if packed else lse[b],
            )
            if x.g is None:  # the mask itself, in memory
                x.g = Band(lk)
                x.mask = case.visibility.tile()[b].reshape(*heads, case.Lq, case.Lk)
            for name in ("q", "k", "v", "dout", *new):
                y = new.get(name, given.get(name))
                if y is not None:
                    setattr(
                        x,
                        name,
                        view(
                            y,
                            ks if name in ("k", "v", "dk", "dv") else qs,
                            lk if name in ("k", "v", "dk", "dv") else lq,
                        ),
                    )
            if case.bias is not None and p.slopes is None:
                x.bias = given["bias"][b if given["bias"].shape[0] > 1 else 0]
                x.bias = x.bias.reshape(*(heads if x.bias.shape[0] > 1 else (1, 1)), *x.bias.shape[1:])
                x.dbias = dbias[b if dbias.shape[0] > 1 else 0] if dbias is not None else None
            if case.dropout is not None:
                x.keep = given["keep"][b].reshape(*heads, case.Lq, case.Lk)
            x.step = "forward"
            for m0 in range(0, lq, p.blocks["fwd"][0]):
                self.forward(p, x, m0)
            if backward:
                if "dlse" in given:
                    x.dlse = (given["dlse"][:, qs : qs + lq] if packed else given["dlse"][b]).reshape(x.lse.shape)
                self.backward(p, x)
        return self.answer(p, case, new, lse, dbias, packed)

    def backward(self, p, x):
        x.out, x.lse, x.dout = x.out[:, :, : x.lq], x.lse[:, :, : x.lq], x.dout[:, :, : x.lq]
        x.dlse = None if x.dlse is None else x.dlse[:, :, : x.lq]
        self.preprocess(p, x)
        x.step = "dkdv"
        for n0 in range(0, x.lk, p.blocks["dkdv"][1]):
            self.dkdv(p, x, n0)
        x.step = "dq"
        for m0 in range(0, x.lq, p.blocks["dq"][0]):
            self.dq(p, x, m0)

    def answer(self, p, case, new, lse, dbias, packed):
        result = {}
        for name, y in new.items():
            if name in ("dk", "dv"):
                result[name] = self.finish(p, y)
            else:
                result[name] = (
                    y.reshape(y.shape[0], case.H, y.shape[3]) if packed else y.reshape(case.B, case.H, *y.shape[3:])
                )
        result["lse"] = lse.reshape(*((case.H,) if packed else (case.B, case.H)), lse.shape[-1])
        if dbias is not None:
            result["dbias"] = dbias.astype(FORMATS[case.bias.dtype].numpy)
        if "dsinks" in case.want:
            result["dsinks"] = p.dsinks.reshape(case.H).astype(p.low)
        return {name: y for name, y in result.items() if name in case.want}


def contract(case):
    return replace(
        preset(case.dtype, case.out_dtype),
        grad_per_head=case.group > 1,
        source="dk and dv are stored for each query head, as FlashAttention-2 does",
    )


def make(kernel, name="training"):
    """The implementation of a kernel."""

    def attention(case, given):
        return kernel(case, given)

    return implementation(
        name, outputs=OUTPUTS, supports=supports, precision=contract, conventions=Conventions(masked_nan_v="leaks")
    )(attention)


attention = make(Kernel())
