"""One sequence of a batch: out of its storage into the compute type, and which keys its queries see."""

from __future__ import annotations

from types import SimpleNamespace as Seq

import numpy as np

from refattn.case import MATRICES, Cache, Packed, Paged
from refattn.masks import Causal, Chunked, Documents, Gathered, Padding, Prefix, SinkTokens, Tree, Window
from refattn.score_mods import SCORE_MODS
from refattn.visibility import And, Not, Or

INF = np.float32(np.inf)


class Sequences:
    """What the back end does before it multiplies: lengths, slots, rotation, scales, bias, mask."""

    def compute_type(self, case):
        return np.dtype("float64" if case.dtype == "float64" else "float32")

    # ---- one sequence out of its storage ----------------------------------------------------------------------
    def lengths(self, case, given, b):
        if isinstance(case.storage, Packed):
            cu = [given["cu_seqlens_q"], given["cu_seqlens_k"]]
            if case.storage.gap:
                return int(given["seqused_q"][b]), int(given["seqused_k"][b])
            return tuple(int(c[b + 1] - c[b]) for c in cu)
        lq, lk = (lens[b] for lens in case.lengths)
        if isinstance(case.storage, Paged):
            lk = int(given["seqused_k"][b])
        if isinstance(case.storage, Cache):
            lk = int(given["cache_lens"][b]) + case.Lq
        return lq, lk

    def slots(self, case, given, b, lk):
        """The slot of each token in the flat cache."""
        j = np.arange(lk)
        if isinstance(case.storage, Packed):
            return int(given["cu_seqlens_k"][b]) + j
        if isinstance(case.storage, Paged):
            size = case.storage.page_size
            return given["block_table"][b, j // size].astype(np.int64) * size + j % size
        return j

    def flat(self, case, given, name, b):
        """The cache as tokens first: (tokens, Hkv, D), a view."""
        x = given[name]
        if isinstance(case.storage, Packed):
            return x
        if isinstance(case.storage, Paged):
            return x.reshape(-1, *x.shape[2:])
        if isinstance(case.storage, Cache):
            return given[name + "_cache"][b]
        return x[b].swapaxes(0, 1)

    def load(self, case, given, b):
        f = self.compute_type(case)
        lq, lk = self.lengths(case, given, b)
        x = Seq(b=b, f=f, lq=lq, lk=lk, H=case.H, Hkv=case.Hkv, G=case.group)
        packed = isinstance(case.storage, Packed)
        x.q0 = int(given["cu_seqlens_q"][b]) if packed else 0
        x.at = given["q"].dtype
        rows = (lambda a: a[x.q0 : x.q0 + lq].swapaxes(0, 1)) if packed else (lambda a: a[b, :, :lq])
        x.q = rows(given["q"]).astype(f)
        x.pos = self.positions(x)
        if isinstance(case.storage, Cache):
            self.append(case, given, x)
        x.slots = self.slots(case, given, b, lk)
        k, v = (self.gather(case, given, n, x) for n in "kv")
        x.k_col = self.column_scale(case, given, "k", x)
        x.v_col = self.column_scale(case, given, "v", x)
        if case.rotary is not None:
            x.q = self.rope(case, given, x.q, x.pos, x.at)
            if not isinstance(case.storage, Cache):
                k = self.rope(case, given, k, np.arange(lk), x.at)
        x.k, x.vt = k, self.transpose_v(v)
        x.bias = self.bias(case, given, x)
        x.keep = given["keep"][b][:, :lq, :lk] if case.dropout is not None else None
        x.sinks = given["sinks"].astype(f) if case.sinks is not None else None
        x.scale = f.type(self.scale(case))
        if case.backward:
            x.dout = rows(given["dout"]).astype(f)
            dlse = given.get("dlse")
            if dlse is not None:
                dlse = dlse[:, x.q0 : x.q0 + lq] if packed else dlse[b, :, :lq]
            x.dlse = np.zeros((case.H, lq), f) if dlse is None else dlse.astype(f)
        return x

    def positions(self, x):
        return np.arange(x.lq) + (x.lk - x.lq)

    def append(self, case, given, x):
        past = int(given["cache_lens"][x.b])
        k = given["k"][x.b]
        if case.rotary is not None:
            k = self.rope(case, given, k.astype(x.f), past + np.arange(case.Lq), k.dtype).astype(k.dtype)
        given["k_cache"][x.b, past : past + case.Lq] = k.swapaxes(0, 1)
        given["v_cache"][x.b, past : past + case.Lq] = given["v"][x.b].swapaxes(0, 1)

    def gather(self, case, given, name, x):
        """(Hkv, lk, D) in the compute type; codes of int8 and float8 stay codes, blocks along D are expanded."""
        t = self.flat(case, given, name, x.b)[x.slots].swapaxes(0, 1)
        if case.quant is None or case.quant.kind not in ("q8_0", "q4_0"):
            return t.astype(x.f)
        if case.quant.kind == "q4_0":
            t = self.nibbles(t)
        d = given[name + "_scale"][x.b, :, : x.lk].astype(x.f)
        return t.astype(x.f) * np.repeat(d, 32, axis=-1)

    def nibbles(self, t):
        t = t.reshape(*t.shape[:-1], -1, 16)
        t = np.concatenate([t & 15, t >> 4], -1)
        return t.reshape(*t.shape[:-2], -1).astype(np.int8) - np.int8(8)

    def column_scale(self, case, given, name, x):
        """(Hkv, 1, lk) or what broadcasts to it: goes onto scores and weights, not onto the codes."""
        if case.quant is None or case.quant.kind in ("q8_0", "q4_0"):
            return None
        s = given[name + "_scale"].astype(x.f)
        if case.quant.granularity == "tensor":
            return s[0]
        s = s[x.b].swapaxes(1, 2)
        return s if case.quant.granularity == "head" else self.of_block(s, x.lk)

    def of_block(self, s, lk):
        return np.repeat(s, 64, axis=-1)[..., :lk]

    def rope(self, case, given, t, pos, at):
        half = case.rotary.dim // 2
        cos, sin = given["cos"][pos].astype(t.dtype), given["sin"][pos].astype(t.dtype)
        a, c = self.pairs(case, half)
        y = t.copy()
        y[..., a], y[..., c] = t[..., a] * cos - t[..., c] * sin, t[..., c] * cos + t[..., a] * sin
        return y.astype(at).astype(t.dtype)

    def pairs(self, case, half):
        if case.rotary.interleaved:
            return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        return slice(0, half), slice(half, 2 * half)

    def transpose_v(self, v):
        return np.ascontiguousarray(v.swapaxes(1, 2))

    def scale(self, case):
        if case.scale is not None:
            return case.scale
        return case.D**-0.5 if case.D else 1.0

    def bias(self, case, given, x):
        """A view (H or 1, lq or 1, lk or 1); ALiBi of all dimensions is made here, from slopes."""
        if case.bias is None:
            return None
        t = given["bias"]
        if case.bias.family.startswith("alibi") and set("HQK") <= set(case.bias.dims):
            i, j = np.arange(case.Lq)[:, None], np.arange(case.Lk)
            s = self.slopes(case.H)[:, None, None]
            return self.alibi(case, s, i, j).astype(t.dtype).astype(x.f)[:, : x.lq, : x.lk]
        return self.bias_entry(t, x)[:, : x.lq, : x.lk].astype(x.f)

    def bias_entry(self, t, x):
        return t[x.b if t.shape[0] > 1 else 0]

    def slopes(self, H):
        n = 2 ** int(np.floor(np.log2(max(H, 1))))
        first = [2.0 ** (-8 * (h + 1) / n) for h in range(n)]
        return np.array(first + [2.0 ** (-4 * (2 * h + 1) / n) for h in range(H - n)])

    def alibi(self, case, s, i, j):
        if case.bias.family == "alibi":
            return -s * np.abs(i + case.Lk - case.Lq - j)
        return s * (j - i)

    # ---- the mask: intervals of keys where it has them, else an array -----------------------------------------
    def spans(self, mask, x, i):
        """Row i sees the keys from lo to hi; None if that is no interval."""

        def own(m):
            return self.diagonal(m.align, x, i)

        none, all_ = np.zeros_like(i), np.full_like(i, x.lk)
        if mask is None:
            return none, all_
        if isinstance(mask, Causal):
            return none, own(mask) + 1
        if isinstance(mask, Window):
            return self.window(mask, own(mask), none, all_)
        if isinstance(mask, Chunked):
            first = own(mask) // mask.size * mask.size
            return first, first + mask.size
        if isinstance(mask, Padding):
            return none, np.full_like(i, mask.lengths[x.b])
        if isinstance(mask, Prefix):
            n = mask.length if isinstance(mask.length, int) else mask.length[x.b]
            return none, np.maximum(own(mask) + 1, n)
        if isinstance(mask, SinkTokens):
            return none, np.full_like(i, mask.n)
        if isinstance(mask, And):
            a, c = self.spans(mask.left, x, i), self.spans(mask.right, x, i)
            return None if a is None or c is None else (np.maximum(a[0], c[0]), np.minimum(a[1], c[1]))
        if isinstance(mask, Documents):
            q, k = self.documents(mask, x)
            if np.all(np.diff(k) >= 0):
                return np.searchsorted(k, q[i], "left"), np.searchsorted(k, q[i], "right")
        return None

    def diagonal(self, align, x, i):
        return i if align == "top_left" else i + (x.lk - x.lq)

    def window(self, m, own, lo, hi):
        return (lo if m.left is None else own - m.left), (hi if m.right is None else own + m.right + 1)

    def documents(self, m, x):
        q, k = m.q_ids, m.q_ids if m.k_ids is None else m.k_ids
        q, k = (np.array(ids[x.b] if ids and isinstance(ids[0], tuple) else ids, dtype=np.int64) for ids in (q, k))
        return q, k[: x.lk]

    def array(self, case, mask, x, i, j):
        """(H or 1, rows, keys) booleans of positions i, j; a slot that holds nothing has j = -1."""
        s = self.spans(mask, x, i)
        if s is not None:
            return self.between(s, j)[None]
        if isinstance(mask, And):
            return self.array(case, mask.left, x, i, j) & self.array(case, mask.right, x, i, j)
        if isinstance(mask, Or):
            return self.array(case, mask.left, x, i, j) | self.array(case, mask.right, x, i, j)
        if isinstance(mask, Not):
            return ~self.array(case, mask.mask, x, i, j)
        if isinstance(mask, Tree):
            return self.tree(mask, x, i, j)[None]
        if isinstance(mask, Gathered):
            return self.gathered(mask, x, i, j)
        h = np.arange(case.H).reshape(1, -1, 1, 1)
        lq, lk, b = np.array(x.lq), np.array(x.lk), np.full((1, 1, 1, 1), x.b)
        seen = mask(b, h, i.reshape(1, 1, -1, 1), j.reshape(1, 1, 1, -1), lq, lk)
        return np.broadcast_to(seen, (1, case.H, len(i), len(j)))[0]

    def between(self, s, j):
        return (j >= s[0][:, None]) & (j < s[1][:, None])

    def tree(self, m, x, i, j):
        parents = m.parents[x.b] if m.parents and isinstance(m.parents[0], tuple) else m.parents
        n, p = len(parents), i + x.lk - x.lq
        seen = j <= p[:, None]
        start = x.lk - n
        for r, u in enumerate(p - start):
            if u < 0:
                continue
            line = []
            while u >= 0:
                line, u = [*line, u], parents[u]
            seen[r] = (j < start) | np.isin(j - start, line)
        return seen

    def gathered(self, m, x, i, j):
        t = np.array(m.indices, dtype=np.int64)
        t = t.reshape((1,) * (4 - t.ndim) + t.shape)
        t = t[x.b if len(t) > 1 else 0]
        seen = np.zeros((len(t), len(i), len(j)), bool)
        for r, row in enumerate(i):
            if row < t.shape[1]:
                seen[:, r] = (t[:, row, :, None] == j).any(1)
        return seen

    def visible(self, case, x, i, j):
        seen = self.array(case, case.mask, x, i, j) & ((j >= 0) & (j < x.lk))
        if case.score_mod is not None and SCORE_MODS[case.score_mod].hides is not None:
            seen = seen & ~SCORE_MODS[case.score_mod].hides(x.b, 0, i[:, None], j)
        if x.bias is not None:
            seen = seen & (self.part(x.bias, i, j) != -INF)
        return np.broadcast_to(seen, (case.H, len(i), len(j)))

    def part(self, t, i, j):
        """Rows i and keys j of an array that may be 1 there."""
        t = t if t.shape[1] == 1 else t[:, i]
        return t if t.shape[2] == 1 else t[:, :, j]

    def columns(self, case, x, i):
        """Which keys, and in which order, the chunk of queries i reads: all, a range, or the slots of a ring."""
        s = None if self.needs_all(case) else self.spans(case.mask, x, i)
        if s is None:
            return np.arange(x.lk)
        lo, hi = self.range(s, x)
        if isinstance(case.mask, Window) and case.mask.left is not None:
            return self.ring(lo, hi)
        return np.arange(lo, hi)

    def needs_all(self, case):
        return case.backward or not case.want.isdisjoint(MATRICES)

    def range(self, s, x):
        lo, hi = max(int(s[0].min()), 0), min(int(s[1].max()), x.lk)
        return lo, max(lo, hi)

    def ring(self, lo, hi):
        """Positions of the slots of a ring; a slot not written yet by this step holds an older token, or none."""
        n = -(-(hi - lo) // 8) * 8
        pos = lo + (np.arange(n) - lo) % max(n, 1)
        return np.maximum(np.where(pos < hi, pos, pos - n), -1)
