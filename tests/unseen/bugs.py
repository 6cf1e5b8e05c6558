"""Bugs of the kernel in kernel: each overrides the step that its author got wrong."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

import numpy as np

from refattn import masks
from refattn.case import Cache, Dense, Packed, Paged, Strided
from refattn.score_mods import SCORE_MODS

from .kernel import Kernel, build
from .loads import INF

ROWS = []


def bug(description):
    def add(kernel):
        name = kernel.__name__
        ROWS.append((name, description, lambda: build(kernel, name)))
        return kernel

    return add


class TwoPhases(Kernel):
    """Knows whether it is in the backward."""

    back = False

    def backward(self, b, g):
        self.back = True
        super().backward(b, g)


class Decode(Kernel):
    """Knows whether the tile of rows takes the split path."""

    splitting = False

    def split(self, lo, hi, n_tiles):
        parts = super().split(lo, hi, n_tiles)
        self.splitting = len(parts) > 1
        return parts

    def backward(self, b, g):
        self.splitting = False
        super().backward(b, g)


# ---- M: which keys
@bug("the causal diagonal of a bottom-right case is at j <= i: the offset lk - lq was forgotten")
class causal_without_offset(Kernel):
    def diagonal(self, align, b, i):
        return i


@bug("causal and windows are always aligned bottom-right, also where the case says top-left")
class always_bottom_right(Kernel):
    def diagonal(self, align, b, i):
        return super().diagonal("bottom_right", b, i)


@bug("bottom-right alignment takes the padded Lk - Lq of the tensors, not the lengths of the batch entry")
class offset_of_padded_sizes(Kernel):
    def diagonal(self, align, b, i):
        return i if align == "top_left" else i + self.case.Lk - self.case.Lq


@bug("the key at the left end of a window is left out: j > own - left instead of >=")
class window_left_exclusive(Kernel):
    def window(self, t, b, i, j):
        return super().window(t, b, i, j) & (
            j != self.diagonal(t.align, b, i) - t.left if t.left is not None else True
        )


@bug("a window size of 0 is taken for 'no limit' on that side: `if window_right:`")
class window_zero_is_none(Kernel):
    def window(self, t, b, i, j):
        return super().window(masks.Window(t.left or None, t.right or None, t.align), b, i, j)

    def key_range(self, b, i):
        return 0, self.k_len(b)


@bug("left and right size of the window are swapped when they are handed to the kernel")
class window_sides_swapped(Kernel):
    def window(self, t, b, i, j):
        return super().window(masks.Window(t.right, t.left, t.align), b, i, j)

    def key_range(self, b, i):
        return 0, self.k_len(b)


@bug("the first key tile of a window is rounded up: keys in the partial tile at its left end are lost")
class window_start_rounded_up(Kernel):
    def key_range(self, b, i):
        lo, hi = super().key_range(b, i)
        window = next((t for t in self.terms if isinstance(t, masks.Window) and t.left is not None), None)
        if window is None:
            return lo, hi
        first = max(0, int(self.diagonal(window.align, b, i.min())) - window.left)
        return max(lo, -(-first // self.BN) * self.BN), hi


@bug("the last key tile is found from the tile's last row, which with packed heads need not reach furthest")
class causal_bound_from_last_row(Kernel):
    def key_range(self, b, i):
        return super().key_range(b, i[-1:])


@bug("the causal mask is applied in the last key tile only; rows that straddle two key tiles see the future")
class causal_in_last_tile_only(Kernel):
    def scores(self, b, h, i, q, k, j):
        self.last_tile = j[-1] + 1 >= self.key_range(b, i)[1]
        return super().scores(b, h, i, q, k, j)

    def causal(self, t, b, i, j):
        return super().causal(t, b, i, j) | (not self.last_tile)


@bug("with packed heads the packed row r, not r % lq, is the query index in the mask")
class packed_row_as_query_in_mask(Kernel):
    def visible(self, b, h, i, j):
        return super().visible(b, h, i, j) if self.attn_mask is not None else self.by_row(b, h, i, j)

    def by_row(self, b, h, i, j):
        r = h % self.G * self.q_len(b) + i
        ids = any(isinstance(t, masks.Documents) for t in self.terms)
        return super().visible(b, h, i if ids else r, j)


@bug("the mask tensor's polarity is inverted: True hides")
class mask_polarity(Kernel):
    def load_mask(self, b, h, i, j):
        return ~self.attn_mask[b, h, i, j]


@bug("the mask tensor of batch entry 0 is used for all entries: its batch stride is taken as 0")
class mask_of_entry_0(Kernel):
    def load_mask(self, b, h, i, j):
        return self.attn_mask[0, h, i, j]


@bug("document ids: only the start of the query's document is checked, as if causality hid all that comes after it")
class documents_open_end(Kernel):
    def documents(self, t, b, i, j):
        same = super().documents(t, b, np.arange(self.q_len(b))[:, None], np.arange(self.k_len(b))[None, :])
        return np.logical_or.accumulate(same, 1)[i, j]


@bug("tiles that lie wholly before the window are skipped, though sink tokens in them stay visible")
class sink_tokens_skipped(Kernel):
    def key_range(self, b, i):
        lo, hi = super().key_range(b, i)
        for t in self.terms:
            for part in (getattr(t, "left", None), getattr(t, "right", None)):
                if isinstance(part, masks.Window) and part.left is not None:
                    lo = max(lo, int(self.diagonal(part.align, b, i.min())) - part.left)
        return lo // self.BN * self.BN, hi


@bug("prefix-LM: key tiles beyond the diagonal are skipped as for causal, also where the prefix reaches into them")
class prefix_tiles_skipped(Kernel):
    def key_range(self, b, i):
        lo, hi = super().key_range(b, i)
        for t in self.terms:
            if isinstance(t, masks.Prefix):
                hi = min(hi, (int(self.diagonal(t.align, b, i.max())) // self.BN + 1) * self.BN)
        return lo, hi


@bug("local chunks: the query's chunk is found from i, not from its position i + lk - lq")
class chunk_of_relative_query(Kernel):
    def term(self, t, b, i, j):
        return j // t.size == i // t.size if isinstance(t, masks.Chunked) else super().term(t, b, i, j)


# ---- E, O: empty rows, tails, memory that is not there
@bug("the running maximum has no guard: in a tile where a row sees nothing yet, exp(-inf - -inf) is NaN")
class max_without_guard(Kernel):
    def update(self, state, s, seen, v, keep):
        m, l, o = state
        new = np.maximum(m, s.max(1))
        p, alpha = np.exp(s - new[:, None]), np.exp(m - new)
        l, p = l * alpha + p.sum(1), self.round(p)
        return new, l, o * alpha[:, None] + self.dot(p if keep is None else p * keep, v, seen)


@bug("hidden scores are -1e30, not -inf: a row that sees nothing gets the mean of the values it visits")
class finite_mask_value(Kernel):
    def scores(self, b, h, i, q, k, j):
        s, seen, slope, raw = super().scores(b, h, i, q, k, j)
        return np.where(seen, s, self.acc(-1e30)), seen, slope, raw


@bug("the running maximum starts at 0 instead of -inf: rows whose scores are all far below 0 underflow")
class max_starts_at_zero(Kernel):
    def initial(self, n):
        m, l, o = super().initial(n)
        return np.zeros_like(m), l, o


@bug("lse of a row that sees nothing is +inf")
class empty_lse_plus_inf(Kernel):
    def finish(self, state):
        out, lse = super().finish(state)
        return out, np.where(lse == -INF, INF, lse)


@bug("the last key tile is not masked against the length: its lanes read the last key again and count it")
class tail_counts_last_key_again(Kernel):
    def key_tile(self, j0, hi):
        return np.arange(j0, j0 + self.BN) if getattr(self, "going_forward", True) else super().key_tile(j0, hi)

    def backward(self, b, g):
        self.going_forward = False
        super().backward(b, g)

    def load_kv(self, b, g, j):
        return super().load_kv(b, g, np.minimum(j, self.k_len(b) - 1))

    def scores(self, b, h, i, q, k, j):
        return super().scores(b, h, i, q, k, np.minimum(j, self.k_len(b) - 1))

    def load_keep(self, b, h, i, j):
        return super().load_keep(b, h, i, np.minimum(j, self.k_len(b) - 1))


@bug("whole tiles of V are read from pages and caches: what lies beyond the length has weight 0, but 0 * NaN is NaN")
class tail_of_page_not_cleared(Kernel):
    def load_kv(self, b, g, j):
        k, v = super().load_kv(b, g, j)
        storage = self.case.storage
        n = self.k_len(b)
        if isinstance(storage, Paged):
            unused = n % min(storage.page_size, self.BN) != 0
        else:
            unused = isinstance(storage, Cache) and n % self.BN != 0 and n < self.given["v_cache"].shape[1]
        self.dirty |= unused and j[-1] + 1 == n
        return k, v

    dirty = False

    def update(self, state, s, seen, v, keep):
        m, l, o = super().update(state, s, seen, v, keep)
        o = o * np.nan if self.dirty else o
        self.dirty = False
        return m, l, o


@bug("padded keys of a dense batch are attended: the entry's key length shifts the diagonal but hides nothing")
class key_length_hides_nothing(Kernel):
    def k_end(self, b):
        return self.case.Lk if isinstance(self.case.storage, Dense) else self.k_len(b)


@bug("early exit when an entry has no keys: its rows of out and lse stay as torch.empty left them")
class no_keys_no_store(Kernel):
    def alloc(self, name, dtype):
        x = super().alloc(name, dtype)
        if name in ("out", "lse"):
            x[...] = np.nan
        return x

    def forward(self, b, g):
        if self.k_len(b):
            super().forward(b, g)


# ---- S: online softmax, split, merge, sinks
@bug("the output accumulator is not rescaled when the maximum grows")
class acc_not_rescaled(Kernel):
    def update(self, state, s, seen, v, keep):
        m, l, o = state
        new, l, scaled = super().update(state, s, seen, v, keep)
        ref = np.where(new == -INF, self.acc(0), new)
        return new, l, scaled + o * (1 - np.exp(m - ref))[:, None]


@bug("lazy rescaling: where the maximum grew by less than 4, sum and accumulator are left, but the new maximum is kept")
class lazy_rescale_forgets_old_max(Kernel):
    def update(self, state, s, seen, v, keep):
        m, l, o = state
        new = np.maximum(m, s.max(1))
        small = (new - m < 4) & (l > 0)
        fresh = super().update((m, l * 0, o * 0), s, seen, v, keep)
        ref = np.where(new == -INF, self.acc(0), new)
        alpha = np.where(small, self.acc(1), np.exp(m - ref))
        return new, l * alpha + fresh[1], o * alpha[:, None] + fresh[2]


@bug("lse is in base 2: log2(sum) + m * log2(e) is returned without the factor ln 2")
class lse_in_base_2(Kernel):
    def run(self):
        answer = super().run()
        if "lse" in answer:
            answer["lse"] = (answer["lse"] * np.log2(np.e)).astype(self.acc)
        return answer


@bug("split-KV: partial outputs are averaged with equal weights")
class merge_by_plain_average(Kernel):
    def merge(self, parts):
        m, l, o = super().merge(parts)
        mean = sum(p[2] / np.where(p[1] == 0, 1, p[1])[:, None] for p in parts) / self.acc(len(parts))
        return m, l, mean * l[:, None]


@bug("split-KV: the partial accumulators are brought to the common maximum, the partial sums are not")
class merge_sums_not_rescaled(Kernel):
    def merge(self, parts):
        m, _, o = super().merge(parts)
        return m, sum(p[1] for p in parts), o


@bug("split-KV: merging partial states that are all empty gives exp(-inf - -inf), NaN")
class merge_of_empty_is_nan(Kernel):
    def merge(self, parts):
        m, l, o = super().merge(parts)
        return m, l + np.where(m == -INF, np.nan, 0).astype(self.acc), o


@bug("split-KV: the number of tiles per split is rounded down, the tiles that are left over are never visited")
class split_remainder_lost(Kernel):
    def split(self, lo, hi, n_tiles):
        blocks = -(-(hi - lo) // self.BN)
        if n_tiles > 1 or blocks < 2:
            return super().split(lo, hi, n_tiles)
        step = max(1, blocks // self.SPLITS) * self.BN
        n = min(self.SPLITS, blocks)
        return [(lo + x * step, min(lo + (x + 1) * step, hi)) for x in range(n)]


@bug("split-KV: ranges are inclusive at both ends, the first key of the next split is counted twice")
class splits_overlap_by_one(Kernel):
    def split(self, lo, hi, n_tiles):
        return [(a, min(b + 1, hi)) for a, b in super().split(lo, hi, n_tiles)]


@bug("the sink logit is added by each split, so that it counts as often as there are splits")
class sink_in_each_split(Decode):
    def merge(self, parts):
        self.n_parts = len(parts)
        return super().merge(parts)

    def add_sink(self, state, h):
        m, l, o = super().add_sink(state, h)
        extra = (self.n_parts - 1) if self.splitting else 0
        return m, l + extra * np.exp(self.given["sinks"][h].astype(self.acc) - m), o


@bug("the sink is left out on the split path")
class no_sink_when_split(Decode):
    def add_sink(self, state, h):
        return state if self.splitting else super().add_sink(state, h)


@bug("the sink logit is multiplied by the softmax scale like a score")
class sink_scaled(Kernel):
    def load_sink(self, h):
        return super().load_sink(h) * self.scale


@bug("the sink logit is looked up by the key head instead of the query head")
class sink_of_key_head(Kernel):
    def load_sink(self, h):
        return super().load_sink(h // self.G)


@bug("dropout is applied before the row sum, so that the sum, and lse, are those of the kept weights")
class dropout_in_row_sum(Kernel):
    def update(self, state, s, seen, v, keep):
        if keep is not None:
            s = np.where(keep > 0, s, -INF)
        return super().update(state, s, seen, v, keep)


# ---- H: heads, layout, strides
@bug("query head h reads key head h % Hkv (tile) instead of h // group (repeat_interleave)")
class heads_tiled(Kernel):
    def rows(self, b, g):
        for h, i in super().rows(b, g):
            yield h % self.G * self.case.Hkv + g, i


@bug("lse is stored by key head: all query heads of a group get that of the first")
class lse_of_first_head_of_group(Kernel):
    def run(self):
        answer = super().run()
        if "lse" in answer and self.case.H:
            h = np.arange(self.case.H) // self.G * self.G
            axis = 0 if isinstance(self.case.storage, Packed) else 1
            answer["lse"] = np.take(answer["lse"], h, axis)
        return answer


@bug("v is read as if it were contiguous in (B, H, L, D), whatever its strides")
class v_strides_ignored(Kernel):
    def __init__(self, case, given):
        super().__init__(case, given)
        if isinstance(case.storage, Dense):
            v = given["v"]
            self.given = {**given, "v": np.ravel(v, order="K").reshape(v.shape)}


@bug("V is read with the row stride of K: wrong as soon as Dv differs from D")
class v_with_stride_of_k(Kernel):
    def load_kv(self, b, g, j):
        k, v = super().load_kv(b, g, j)
        D, Dv, L = self.case.D, self.case.Dv, self.k_len(b)
        if D == Dv or not D:
            return k, v
        whole = super().load_kv(b, g, np.arange(L))[1].ravel()
        at = j[:, None] * D + np.arange(Dv)[None, :]
        return k, whole[np.minimum(at, whole.size - 1)]


@bug("the bias is looked up by the key head")
class bias_of_key_head(Kernel):
    def bias_at(self, b, h, i, j):
        return super().bias_at(b, h // self.G, i, j)


# ---- B: order of operations
@bug("softcap comes after the mask: hidden scores become -cap, and leak where the tile is not skipped")
class softcap_after_mask(Kernel):
    def scores(self, b, h, i, q, k, j):
        s, seen, slope, raw = super().scores(b, h, i, q, k, j)
        if self.case.softcap is None:
            return s, seen, slope, raw
        bias = self.load_bias(b, h, i, j) if "bias" in self.given else np.zeros_like(s)
        leak = ~seen & (bias != -INF)
        s = np.where(leak, bias - self.acc(self.case.softcap), s)
        return s, seen | leak, np.where(leak, self.acc(0), slope), raw


@bug("softcap is not forwarded to the split kernel")
class no_softcap_when_split(Decode):
    def softcap(self, s):
        return (s, self.acc(1)) if self.splitting else super().softcap(s)


@bug("the scale is applied after the softcap: cap * tanh(q.k / cap) * scale")
class scale_after_softcap(Kernel):
    def softcap(self, s):
        if not self.scale:
            return s, self.acc(1)
        capped, slope = super().softcap(s / self.scale)
        return capped * self.scale, slope


@bug("the bias is added before the scale, so that it is scaled too")
class bias_scaled(Kernel):
    def load_bias(self, b, h, i, j):
        return super().load_bias(b, h, i, j) * self.scale


@bug("the default scale is taken from the size of a value, Dv**-0.5")
class scale_from_dv(Kernel):
    def get_scale(self):
        return self.case.scale if self.case.scale is not None else max(self.case.Dv, 1) ** -0.5


@bug("a scale of 0 is taken for 'not given': `scale or D**-0.5`")
class scale_zero_is_default(Kernel):
    def get_scale(self):
        return self.case.scale or max(self.case.D, 1) ** -0.5


@bug("the score modifier is given the position i + lk - lq for the query index")
class score_mod_of_position(Kernel):
    def scores(self, b, h, i, q, k, j):
        if self.case.score_mod is None:
            return super().scores(b, h, i, q, k, j)
        mod = SCORE_MODS[self.case.score_mod]
        shift = self.k_len(b) - self.q_len(b)
        s, seen, slope, raw = super().scores(b, h, i, q, k, j)
        plain, first = raw * self.scale, self.acc(1)
        if self.case.softcap is not None:
            plain, first = self.softcap(plain)
        at = (b, h[:, None], i[:, None] + shift, j[None, :])
        s = mod(plain, *at).astype(self.acc)
        if "bias" in self.given:
            s = s + self.load_bias(b, h, i, j)
        return np.where(seen, s, -INF), seen, (first * mod.slope(plain, *at)).astype(self.acc), raw


# ---- N: precision
@bug("the output accumulator is kept in 16 bits between key tiles")
class accumulator_in_16_bits(Kernel):
    def update(self, state, s, seen, v, keep):
        m, l, o = super().update(state, s, seen, v, keep)
        return m, l, self.round(o)


@bug("the row sum is kept in 16 bits")
class row_sum_in_16_bits(Kernel):
    def update(self, state, s, seen, v, keep):
        m, l, o = super().update(state, s, seen, v, keep)
        return m, self.round(l), o


@bug("q.k leaves the tensor core in 16 bits: fp16 overflows, bf16 loses digits")
class product_in_16_bits(Kernel):
    def product(self, q, k):
        return self.round(super().product(q, k))


@bug("weights are cut off to bf16 by dropping the low 16 bits, instead of rounded to nearest")
class weights_truncated(Kernel):
    def round(self, x):
        if self.w is None or self.w.name != "bfloat16":
            return super().round(x)
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@bug("q is multiplied by the scale when it is loaded, and rounded to 16 bits again")
class q_scaled_in_16_bits(Kernel):
    def load_q(self, b, h, i):
        q = super().load_q(b, h, i)
        return self.round(q * self.scale) / self.scale if self.scale else q


@bug("the scale of K is applied to V too")
class v_by_scale_of_k(Kernel):
    def descale(self, name, b, h, t):
        return super().descale("k" if name == "v" else name, b, h, t)


@bug("scales by head: that of head 0 is used for all")
class descale_of_head_0(Kernel):
    def descale(self, name, b, h, t):
        return super().descale(name, b, np.zeros_like(t), t)


# ---- I, V: integer width, packed, paged, cache
@bug("the offset of a key row is a 32-bit product: far rows wrap round and read near ones")
class key_offset_wraps(Kernel):
    def k_at(self, b, g, j):
        storage = self.case.storage
        if not isinstance(storage, Strided):
            return super().k_at(b, g, j)
        n = ((b * self.case.Hkv + g) * self.case.Lk + j) % max(1, 2**32 // storage.row)
        return n // self.case.Lk // self.case.Hkv, n // self.case.Lk % self.case.Hkv, n % self.case.Lk


@bug("the pages of one key tile are taken to lie one after the other: the table is read for its first key only")
class page_table_once_per_tile(Kernel):
    def k_at(self, b, g, j):
        if not isinstance(self.case.storage, Paged):
            return super().k_at(b, g, j)
        size, table = self.case.storage.page_size, self.given["block_table"]
        slot = int(table[b, j[0] // size]) * size + j - j[0] // size * size
        slot = np.minimum(slot, self.given["k"].shape[0] * size - 1)
        return slot // size, slot % size, g


@bug("the keys of packed sequences are found by cu_seqlens_q")
class keys_by_cu_seqlens_q(Kernel):
    def k_at(self, b, g, j):
        if not isinstance(self.case.storage, Packed):
            return super().k_at(b, g, j)
        start = int(self.given["cu_seqlens_q"][b])
        return np.minimum(start + j, self.given["k"].shape[0] - 1), g


@bug("packed with gaps: lengths are differences of cu_seqlens, seqused_k is ignored")
class gaps_counted_as_keys(Kernel):
    def k_len(self, b):
        if "cu_seqlens_k" in self.given:
            return min(self.case.Lk, int(self.given["cu_seqlens_k"][b + 1] - self.given["cu_seqlens_k"][b]))
        return super().k_len(b)


@bug("the new tokens of all entries go to the slots behind entry 0's cache")
class append_at_length_of_entry_0(Kernel):
    def slots(self, b, start):
        return int(self.given["cache_lens"][0]) + np.arange(self.case.Lq)


@bug("rotary: query positions count from 0, not from lk - lq")
class rotary_query_from_zero(Kernel):
    def q_position(self, b, i):
        return i


# ---- G, D: backward and dropout
@bug("dk and dv of a group are those of its last query head: the heads overwrite each other instead of adding up")
class group_grads_overwritten(Kernel):
    def to_keys(self, h, weights, x, seen):
        last = h % self.G == self.G - 1
        return super().to_keys(h[last], weights[last], x[last], seen[last])


@bug("the factor 1 - tanh^2 of the softcap is missing in the backward")
class softcap_slope_missing(Kernel):
    def softcap(self, s):
        return super().softcap(s)[0], self.acc(1)


@bug("the backward is aligned top-left where the forward is bottom-right")
class backward_top_left(TwoPhases):
    def diagonal(self, align, b, i):
        return i if self.back else super().diagonal(align, b, i)


@bug("the backward recomputes the scores without the bias")
class backward_without_bias(TwoPhases):
    def load_bias(self, b, h, i, j):
        bias = super().load_bias(b, h, i, j)
        return np.where(bias == -INF, bias, self.acc(0)) if self.back else bias


@bug("the gradient of lse is ignored")
class dlse_ignored(Kernel):
    def d_lse(self, b, h, i):
        return self.acc(0)


@bug("delta = rowsum(dout * out) is never filled in: ds = p * dp")
class delta_missing(Kernel):
    def row_delta(self, b, h, i, out):
        return np.zeros_like(out[:, 0]) if out.shape[1] else self.acc(0)


@bug("dq is stored, not added, by each key tile: only the last one's part is left")
class dq_of_last_tile(Kernel):
    def backward_tile(self, b, h, i, j, k, v):
        self.dq[self.q_at(b, h, i)] = 0
        return super().backward_tile(b, h, i, j, k, v)


@bug("dk lacks the scale: q was expected to be scaled beforehand")
class dk_without_scale(Kernel):
    def store_dkv(self, b, g, j, dk, dv):
        super().store_dkv(b, g, j, dk / self.scale if self.scale else dk, dv)


@bug("dbias of a bias that broadcasts is the last row's or entry's: assigned, not summed")
class dbias_assigned(Kernel):
    def bias_grad(self, b, h, i, j, ds):
        self.dbias[tuple(np.broadcast_arrays(*self.bias_at(b, h, i, j)))] = ds


@bug("dsinks holds the last batch entry's part only")
class dsinks_of_last_entry(Kernel):
    def backward(self, b, g):
        self.dsinks[g * self.G : (g + 1) * self.G] = 0
        super().backward(b, g)


@bug("the backward for keys starts at the tile of rows with the same number: right only for top-left and Lq = Lk")
class backward_starts_at_same_row(TwoPhases):
    def key_range(self, b, i):
        lo, hi = super().key_range(b, i)
        causal = any(isinstance(t, masks.Causal) for t in self.terms)
        return (lo, min(hi, int(i.max()) + 1)) if self.back and causal else (lo, hi)


@bug("dropout: the mask is not applied to the gradient of the weights")
class dropout_missing_in_dp(Kernel):
    def d_weights(self, dp, drop):
        return dp


@bug("dropout: kept weights are multiplied by 1 - p instead of divided by it")
class dropout_scale_inverted(Kernel):
    def __init__(self, case, given):
        super().__init__(case, given)
        if case.dropout is not None:
            self.rp = self.acc(1 - case.dropout)


@bug("dropout: the random bits are counted from the start of each key tile, all tiles have the first one's mask")
class dropout_counts_in_tile(Kernel):
    def load_keep(self, b, h, i, j):
        return super().load_keep(b, h, i, j % self.BN)


@bug("dropout: the mask of a group's first head is used for all its heads")
class dropout_of_first_head(Kernel):
    def load_keep(self, b, h, i, j):
        return super().load_keep(b, h // self.G * self.G, i, j)


@bug("the mask tensor of head 0 is used for all heads: a mask per head is read as if it were broadcast")
class mask_of_head_0(Kernel):
    def load_mask(self, b, h, i, j):
        return self.attn_mask[b, 0, i, j]


@bug("the mask is evaluated once per tile, for its first row, and used for all its rows")
class mask_of_first_row(Kernel):
    def visible(self, b, h, i, j):
        return np.repeat(super().visible(b, h[:1], i[:1], j), i.size, 0)


@bug("V is never read: the K tile in shared memory is used for both, where the sizes allow it")
class k_used_as_v(Kernel):
    def load_kv(self, b, g, j):
        k, v = super().load_kv(b, g, j)
        return k, k.copy() if self.case.D == self.case.Dv else v


@bug("out is cut off to 16 bits by dropping the low bits, instead of rounded to nearest (bf16)")
class out_truncated(Kernel):
    def finish(self, state):
        out, lse = super().finish(state)
        if self.case.out_dtype == "bfloat16":
            out = (np.ascontiguousarray(out, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        return out, lse


@bug("lse is rounded to the dtype of the keys on its way out, though the tensor is float32")
class lse_rounded_to_16_bits(Kernel):
    def run(self):
        answer = super().run()
        if "lse" in answer:
            answer["lse"] = self.round(answer["lse"])
        return answer


@bug("the page size 16 is compiled in, whatever the pages' size is")
class page_size_16(Kernel):
    def k_at(self, b, g, j):
        if not isinstance(self.case.storage, Paged):
            return super().k_at(b, g, j)
        table, size = self.given["block_table"], self.case.storage.page_size
        page = table[b, np.minimum(j // 16, table.shape[1] - 1)].astype(np.int64)
        slot = np.minimum(page * size + j % 16, self.given["k"].shape[0] * size - 1)
        return slot // size, slot % size, g


@bug("the cache is read before the new tokens are in it: only the old ones are attended, the diagonal ends there")
class new_tokens_not_attended(Kernel):
    def k_len(self, b):
        return int(self.given["cache_lens"][b]) if "cache_lens" in self.given else super().k_len(b)


@bug("the offset of a query row is a 32-bit product: far rows wrap round and read near ones")
class query_offset_wraps(Kernel):
    def load_q(self, b, h, i):
        storage = self.case.storage
        if isinstance(storage, Strided):
            n = ((b * self.case.H + h) * self.case.Lq + i) % max(1, 2**32 // storage.row)
            L, H = self.case.Lq, self.case.H
            return self.given["q"][n // L // H, n // L % H, n % L].astype(self.acc)
        return super().load_q(b, h, i)


@bug("the backward uses the row maximum where lse belongs: its weights are not divided by their sum")
class backward_not_normalised(Kernel):
    def finish(self, state):
        self.maxima.append(state[0])
        return super().finish(state)

    def forward(self, b, g):
        self.maxima = []
        super().forward(b, g)
        for (h, i), m in zip(self.rows(b, g), self.maxima, strict=True):
            self.maximum[self.lse_at(b, h, i)] = m

    def alloc(self, name, dtype):
        if name == "lse":
            self.maximum = super().alloc(name, dtype)
        return super().alloc(name, dtype)

    def backward_tile(self, b, h, i, j, k, v):
        self.tile_max = self.maximum[self.lse_at(b, h, i)]
        return super().backward_tile(b, h, i, j, k, v)

    def recompute(self, s, lse, seen):
        return super().recompute(s, np.where(lse == -INF, lse, self.tile_max), seen)


@bug("dq carries a factor ln 2 left over from scores in base 2")
class dq_with_ln_2(Kernel):
    def run(self):
        answer = super().run()
        if "dq" in answer:
            answer["dq"] = (self.dq * self.acc(np.log(2))).astype(answer["dq"].dtype)
        return answer


@bug("windows hide nothing in the backward: only the causal mask is recomputed there")
class backward_without_window(TwoPhases):
    def window(self, t, b, i, j):
        right = masks.Window(None, t.right, t.align) if self.back else t
        return super().window(right, b, i, j)

    def key_range(self, b, i):
        return (0, super().key_range(b, i)[1]) if self.back else super().key_range(b, i)


SPARE = (
    "always_bottom_right window_sides_swapped mask_of_entry_0 mask_of_first_row chunk_of_relative_query "
    "empty_lse_plus_inf merge_by_plain_average merge_sums_not_rescaled splits_overlap_by_one no_sink_when_split "
    "sink_scaled sink_of_key_head k_used_as_v bias_scaled scale_after_softcap descale_of_head_0 row_sum_in_16_bits "
    "out_truncated lse_rounded_to_16_bits page_size_16 query_offset_wraps dk_without_scale dq_with_ln_2 dlse_ignored "
    "backward_without_bias backward_without_window dropout_scale_inverted dropout_of_first_head"
).split()
BUGS = tuple(row for row in ROWS if row[0] not in SPARE)
MORE = tuple(row for row in ROWS if row[0] in SPARE)
"""beyond the sixty: not needed to cover a family"""
globals().update({name: make() for name, _, make in ROWS})
