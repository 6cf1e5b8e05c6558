"""Bugs of attention kernels: (name, sentence, patches...); a patch is (file, old, new)."""

# ruff: noqa: E501, F401 - as their author wrote them


def _masks(change):
    """Patch: the leaves of the mask go through `change`, the body of a function of leaf m with M = refattn.masks."""
    return (
        "rules.py",
        '        """The case as it is understood."""\n        return case\n',
        '        """The case as it is understood."""\n'
        "        from dataclasses import replace\n"
        "        from refattn import masks as M\n"
        + "".join("        " + line + "\n" for line in change.strip("\n").split("\n"))
        + "        def walk(m):\n"
        "            if isinstance(m, (M.And, M.Or)):\n"
        "                return type(m)(walk(m.left), walk(m.right))\n"
        "            if isinstance(m, M.Not):\n"
        "                return type(m)(walk(m.mask))\n"
        "            return change(m)\n"
        "        return case if case.mask is None else replace(case, mask=walk(case.mask))\n",
    )


def _geometry(body):
    """Patch: the Visibility `mask` is understood otherwise."""
    return (
        "rules.py",
        "    def geometry(self, mask: Any) -> Any:\n        return mask\n",
        "    def geometry(self, mask: Any) -> Any:\n"
        "        from dataclasses import replace\n"
        "        from refattn.masks import Mask, Visibility\n"
        "        if not isinstance(mask, Visibility):\n"
        "            return mask\n" + "".join("        " + line + "\n" for line in body.strip("\n").split("\n")),
    )


def _take(body):
    """Patch: `dense` is changed after (or taken otherwise than) memory.take has made it."""
    return (
        "rules.py",
        "        return memory.take(case, given)\n",
        "        from refattn import storage as S\n"
        "        dense = memory.take(case, given)\n"
        + "".join("        " + line + "\n" for line in body.strip("\n").split("\n"))
        + "        return dense\n",
    )


_DEQUANTISE = "        return self.round(dequantise(codes, scale, kind).astype(self.dtype), self.precision.dequantised)\n"


def _codes(body):
    """Patch: y, what codes stand for, is had otherwise."""
    return (
        "rules.py",
        _DEQUANTISE,
        "".join("        " + line + "\n" for line in body.strip("\n").split("\n"))
        + "        return self.round(y.astype(self.dtype), self.precision.dequantised)\n",
    )


BUGS = [
    # mask geometry
    (
        "window_left_unshifted",
        "The left bound of the sliding window is i - left without the + Lk - Lq of bottom-right alignment, which only "
        "the right bound has, so with Lq < Lk the window reaches too far back.",
        _masks("""
class Bad(M.Window):
    def __call__(self, b, h, i, j, lq, lk):
        own = i if self.align == "top_left" else i + lk - lq
        seen = np.ones((), bool)
        if self.left is not None:
            seen = seen & (j >= i - self.left)
        if self.right is not None:
            seen = seen & (j <= own + self.right)
        return seen
def change(m):
    return Bad(m.left, m.right, m.align) if isinstance(m, M.Window) else m
"""),
    ),
    (
        "causal_bound_from_first_row",
        "The last key tile of the causal loop is computed from the first row of the query tile instead of its last, "
        "so rows further down miss the key tiles that only they see.",
        (
            "forward.py",
            "        if visible is not None and not visible.any():\n",
            "        from refattn.masks import Causal\n"
            "        m = x.mask\n"
            "        if isinstance(getattr(m, 'mask', None), Causal):\n"
            "            lq, lk = (m.q_lens[b] if m.q_lens else m.Lq), (m.k_lens[b] if m.k_lens else m.Lk)\n"
            "            if keys.start > rows.start + (0 if m.mask.align == 'top_left' else lk - lq):\n"
            "                return None\n"
            "        if visible is not None and not visible.any():\n",
        ),
    ),
    (
        "chunk_of_row",
        "The query's chunk is its row i // size instead of its position (i + Lk - Lq) // size, so with a past a query "
        "attends to an earlier chunk than its own.",
        _masks("""
def change(m):
    return M.Chunked(m.size, "top_left") if isinstance(m, M.Chunked) else m
"""),
    ),
    # empty rows and sentinels
    (
        "mask_value_minus_10000",
        "Hidden scores are set to -10000 instead of -inf, so a row that sees nothing averages the hidden values and a "
        "row whose visible scores are lower attends to hidden keys.",
        ("rules.py", "np.copyto(s, -np.inf, where=~visible)", "np.copyto(s, -1e4, where=~visible)"),
    ),
    (
        "no_guard_for_minus_inf_max",
        "The running maximum is subtracted without a guard for -inf, so a row that has seen no key yet computes "
        "-inf - -inf and is NaN from then on.",
        ("online.py", "    shift = shift_of(m)\n    keep", "    shift = m\n    keep"),
    ),
    (
        "sink_skipped_in_empty_rows",
        "Rows that see no key skip the sink too, so their lse is -inf instead of the sink's logit.",
        (
            "forward.py",
            "            state = online.join_sink(state, head.sink, rules.exp)\n",
            "            state = online.join_sink(state, head.sink, rules.exp)\n"
            "            state.m[~seen], state.l[~seen] = -np.inf, 0\n",
        ),
    ),
    # tails and unused memory
    (
        "tail_keys_not_masked",
        "The last key tile is zero-filled up to the tile size but not masked, so the missing keys enter the row sum "
        "with a score of 0.",
        (
            "forward.py",
            "                state = rules.update(state, t, head.v[keys, :0] if normalised else head.v[keys], visible, kept)\n",
            "                state = rules.update(state, t, head.v[keys, :0] if normalised else head.v[keys], visible, kept)\n"
            "                short = rules.schedule.tile_k - (keys.stop - keys.start)\n"
            "                if short:\n"
            "                    zeros = np.zeros((short, state.o.shape[1]), x.dtype)\n"
            "                    state = rules.update(state, np.zeros((n, short), x.dtype), zeros, None)\n",
        ),
    ),
    (
        "zero_times_nan_values",
        "Values of hidden keys are multiplied by their weight of 0 instead of being skipped, so a NaN in padding "
        "leaks into the output as 0 * NaN.",
        (
            "rules.py",
            "        if visible is None:\n            return self.matmul(w, x)\n        finite",
            "        return self.matmul(w, x)\n        finite",
        ),
    ),
    (
        "head_dim_remainder_dropped",
        "The dot product q·k is unrolled by 16 without a remainder loop, so the last D % 16 coordinates are ignored.",
        (
            "rules.py",
            "        factor = self.dtype.type(scale)\n",
            "        factor = self.dtype.type(scale)\n"
            "        whole = q.shape[1] // 16 * 16\n"
            "        q, k = q[:, :whole], k[:, :whole]\n",
        ),
    ),
    (
        "key_length_rounded_up",
        "The keys are masked at the length rounded up to a multiple of 8 instead of at the length, so up to 7 padding "
        "keys of each sequence are attended to.",
        _geometry("""
if mask.k_lens is None:
    return mask
inner, lens = mask.mask, np.array(mask.k_lens)
class Rounded(Mask):
    def __call__(self, b, h, i, j, lq, lk):
        lk = lens[b]
        seen = j < -(-lk // 8) * 8
        return seen if inner is None else seen & inner(b, h, i, j, lq, lk)
return replace(mask, mask=Rounded(), k_lens=None)
"""),
    ),
    # softmax state and merges
    (
        "accumulator_not_rescaled",
        "When a later tile raises the running maximum, the row sum is rescaled but the output accumulator is not.",
        ("online.py", "state.o * keep[..., None] + products", "state.o + products"),
    ),
    (
        "max_of_this_tile_only",
        "The running maximum is replaced by the maximum of the current tile instead of the larger of both, so a tile "
        "that is hidden from a row forgets the row's maximum.",
        (
            "online.py",
            "    m = np.maximum(state.m, scores.max(-1, initial=-np.inf))\n",
            "    m = scores.max(-1, initial=-np.inf)\n",
        ),
    ),
    (
        "merge_with_first_max",
        "Two splits are merged around the maximum of the first split instead of the larger one: it overflows when the "
        "second is much larger, and is lost (lse -inf) when the first split saw nothing.",
        ("online.py", "    m = np.maximum(a.m, b.m)\n", "    m = a.m\n"),
    ),
    (
        "sink_in_every_split",
        "The sink is added to the softmax denominator in each split rather than once, so with two splits it counts twice.",
        (
            "forward.py",
            "        states.append(state)\n",
            "        states.append(state if head.sink is None else online.join_sink(state, head.sink, rules.exp))\n",
        ),
        (
            "forward.py",
            "        if head.sink is not None:\n            state = online.join_sink(state, head.sink, rules.exp)\n",
            "",
        ),
    ),
    # heads and strides
    (
        "gqa_modulo",
        "Query head h reads key head h % Hkv instead of h // (H / Hkv).",
        ("rules.py", "        return h // (H // Hkv)\n", "        return h % Hkv\n"),
    ),
    (
        "gqa_gradients_overwritten",
        "dk and dv of a key head are overwritten by each query head of its group instead of summed, so only the last "
        "query head's share is left.",
        ("rules.py", "        return total + part\n", "        return part\n"),
    ),
    (
        "v_assumed_contiguous",
        "The strides of v are ignored: it is read as if its memory were contiguous (B, H, L, D), whatever its layout.",
        _take("""
if isinstance(case.storage, S.Dense) and "v" in dense:
    v, order = dense["v"], ["BHLD".index(letter) for letter in case.storage.layout]
    dense["v"] = np.ascontiguousarray(v.transpose(order)).reshape(v.shape)
"""),
    ),
    (
        "shared_v_row_stride",
        "Where v is the first Dv columns of k (MLA), its rows are taken to lie Dv elements apart instead of D.",
        _take("""
if isinstance(case.storage, S.Shared):
    k, (B, heads, L, Dv) = dense["k"], dense["v"].shape
    dense["v"] = np.ascontiguousarray(k).reshape(B, heads, -1)[..., : L * Dv].reshape(B, heads, L, Dv)
"""),
    ),
    # scale, bias, softcap, score_mod
    (
        "scale_from_dv",
        "The default scale is Dv**-0.5, from the head size of v, instead of D**-0.5.",
        ("forward.py", "rules.default_scale(x.D)", "rules.default_scale(x.Dv)"),
    ),
    (
        "bias_is_scaled",
        "The bias is added before the scale is applied, so it is multiplied by the softmax scale too.",
        (
            "forward.py",
            "        t = self.rules.logits(s, x.softcap, bias, visible, ",
            "        bias = None if bias is None else bias * x.dtype.type(self.scale)\n"
            "        t = self.rules.logits(s, x.softcap, bias, visible, ",
        ),
    ),
    (
        "score_mod_tile_local_key",
        "score_mod is told the key's index within its tile instead of its index in the sequence, so it starts again at "
        "0 with each key tile.",
        ("rules.py", "        return b, h, i, j\n", "        return b, h, i, j % self.schedule.tile_k\n"),
    ),
    # precision and quantisation
    (
        "scores_rounded_to_16_bits",
        "The scores q·k are written to a buffer of the output's 16-bit dtype before the softmax instead of being kept "
        "in float32.",
        (
            "rules.py",
            "        return self.round(s, self.precision.scores)\n",
            "        return self.round(s, self.precision.scores or self.precision.out)\n",
        ),
    ),
    (
        "bf16_weights_truncated",
        "The weights are brought to bfloat16 before P·V by dropping the low 16 bits instead of rounding to nearest, so "
        "the output is biased towards 0.",
        (
            "rules.py",
            "        rounded = self.round(p, self.precision.weights)\n",
            "        rounded = self.round(p, self.precision.weights)\n"
            "        if self.precision.weights == 'bfloat16':\n"
            "            rounded = (np.ascontiguousarray(p).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)\n",
        ),
    ),
    (
        "v_with_scale_of_k",
        "v is dequantised with k's scale instead of its own.",
        (
            "prepare.py",
            'rules.dequantise(name, x[name], x[f"{name}_scale"], case.quant.kind)',
            'rules.dequantise(name, x[name], x["k_scale" if name == "v" else f"{name}_scale"], case.quant.kind)',
        ),
    ),
    (
        "block_scale_not_advanced",
        "With one scale for each block of tokens, the scale of the first block is used for all blocks of the head.",
        _codes("""
if kind not in ("q8_0", "q4_0"):
    scale = scale[:, :, :1]
y = dequantise(codes, scale, kind)
"""),
    ),
    # integer width
    (
        "uint32_row_offset_of_k",
        "The element offset of a row of k is computed in 32 bits unsigned, so from 2**32 elements on it wraps around "
        "and reads an earlier row.",
        _take("""
if isinstance(case.storage, S.Strided):
    k, row = dense["k"], case.storage.row
    flat = np.ascontiguousarray(k).reshape(-1, k.shape[3])
    offset = np.arange(len(flat), dtype=np.int64) * row % 2**32
    dense["k"] = flat[offset // row].reshape(k.shape)
"""),
    ),
    (
        "int8_codes_as_uint8",
        "int8 codes are widened as unsigned bytes, so each negative code c is taken for c + 256.",
        _codes("""
y = dequantise(codes, scale, kind)
if kind == "int8":
    y = y + 256 * dequantise((codes < 0).astype(np.int8), scale, kind)
"""),
    ),
    (
        "unsigned_causal_diagonal",
        "The diagonal i + Lk - Lq is an unsigned integer, so for queries before the first key (Lq > Lk) it wraps to a "
        "huge number and they see every key instead of none.",
        _masks("""
class Bad(M.Causal):
    def __call__(self, b, h, i, j, lq, lk):
        own = i if self.align == "top_left" else i + lk - lq
        return (j <= own) | (own < 0)
def change(m):
    return Bad(m.align) if isinstance(m, M.Causal) else m
"""),
    ),
    # varlen, paged, cache
    (
        "diagonal_from_max_lengths",
        "Masks are aligned with the longest lengths of the batch (Lq, Lk) instead of each sequence's own, so the "
        "bottom-right diagonal is off for shorter sequences.",
        _geometry("""
if mask.mask is None:
    return mask
inner, Lq, Lk = mask.mask, mask.Lq, mask.Lk
class Padded(Mask):
    def __call__(self, b, h, i, j, lq, lk):
        return inner(b, h, i, j, np.full_like(lq, Lq), np.full_like(lk, Lk))
return replace(mask, mask=Padded())
"""),
    ),
    (
        "keys_from_cu_seqlens_q",
        "Packed keys and values are read from cu_seqlens_q[b] on instead of cu_seqlens_k[b], so all sequences but the "
        "first read their neighbours' rows.",
        _take("""
if isinstance(case.storage, S.Packed):
    for name in "kv":
        x = np.zeros_like(dense[name])
        for b, n in enumerate(case.lengths[1]):
            start = given["cu_seqlens_q"][b]
            part = given[name][start : start + n]
            x[b, :, : len(part)] = part.swapaxes(0, 1)
        dense[name] = x
"""),
    ),
    (
        "tile_assumed_within_page",
        "The block table is looked up once for each tile of 32 keys, and the rest of the tile is read from the memory "
        "that follows, although the tile goes on in another page.",
        _take("""
if isinstance(case.storage, S.Paged):
    for name in "kv":
        pages, x = given[name], np.zeros_like(dense[name])
        size, flat = pages.shape[1], pages.reshape(-1, *pages.shape[2:])
        for b, n in enumerate(case.lengths[1]):
            for start in range(0, n, 32):
                end = min(start + 32, n)
                first = int(given["block_table"][b, start // size]) * size + start % size
                at = np.minimum(first + np.arange(end - start), len(flat) - 1)
                x[b, :, start:end] = flat[at].swapaxes(0, 1)
        dense[name] = x
"""),
    ),
    (
        "cache_append_at_length_of_batch_0",
        "New keys and values are written to the cache from cache_lens[0] on for every batch entry, instead of from "
        "cache_lens[b] on, so other entries attend to slots that were never filled.",
        _take("""
if isinstance(case.storage, S.Cache):
    for name in "kv":
        new, cache, x = given[name], given[f"{name}_cache"], dense[name]
        first = int(given["cache_lens"][0])
        for b, n in enumerate(given["cache_lens"]):
            x[b, :, : n + case.Lq] = cache[b, : n + case.Lq].swapaxes(0, 1)
            x[b, :, first : first + case.Lq] = new[b]
"""),
    ),
    # rotary
    (
        "query_rotated_at_row",
        "Queries are rotated by their row i instead of their position i + Lk - Lq, so with a past they stand too early.",
        ("rules.py", "        return i + lk - lq\n", "        return i\n"),
    ),
    (
        "cached_keys_rotated_again",
        "Keys that lie in the cache rotated already are rotated a second time together with the new ones.",
        ("rules.py", "        return past & isinstance(case.storage, Cache)\n", "        return past & False\n"),
    ),
    (
        "partial_rotary_pairs_by_head_size",
        "Where only part of the head is rotated, coordinate i is paired with i + D/2 instead of i + rotary_dim/2.",
        (
            "rules.py",
            "        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)\n",
            "        x, cos, sin = x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype)\n"
            "        y, half, D = rotate(x, cos, sin, rotary.interleaved), cos.shape[-1], x.shape[-1]\n"
            "        if not rotary.interleaved and 2 * half < D:\n"
            "            first, second = slice(half), slice(D // 2, D // 2 + half)\n"
            "            y = x.copy()\n"
            "            y[..., first] = x[..., first] * cos - x[..., second] * sin\n"
            "            y[..., second] = x[..., second] * cos + x[..., first] * sin\n",
        ),
    ),
    # backward
    (
        "dlse_sign",
        "The gradient that arrives at lse is subtracted with delta instead of added, so dlse enters with the wrong sign.",
        ("rules.py", "        return dlse\n", "        return -dlse\n"),
    ),
    (
        "dbias_overwritten",
        "dbias of a bias that is broadcast is stored instead of added up, so only the last batch entry, head or tile "
        "that it was broadcast over is left.",
        (
            "rules.py",
            "        return so_far + part\n",
            "        return part if name == 'dbias' else so_far + part\n",
        ),
    ),
    (
        "delta_over_head_size_of_q",
        "delta = out · dout sums only the first D columns although out and dout have Dv, so it is too short where Dv > D.",
        (
            "backward.py",
            "rules.delta(out, dout)",
            "rules.delta(out[:, : x.D], dout[:, : x.D])",
        ),
    ),
    (
        "dsinks_sign",
        "dsinks is p_sink times delta without the minus sign.",
        ("backward.py", "np.where(alive, share * incoming, 0).sum()", "np.where(alive, -share * incoming, 0).sum()"),
    ),
    # dropout
    (
        "dropout_before_normalisation",
        "The row sum adds the weights after dropout instead of before it, so the softmax is normalised over the kept "
        "keys alone and lse changes.",
        ("rules.py", "return summed.sum(-1), ", "return self.drop(summed, kept).sum(-1), "),
    ),
    (
        "dropout_mask_of_head_0",
        "The dropout mask is indexed without the head, so all heads of a batch entry drop what head 0 drops.",
        ("arguments.py", "np.asarray(self.keep[b, h, rows, keys])", "np.asarray(self.keep[b, 0, rows, keys])"),
    ),
    (
        "dropout_missing_in_dp",
        "The backward applies the dropout mask to P for dv but not to dP, which is only rescaled.",
        ("rules.py", "        return self.drop(dp, kept) * undropped\n", "        return dp * undropped\n"),
    ),
]
