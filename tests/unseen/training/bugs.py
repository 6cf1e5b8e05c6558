"""Bugs of the training kernel: each a small change of one step, as its author might have written it.

BUGS are the 44 rows (name, description, make); MORE others that fail a case too; SPARE those that fail none of the
selection, with what they would need.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from .blocks import INF
from .kernel import LOG2E, Kernel, make

ROWS = []
OTHERS = []
LATER = []


def bug(name, description, needs=None, more=False):
    """Keeps a kernel as a row of BUGS; of MORE, which is beyond the 44; or of SPARE, with what it would need."""

    def keep(kernel):
        def implementation():
            return make(kernel())

        if needs is None:
            (OTHERS if more else ROWS).append((name, description, implementation))
        else:
            LATER.append((name, description, implementation, needs))
        return kernel

    return keep


# ---- masks and block bounds ----
@bug("window_edge_top_left", "the left edge of a sliding window is set from i, without lk - lq; its right edge has it")
class _(Kernel):
    def window(self, g, left, right, off):
        return replace(super().window(g, left, right, off), lo=None if left is None else -left)


@bug("window_one_short", "the window keeps j > i - W: the last of its W + 1 keys to the left is lost")
class _(Kernel):
    def window(self, g, left, right, off):
        return super().window(g, None if left is None else left - 1, right, off)


@bug("window_right_zero_is_unset", "`if window_right:`: a right side of 0 keys counts as no limit")
class _(Kernel):
    def window(self, g, left, right, off):
        return super().window(g, left, right or None, off)


@bug("window_right_needs_causal", "the right side of a window is only looked at if the call is causal too", more=True)
class _(Kernel):
    def window(self, g, left, right, off):
        return super().window(g, left, right if right == 0 else None, off)


@bug("last_block_floor", "the number of key blocks of a causal block of queries is rounded down, not up")
class _(Kernel):
    def key_blocks(self, g, m0, m1, bn):
        if g.hi is None or m1 + g.hi >= g.keys:
            return super().key_blocks(g, m0, m1, bn)
        return [n0 for n0 in super().key_blocks(g, m0, m1, bn) if n0 < (m1 + g.hi) // bn * bn or n0 < g.first]


@bug(
    "unmasked_by_last_row",
    "whether a block needs the causal mask is asked of the last query of the block, not the first",
)
class _(Kernel):
    def inside(self, x, m0, m1, n0, n1):
        g = x.g
        if g.hi is None or not super().inside(replace_ns(x, g=replace(g, hi=None)), m0, m1, n0, n1):
            return super().inside(x, m0, m1, n0, n1)
        return n1 - 1 <= m1 - 1 + g.hi


def replace_ns(x, **new):
    return type(x)(**{**vars(x), **new})


@bug("first_block_by_last_row", "the first key block of a window is found from the last query of the block", more=True)
class _(Kernel):
    def key_blocks(self, g, m0, m1, bn):
        found = super().key_blocks(g, m0, m1, bn)
        begin = 0 if g.lo is None else max(0, m1 - 1 + g.lo) // bn * bn
        return [n0 for n0 in found if n0 >= begin or n0 < g.first]


@bug("left_edge_in_plain_loop", "blocks cut by the left edge of the window run in the loop without masks", more=True)
class _(Kernel):
    def inside(self, x, m0, m1, n0, n1):
        return super().inside(x if x.g.lo is None else replace_ns(x, g=replace(x.g, lo=None)), m0, m1, n0, n1)


@bug(
    "edge_loops_overlap",
    "a block cut by both edges of a window is run by the loop of the right edge and by that of the left",
)
class _(Kernel):
    def forward(self, p, x, m0):
        self.now = x.g.lo is not None and x.g.hi is not None
        super().forward(p, x, m0)
        self.now = False

    now = False

    def key_blocks(self, g, m0, m1, bn):
        found = super().key_blocks(g, m0, m1, bn)
        return found * 2 if self.now and len(found) == 1 else found


@bug("prefix_forgotten_in_backward", "the backward knows the prefix as plain causal; the forward sees all of it")
class _(Kernel):
    def backward(self, p, x):
        x.g = replace(x.g, first=0) if x.g.hi is not None and x.g.cap is None and x.g.lo is None else x.g
        super().backward(p, x)


@bug(
    "dkdv_starts_on_square_diagonal",
    "dk/dv start at query block n0 / BLOCK_M, as if there were as many queries as keys",
)
class _(Kernel):
    def query_blocks(self, g, n0, n1, lq, bm):
        found = super().query_blocks(g, n0, n1, lq, bm)
        return found if g.hi is None else [m0 for m0 in found if m0 >= n0 // bm * bm]


@bug(
    "dkdv_window_end_by_first_key",
    "dk/dv stop at the last query that sees the first key of the block, not its last",
    more=True,
)
class _(Kernel):
    def query_blocks(self, g, n0, n1, lq, bm):
        found = super().query_blocks(g, n0, n1, lq, bm)
        return found if g.lo is None or n0 < g.first else [m0 for m0 in found if m0 <= n0 - g.lo]


@bug(
    "padding_moves_diagonal",
    "bottom-right causal counts from the last key that is not padding",
    needs="a case with causal & padding",
)
class _(Kernel):
    def both(self, one, two):
        keys = min(one.keys, two.keys)
        g = super().both(one, two)
        full = max(one.keys, two.keys)
        return g if g is None or g.hi is None or keys == full else replace(g, hi=g.hi - (full - keys))


@bug("geometry_of_first_sequence", "lengths, alignment and padding of the batch's first entry are used for all of it")
class _(Kernel):
    def band(self, mask, b, lq, lk):
        if b == 0:
            self.kept0 = {}
        g = super().band(mask, b, lq, lk)
        if g is None or g.q_ids is not None:
            return g
        old = self.kept0.setdefault(mask, g)
        return replace(old, keys=min(old.keys, lk))


@bug("segment_ids_shared", "the segment ids of the queries are used for the keys too")
class _(Kernel):
    def visible(self, p, x, i, j):
        return super().visible(p, replace_ns(x, g=replace(x.g, k_ids=x.g.q_ids)), i, j)


@bug(
    "segments_taken_as_sorted",
    "a block is skipped if the first and last segment ids of its queries and keys do not overlap",
    needs="a case whose segment ids are not in order",
)
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        s, slope = super().scores(p, x, q, k, m0, n0)
        g = x.g
        if g.q_ids is not None:
            m1, n1 = min(m0 + q.shape[2], x.lq) - 1, min(n0 + k.shape[2], g.keys) - 1
            if g.q_ids[m1] < g.k_ids[n0] or g.k_ids[n1] < g.q_ids[m0]:
                s = np.full_like(s, -INF)
        return s, slope


@bug("mask_of_first_head", "the mask tensor's stride over heads is taken as 0", more=True)
class _(Kernel):
    def visible(self, p, x, i, j):
        return super().visible(p, x if x.mask is None else replace_ns(x, mask=x.mask[:1, :1]), i, j)


@bug("mask_not_in_dkdv", "the mask tensor is not read where dk and dv recompute the weights")
class _(Kernel):
    def visible(self, p, x, i, j):
        return super().visible(p, replace_ns(x, mask=None) if x.step == "dkdv" else x, i, j)


# ---- rows without keys ----
@bug("minus_inf_minus_itself", "exp(m_old - m_new) is taken without a guard where no key was seen so far")
class _(Kernel):
    def update(self, p, x, st, s, v, m0, n0):
        m = np.maximum(st.m, s.max(-1))
        hidden = m == -INF
        super().update(p, x, st, s, v, m0, n0)
        st.l, st.o = np.where(hidden, np.nan, st.l), np.where(hidden[..., None], np.nan, st.o)


@bug("finite_mask_value", "hidden scores are -1e30, so that a row without keys averages the blocks that it visits")
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        s, slope = super().scores(p, x, q, k, m0, n0)
        return np.maximum(s, p.acc(-1e30)), slope


@bug("empty_lse_in_backward", "the backward subtracts lse = -inf in rows without keys, and -inf less -inf is NaN")
class _(Kernel):
    def weights(self, p, x, q, k, m0, n0):
        s, slope = self.scores(p, x, q, k, m0, n0)
        lse = self.line(x.lse, m0, q.shape[2], x.lq, INF)
        return np.exp2((s - lse[..., None]) * p.log2e), slope


@bug(
    "no_key_block_no_sink",
    "a block of queries without key blocks leaves early: out 0, lse -inf, though there is a sink",
)
class _(Kernel):
    def forward(self, p, x, m0):
        bm, bn = p.blocks["fwd"]
        super().forward(p, x, m0)
        if not self.key_blocks(x.g, m0, min(m0 + bm, x.lq), bn):
            x.lse[:, :, m0 : m0 + bm] = -INF


@bug("empty_lse_plus_inf", "lse of a row without keys is +inf, as the backward likes it", more=True)
class _(Kernel):
    def answer(self, p, case, new, lse, dbias, packed):
        return super().answer(p, case, new, np.where(lse == -INF, INF, lse), dbias, packed)


# ---- tails, memory ----
@bug(
    "even_n_of_other_block",
    "the tail of the keys is masked unless Lk is a multiple of 8, but the forward's block has 16",
)
class _(Kernel):
    def inside(self, x, m0, m1, n0, n1):
        if x.lk % 8 == 0 and x.step == "forward" and x.g.keys == x.lk:
            n1 = min(n1, x.lk)
        return super().inside(x, m0, m1, n0, n1)


@bug("dkdv_returns_before_store", "a block of keys that no query sees leaves dk and dv as they were allocated")
class _(Kernel):
    def dkdv(self, p, x, n0):
        bm, bn = p.blocks["dkdv"]
        super().dkdv(p, x, n0)
        if not self.query_blocks(x.g, n0, min(n0 + bn, x.lk), x.lq, bm):
            for y in (x.dk, x.dv):
                y[:, :, n0 : n0 + bn] = np.nan


@bug("head_dim_floor", "q and k are read in vectors of 16: what is left of a head dim that is no multiple is not read")
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        d = q.shape[3] // 16 * 16 or q.shape[3]
        return super().scores(p, x, q[..., :d], k[..., :d], m0, n0)


@bug("seqused_ignored", "the lengths of packed sequences are the differences of cu_seqlens, unused rows included")
class _(Kernel):
    def sequence(self, case, given, b):
        qs, ks, lq, lk = super().sequence(case, given, b)
        if "seqused_k" in given:
            lk = int(given["cu_seqlens_k"][b + 1]) - ks
        return qs, ks, lq, lk


@bug(
    "value_columns_by_key_dim",
    "the accumulators are as wide as a key: columns of v from D on are never written",
    more=True,
)
class _(Kernel):
    def forward(self, p, x, m0):
        super().forward(p, x, m0)
        x.out[:, :, m0 : m0 + p.blocks["fwd"][0], x.q.shape[3] :] = 0


# ---- online softmax, lse, sinks ----
@bug(
    "rescale_skipped",
    "where the maximum grows by less than 8 in base 2, nothing is rescaled but the maximum is replaced",
)
class _(Kernel):
    def update(self, p, x, st, s, v, m0, n0):
        small = (np.maximum(st.m, s.max(-1)) - st.m) * p.log2e < 8
        st.m, old = np.where(small, np.maximum(st.m, s.max(-1)), st.m), st.m
        st.m = np.where(old == -INF, old, st.m)
        super().update(p, x, st, s, v, m0, n0)


@bug("out_not_rescaled", "the row sum is rescaled when the maximum grows, the accumulated output is not", more=True)
class _(Kernel):
    def update(self, p, x, st, s, v, m0, n0):
        m = np.maximum(st.m, s.max(-1))
        st.o = st.o * np.where(st.m == -INF, 1, np.exp2((m - st.m) * p.log2e))[..., None]
        super().update(p, x, st, s, v, m0, n0)


@bug("lse_in_base_2", "lse = m log2(e) + log2(l) is returned, and the backward turns it back", more=True)
class _(Kernel):
    def answer(self, p, case, new, lse, dbias, packed):
        return super().answer(p, case, new, lse * p.log2e, dbias, packed)


@bug("lse_max_scaled_twice", "lse is m scale + log(l), though m is of scores that were scaled already")
class _(Kernel):
    def epilogue(self, p, st):
        out, lse = super().epilogue(p, st)
        m = self.finite(st.m)
        return out, lse + m * p.acc(p.scale) - m


@bug("sink_without_rescale", "a sink above the row's maximum rescales the row sum, not the output")
class _(Kernel):
    def add_sink(self, p, st):
        o = st.o
        super().add_sink(p, st)
        st.o = o


@bug("sink_not_in_lse", "lse is taken before the sink joins the row sum; the backward works with it")
class _(Kernel):
    def epilogue(self, p, st):
        out, _ = super().epilogue(p, type(st)(**vars(st)))
        sinks, p.sinks = p.sinks, None
        lse = super().epilogue(p, st)[1]
        p.sinks = sinks
        return out, lse


@bug("sink_scaled", "the sink is multiplied by scale like a score", more=True)
class _(Kernel):
    def parameters(self, case, given):
        p = super().parameters(case, given)
        p.sinks = None if p.sinks is None else p.sinks * p.acc(p.scale)
        return p


@bug("sum_after_dropout", "the row sum adds the weights that dropout left")
class _(Kernel):
    def update(self, p, x, st, s, v, m0, n0):
        if x.keep is not None:
            hidden = ~self.kept(x, m0, n0, s)
            m = np.maximum(st.m, s.max(-1))
            safe = self.finite(m)
            lost = np.where(hidden, np.exp2((s - safe[..., None]) * p.log2e), 0).sum(-1)
            super().update(p, x, st, s, v, m0, n0)
            st.l = st.l - lost
        else:
            super().update(p, x, st, s, v, m0, n0)


# ---- heads, layouts ----
@bug("group_sum_of_other_order", "dk and dv of the query heads are summed as (group, Hkv), where they are (Hkv, group)")
class _(Kernel):
    def finish(self, p, per_head):
        hkv, g = per_head.shape[1:3]
        other = per_head.reshape(per_head.shape[0], g, hkv, *per_head.shape[3:]).swapaxes(1, 2)
        return super().finish(p, np.ascontiguousarray(other))


@bug("value_head_modulo_in_backward", "the backward takes v of key head h % Hkv; k and the forward have h // group")
class _(Kernel):
    def backward(self, p, x):
        x.v = x.v[:, 0][p.heads % x.v.shape[0]]
        super().backward(p, x)


@bug(
    "bias_by_key_head",
    "the bias is read at the key head's index, not the query head's",
    needs="a bias by head where query heads share key heads",
)
class _(Kernel):
    def biased(self, p, x, s, i, j):
        if x.bias is not None and x.bias.shape[0] > 1:
            hkv = x.bias.shape[0]
            x = replace_ns(x, bias=x.bias.reshape(-1, 1, *x.bias.shape[2:])[:hkv])
        return super().biased(p, x, s, i, j)


@bug("sinks_by_key_head", "the sinks are read at the key head's index")
class _(Kernel):
    def add_sink(self, p, st):
        sinks, hkv = p.sinks, p.sinks.shape[0]
        p.sinks = sinks.reshape(-1, 1)[:hkv]
        super().add_sink(p, st)
        p.sinks = sinks


@bug("value_taken_as_contiguous", "v is read with the strides of a contiguous (B, H, L, D)")
class _(Kernel):
    def launch(self, case, given):
        v = given["v"]
        return super().launch(case, {**given, "v": v.ravel(order="K").reshape(v.shape)})


@bug("dout_taken_as_contiguous", "dout is read with the strides of out, which was allocated contiguous", more=True)
class _(Kernel):
    def launch(self, case, given):
        dout = given.get("dout")
        return super().launch(
            case, given if dout is None else {**given, "dout": dout.ravel(order="K").reshape(dout.shape)}
        )


@bug("key_offsets_32_bits", "the offset of a row of k is computed in unsigned 32 bits")
class _(Kernel):
    def launch(self, case, given):
        k = given["k"]
        if k.ndim == 4 and k.size:
            b, h, i = np.ogrid[tuple(map(slice, k.shape[:3]))]
            strides = [n // k.itemsize for n in k.strides]
            wrapped = (b * strides[0] + h * strides[1] + i * strides[2]) % 2**32
            if strides[0] >= strides[1] >= strides[2] > 0 and (wrapped.size * strides[2]) > 2**32:
                at = wrapped // strides[2]
                k = k.reshape(-1, k.shape[3])[at]
        return super().launch(case, {**given, "k": k})


# ---- scale, bias, softcap, score_mod ----
@bug("softcap_after_mask", "the softcap is applied to scores that are masked already: a hidden one becomes -softcap")
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        s, slope = super().scores(p, x, q, k, m0, n0)
        beyond = np.arange(n0, n0 + k.shape[2]) >= x.lk
        return (s if p.softcap is None else np.where(beyond, -INF, np.maximum(s, p.acc(-p.softcap)))), slope


@bug(
    "softcap_slope_of_capped",
    "the softcap's derivative is 1 - t**2 of t = softcap tanh(...), not of the tanh",
    more=True,
)
class _(Kernel):
    def capped(self, p, s):
        s, _ = super().capped(p, s)
        return s, 1 - s * s


@bug("softcap_slope_not_in_dq", "the dq kernel forgets the softcap's derivative; dk has it")
class _(Kernel):
    def ds(self, p, x, w, slope, dout, v, m0, n0):
        return super().ds(p, x, w, None if x.step == "dq" and p.mod is None else slope, dout, v, m0, n0)


@bug("softcap_before_scale", "the softcap caps q k, and the scale comes after it", more=True)
class _(Kernel):
    def capped(self, p, s):
        if p.scale == 0:
            return super().capped(p, s)
        s, slope = super().capped(p, s / p.acc(p.scale))
        return s * p.acc(p.scale), slope


@bug("scale_of_value_dim", "the default scale is Dv**-0.5", more=True)
class _(Kernel):
    def scale(self, case):
        return case.scale if case.scale is not None else case.Dv**-0.5 if case.Dv else 1.0


@bug("scale_zero_is_default", "`scale or D**-0.5`: a scale of 0 counts as none", more=True)
class _(Kernel):
    def scale(self, case):
        return case.scale or super().scale(replace(case, scale=None))


@bug("bias_without_log2e", "the bias is added to scores in base 2 without being multiplied by log2(e)")
class _(Kernel):
    def biased(self, p, x, s, i, j):
        biased = super().biased(p, x, s, i, j)
        return biased if x.bias is None else np.where(biased == -INF, biased, s + (biased - s) / p.log2e)


@bug("bias_before_scale", "the bias is added to q k, and then scaled with it", more=True)
class _(Kernel):
    def biased(self, p, x, s, i, j):
        biased = super().biased(p, x, s, i, j)
        return biased if x.bias is None else np.where(biased == -INF, biased, s + (biased - s) * p.acc(p.scale))


@bug("alibi_slopes_any_heads", "ALiBi's slopes are 2**(-8 (h + 1) / H) for any number of heads")
class _(Kernel):
    def slopes(self, H):
        return 2.0 ** (-8 * np.arange(1, H + 1) / H)


@bug(
    "alibi_signed_from_last",
    "the signed distance of ALiBi is counted from i + lk - lq, where the model has it from i",
    more=True,
)
class _(Kernel):
    def alibi(self, p, x, i, j):
        return super().alibi(p, x, i + (p.Lk - p.Lq) if p.signed else i, j)


@bug("mask_before_scale", "hidden products are -inf before the scale, which makes +inf of them where it is negative")
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        s, slope = super().scores(p, x, q, k, m0, n0)
        plain = p.softcap is None and p.mod is None and p.slopes is None and x.bias is None
        return np.where(s == -INF, s * p.acc(p.scale), s) if plain else s, slope


@bug("score_mod_local_keys", "score_mod is called with the index of the key in its block")
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        if p.mod is None:
            return super().scores(p, x, q, k, m0, n0)
        mod = p.mod
        p.mod = replace(
            mod,
            value=lambda s, b, h, i, j: mod.value(s, b, h, i, j - n0),
            slope=lambda s, b, h, i, j: mod.slope(s, b, h, i, j - n0),
        )
        result = super().scores(p, x, q, k, m0, n0)
        p.mod = mod
        return result


@bug("score_mod_slope_forgotten", "dk is not multiplied by the derivative of score_mod; dq is", more=True)
class _(Kernel):
    def ds(self, p, x, w, slope, dout, v, m0, n0):
        if p.mod is not None and x.step == "dkdv":
            slope = None
        return super().ds(p, x, w, slope, dout, v, m0, n0)


# ---- precision ----
@bug("out_accumulated_in_16_bits", "the output is kept in the inputs' 16 bits between blocks of keys")
class _(Kernel):
    def update(self, p, x, st, s, v, m0, n0):
        super().update(p, x, st, s, v, m0, n0)
        st.o = self.low(p, st.o)


@bug("scores_in_16_bits", "q k leaves the tensor cores as 16 bits, before the scale", more=True)
class _(Kernel):
    def scaled(self, p, s):
        return super().scaled(p, self.low(p, s))


@bug(
    "delta_in_16_bits",
    "delta is stored in the inputs' dtype between preprocess and the other kernels",
    needs="a tolerance for dq and dk that is narrower than a delta of 16 bits, so rows with a large delta",
)
class _(Kernel):
    def preprocess(self, p, x):
        super().preprocess(p, x)
        x.delta = self.low(p, x.delta)


@bug("lse_in_16_bits", "lse is allocated with the dtype of q and handed out as float32", more=True)
class _(Kernel):
    def epilogue(self, p, st):
        out, lse = super().epilogue(p, st)
        return out, self.low(p, lse)


@bug("row_sum_in_16_bits", "the row sum is kept in the inputs' dtype", more=True)
class _(Kernel):
    def update(self, p, x, st, s, v, m0, n0):
        super().update(p, x, st, s, v, m0, n0)
        st.l = self.low(p, st.l)


@bug(
    "dq_added_in_16_bits",
    "dq is added up over the blocks of keys in the inputs' dtype, scaled, by atomics",
    needs="more blocks of keys than a small case has, or a narrower tolerance for dq",
)
class _(Kernel):
    def dq(self, p, x, m0):
        bm, bn = p.blocks["dq"]
        blocks = self.key_blocks(x.g, m0, min(m0 + bm, x.lq), bn)
        total, dbias = None, x.dbias
        for n0 in blocks:
            self.only = n0
            super().dq(p, x, m0)
            part = x.dq[:, :, m0 : m0 + bm].copy()
            total = part if total is None else (total.astype(p.acc) + part.astype(p.acc)).astype(part.dtype)
        self.only, x.dbias = None, dbias
        if total is not None:
            x.dq[:, :, m0 : m0 + bm] = total

    only = None

    def key_blocks(self, g, m0, m1, bn):
        found = super().key_blocks(g, m0, m1, bn)
        return found if self.only is None else [self.only]


@bug("log2e_of_float32", "log2(e) is a float32 literal, in the kernels of float64 too")
class _(Kernel):
    def parameters(self, case, given):
        p = super().parameters(case, given)
        p.log2e = p.acc(np.float32(LOG2E))
        return p


@bug("tf32_products", "q k of float32 inputs is computed on tensor cores in tf32, by default")
class _(Kernel):
    def scores(self, p, x, q, k, m0, n0):
        if p.low == np.float32:
            q, k = ((y.view(np.uint32) + np.uint32(0x1000) & np.uint32(0xFFFFE000)).view(np.float32) for y in (q, k))
        return super().scores(p, x, q, k, m0, n0)


# ---- lengths ----
@bug("no_keys_no_store", "a sequence without keys returns at once: lse stays 0, as it was allocated", more=True)
class _(Kernel):
    def forward(self, p, x, m0):
        if x.lk > 0:
            super().forward(p, x, m0)


@bug("dq_grid_by_keys", "the grid of the dq kernel is that of dk/dv: queries beyond the number of keys get none")
class _(Kernel):
    def dq(self, p, x, m0):
        if m0 < x.lk:
            super().dq(p, x, m0)


@bug(
    "alignment_by_longest",
    "bottom-right alignment is by the longest sequences of the batch, not by each one's own",
    more=True,
)
class _(Kernel):
    def parameters(self, case, given):
        self.longest = tuple(max(n, default=0) for n in case.lengths)
        return super().parameters(case, given)

    def offset(self, align, lq, lk):
        return super().offset(align, *self.longest)


@bug("bias_of_first_entry", "the bias of batch entry 0 is used for all", more=True)
class _(Kernel):
    def launch(self, case, given):
        self.first_bias = None
        return super().launch(case, given)

    def biased(self, p, x, s, i, j):
        if x.bias is not None:
            if self.first_bias is None:
                self.first_bias = x.bias
            x = replace_ns(x, bias=self.first_bias)
        return super().biased(p, x, s, i, j)


# ---- backward ----
@bug(
    "group_last_head_wins",
    "dk and dv of a group are stored by each query head, not added: the last one stays",
    more=True,
)
class _(Kernel):
    def finish(self, p, per_head):
        return super().finish(p, per_head[:, :, -1:])


@bug("dbias_last_batch", "the gradient of a bias shared by the batch is stored by each entry, not added", more=True)
class _(Kernel):
    def backward(self, p, x):
        if x.dbias is not None:
            x.dbias[...] = 0
        super().backward(p, x)


@bug(
    "dbias_rows_overwrite",
    "the gradient of a bias without a query dimension is stored by each block of queries, not added",
)
class _(Kernel):
    def add_dbias(self, x, ds, m0, n0):
        if x.dbias.shape[1] == 1 and x.lq > 1:
            x.dbias[:, :, slice(n0, n0 + ds.shape[3]) if x.dbias.shape[2] > 1 else slice(0, 1)] = 0
        super().add_dbias(x, ds, m0, n0)


@bug(
    "dbias_after_softcap",
    "dbias is taken where dS was multiplied by the softcap's derivative already",
    needs="a case with dbias and softcap; the selection has none",
)
class _(Kernel):
    def ds(self, p, x, w, slope, dout, v, m0, n0):
        _, after = super().ds(p, x, w, slope, dout, v, m0, n0)
        return after, after


@bug("dbias_scaled", "dS is multiplied by scale before dbias is stored", more=True)
class _(Kernel):
    def add_dbias(self, x, ds, m0, n0):
        super().add_dbias(x, ds * ds.dtype.type(x.q.shape[3] ** -0.5), m0, n0)


@bug("dsinks_last_batch", "dsinks are stored by each batch entry, not added", more=True)
class _(Kernel):
    def preprocess(self, p, x):
        p.dsinks[...] = 0
        super().preprocess(p, x)


@bug("dlse_ignored", "the gradient of lse is not subtracted from delta", more=True)
class _(Kernel):
    def preprocess(self, p, x):
        x.dlse = None
        super().preprocess(p, x)


@bug("dlse_added", "the gradient of lse is added to delta", more=True)
class _(Kernel):
    def preprocess(self, p, x):
        x.dlse = None if x.dlse is None else -x.dlse
        super().preprocess(p, x)


@bug("dk_without_ln2", "q was multiplied by scale log2(e) beforehand, and dk, made of it, is not multiplied by ln 2")
class _(Kernel):
    def dkdv(self, p, x, n0):
        x.q, q = x.q.astype(p.acc) * p.log2e, x.q
        self.turned = True
        super().dkdv(p, x, n0)
        self.turned, x.q = False, q

    turned = False

    def scaled(self, p, s):
        return super().scaled(p, s / p.log2e if self.turned else s)


@bug("dq_accumulator_not_cleared", "the accumulator of dq is not cleared between the entries of a batch")
class _(Kernel):
    def launch(self, case, given):
        self.left = {}
        return super().launch(case, given)

    def dq(self, p, x, m0):
        super().dq(p, x, m0)
        rows = x.dq[:, :, m0 : m0 + p.blocks["dq"][0]]
        old = self.left.get(m0)
        if old is not None:
            n = min(old.shape[2], rows.shape[2])
            rows[:, :, :n] = (rows[:, :, :n].astype(p.acc) + old[:, :, :n].astype(p.acc)).astype(rows.dtype)
        self.left[m0] = rows.copy()


@bug("delta_of_key_head", "delta is read at the key head's index", more=True)
class _(Kernel):
    def preprocess(self, p, x):
        super().preprocess(p, x)
        hkv, g = x.delta.shape[:2]
        x.delta = np.broadcast_to(x.delta.reshape(hkv * g, 1, -1)[:hkv], x.delta.shape).copy()


# ---- dropout ----
@bug("dropout_one", "1 / (1 - p) is computed for p = 1 too", more=True)
class _(Kernel):
    def parameters(self, case, given):
        p = super().parameters(case, given)
        if case.dropout == 1:
            p.rp = p.acc(INF)
        return p


@bug("dropout_not_in_dp", "dk/dv drop the weights, but not dP")
class _(Kernel):
    def ds(self, p, x, w, slope, dout, v, m0, n0):
        return super().ds(p, replace_ns(x, keep=None) if x.step == "dkdv" else x, w, slope, dout, v, m0, n0)


@bug("dropout_dv_not_scaled", "dv is made of the dropped weights without 1 / (1 - p)", more=True)
class _(Kernel):
    in_ds = False

    def ds(self, *args):
        self.in_ds = True
        found = super().ds(*args)
        self.in_ds = False
        return found

    def dropped(self, p, x, w, m0, n0):
        if x.keep is None or self.in_ds:
            return super().dropped(p, x, w, m0, n0)
        return np.where(self.kept(x, m0, n0, w), w, 0)


@bug(
    "dropout_counter_by_block",
    "the dq kernel draws its dropout by block number with the forward's block sizes, not its own",
)
class _(Kernel):
    def dq(self, p, x, m0):
        self.sizes = p.blocks["fwd"], p.blocks["dq"]
        super().dq(p, x, m0)

    def kept(self, x, m0, n0, w):
        if x.step == "dq":
            (fm, fn), (bm, bn) = self.sizes
            m0, n0 = m0 // bm * fm % max(x.lq, 1), n0 // bn * fn % max(x.lk, 1)
        return super().kept(x, m0, n0, w)


BUGS = list(ROWS)
random.Random(0).shuffle(BUGS)
BUGS = tuple(BUGS)
MORE = tuple(OTHERS)
SPARE = tuple(LATER)
