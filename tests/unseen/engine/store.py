"""Where the tokens live: dense, packed, paged and appended caches; codes and scales; rotation; masks."""

from __future__ import annotations

import numpy as np

from refattn.dtypes import FORMATS
from refattn.masks import (
    Causal,
    Chunked,
    Documents,
    Padding,
    Prefix,
    SinkTokens,
    Window,
)
from refattn.storage import Cache, Packed, Paged
from refattn.visibility import And, Not, Or

GGML = ("q8_0", "q4_0")


class Store:
    """The arrays of one call.  Heads of a group stay together: queries are (Hkv, G, rows, D), keys (Hkv, n, D)."""

    def __init__(self, case, given):
        self.case, self.given = case, given
        self.acc = np.dtype(np.float64 if case.dtype == "float64" else np.float32)
        self.io = FORMATS[case.dtype].dtype
        self.G = case.H // case.Hkv if case.Hkv else 1
        self.path = ""  # "decode" or "prefill"
        self.q_lens, self.k_lens = self.lengths()
        self.scale = self.softmax_scale()
        if isinstance(case.storage, Cache):
            for b in range(case.B):
                self.append(b)

    # -- sizes

    def lengths(self):
        case, given = self.case, self.given
        if isinstance(case.storage, Packed):
            if case.storage.gap:
                return given["seqused_q"], given["seqused_k"]
            return np.diff(given["cu_seqlens_q"]), np.diff(given["cu_seqlens_k"])
        if isinstance(case.storage, Paged):
            return np.array(case.lengths[0]), given["seqused_k"]
        if isinstance(case.storage, Cache):
            return np.full(case.B, case.Lq), given["cache_lens"] + case.Lq
        return np.array(case.lengths[0]), np.array(case.lengths[1])

    def softmax_scale(self):
        case = self.case
        if case.scale is not None:
            return case.scale
        return case.D**-0.5 if case.D else 1.0

    def offset(self, b):
        """Where query 0 stands among the keys when both end together."""
        return int(self.k_lens[b]) - int(self.q_lens[b])

    # -- queries and other rows

    def rows(self, name, b):
        """q or dout of one sequence, (H, lq, D)."""
        x, n = self.given[name], int(self.q_lens[b])
        if isinstance(self.case.storage, Packed):
            start = int(self.given["cu_seqlens_q"][b])
            return x[start : start + n].swapaxes(0, 1).astype(self.acc)
        return x[b, :, :n].astype(self.acc)

    def grouped(self, x):
        """(H, ...) as (Hkv, G, ...)."""
        return x.reshape(self.case.Hkv, self.G, *x.shape[1:])

    def queries(self, b):
        q = self.rows("q", b)
        if "q_scale" in self.given:
            by_block = self.case.quant.granularity == "block"
            q = q * (self.block_scales("q", b, 0, q.shape[1]) if by_block else self.descale("q", b))
        return self.grouped(self.rope(q, self.query_positions(b)))

    def query_positions(self, b):
        return np.arange(int(self.q_lens[b])) + self.offset(b)

    def put(self, target, name, b, x, n):
        """Write one sequence's (heads, n, ...) where the caller reads it."""
        if isinstance(self.case.storage, Packed):
            start = int(self.given["cu_seqlens_k" if name in ("dk", "dv") else "cu_seqlens_q"][b])
            if name == "lse":
                target[:, start : start + n] = x
            else:
                target[start : start + n] = x.swapaxes(0, 1)
        else:
            target[b, :, :n] = x

    def empty(self, name):
        case, packed = self.case, isinstance(self.case.storage, Packed)
        heads, width = (case.Hkv if name in ("dk", "dv") else case.H), (case.Dv if name in ("out", "dv") else case.D)
        if name == "lse":
            dtype = self.acc
        else:
            dtype = FORMATS[case.out_dtype].dtype if name == "out" else self.io
        if packed:
            tokens = int(self.given["cu_seqlens_k" if name in ("dk", "dv") else "cu_seqlens_q"][-1])
            return np.zeros((heads, tokens) if name == "lse" else (tokens, heads, width), dtype)
        length = case.Lk if name in ("dk", "dv") else case.Lq
        return np.zeros((case.B, heads, length) + (() if name == "lse" else (width,)), dtype)

    # -- keys and values

    def append(self, b):
        """New tokens into the cache, keys rotated at their absolute positions."""
        start, n = self.slot(b), self.case.Lq
        pos = int(self.given["cache_lens"][b]) + np.arange(n)
        k = self.rope(self.given["k"][b].astype(self.acc), pos)
        self.given["k_cache"][b, start : start + n] = k.swapaxes(0, 1).astype(self.io)
        self.given["v_cache"][b, start : start + n] = self.given["v"][b].swapaxes(0, 1)

    def slot(self, b):
        return int(self.given["cache_lens"][b])

    def tokens(self, name, b, j0, j1):
        """Keys or values as they are stored, (Hkv, n, D)."""
        x, storage = self.given[name], self.case.storage
        if isinstance(storage, Packed):
            start = int(self.given["cu_seqlens_k"][b])
            return x[start + j0 : start + j1].swapaxes(0, 1)
        if isinstance(storage, Paged):
            page, slot = self.locate(b, np.arange(j0, j1))
            return x[page, slot].swapaxes(0, 1)
        if isinstance(storage, Cache):
            return self.given[f"{name}_cache"][b, j0:j1].swapaxes(0, 1)
        return x[b, :, j0:j1]

    def locate(self, b, j):
        size = self.case.storage.page_size
        return self.given["block_table"][b, j // size], j % size

    def kv(self, name, b, j0, j1):
        """Keys or values as numbers: dequantised but for the scale of a head, rotated."""
        x = self.dequant(name, self.tokens(name, b, j0, j1), b, j0, j1)
        if name == "k" and self.rotates_on_load():
            x = self.rope(x, self.key_positions(b, j0, j1))
        return x

    def rotates_on_load(self):
        return not isinstance(self.case.storage, Cache)

    def key_positions(self, b, j0, j1):
        return np.arange(j0, j1)

    def dequant(self, name, codes, b, j0, j1):
        quant = self.case.quant
        if quant is None:
            return codes.astype(self.acc)
        if quant.kind == "q4_0":
            codes = self.nibbles(codes)
        x = self.decoded(codes)
        if quant.granularity == "block":
            x = x * self.block_scales(name, b, j0, j1)
        return x

    def decoded(self, codes):
        return codes.astype(self.acc)

    def nibbles(self, codes):
        blocks = codes.reshape(*codes.shape[:-1], -1, 16)
        low, high = (blocks & 15).astype(np.int8) - 8, (blocks >> 4).astype(np.int8) - 8
        return np.concatenate([low, high], -1).reshape(*codes.shape[:-1], -1)

    def block_scales(self, name, b, j0, j1):
        scale = self.given[f"{name}_scale"][b].astype(self.acc)
        if self.case.quant.kind in GGML:
            return np.repeat(scale[:, j0:j1], 32, -1)
        return scale[:, np.arange(j0, j1) // 64]

    def descale(self, name, b):
        """The scale of a tensor or of each head, (heads or 1, 1, 1); 1 where there is none."""
        if self.case.quant is None or f"{name}_scale" not in self.given or self.case.quant.granularity == "block":
            return np.ones((1, 1, 1), self.acc)
        scale = self.given[f"{name}_scale"].astype(self.acc)
        return scale[b if len(scale) > 1 else 0]

    # -- rotation

    def rope(self, x, pos, sign=1):
        """x (heads, n, D) turned by the angles of its positions; sign -1 turns back."""
        rotary = self.case.rotary
        if rotary is None:
            return x
        cos, sin = (self.given[n][pos].astype(self.acc) for n in ("cos", "sin"))
        first, second = self.pairs(rotary.dim, x.shape[-1], rotary.interleaved)
        a, c, y = x[..., first], x[..., second], x.copy()
        y[..., first], y[..., second] = a * cos - c * sin * sign, c * cos + a * sin * sign
        return y.astype(self.io).astype(self.acc) if self.io.itemsize == 2 else y

    def pairs(self, dim, D, interleaved):
        if interleaved:
            return slice(0, dim, 2), slice(1, dim, 2)
        return slice(0, dim // 2), slice(dim // 2, dim)

    # -- which keys a query sees

    def position(self, align, b, i):
        return i if align == "top_left" else i + self.offset(b)

    def seen(self, b, i0, i1, j0, j1):
        i, j = np.arange(i0, i1).reshape(1, 1, -1, 1), np.arange(j0, j1).reshape(1, 1, 1, -1)
        shape = (1, self.case.H, i1 - i0, j1 - j0)
        seen = True if self.case.mask is None else self.rule(self.case.mask, b, i, j)
        return self.grouped(np.broadcast_to(seen & (j < int(self.k_lens[b])), shape)[0])

    def rule(self, mask, b, i, j):
        if isinstance(mask, And):
            return self.rule(mask.left, b, i, j) & self.rule(mask.right, b, i, j)
        if isinstance(mask, Or):
            return self.rule(mask.left, b, i, j) | self.rule(mask.right, b, i, j)
        if isinstance(mask, Not):
            return ~self.rule(mask.mask, b, i, j)
        if isinstance(mask, Causal):
            return j <= self.position(mask.align, b, i)
        if isinstance(mask, Window):
            return self.window(mask, self.position(mask.align, b, i), j)
        if isinstance(mask, Chunked):
            return j // mask.size == self.position(mask.align, b, i) // mask.size
        if isinstance(mask, Prefix):
            length = mask.length[b] if isinstance(mask.length, tuple) else mask.length
            return (j < length) | (j <= self.position(mask.align, b, i))
        if isinstance(mask, SinkTokens):
            return j < mask.n
        if isinstance(mask, Padding):
            return j < mask.lengths[b]
        if isinstance(mask, Documents):
            return self.ids(mask.q_ids, b)[i] == self.ids(mask.q_ids if mask.k_ids is None else mask.k_ids, b)[j]
        return self.custom(mask, b, i, j)

    def window(self, mask, own, j):
        seen = np.ones((1, 1, 1, 1), bool)
        if mask.left is not None:
            seen = seen & (j >= own - mask.left)
        if mask.right is not None:
            seen = seen & (j <= own + mask.right)
        return seen

    def ids(self, ids, b):
        return np.array(ids[b] if ids and isinstance(ids[0], tuple) else ids)

    def custom(self, mask, b, i, j):
        """A mask that the caller hands over as bits."""
        h = np.arange(self.case.H).reshape(1, -1, 1, 1)
        lq, lk = (np.full((1, 1, 1, 1), n[b]) for n in (self.q_lens, self.k_lens))
        return mask(np.full((1, 1, 1, 1), b), h, i, j, lq, lk)

    def key_range(self, mask, b, i0, i1):
        """The keys that rows i0 to i1 can see at all, [lo, hi)."""
        lo, hi = 0, int(self.k_lens[b])
        if isinstance(mask, (And, Or)):
            (a, c), (d, e) = self.key_range(mask.left, b, i0, i1), self.key_range(mask.right, b, i0, i1)
            return (max(a, d), min(c, e)) if isinstance(mask, And) else (min(a, d), max(c, e))
        if isinstance(mask, (Causal, Window)):
            first, last = self.position(mask.align, b, i0), self.position(mask.align, b, i1 - 1)
            left, right = (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)
            lo = lo if left is None else max(lo, first - left)
            hi = hi if right is None else min(hi, last + right + 1)
        return lo, hi
