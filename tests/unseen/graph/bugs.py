"""Bugs of the back end beside it: BUGS has rows (name, what is wrong, function that makes the implementation)."""

from __future__ import annotations

import random

import numpy as np

from refattn.case import Cache, Packed, Paged, Shared

from .kernel import Backend, make
from .sequence import INF

ROWS = []


def bug(name, text, **changed):
    ROWS.append((name, text, lambda: make(type("Changed", (Backend,), changed)())))


# ---- mask geometry ------------------------------------------------------------------------------------------------
bug(
    "chunk_row_from_zero",
    "In prefill the diagonal of a causal or window mask is taken from the row's number inside its chunk of 16 queries, "
    "without the chunk's first row: from the second chunk on the queries stand too early",
    diagonal=lambda self, align, x, i: Backend.diagonal(self, align, x, i - i[0]),
)


def remember(self, case, given):
    self.longest = case.Lk - case.Lq
    return Backend.allocate(self, case, given)


bug(
    "offset_of_padded_lengths",
    "Bottom-right alignment shifts by the padded sizes Lk - Lq of the batch, not by the lengths of the sequence itself",
    allocate=remember,
    diagonal=lambda self, align, x, i: i if align == "top_left" else i + self.longest,
)
bug(
    "window_excludes_left_edge",
    "A sliding window holds `left` keys with the query's own among them: the key `left` before the "
    "diagonal is not seen",
    window=lambda self, m, own, lo, hi: (
        lo if m.left is None else own - max(m.left - 1, 0),
        hi if m.right is None else own + m.right + 1,
    ),
)
bug(
    "window_right_is_causal",
    "The sliding window was written for decoders: whatever its right side is, nothing after the diagonal is seen",
    window=lambda self, m, own, lo, hi: (lo if m.left is None else own - m.left, own + 1),
)


def range_of_last_row(self, s, x):
    lo, hi = max(int(s[0].max()), 0), min(int(s[1].max()), x.lk)
    return lo, max(lo, hi)


bug(
    "range_starts_at_last_row",
    "The keys that a chunk of queries reads begin where the window (or attention chunk, or document) of its last row "
    "begins; the earlier rows of the chunk lose their oldest keys",
    range=range_of_last_row,
)


def spans_truncating(self, mask, x, i):
    from refattn.masks import Chunked

    if isinstance(mask, Chunked):
        first = np.trunc(self.diagonal(mask.align, x, i) / mask.size).astype(np.int64) * mask.size
        return first, first + mask.size
    return Backend.spans(self, mask, x, i)


bug(
    "chunk_number_rounds_to_zero",
    "The number of a query's attention chunk is position / size with C's division: a query before key 0 "
    "gets chunk 0 and "
    "sees its keys",
    spans=spans_truncating,
)


def tree_at_queries(self, m, x, i, j):
    parents = m.parents[x.b] if m.parents and isinstance(m.parents[0], tuple) else m.parents
    start = x.lk - x.lq
    seen = j <= (i + start)[:, None]
    for r, u in enumerate(i):
        if u < len(parents):
            line, u = [], int(u)
            while u >= 0:
                line, u = [*line, u], parents[u]
            seen[r] = (j < start) | np.isin(j - start, line)
    return seen


bug(
    "tree_begins_at_first_query",
    "The first node of the tree of drafts is taken to be the first query; prompt tokens that come before "
    "the tree in the "
    "same call are treated as nodes",
    tree=tree_at_queries,
)


def gathered_wraps(self, m, x, i, j):
    t = np.array(m.indices, dtype=np.int64)
    t = t.reshape((1,) * (4 - t.ndim) + t.shape)
    t = t[x.b if len(t) > 1 else 0]
    t = np.where(t < 0, x.lk - 1, t)
    seen = np.zeros((len(t), len(i), len(j)), bool)
    for r, row in enumerate(i):
        if row < t.shape[1]:
            seen[:, r] = (t[:, row, :, None] == j).any(1)
    return seen


bug(
    "gather_minus_one_is_last",
    "An index of -1 in a row of gathered keys, which stands for none, is taken as the last key",
    gathered=gathered_wraps,
)


def fresh_masks(self, case, given):
    self.masks = {}
    return Backend.allocate(self, case, given)


def visible_cached(self, case, x, i, j):
    key = (x.lq, x.lk, i[0], len(j), j[:1].tobytes())
    if key not in self.masks:
        self.masks[key] = Backend.visible(self, case, x, i, j)
    return self.masks[key]


bug(
    "mask_kept_per_shape",
    "The mask of a chunk is kept and used again for the next sequence of the batch when its lengths are "
    "the same, though "
    "masks and padding may differ by batch entry",
    allocate=fresh_masks,
    visible=visible_cached,
)


def lengths_with_mask(self, case, given, b):
    lq, lk = Backend.lengths(self, case, given, b)
    dense = not isinstance(case.storage, (Packed, Paged, Cache))
    return (lq, case.Lk) if dense and case.mask is None and case.q_lens is None else (lq, lk)


bug(
    "key_lengths_need_a_mask",
    "Key lengths are applied by the operator that adds the mask, and that is left out of the graph when "
    "there is no mask: "
    "padded keys are attended to",
    lengths=lengths_with_mask,
)
bug(
    "offset_not_negative",
    "The number of past keys is clipped at 0: with more queries than keys, bottom-right alignment becomes top-left",
    diagonal=lambda self, align, x, i: i if align == "top_left" else i + max(x.lk - x.lq, 0),
)

# ---- empty rows and sentinels -------------------------------------------------------------------------------------
bug(
    "mask_adds_minus_10000",
    "The mask is added as -10000 in place of -inf: hidden keys count where all scores of a row are hidden, or lower",
    add_mask=lambda self, t, seen: np.where(seen, t, t - 10000).astype(t.dtype),
    hide=lambda self, p, seen: p,
)


def softmax_max_from_zero(self, t, x):
    if x.sinks is not None:
        t = np.concatenate([t, np.broadcast_to(x.sinks[:, None, None], (*t.shape[:2], 1))], -1)
    m = t.max(-1, initial=0, keepdims=True)
    e = self.exp(t - m)
    total = e.sum(-1, keepdims=True)
    lse = (m + np.log(total))[..., 0]
    p = e / np.where(total == 0, 1, total)
    return (p, None, lse) if x.sinks is None else (p[..., :-1], p[..., -1], lse)


bug(
    "max_starts_at_zero",
    "The row maximum in the softmax operator starts at 0, not -inf: rows whose scores are all far below 0 underflow",
    softmax=softmax_max_from_zero,
)


def softmax_lse_guarded(self, t, x):
    p, share, lse = Backend.softmax(self, t, x)
    return p, share, np.where(lse == -INF, 0, lse).astype(lse.dtype)


bug(
    "lse_of_empty_row_zero",
    "The sum of a row that sees nothing is replaced by 1 before its logarithm too: its lse is 0, not -inf",
    softmax=softmax_lse_guarded,
)

# ---- tails and memory ---------------------------------------------------------------------------------------------


def lengths_whole_pages(self, case, given, b):
    lq, lk = Backend.lengths(self, case, given, b)
    size = case.storage.page_size if isinstance(case.storage, Paged) else 1
    return lq, -(-lk // size) * size


bug(
    "page_tail_attended",
    "A paged sequence is taken to fill its last page: the unused slots of that page are read as keys",
    lengths=lengths_whole_pages,
)


def qk_no_remainder(self, x, i, j):
    D = x.q.shape[2]
    keep = D // 8 * 8 if D >= 8 else D // 2 * 2
    whole = x.q, x.k
    x.q, x.k = x.q[..., :keep], x.k[..., :keep]
    s = Backend.qk(self, x, i, j)
    x.q, x.k = whole
    return s


bug(
    "head_dim_remainder_lost",
    "The dot product q·k goes in vectors of 8 (below 8: of 2) and has no loop for the remainder of the head dimension",
    qk=qk_no_remainder,
)


def decode_whole_splits(self, case, x, i, j):
    return Backend.decode(self, case, x, i, j[: len(j) // self.split * self.split])


bug(
    "last_split_lost",
    "Split decode takes Lk / 32 splits, rounded down: the keys of a last, shorter split are never read",
    decode=decode_whole_splits,
)


def ring_short(self, lo, hi):
    n = max(hi - lo - 1, 1)
    pos = np.full(n, -1)
    for p in range(lo, hi):
        pos[p % n] = p
    return pos


bug(
    "ring_one_slot_short",
    "The ring for sliding windows has one slot less than a chunk and its window need: the newest token lies over the "
    "oldest one, which the first row still sees",
    ring=ring_short,
)


def store_unless_empty(self, case, given, x, ans):
    if x.lk:
        Backend.store(self, case, given, x, ans)


bug(
    "sequence_without_keys_skipped",
    "A sequence that has no keys is skipped altogether: its lse stays the 0 of the allocation",
    store=store_unless_empty,
)

# ---- softmax state, merge, sinks ----------------------------------------------------------------------------------


def merge_sums_only(self, parts):
    m = self.guard(np.max([p[0] for p in parts], axis=0))
    return m, sum(np.exp(p[0] - m) * p[1] for p in parts), sum(p[2] for p in parts)


bug(
    "merge_output_not_rescaled",
    "The merge of split decode rescales the sums of the splits to the common maximum, but not their outputs",
    merge=merge_sums_only,
)


def partial_with_sink(self, case, x, i, j):
    m, total, acc = Backend.partial(self, case, x, i, j)
    if x.sinks is not None:
        total = total + np.exp(x.sinks[:, None, None] - self.guard(m))
    return m, total, acc


def decode_sinks_inside(self, case, x, i, j):
    parts = [self.partial(case, x, i, j[j0 : j0 + self.split]) for j0 in range(0, len(j), self.split)]
    m, total, acc = self.merge(parts)
    return acc / np.where(total == 0, 1, total), (m + np.log(total))[..., 0]


bug(
    "sink_in_every_split",
    "Each split of a split decode adds the sink to its own sum, so that after the merge it counts once for each split",
    partial=partial_with_sink,
    decode=decode_sinks_inside,
)


def load_scaled_sinks(self, case, given, b):
    x = Backend.load(self, case, given, b)
    if x.sinks is not None:
        x.sinks = x.sinks * x.scale
    return x


bug(
    "sink_is_scaled",
    "The sink is joined to the scores before the scale is applied, so that its logit is multiplied by the scale",
    load=load_scaled_sinks,
)


def store_lse_16(self, case, given, x, ans):
    x.lse = x.lse.astype(x.at).astype(x.f)
    Backend.store(self, case, given, x, ans)


bug("lse_in_input_dtype", "lse goes through the dtype of the inputs (16 bits, or 8) on its way out", store=store_lse_16)


def softmax_sink_late(self, t, x):
    if x.sinks is None:
        return Backend.softmax(self, t, x)
    m = self.guard(t.max(-1, initial=-INF, keepdims=True))
    e, share = np.exp(t - m), np.exp(x.sinks[:, None, None] - m)
    total = e.sum(-1, keepdims=True) + share
    some = np.where(total == 0, 1, total)
    return e / some, (share / some)[..., 0], (m + np.log(total))[..., 0]


bug(
    "sink_not_in_maximum",
    "The sink joins the sum but not the maximum: where it is 88 above all scores of a row, float32 overflows",
    softmax=softmax_sink_late,
)

# ---- heads, layout, strides ---------------------------------------------------------------------------------------


def load_mapped(of_head):
    def load(self, case, given, b):
        x = Backend.load(self, case, given, b)
        if x.G > 1:
            to = of_head(np.arange(x.H), x)
            if to is not None:
                x.to, x.k, x.vt = to, x.k[to], x.vt[to]
                x.k_col, x.v_col = (s[to] if s is not None and len(s) > 1 else s for s in (x.k_col, x.v_col))
                x.Hkv, x.G = x.H, 1
        return x

    return load


def store_mapped(self, case, given, x, ans):
    if hasattr(x, "to") and case.backward:
        for name in ("dk", "dv"):
            t = getattr(x, name)
            y = np.zeros((case.Hkv, *t.shape[1:]), t.dtype)
            np.add.at(y, x.to, t)
            setattr(x, name, y)
    Backend.store(self, case, given, x, ans)


bug(
    "group_by_shift",
    "The key head of a query head is found by a shift, h >> log2(group) rounded down: right only where the group is a "
    "power of 2",
    load=load_mapped(lambda h, x: np.minimum(h >> int(np.log2(x.G)), x.Hkv - 1)),
    store=store_mapped,
)
bug(
    "decode_heads_modulo",
    "The kernel for few queries (up to 4) maps query head h to key head h % Hkv; the one for many divides, rightly",
    load=load_mapped(lambda h, x: h % x.Hkv if x.lq <= 4 else None),
    store=store_mapped,
)


def flat_contiguous_v(self, case, given, name, b):
    x = given[name]
    if name == "v" and x.ndim == 4 and not isinstance(case.storage, (Packed, Paged, Cache, Shared)):
        return x.ravel(order="K").reshape(x.shape)[b].swapaxes(0, 1)
    return Backend.flat(self, case, given, name, b)


bug(
    "v_read_as_contiguous",
    "V is read as if it were contiguous (B, heads, L, D), whatever order its strides say",
    flat=flat_contiguous_v,
)
bug(
    "bias_of_first_entry",
    "The batch stride of the bias is never set: all sequences get the bias of batch entry 0",
    bias_entry=lambda self, t, x: t[0],
)

# ---- scale, bias, softcap, ALiBi ----------------------------------------------------------------------------------
bug(
    "default_scale_from_dv",
    "The default scale is 1 / sqrt(Dv), of the values' dimension, not the keys'",
    scale=lambda self, case: case.scale if case.scale is not None else (case.Dv**-0.5 if case.Dv else 1.0),
)
bug(
    "scale_zero_is_default",
    "A scale of 0 is taken as not given, and becomes 1 / sqrt(D)",
    scale=lambda self, case: case.scale or (case.D**-0.5 if case.D else 1.0),
)


def scores_bias_capped(self, case, x, i, j):
    n = Backend.scores(self, case, x, i, j)
    n.s = self.add_bias(x, n.raw * x.scale, i, j)
    n.z = self.softcap(case, n.s)
    n.c = self.score_mod(case, x, n.z, i, j)
    n.t = self.add_mask(n.c, n.seen)
    return n


bug(
    "bias_under_softcap",
    "The bias is added before the softcap (and the score modifier), so that it is capped with the scores",
    scores=scores_bias_capped,
)


def scores_mod_first(self, case, x, i, j):
    n = Backend.scores(self, case, x, i, j)
    n.z = n.s
    n.c = self.softcap(case, self.score_mod(case, x, n.s, i, j))
    n.t = self.add_mask(self.add_bias(x, n.c, i, j), n.seen)
    return n


bug(
    "score_mod_before_softcap",
    "The score modifier runs on the scaled scores, and the softcap on what it gave",
    scores=scores_mod_first,
)
bug(
    "alibi_slopes_by_formula",
    "ALiBi slopes are 2**(-8 (h + 1) / H) for any number of heads, also one that is no power of 2",
    slopes=lambda self, H: 2.0 ** (-8 * np.arange(1, H + 1) / H),
)
bug(
    "alibi_without_past",
    "ALiBi measures the distance from the row's number i, without the Lk - Lq keys before it",
    alibi=lambda self, case, s, i, j: -s * np.abs(i - j) if case.bias.family == "alibi" else s * (j - i),
)
bug(
    "score_mod_chunk_row",
    "The score modifier is given the row's number inside its chunk of 16 queries",
    score_mod=lambda self, case, x, s, i, j: Backend.score_mod(self, case, x, s, i - i[0], j),
)


def matrices_unscaled(self, ans, x, i, j, scores, **rest):
    Backend.keep_matrices(self, ans, x, i, j, scores=scores / x.scale, **rest)


bug(
    "scores_returned_unscaled",
    "The scores that are returned are q·k: the scale is applied by the operator after the one that is read",
    keep_matrices=matrices_unscaled,
)


def part_rows(self, t, i, j):
    t = t if t.shape[1] == 1 else t[:, i]
    return t if t.shape[2] == 1 else t[:, :, np.minimum(np.arange(len(j)), t.shape[2] - 1)]


bug(
    "bias_of_range_from_zero",
    "Where a chunk reads only a range of the keys, bias and dropout mask are read from key 0 on, not "
    "from the range's first",
    part=part_rows,
)

# ---- precision and quantisation -----------------------------------------------------------------------------------


def weigh_16(self, x, w, seen, j):
    if x.at.itemsize != 2:
        return Backend.weigh(self, x, w, seen, j)
    y = None
    for j0 in range(0, len(j), 16):
        s = slice(j0, j0 + 16)
        if x.v_col is not None:
            return Backend.weigh(self, x, w, seen, j).astype(x.at).astype(x.f)
        t = Backend.weigh(self, x, w[..., s], seen[..., s], j[s])
        y = (t if y is None else y + t).astype(x.at).astype(x.f)
    return Backend.weigh(self, x, w, seen, j) if y is None else y


bug(
    "output_accumulated_in_16_bits",
    "Between blocks of 16 keys the product of weights and values is held in the inputs' 16 bits",
    weigh=weigh_16,
)


def qk_16(self, x, i, j):
    s = Backend.qk(self, x, i, j)
    return s.astype(np.float16).astype(x.f) if x.at.itemsize == 2 else s


bug(
    "scores_in_float16",
    "With inputs of 16 bits q·k is stored as float16 before it is scaled: large products overflow",
    qk=qk_16,
)


def of_block_32(self, s, lk):
    return s[..., np.minimum(np.arange(lk) // 32, s.shape[-1] - 1)]


bug(
    "scale_block_of_32_tokens",
    "Scales by block of tokens are read as if a block had 32 tokens (the last one holds the rest), not 64",
    of_block=of_block_32,
)


def v_scale_of_k(self, case, given, name, x):
    return Backend.column_scale(self, case, given, "k", x)


bug("v_scale_is_k_scale", "The codes of the values are multiplied by the keys' scale", column_scale=v_scale_of_k)


def nibbles_in_turn(self, t):
    t = t.reshape(*t.shape[:-1], -1, 16)
    t = np.stack([t & 15, t >> 4], -1)
    return t.reshape(*t.shape[:-3], -1).astype(np.int8) - np.int8(8)


bug(
    "nibbles_in_turn",
    "The two nibbles of a q4_0 byte are taken as neighbours 2t, 2t + 1, not as entries t and t + 16 of the block",
    nibbles=nibbles_in_turn,
)


def gather_first_scale(self, case, given, name, x):
    if case.quant is None or case.quant.kind not in ("q8_0", "q4_0"):
        return Backend.gather(self, case, given, name, x)
    s = given[name + "_scale"]
    return Backend.gather(self, case, {**given, name + "_scale": np.broadcast_to(s[..., :1], s.shape)}, name, x)


bug(
    "one_scale_for_a_row",
    "Of the scales of a q8_0 or q4_0 row only the first is read, for all its blocks of 32",
    gather=gather_first_scale,
)


def gather_float16(self, case, given, name, x):
    t = Backend.gather(self, case, given, name, x)
    return t.astype(np.float16).astype(x.f) if case.quant is None else t


bug(
    "cache_always_float16",
    "Keys and values are converted to float16 in the cache whatever the inputs are: float32 loses bits, "
    "bfloat16 its range",
    gather=gather_float16,
)


def store_truncated(self, case, given, x, ans):
    if case.out_dtype == "bfloat16":
        bits = np.ascontiguousarray(x.out.astype(np.float32)).view(np.uint32) & np.uint32(0xFFFF0000)
        x.out = bits.view(np.float32)
    Backend.store(self, case, given, x, ans)


bug(
    "bfloat16_by_truncation",
    "The output is made bfloat16 by dropping the lower 16 bits of float32, not by rounding to nearest",
    store=store_truncated,
)


def softmax_unshifted(self, t, x):
    guard, self.guard = self.guard, np.zeros_like
    try:
        return Backend.softmax(self, t, x)
    finally:
        self.guard = guard


bug(
    "max_not_subtracted",
    "The softmax operator of prefill takes exp of the scores as they are, without subtracting the row's maximum",
    softmax=softmax_unshifted,
)

# ---- varlen, pages, cache -----------------------------------------------------------------------------------------


def store_lse_at_keys(self, case, given, x, ans):
    Backend.store(self, case, given, x, ans)
    if isinstance(case.storage, Packed):
        start = int(given["cu_seqlens_k"][x.b])
        start = min(start, ans.lse.shape[1] - x.lq)
        ans.lse[:, x.q0 : x.q0 + x.lq] = 0
        ans.lse[:, start : start + x.lq] = x.lse


bug(
    "lse_at_key_offset",
    "lse of packed sequences is written where the sequence's keys begin, not its queries (within the array's end)",
    store=store_lse_at_keys,
)


def lengths_of_starts(self, case, given, b):
    if isinstance(case.storage, Packed):
        return tuple(int(given[c][b + 1] - given[c][b]) for c in ("cu_seqlens_q", "cu_seqlens_k"))
    return Backend.lengths(self, case, given, b)


bug(
    "gap_taken_as_tokens",
    "The length of a packed sequence is the difference of two starts, also where unused slots follow it: "
    "seqused is ignored",
    lengths=lengths_of_starts,
)


def append_from_zero(self, case, given, x):
    if case.rotary is None:
        return Backend.append(self, case, given, x)
    past = int(given["cache_lens"][x.b])
    shifted = {**given, "cos": np.roll(given["cos"], past, 0), "sin": np.roll(given["sin"], past, 0)}
    Backend.append(self, case, shifted, x)


bug(
    "new_keys_rotated_from_zero",
    "New keys that are appended to a cache are rotated as if they stood at positions 0, 1, ..., without the past",
    append=append_from_zero,
)


def slots_by_16(self, case, given, b, lk):
    if not isinstance(case.storage, Paged):
        return Backend.slots(self, case, given, b, lk)
    j, size = np.arange(lk), case.storage.page_size
    return given["block_table"][b, j // 16 * 16 // size].astype(np.int64) * size + j % size


bug(
    "table_read_every_16_keys",
    "The block table is looked up once for 16 keys; pages of less than 16 slots are read again in place "
    "of the next ones",
    slots=slots_by_16,
)


def gather_last_columns(self, case, given, name, x):
    if name == "v" and isinstance(case.storage, Shared):
        given = {**given, "v": given["k"][..., case.D - case.Dv :]}
    return Backend.gather(self, case, given, name, x)


bug(
    "latent_v_is_the_end_of_k",
    "Where V is a part of K (latent attention) its last Dv columns are taken, not the first",
    gather=gather_last_columns,
)


def append_at_first(self, case, given, x):
    first = {**given, "cache_lens": np.full_like(given["cache_lens"], given["cache_lens"][0])}
    Backend.append(self, case, first, x)


bug(
    "append_at_first_length",
    "New tokens of all sequences go to the slots from cache_lens[0] on, the length of batch entry 0",
    append=append_at_first,
)


def pairs_of_head(self, case, half):
    if case.rotary.interleaved:
        return Backend.pairs(self, case, half)
    return slice(0, half), slice(case.D // 2, case.D // 2 + half)


bug(
    "rotary_half_of_head",
    "Where only a part of the head is rotated (halves paired), the partner of entry t is t + D/2, not t + rotary_dim/2",
    pairs=pairs_of_head,
)
bug(
    "query_positions_from_zero",
    "Queries are rotated by positions 0, 1, ... also when keys came before them",
    positions=lambda self, x: np.arange(x.lq),
)

# ---- backward and dropout -----------------------------------------------------------------------------------------


def softcap_grad_uncapped(self, case, n, dc, ans):
    if case.softcap is None:
        return dc
    ds = Backend.softcap_grad(self, case, n, dc, ans)
    return np.where(n.seen, dc * (1 - n.z**2), 0) if ds is not None else ds


bug(
    "softcap_slope_of_capped_score",
    "The slope of the softcap is 1 - y**2 of the capped score y itself, which should be divided by the cap first",
    softcap_grad=softcap_grad_uncapped,
)


def backward_last_chunk(self, case, x, ans):
    tape, dk, dv, dq = x.tape, None, None, np.zeros_like(x.q)
    for step in tape or [None]:
        x.tape = [] if step is None else [step]
        Backend.backward(self, case, x, ans)
        dk, dv, dq = x.dk, x.dv, dq + x.dq
    x.dk, x.dv, x.dq = dk, dv, dq


bug(
    "dk_of_last_chunk",
    "dk and dv are written by each chunk of 16 queries instead of added up: only the last chunk's are left",
    backward=backward_last_chunk,
)
bug(
    "group_sum_of_last_head",
    "With grouped heads dk and dv of a key head are those of the last query head of its group, not their sum",
    group_sum=lambda self, x, t: self.group(x, t)[:, -1],
)


def score_mod_grad_dbias(self, case, x, n, dt, i, j):
    d = Backend.score_mod_grad(self, case, x, n, dt, i, j)
    self.late = (x, i, j, d)
    return d


def softcap_grad_dbias(self, case, n, dc, ans):
    ds = Backend.softcap_grad(self, case, n, dc, ans)
    x, i, j, _ = self.late
    Backend.bias_grad(self, case, x, ds, i, j, ans)
    return ds


bug(
    "dbias_after_softcap",
    "dbias is taken from the gradient of the raw scores, behind softcap and score modifier, where the bias has no part",
    bias_grad=lambda self, case, x, dt, i, j, ans: None,
    score_mod_grad=score_mod_grad_dbias,
    softcap_grad=softcap_grad_dbias,
)


def bias_grad_written(self, case, x, dt, i, j, ans):
    if case.bias is not None and case.bias_shape[0] == 1 and i[0] == 0:
        ans.dbias[...] = 0
    Backend.bias_grad(self, case, x, dt, i, j, ans)


bug(
    "dbias_of_last_entry",
    "dbias of a bias without a batch dimension is overwritten by each sequence: it is that of the last one",
    bias_grad=bias_grad_written,
)


def store_dk_rotated(self, case, given, x, ans):
    if case.backward and case.rotary is not None:
        x.dk = self.rope(case, given, x.dk, np.arange(x.lk), x.f)
    Backend.store(self, case, given, x, ans)


bug(
    "dk_not_rotated_back",
    "The gradient of the rotated keys is returned as dk: only dq is rotated back",
    store=store_dk_rotated,
)


def scores_raw_is_scaled(self, case, x, i, j):
    n = Backend.scores(self, case, x, i, j)
    n.raw = n.s
    return n


bug(
    "dscale_of_scaled_scores",
    "dscale sums ds times the scores that were scaled already, not q·k",
    scores=scores_raw_is_scaled,
)


def softmax_grad_minus_dlse(self, case, x, n, dp, i, ans):
    x.dlse = -x.dlse
    try:
        return Backend.softmax_grad(self, case, x, n, dp, i, ans)
    finally:
        x.dlse = -x.dlse


bug(
    "dlse_subtracted",
    "The gradient of lse is put into delta with the wrong sign: p (dp - delta - dlse)",
    softmax_grad=softmax_grad_minus_dlse,
)


def sink_grad_without_dlse(self, case, x, n, dp, i, ans):
    dt = Backend.softmax_grad(self, case, x, n, dp, i, ans)
    if x.sinks is not None:
        ans.dsinks -= self.sink_grad(n, np.broadcast_to(x.dlse[:, i, None], (*n.share.shape, 1)))
    return dt


bug(
    "dsinks_without_dlse",
    "The gradient of the sinks is -share * delta: what arrives at lse is left out",
    softmax_grad=sink_grad_without_dlse,
)


def softmax_grad_delta_twice(self, case, x, n, dp, i, ans):
    if case.dropout is None:
        return Backend.softmax_grad(self, case, x, n, dp, i, ans)
    incoming = x.dlse[:, i, None] - np.where(n.seen, n.w * dp, 0).sum(-1, keepdims=True)
    if x.sinks is not None:
        ans.dsinks += self.sink_grad(n, incoming)
    return np.where(n.seen, n.p * (dp + incoming), 0)


bug(
    "dropout_twice_in_delta",
    "delta sums the dropped weights times the dropped gradient: 1 / (1 - p) enters twice",
    softmax_grad=softmax_grad_delta_twice,
)


def dropout_chunk_row(self, case, x, p, i, j):
    return Backend.dropout(self, case, x, p, i - i[0], j)


bug(
    "dropout_rows_of_first_chunk",
    "Each chunk of 16 queries drops by the first 16 rows of the mask, forward and backward",
    dropout=dropout_chunk_row,
)
bug(
    "dropout_grad_unscaled",
    "The backward applies the dropout mask, but not 1 / (1 - p), to the gradient of the weights",
    dropout_grad=lambda self, case, x, dp, i, j: dp if case.dropout is None else dp * self.part(x.keep, i, j),
)


def dropout_renormalised(self, case, x, p, i, j):
    if case.dropout is None:
        return p
    kept = p * self.part(x.keep, i, j)
    total = kept.sum(-1, keepdims=True)
    return kept / np.where(total == 0, 1, total) * p.sum(-1, keepdims=True)


bug(
    "dropout_renormalised",
    "What dropout leaves of a row is scaled up to the sum before it, not by 1 / (1 - p)",
    dropout=dropout_renormalised,
)

LATER = set(
    """output_accumulated_in_16_bits decode_heads_modulo latent_v_is_the_end_of_k alibi_slopes_by_formula
dropout_renormalised offset_of_padded_lengths one_scale_for_a_row lse_of_empty_row_zero alibi_without_past
rotary_half_of_head head_dim_remainder_lost dropout_twice_in_delta chunk_number_rounds_to_zero window_excludes_left_edge
lse_at_key_offset max_starts_at_zero mask_kept_per_shape table_read_every_16_keys new_keys_rotated_from_zero
bias_under_softcap offset_not_negative scores_in_float16 sink_not_in_maximum""".split()
)
BUGS = [row for row in ROWS if row[0] not in LATER]
EXTRA = tuple(row for row in ROWS if row[0] in LATER)  # as good, beyond the 44 that were asked for
random.Random(0).shuffle(BUGS)
BUGS = tuple(BUGS)

# ---- what no case shows -------------------------------------------------------------------------------------------
ROWS = []


def rope_bf16(self, case, given, t, pos, at):
    from refattn.dtypes import FORMATS

    rounded = pos.astype(np.float32).astype(FORMATS["bfloat16"].numpy).astype(np.int64)
    return Backend.rope(self, case, given, t, np.minimum(rounded, len(given["cos"]) - 1), at)


bug(
    "positions_in_bfloat16",
    "Rotary positions are held in bfloat16, which has no odd numbers beyond 256: needs rotary with more than 257 keys",
    rope=rope_bf16,
)
bug(
    "slots_in_int16",
    "Slots of the cache are computed in int16: needs a paged or packed cache of more than 32,767 tokens",
    slots=lambda self, case, given, b, lk: Backend.slots(self, case, given, b, lk).astype(np.int16),
)
SPARE = tuple(ROWS)
