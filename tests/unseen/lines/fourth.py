"""36 bugs of attention kernels."""

# ruff: noqa: E501, F401 - as their author wrote them

_GEOMETRY = "    def geometry(self, mask: Any) -> Any:\n        return mask\n"
_TAKE = "        return memory.take(case, given)\n"


def _walk(body):
    """rules.geometry that changes the leaves of a mask."""
    return ("rules.py", _GEOMETRY, f"""    def geometry(self, mask: Any) -> Any:
        import dataclasses
        import refattn.masks as M
        import refattn.visibility as V

        class ShortWindow(M.Window):
            def __call__(self, b, h, i, j, lq, lk):
                own = V.diagonal(self.align, i, lq, lk)
                seen = np.ones((), dtype=bool)
                if self.left is not None:
                    seen = seen & ((j > own - self.left) | (j == own))
                if self.right is not None:
                    seen = seen & (j <= own + self.right)
                return seen

        def change(m):
            if isinstance(m, (V.And, V.Or)):
                return type(m)(change(m.left), change(m.right))
            if isinstance(m, V.Not):
                return V.Not(change(m.mask))
{body}
            return m

        if not isinstance(mask, V.Visibility):
            return mask
        return dataclasses.replace(mask, mask=change(mask.mask))
""")


def _taken(body):
    return ("rules.py", _TAKE, f"""        from refattn.case import Cache, Dense, Packed, Paged, Strided
        dense = dict(memory.take(case, given))
        storage = case.storage
{body}
        return dense
""")


BUGS = [
    # mask geometry
    ("causal_offset_from_padded_lengths",
     "With k_lens (or q_lens) the bottom-right diagonal is placed with the padded Lk - Lq instead of each batch entry's own lengths, so short entries see too far or too few keys.",
     ("arguments.py", "seen = self.mask.tile(rows, keys, b, h)",
      "seen = Visibility(self.mask.mask, *self.shape).tile(rows, keys, b, h) & Visibility(None, *self.shape, self.mask.q_lens, self.mask.k_lens).tile(rows, keys, b, h)")),
    ("window_left_exclusive",
     "The left edge of the sliding window is compared with > instead of >=, so each query misses the oldest key of its window.",
     _walk("            if type(m) is M.Window and m.left:\n                return ShortWindow(m.left, m.right, m.align)")),
    ("chunk_of_row_index",
     "Chunked (local) attention takes a query's chunk from its row index and not from its position i + lk - lq, so with more keys than queries it attends to the wrong chunk.",
     _walk("            if isinstance(m, M.Chunked):\n                return M.Chunked(m.size, 'top_left')")),
    # empty rows and sentinels
    ("finite_mask_value",
     "Hidden scores are set to the lowest finite number instead of -inf, so a row all of whose keys are hidden returns the mean of the values in its tiles and a finite lse instead of 0 and -inf.",
     ("rules.py", "np.copyto(s, -np.inf, where=~visible)", "np.copyto(s, np.finfo(s.dtype).min, where=~visible)")),
    ("no_guard_for_inf_minus_inf",
     "The online softmax subtracts the running maximum without a guard for -inf, so a row whose first visited tile is hidden for it computes exp(-inf - -inf) and stays NaN.",
     ("online.py", "    m = np.maximum(state.m, scores.max(-1, initial=-np.inf))\n    shift = shift_of(m)\n",
      "    m = np.maximum(state.m, scores.max(-1, initial=-np.inf))\n    shift = m\n")),
    ("sink_skipped_in_empty_rows",
     "Rows without visible keys return early, before the attention sink is added, so their lse is -inf instead of the sink's logit (and dsinks misses them).",
     ("forward.py", "            state = online.join_sink(state, head.sink, rules.exp)\n",
      """            joined = online.join_sink(state, head.sink, rules.exp)
            state = State(*(np.where(seen if a.ndim == 1 else seen[:, None], a, b) for a, b in zip(joined, state)))
""")),
    # tails and unused memory
    ("key_remainder_dropped",
     "The number of key tiles is Lk // tile_k instead of the ceiling, so the keys of the last partial tile are never attended to (if there is more than one tile).",
     ("forward.py", "    every = tiles(n, size or schedule.tile_k)\n",
      "    step = size or schedule.tile_k\n    every = tiles(n - n % step if n > step else n, step)\n")),
    ("hidden_value_times_zero",
     "Values of masked or non-existent keys are loaded as they are and multiplied by a weight of 0, so NaN or inf in hidden or unused memory spreads into the output.",
     ("rules.py", "        if visible is None:\n            return self.matmul(w, x)\n        finite", "        if visible is None or not visible.all():\n            return self.matmul(w, x)\n        finite")),
    ("tail_keys_count_as_zero_score",
     "The last partial key tile is padded with zero keys that are not masked, so each padding key adds exp(0 - m) to the softmax denominator.",
     ("forward.py", "                state = rules.update(state, t, head.v[keys, :0] if normalised else head.v[keys], visible, kept)\n",
      """                pad = rules.schedule.tile_k - (keys.stop - keys.start)
                v = np.pad(head.v[keys, :0] if normalised else head.v[keys], ((0, pad), (0, 0)))
                visible = None if visible is None else np.pad(visible, ((0, 0), (0, pad)), constant_values=True)
                kept = None if kept is None else np.pad(kept, ((0, 0), (0, pad)), constant_values=True)
                state = rules.update(state, np.pad(t, ((0, 0), (0, pad))), v, visible, kept)
""")),
    # softmax state and merges of splits
    ("split_merge_output_not_rescaled",
     "When two splits are merged, the second one's partial output is added without being rescaled by exp(m2 - m), although its row sum is.",
     ("online.py", "b.o * y[..., None])", "b.o)")),
    ("sink_in_every_split",
     "The attention sink is added to the denominator of each split before the merge instead of once at the end, so with 2 splits it counts twice.",
     ("forward.py", "        if head.sink is not None:\n            state = online.join_sink(state, head.sink, rules.exp)\n", ""),
     ("forward.py", "        states.append(state)\n",
      """        if head.sink is not None:
            state = online.join_sink(state, head.sink, rules.exp)
        states.append(state)
""")),
    ("running_max_starts_at_zero",
     "The running maximum is initialised to 0 instead of -inf, so rows whose scores are all very negative underflow to a zero sum: their output is 0 and their lse -inf.",
     ("online.py", "State(np.full(shape, -np.inf, dtype),", "State(np.zeros(shape, dtype),")),
    # heads and strides
    ("gqa_head_modulo",
     "Under GQA query head h reads key head h % Hkv instead of h // (H // Hkv).",
     ("rules.py", "return h // (H // Hkv)", "return h % Hkv")),
    ("gqa_dkdv_overwritten",
     "Under GQA/MQA the dk and dv of a key head are stored instead of accumulated, so only the last query head of the group contributes.",
     ("rules.py", '        """dk and dv of a key head: the sum over the query heads that share it."""\n        return total + part',
      '        return part')),
    ("v_strides_assumed_contiguous",
     "The kernel ignores v's strides and reads its buffer as contiguous (B, H, L, D), so v of any other layout (BLHD, BHDL, ...) is scrambled.",
     _taken("""        if isinstance(storage, Dense):
            dense["v"] = dense["v"].ravel(order="K").reshape(dense["v"].shape)""")),
    # scale, bias, softcap, score_mod
    ("softcap_after_bias",
     "The bias is added before the softcap's tanh instead of after it, so the bias is capped too.",
     ("rules.py", "        s, in_caps = self.capped(s, softcap)\n",
      """        if softcap is not None and bias is not None:
            s, bias = self.round(s + bias, self.precision.scores), None
        s, in_caps = self.capped(s, softcap)
""")),
    ("bias_multiplied_by_scale",
     "The softmax scale is applied to q k^T + bias together, so the additive bias is multiplied by the scale.",
     ("forward.py", "        t = self.rules.logits(s, x.softcap, bias, visible, self._modifier(rows, keys))\n",
      "        scaled = None if bias is None else bias * bias.dtype.type(self.scale)\n        t = self.rules.logits(s, x.softcap, scaled, visible, self._modifier(rows, keys))\n")),
    ("score_mod_tile_local_row",
     "score_mod is given the row index within the query tile instead of the global query index i, so it is wrong from the second query tile on.",
     ("arguments.py", "i, j = np.arange(self.Lq)[rows, None], np.arange(self.Lk)[None, keys]",
      "i, j = np.arange(self.Lq)[rows, None] - rows.start, np.arange(self.Lk)[None, keys]")),
    # precision and quantisation
    ("lse_rounded_to_output_dtype",
     "lse is rounded to the output's dtype (float16/bfloat16) before it is stored as float32.",
     ("rules.py", "    def lse(self, lse: Array) -> Array:\n        return lse\n",
      "    def lse(self, lse: Array) -> Array:\n        return self.round(lse, self.precision.out)\n")),
    ("scores_in_half_precision",
     "q k^T is written in the output's half-precision dtype before the softmax instead of staying in the float32 accumulator.",
     ("rules.py", "            s *= factor\n        return self.round(s, self.precision.scores)",
      "            s *= factor\n        return self.round(s, self.precision.out)")),
    ("v_dequantised_with_k_scale",
     "The quantised values are multiplied by k's scale instead of v's own.",
     ("prepare.py", 'made[name] = rules.dequantise(name, x[name], x[f"{name}_scale"], case.quant.kind)',
      'own = "k" if name == "v" and x["k_scale"].shape == x["v_scale"].shape else name\n                made[name] = rules.dequantise(name, x[name], x[f"{own}_scale"], case.quant.kind)')),
    # integer width
    ("kv_offset_wraps_at_32_bits",
     "Element offsets of k and v rows are computed in uint32, so rows beyond 2**32 elements wrap around and earlier rows are read instead.",
     _taken("""        if isinstance(storage, Strided):
            for name in "kv":
                x = dense[name]
                step = max(storage.row, x.shape[3])
                n = np.arange(x.shape[0] * x.shape[1] * x.shape[2], dtype=np.int64)
                dense[name] = x.reshape(-1, x.shape[3])[(n * step % 2**32) // step].reshape(x.shape)""")),
    ("bias_offset_overflows_int32",
     "The element offset of a bias row is an int32 that overflows to a negative number from 2**31 on, fails the bounds check, and the row's bias is loaded as 0.",
     _taken("""        if isinstance(storage, Strided) and "bias" in dense:
            x = dense["bias"]
            step = max(storage.row, x.shape[3])
            n = np.arange(x.shape[0] * x.shape[1] * x.shape[2], dtype=np.int64).reshape(*x.shape[:3], 1)
            dense["bias"] = np.where(n * step >= 2**31, np.zeros((), x.dtype), x)""")),
    ("kv_length_in_8_bits",
     "The key length of a batch entry is kept in an 8-bit field of the scheduler's metadata, so 300 keys become 44.",
     ("rules.py", _GEOMETRY, """    def geometry(self, mask: Any) -> Any:
        import dataclasses
        if getattr(mask, "k_lens", None) is None:
            return mask
        return dataclasses.replace(mask, k_lens=tuple(n & 255 for n in mask.k_lens))
""")),
    # varlen, paged, cache
    ("packed_keys_at_cu_seqlens_q",
     "In varlen (packed) attention the start of each sequence's keys and values is taken from cu_seqlens_q instead of cu_seqlens_k.",
     _taken("""        if isinstance(storage, Packed):
            for name in "kv":
                for b, n in enumerate(case.lengths[1]):
                    if n:
                        at = np.minimum(given["cu_seqlens_q"][b] + np.arange(n), len(given[name]) - 1)
                        dense[name][b, :, :n] = given[name][at].swapaxes(0, 1)""")),
    ("block_table_of_first_entry",
     "The paged kernel does not advance the block table by the batch index, so every batch entry reads the pages of entry 0.",
     _taken("""        if isinstance(storage, Paged):
            for name in "kv":
                for b, n in enumerate(case.lengths[1]):
                    j = np.arange(n)
                    pages = given["block_table"][0, j // storage.page_size]
                    dense[name][b, :, :n] = given[name][pages, j % storage.page_size].swapaxes(0, 1)""")),
    ("cache_append_off_by_one",
     "New tokens are appended to the KV cache from slot cache_lens - 1 on, so the last cached token is overwritten and the last slot stays empty (zeros).",
     _taken("""        if isinstance(storage, Cache):
            for name in "kv":
                for b, n in enumerate(given["cache_lens"]):
                    if n:
                        dense[name][b, :, n - 1 : n - 1 + case.Lq] = given[name][b]
                        dense[name][b, :, n - 1 + case.Lq] = 0""")),
    # rotary
    ("rotary_query_position_without_offset",
     "Queries are rotated by their row index i instead of i + lk - lq, so with a prefix of past keys they are rotated as if they stood at the start.",
     ("rules.py", "        return i + lk - lq\n", "        return i + 0 * lk\n")),
    ("rotary_pairing_swapped",
     "The rotary embedding pairs coordinates the other way: interleaved (2i, 2i+1) where the model has halves (i, i + dim/2), and the reverse, in the forward and in the backward.",
     ("rules.py", "        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)",
      "        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), not rotary.interleaved)"),
     ("rules.py", "        return unrotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)",
      "        return unrotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), not rotary.interleaved)")),
    ("cached_keys_rotated_again",
     "Keys that lie in the cache already rotated are rotated a second time when they are read.",
     ("rules.py", "return past & isinstance(case.storage, Cache)", "return past & False")),
    # backward
    ("dk_scaled_twice",
     "dk is multiplied by the softmax scale twice: the q that meets ds was pre-scaled and the epilogue scales again.",
     ("rules.py", "        return dk * scale\n", "        return dk * scale * scale\n")),
    ("dbias_stored_not_accumulated",
     "dbias of a bias that is broadcast (over batch, heads or queries) is stored instead of accumulated, so only the last tile or head that writes remains.",
     ("backward.py", 'head[rows, keys] = rules.add_up("dbias", head[rows, keys], dt)', "head[rows, keys] = dt")),
    ("dlse_ignored",
     "The backward ignores the gradient that arrives at lse, as if lse were not differentiable.",
     ("backward.py", "np.where(alive, rules.arriving(dlse), 0) - delta", "np.where(alive, 0 * dlse, 0) - delta")),
    # dropout
    ("dropout_before_row_sum",
     "Dropout is applied to the weights before they are summed, so the softmax denominator (and lse) counts only the kept keys.",
     ("rules.py", "        return summed.sum(-1), self.selected", "        return self.drop(summed, kept).sum(-1), self.selected")),
    ("dropout_mask_of_head_zero",
     "The offset of the dropout mask leaves out the head, so all heads use the mask of head 0.",
     ("forward.py", "return Tile(t, visible, x.kept(b, h, rows, keys))", "return Tile(t, visible, x.kept(b, 0, rows, keys))")),
    ("dp_not_rescaled_for_dropout",
     "In the backward the gradient of the weights is masked by dropout but not multiplied by 1 / (1 - p).",
     ("rules.py", "return self.drop(dp, kept) * undropped", "return self.drop(dp, kept)")),
]
