"""Where the arrays of a case lie in memory, and which keys a row sees: the loads of the kernel in kernel."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

import ml_dtypes  # registers the 16- and 8-bit dtypes
import numpy as np

from refattn import masks
from refattn.case import Cache, Packed, Paged
from refattn.precision import preset
from refattn.visibility import And, Or

NATIVE = (masks.Causal, masks.Window, masks.Padding, masks.Documents, masks.Prefix, masks.Chunked)
INF = np.inf


def np_dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def terms_of(mask):
    """The mask as a list of terms that all must hold; None if the kernel has no code for it (then: mask tensor)."""
    if mask is None:
        return []
    if isinstance(mask, And):
        left, right = terms_of(mask.left), terms_of(mask.right)
        return None if left is None or right is None else left + right
    if isinstance(mask, NATIVE):
        return [mask]
    if isinstance(mask, Or) and {type(mask.left), type(mask.right)} == {masks.Window, masks.SinkTokens}:
        return [mask]
    return None


class Loads:
    def __init__(self, case, given):
        self.case, self.given = case, given
        self.acc = np.float64 if case.dtype == "float64" else np.float32
        weights = preset(case.dtype, case.out_dtype).weights
        self.w = None if weights is None else np_dtype(weights)
        self.G = max(1, case.H // max(1, case.Hkv))
        self.BM, self.BN = (16, 16) if case.Lk <= 256 else (64, 128)
        self.scale = self.acc(self.get_scale())
        self.terms = terms_of(case.mask)
        self.attn_mask = None
        if self.terms is None:
            self.terms, self.attn_mask = [], np.array(case.visibility.tile())
        p = case.dropout
        self.rp = self.acc(1.0 if p is None else 0.0 if p == 1 else 1 / (1 - p))

    # ---- parameters
    def get_scale(self):
        if self.case.scale is not None:
            return self.case.scale
        return self.case.D**-0.5 if self.case.D else 1.0

    def q_len(self, b):
        if "seqused_q" in self.given:
            return int(self.given["seqused_q"][b])
        if "cu_seqlens_q" in self.given:
            return int(self.given["cu_seqlens_q"][b + 1] - self.given["cu_seqlens_q"][b])
        return self.case.lengths[0][b]

    def k_len(self, b):
        if "seqused_k" in self.given:
            return int(self.given["seqused_k"][b])
        if "cu_seqlens_k" in self.given:
            return int(self.given["cu_seqlens_k"][b + 1] - self.given["cu_seqlens_k"][b])
        if "cache_lens" in self.given:
            return int(self.given["cache_lens"][b]) + self.case.Lq
        return self.case.lengths[1][b]

    def k_end(self, b):
        """The end of the keys that are read; `k_len` is what the diagonal is aligned by."""
        return self.k_len(b)

    # ---- addresses
    def q_at(self, b, h, i):
        if isinstance(self.case.storage, Packed):
            return int(self.given["cu_seqlens_q"][b]) + i, h
        return b, h, i

    def lse_at(self, b, h, i):
        if isinstance(self.case.storage, Packed):
            return h, int(self.given["cu_seqlens_q"][b]) + i
        return b, h, i

    def k_at(self, b, g, j):
        storage = self.case.storage
        if isinstance(storage, Packed):
            return int(self.given["cu_seqlens_k"][b]) + j, g
        if isinstance(storage, Paged):
            size = storage.page_size
            return self.given["block_table"][b, j // size].astype(np.int64), j % size, g
        if isinstance(storage, Cache):
            return b, j, g
        return b, g, j

    def dkv_at(self, b, g, j):
        return Loads.k_at(self, b, g, j)

    # ---- loads
    def load_q(self, b, h, i):
        q = self.given["q"][self.q_at(b, h, i)].astype(self.acc)
        if "q_scale" in self.given:
            q = q * self.descale("q", b, h, i)
        if self.case.rotary is not None:
            q = self.rotate(q, self.q_position(b, i))
        return q

    def q_position(self, b, i):
        return i + self.k_len(b) - self.q_len(b)

    def load_kv(self, b, g, j):
        cached = "_cache" if isinstance(self.case.storage, Cache) else ""
        k, v = (self.given[n + cached][self.k_at(b, g, j)].astype(self.acc) for n in "kv")
        if "k_scale" in self.given:
            k, v = k * self.descale("k", b, g, j), v * self.descale("v", b, g, j)
        if self.case.rotary is not None and not cached:
            k = self.rotate(k, j)
        return k, v

    def descale(self, name, b, h, t):
        x = self.given[name + "_scale"]
        block = t // 64 if x.shape[2] > 1 else np.zeros_like(t)
        return x[b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0, block].astype(self.acc)

    def rotate(self, x, position, sign=1):
        n, interleaved = self.case.rotary.dim, self.case.rotary.interleaved
        cos, sin = (self.given[t][position].astype(self.acc) for t in ("cos", "sin"))
        one, two = (slice(0, n, 2), slice(1, n, 2)) if interleaved else (slice(0, n // 2), slice(n // 2, n))
        y = x.copy()
        y[:, one] = x[:, one] * cos - sign * x[:, two] * sin
        y[:, two] = x[:, two] * cos + sign * x[:, one] * sin
        return y if self.w is None else y.astype(self.w).astype(self.acc)

    def append(self):
        """Writes the new tokens behind those of the cache."""
        for b, start in enumerate(self.given["cache_lens"]):
            slots = self.slots(b, int(start))
            for n in "kv":
                for g in range(self.case.Hkv):
                    x = self.given[n][b, g]
                    if n == "k" and self.case.rotary is not None:
                        x = self.rotate(x.astype(self.acc), slots).astype(x.dtype)
                    self.given[n + "_cache"][b, slots, g] = x

    def slots(self, b, start):
        return start + np.arange(self.case.Lq)

    def load_bias(self, b, h, i, j):
        return self.given["bias"][self.bias_at(b, h, i, j)].astype(self.acc)

    def bias_at(self, b, h, i, j):
        at = (np.full_like(i, b)[:, None], h[:, None], i[:, None], j[None, :])
        return tuple(x if n > 1 else np.zeros_like(x) for x, n in zip(at, self.given["bias"].shape, strict=True))

    def load_sink(self, h):
        return self.given["sinks"][h].astype(self.acc)

    def load_keep(self, b, h, i, j):
        return self.given["keep"][b, h[:, None], i[:, None], j[None, :]].astype(self.acc)

    # ---- which keys
    def diagonal(self, align, b, i):
        return i if align == "top_left" else i + self.k_len(b) - self.q_len(b)

    def visible(self, b, h, i, j):
        seen = np.broadcast_to(j < self.k_end(b), (i.size, j.size)).copy()
        i, h, j = i[:, None], h[:, None], j[None, :]
        if self.attn_mask is not None:
            seen &= self.load_mask(b, h, i, j)
        for t in self.terms:
            seen &= self.term(t, b, i, j)
        return seen

    def load_mask(self, b, h, i, j):
        return self.attn_mask[b, h, i, j]

    def term(self, t, b, i, j):
        if isinstance(t, masks.Causal):
            return self.causal(t, b, i, j)
        if isinstance(t, masks.Window):
            return self.window(t, b, i, j)
        if isinstance(t, masks.Padding):
            return j < t.lengths[b]
        if isinstance(t, masks.Documents):
            return self.documents(t, b, i, j)
        if isinstance(t, masks.Prefix):
            n = t.length[b] if isinstance(t.length, tuple) else t.length
            return (j < n) | (j <= self.diagonal(t.align, b, i))
        if isinstance(t, masks.Chunked):
            return j // t.size == self.diagonal(t.align, b, i) // t.size
        window, sink = (t.left, t.right) if isinstance(t.left, masks.Window) else (t.right, t.left)
        return self.window(window, b, i, j) | (j < sink.n)

    def causal(self, t, b, i, j):
        return j <= self.diagonal(t.align, b, i)

    def window(self, t, b, i, j):
        own = self.diagonal(t.align, b, i)
        left = j >= own - t.left if t.left is not None else True
        right = j <= own + t.right if t.right is not None else True
        return np.logical_and(left, right)

    def documents(self, t, b, i, j):
        ids = [np.array(x) for x in (t.q_ids, t.q_ids if t.k_ids is None else t.k_ids)]
        q_ids, k_ids = (x[b] if x.ndim == 2 else x for x in ids)
        return q_ids[i] == k_ids[j]

    def key_range(self, b, i):
        """The keys [lo, hi) that a tile of rows can see, lo a multiple of BLOCK_N."""
        lo, hi = 0, self.k_end(b)
        for t in self.terms:
            if isinstance(t, masks.Causal):
                hi = min(hi, int(self.diagonal(t.align, b, i.max())) + 1)
            elif isinstance(t, masks.Window):
                if t.left is not None:
                    lo = max(lo, int(self.diagonal(t.align, b, i.min())) - t.left)
                if t.right is not None:
                    hi = min(hi, int(self.diagonal(t.align, b, i.max())) + t.right + 1)
        return lo // self.BN * self.BN, hi
