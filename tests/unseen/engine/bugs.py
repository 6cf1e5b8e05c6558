"""Bugs of the kernel beside it, each a change that an author of an inference engine could make."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

import ml_dtypes
import numpy as np

from refattn.masks import Chunked, Documents, Padding
from refattn.storage import Dense, Packed, Paged
from refattn.visibility import Or

from .kernel import Engine, make

_rows = []


def bug(description):
    def add(cls):
        _rows.append((cls.__name__, description, lambda: make(cls, cls.__name__)))
        return cls

    return add


# -- which keys


@bug("The decode path takes query i to stand at key i: the context before the new tokens is not added.")
class decode_without_context(Engine):
    def position(self, align, b, i):
        return i if self.path == "decode" else super().position(align, b, i)


@bug("A window of W keys to the left counts the query's own key as one of them: the farthest key is lost.")
class window_counts_own_key(Engine):
    def window(self, mask, own, j):
        seen = super().window(mask, own, j)
        return seen & (j > own - mask.left) if mask.left else seen


@bug("The loop over key tiles begins at the first that lies wholly in the window: the cut tile at its left is skipped.")
class window_tile_rounded_up(Engine):
    def prefill(self, b, q, lq, lk):
        self.up = True
        answer = super().prefill(b, q, lq, lk)
        self.up = False
        return answer

    def tiles(self, lo, hi):
        if getattr(self, "up", False):
            lo = -(-lo // self.block_n) * self.block_n
        return super().tiles(lo, hi)


@bug("The last key tile of a block of queries is found from its first row: what only its later rows see is skipped.")
class last_tile_of_first_row(Engine):
    def key_range(self, mask, b, i0, i1):
        lo, hi = super().key_range(mask, b, i0, i1)
        if self.path != "prefill":
            return lo, hi
        end = super().key_range(mask, b, i0, i0 + 1)[1]
        return lo, min(hi, -(-end // self.block_n) * self.block_n)


@bug("Local chunks are counted for queries from the first query, not from their position in the sequence.")
class chunk_of_row(Engine):
    def rule(self, mask, b, i, j):
        if isinstance(mask, Chunked):
            return j // mask.size == i // mask.size
        return super().rule(mask, b, i, j)


@bug("The segment id of key j is read from the table of the queries' ids.")
class one_table_of_segments(Engine):
    def rule(self, mask, b, i, j):
        if isinstance(mask, Documents):
            ids = self.ids(mask.q_ids, b)
            return ids[i] == ids[np.minimum(j, len(ids) - 1)]
        return super().rule(mask, b, i, j)


@bug("Padding is taken to be on the left: of n real keys in Lk slots the last n are seen.")
class padding_on_the_left(Engine):
    def rule(self, mask, b, i, j):
        if isinstance(mask, Padding):
            return j >= self.case.Lk - mask.lengths[b]
        return super().rule(mask, b, i, j)


@bug("A custom mask is packed into bits with each row padded to a byte, and read as if rows followed without padding.")
class packed_bits_without_padding(Engine):
    def custom(self, mask, b, i, j):
        lq, lk = int(self.q_lens[b]), int(self.k_lens[b])
        full = super().custom(mask, b, np.arange(lq).reshape(1, 1, -1, 1), np.arange(lk).reshape(1, 1, 1, -1))
        full = np.broadcast_to(full, (1, full.shape[1], lq, lk))
        bits = np.unpackbits(np.packbits(full, axis=-1), axis=-1).reshape(1, full.shape[1], -1)
        return bits[:, :, (i * lk + j)[0, 0]].astype(bool)


@bug("Where two masks are joined by 'or', the loop runs over the keys of the first one alone.")
class loop_of_first_mask(Engine):
    def key_range(self, mask, b, i0, i1):
        if isinstance(mask, Or):
            return self.key_range(mask.left, b, i0, i1)
        return super().key_range(mask, b, i0, i1)


@bug("The left edge of a window is only the tile that the loop begins with: older keys in that tile are seen too.")
class window_edge_by_tile(Engine):
    def window(self, mask, own, j):
        seen = super().window(mask, own, j)
        if mask.left is None:
            return seen
        edge = (own.min() - mask.left) // self.block_n * self.block_n
        right = True if mask.right is None else j <= own + mask.right
        return np.broadcast_to((j >= edge) & right, seen.shape)


@bug("Ragged sequences are aligned at the bottom right by the padded sizes Lk - Lq, not by their own lengths.")
class offset_of_padded_sizes(Engine):
    def position(self, align, b, i):
        return i if align == "top_left" else i + self.case.Lk - self.case.Lq


@bug("Queries and heads of a group are packed into rows, and the forward's mask takes the packed row for the query.")
class packed_row_as_query(Engine):
    def seen(self, b, i0, i1, j0, j1):
        seen, mask = super().seen(b, i0, i1, j0, j1), self.case.mask
        if self.G == 1 or mask is None or self.path == "backward":
            return seen
        j = np.arange(j0, j1).reshape(1, 1, 1, -1)
        last = max(int(self.q_lens[b]) - 1, 0)
        wrong = []
        for g in range(self.G):
            i = np.minimum(np.arange(i0, i1) * self.G + g, last).reshape(1, 1, -1, 1)
            shape = (1, self.case.H, i1 - i0, j1 - j0)
            wrong.append(self.grouped(np.broadcast_to(self.rule(mask, b, i, j), shape)[0])[:, g])
        return np.stack(wrong, 1)


# -- rows that see nothing, sentinels


@bug("A row that sees nothing in one split leaves that split's lse at 0, and the merge gives it weight.")
class lse_0_of_unseen_split(Engine):
    def partial(self, b, q, lq, j0, j1):
        out, lse = super().partial(b, q, lq, j0, j1)
        return out, np.where(lse == -np.inf, 0, lse)


@bug("Hidden scores are set to -10000, not to minus infinity.")
class hidden_at_minus_10000(Engine):
    def masked(self, s, seen):
        return np.where(seen, s, -1e4)


@bug("Merging partial results subtracts the largest lse without a guard: rows that no split has seen become NaN.")
class merge_of_nothing(Engine):
    def merge(self, outs, lses):
        top = lses.max(0)
        w = np.exp(lses - top)
        return (w[..., None] * outs).sum(0) / w.sum(0)[..., None], top + np.log(w.sum(0))


@bug("The running maximum begins at 0, not at minus infinity: rows whose scores all lie far below 0 underflow.")
class maximum_from_zero(Engine):
    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        return super().update(np.where(l == 0, np.maximum(m, 0), m), l, o, s, seen, b, i0, i1, j0, j1)


@bug("A sequence without keys returns early: its lse stays 0 as the buffer was cleared, sinks or not.")
class early_return_without_keys(Engine):
    def sequence(self, b, answer):
        if int(self.k_lens[b]) > 0:
            super().sequence(b, answer)


# -- pages, caches, packed sequences, tails


@bug("The last page of values is multiplied as a whole: zero weights meet what its unused slots hold.")
class last_page_as_a_whole(Engine):
    def kv(self, name, b, j0, j1):
        self.rest = None
        if name == "v" and isinstance(self.case.storage, Paged) and j1 == int(self.k_lens[b]):
            end = -(-j1 // self.case.storage.page_size) * self.case.storage.page_size
            self.rest = super().kv(name, b, j1, end)
        return super().kv(name, b, j0, j1)

    def pv(self, p, v, seen):
        o = super().pv(p, v, seen)
        return o if self.rest is None else o + (0 * self.rest).sum(1)[:, None, None]


@bug("Decode cuts the keys into 4 splits of floor(n / 4) keys: what is left over is never read.")
class split_size_rounded_down(Engine):
    def split(self, lo, hi):
        size = max(1, (hi - lo) // self.splits)
        return [(j, j + size) for j in range(lo, min(hi, lo + self.splits * size), size)]


@bug("The length of a cache is that before the append: queries do not see the new tokens, not even their own.")
class length_before_append(Engine):
    def seen(self, b, i0, i1, j0, j1):
        seen = super().seen(b, i0, i1, j0, j1)
        return seen & (np.arange(j0, j1) < self.given["cache_lens"][b]) if "cache_lens" in self.given else seen


@bug("The page size is compiled in as 16, whatever the size of the pages is.")
class page_size_16(Engine):
    def locate(self, b, j):
        size, pages = self.case.storage.page_size, len(self.given["k"])
        flat = (self.given["block_table"][b, j // 16] * 16 + j % 16) % (pages * size)
        return flat // size, flat % size


@bug("The number of keys of a packed sequence is the difference of its offsets: slots that are not in use are read.")
class packed_capacity_as_length(Engine):
    def lengths(self):
        q_lens, k_lens = super().lengths()
        return q_lens, np.diff(self.given["cu_seqlens_k"]) if isinstance(self.case.storage, Packed) else k_lens


@bug("New tokens of every sequence are appended at the length of the first sequence's cache.")
class slot_of_first_sequence(Engine):
    def slot(self, b):
        return int(self.given["cache_lens"][0])


@bug("With more than one page to a key tile, only the tile's first page is looked up: the rest is read behind it.")
class pages_in_a_row(Engine):
    def locate(self, b, j):
        size, pages = self.case.storage.page_size, len(self.given["k"])
        first = j[:1] - j[:1] % self.block_n if len(j) else j
        flat = (self.given["block_table"][b, first // size] * size + first % size + j - first) % (pages * size)
        return flat // size, flat % size


# -- the online softmax, splits, sinks


@bug("The accumulators are not rescaled where the maximum grew by less than 4, but the weights use the new one.")
class lazy_rescale(Engine):
    def rescale(self, m, new):
        return np.where(new - m < 4, 1, super().rescale(m, new))


@bug("Splits are merged by powers of 2, and merged lse is a log2, while the lse of each split is natural.")
class merge_in_base_2(Engine):
    def merge(self, outs, lses):
        top = lses.max(0)
        w = np.exp2(lses - np.where(top == -np.inf, 0, top))
        total = w.sum(0)
        w = np.where(total == 0, 0, w / total)
        return (w[..., None] * outs).sum(0), top + np.log2(total)


@bug("Each split of the decode path adds the sink to its own denominator, so that it counts several times.")
class sink_in_every_split(Engine):
    def decode(self, b, q, lq, lk):
        lo, hi = self.key_range(self.case.mask, b, 0, lq) if lq else (0, 0)
        parts = [self.partial(b, q, lq, j0, j1) for j0, j1 in self.split(lo, hi) or [(0, 0)]]
        return self.merge(np.stack([o for o, _ in parts]), np.stack([lse for _, lse in parts]))

    def partial(self, b, q, lq, j0, j1):
        state = self.walk(b, q, 0, lq, j0, j1)
        return self.finish(*(state if self.case.sinks is None else self.join_sink(*state)))


@bug("exp(sink) is added to the row sum of the prefill without the row's maximum taken off.")
class sink_without_maximum(Engine):
    def join_sink(self, m, l, o):
        return m, l + np.exp(self.sink()), o


@bug("The lse that decode returns is that of the last split; the output is merged rightly.")
class lse_of_last_split(Engine):
    def merge(self, outs, lses):
        return super().merge(outs, lses)[0], lses[-1]


@bug("Dropout is applied before the row sum is taken: the kept weights are normalised to 1, then scaled up.")
class dropout_before_the_sum(Engine):
    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        if self.case.dropout is None:
            return super().update(m, l, o, s, seen, b, i0, i1, j0, j1)
        new = np.maximum(m, s.max(-1, initial=-np.inf))
        alpha = self.rescale(m, new)
        p = np.where(self.keep_tile(b, i0, i1, j0, j1), self.weights(s, new), 0)
        return new, l * alpha + p.sum(-1), o * alpha[..., None] + self.pv(p, self.kv("v", b, j0, j1), seen)


@bug("lse is rounded to the 16 bits of the inputs before it is returned.")
class lse_in_16_bits(Engine):
    def returned_lse(self, lse):
        return lse.astype(self.io).astype(self.acc) if self.io.itemsize == 2 else lse


# -- heads and strides


@bug("A block of query heads is as wide as the next power of two: in groups of 3 or 5 the key head is h // 4 or 8.")
class group_of_a_power_of_two(Engine):
    def each_head(self, x):
        wide = 1 << (self.G - 1).bit_length() if self.G else 1
        return x[np.arange(self.case.H) // wide].reshape(len(x), self.G, *x.shape[1:])


@bug("Decode repeats the key heads as a whole: query head h reads key head h % Hkv.")
class decode_head_modulo(Engine):
    def each_head(self, x):
        if self.path != "decode":
            return super().each_head(x)
        return x[np.arange(self.case.H) % len(x)].reshape(len(x), self.G, *x.shape[1:])


@bug("The strides of v are ignored: its memory is read as (B, heads, L, D), whatever its layout.")
class v_taken_as_contiguous(Engine):
    def tokens(self, name, b, j0, j1):
        if name == "v" and isinstance(self.case.storage, Dense):
            v = self.given["v"]
            return np.ravel(v, order="K").reshape(v.shape)[b, :, j0:j1]
        return super().tokens(name, b, j0, j1)


@bug("The forward ignores the batch stride of a bias: every batch entry gets the bias of the first.")
class bias_of_first_entry(Engine):
    def bias_index(self, b, i0, i1, j0, j1):
        return super().bias_index(b if self.path == "backward" else 0, i0, i1, j0, j1)


@bug("Each split of decode reads the bias from its first column on: where the split begins is not added.")
class bias_column_of_split(Engine):
    def walk(self, b, q, i0, i1, lo, hi):
        self.begin = lo if self.path == "decode" else 0
        state = super().walk(b, q, i0, i1, lo, hi)
        self.begin = 0
        return state

    def bias_index(self, b, i0, i1, j0, j1):
        n = self.begin if self.path == "decode" else 0
        return super().bias_index(b, i0, i1, j0 - n, j1 - n)


@bug("Row sums of one block of queries are not cleared for the next block: l goes on from the last row's.")
class row_sum_not_cleared(Engine):
    def prefill(self, b, q, lq, lk):
        self.left = 0
        return super().prefill(b, q, lq, lk)

    def finish(self, m, l, o):
        if self.path == "prefill":
            l = np.where(l > 0, l + self.left, l)
            self.left = l[..., -1:]
        return super().finish(m, l, o)


# -- scale, softcap, bias


@bug("Softcap is applied after the mask: hidden scores come out as -softcap and take part.")
class softcap_after_mask(Engine):
    def scores(self, b, q, i0, i1, j0, j1):
        k = self.kv("k", b, j0, j1)
        seen = self.visible(b, i0, i1, j0, j1)
        s = self.masked(self.scaled(self.qk(q[:, :, i0:i1], k), b), seen)
        s = self.capped(s) if self.case.softcap else s
        return self.biased(s, b, i0, i1, j0, j1), seen, k


@bug("The default scale is that of the size of a value, Dv**-0.5.")
class scale_of_value_size(Engine):
    def softmax_scale(self):
        return self.case.Dv**-0.5 if self.case.scale is None and self.case.Dv else super().softmax_scale()


@bug("The bias is loaded into the accumulator of q.k first, and scaled together with it.")
class bias_scaled(Engine):
    def biased(self, s, b, i0, i1, j0, j1):
        return s if self.case.bias is None else s + self.bias_tile(b, i0, i1, j0, j1) * self.acc.type(self.scale)


# -- quantised caches, precision


@bug("Values are multiplied by the scale of the keys.")
class scale_of_k_for_v(Engine):
    def descale(self, name, b):
        return super().descale("k" if name == "v" else name, b)


@bug("In q8_0 rows longer than one block the scale of the first block serves all.")
class first_block_scale(Engine):
    def block_scales(self, name, b, j0, j1):
        scale = super().block_scales(name, b, j0, j1)
        return scale[..., :1] if self.case.quant.kind == "q8_0" else scale


@bug("q4_0 is unpacked as pairs: the low four bits are entry 2t, the high ones entry 2t + 1.")
class nibbles_as_pairs(Engine):
    def nibbles(self, codes):
        return np.stack([(codes & 15).astype(np.int8) - 8, (codes >> 4).astype(np.int8) - 8], -1).reshape(
            *codes.shape[:-1], -1
        )


@bug("Every float8 cache is read as e4m3, also one of e5m2.")
class e5m2_as_e4m3(Engine):
    def decoded(self, codes):
        if codes.dtype == ml_dtypes.float8_e5m2:
            codes = codes.view(np.uint8).view(ml_dtypes.float8_e4m3fn)
        return super().decoded(codes)


@bug("With a float8 or int8 cache the weights are rounded to e4m3 as they are, without a scale of their own.")
class weights_in_e4m3(Engine):
    def rounded(self, p):
        if self.case.quant is None:
            return super().rounded(p)
        return p.astype(ml_dtypes.float8_e4m3fn).astype(self.acc)


@bug("Scales of heads are read for the first sequence of the batch, whichever it is.")
class head_scales_of_first_sequence(Engine):
    def descale(self, name, b):
        return super().descale(name, 0)


@bug("q.k is accumulated in float16: it loses digits, and beyond 65504 it is infinite.")
class scores_in_float16(Engine):
    def qk(self, q, k):
        s = super().qk(q, k)
        return s.astype(np.float16).astype(self.acc) if self.io == np.float16 else s


@bug("The running output is kept in the inputs' 16 bits between tiles.")
class output_in_16_bits(Engine):
    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        m, l, o = super().update(m, l, o, s, seen, b, i0, i1, j0, j1)
        return m, l, o.astype(self.io).astype(self.acc) if self.io.itemsize == 2 else o


# -- rotary


@bug("The position of a query is counted back from the longest sequence of the batch, not from its own.")
class rotary_of_longest(Engine):
    def query_positions(self, b):
        return np.arange(int(self.q_lens[b])) + self.case.Lk - self.case.Lq


@bug("Where only part of a head is rotated, the second of a pair is still taken from the second half of the head.")
class rotary_half_of_head(Engine):
    def pairs(self, dim, D, interleaved):
        if interleaved:
            return super().pairs(dim, D, interleaved)
        return slice(0, dim // 2), slice(D // 2, D // 2 + dim // 2)


@bug("New keys are written to the cache before they are rotated.")
class cached_before_rotation(Engine):
    def append(self, b):
        start, n = self.slot(b), self.case.Lq
        for name in "kv":
            self.given[f"{name}_cache"][b, start : start + n] = self.given[name][b].swapaxes(0, 1)


# -- backward


@bug("dk is not multiplied by the scale; dq is.")
class dk_without_scale(Engine):
    def backward(self, *args):
        dq, dk, dv = super().backward(*args)
        return dq, dk / self.scale, dv


@bug("The derivative of softcap is taken at the capped score, not at the score.")
class softcap_slope_twice(Engine):
    def cap_slope(self, s_capped):
        return 1 - np.tanh(s_capped / self.case.softcap) ** 2


@bug("dbias that is shared by batch entries or rows is overwritten by each, not added up.")
class dbias_overwritten(Engine):
    def add_dbias(self, ds, b, i0, i1, j0, j1):
        self.dbias[self.bias_index(b, i0, i1, j0, j1)] = 0
        super().add_dbias(ds, b, i0, i1, j0, j1)


@bug("dsinks takes the weight of the sink against the lse of the keys alone.")
class dsinks_of_bare_lse(Engine):
    def add_dsinks(self, lse, delta):
        super().add_dsinks(lse + np.log1p(-np.exp(self.sink() - lse)), delta)


@bug("dk and dv of the heads of a group are averaged, not added up.")
class group_averaged(Engine):
    def of_group(self, x):
        return x.mean(1)


@bug("In the backward the gradient of a kept weight is not divided by 1 - p.")
class dropout_unscaled_in_backward(Engine):
    def dropped_dp(self, dp, keep, kept):
        return np.where(keep, dp, 0)


@bug("The gradient of lse enters with the wrong sign.")
class dlse_of_wrong_sign(Engine):
    def dlse(self, b, lq):
        return -super().dlse(b, lq)


@bug("dq is turned back by the angles of rows 0, 1, 2, ...; the forward had turned q by its positions.")
class dq_turned_back_from_zero(Engine):
    def query_positions(self, b):
        return np.arange(int(self.q_lens[b])) if self.path == "backward" else super().query_positions(b)


@bug("The backward recomputes the scores without the bias.")
class backward_without_bias(Engine):
    def biased(self, s, b, i0, i1, j0, j1):
        return s if self.path == "backward" else super().biased(s, b, i0, i1, j0, j1)


@bug("The backward reads an lse that was stored in the inputs' 16 bits.")
class backward_from_short_lse(Engine):
    def recomputed(self, s, lse, seen):
        return super().recomputed(s, lse.astype(self.io).astype(self.acc) if self.io.itemsize == 2 else lse, seen)


_BESIDES = """loop_of_first_mask nibbles_as_pairs decode_head_modulo page_size_16 lse_in_16_bits dk_without_scale
    window_tile_rounded_up packed_capacity_as_length sink_without_maximum cached_before_rotation first_block_scale
    offset_of_padded_sizes bias_column_of_split row_sum_not_cleared head_scales_of_first_sequence output_in_16_bits
    dropout_before_the_sum group_averaged backward_without_bias backward_from_short_lse window_counts_own_key""".split()
BUGS = tuple(row for row in _rows if row[0] not in _BESIDES)
MORE = tuple(row for row in _rows if row[0] in _BESIDES)
"""more of the same, beyond the forty"""
