"""Bugs as kernels have them: (name, sentence, patches (file, old, new) of g7_kernel)."""

# ruff: noqa: E501, F401 - as their author wrote them

GEOMETRY = "    def geometry(self, mask: Any) -> Any:\n        return mask\n"
TAKE = "        return memory.take(case, given)\n"
SPLITS = ("__init__.py", "USUAL = Schedule()", "USUAL = Schedule(tile_k=16, splits=2)")  # honest: two splits


def mask_kind(kind, body):
    """A patch: masks of that kind (anywhere in an expression) are asked by `body` instead."""
    return ("rules.py", GEOMETRY, f"""    def geometry(self, mask: Any) -> Any:
        import dataclasses
        from refattn import masks
        from refattn.visibility import diagonal

        class Wrong(masks.{kind}):
            def __call__(self, b: Any, h: Any, i: Any, j: Any, lq: Any, lk: Any) -> Any:
{body}

        def changed(m: Any) -> Any:
            if type(m) in (masks.And, masks.Or):
                return type(m)(changed(m.left), changed(m.right))
            if type(m) is masks.Not:
                return masks.Not(changed(m.mask))
            if type(m) is masks.{kind}:
                return Wrong(*(getattr(m, f.name) for f in dataclasses.fields(m)))
            return m

        if not isinstance(mask, masks.Visibility) or mask.mask is None:
            return mask
        return dataclasses.replace(mask, mask=changed(mask.mask))
""")


def taken(body):
    """A patch of how the memory is read; `body` changes `dense`."""
    return ("rules.py", TAKE, f"""        dense = memory.take(case, given)
        storage, kind = case.storage, type(case.storage).__name__
        q_lens, k_lens = case.lengths
{body}
        return dense
""")


BUGS = [
    # mask geometry
    ("window_left_lost_when_causal",
     "A sliding window with right=0 is dispatched as plain causal, so its left bound is never applied.",
     mask_kind("Window", """                own = diagonal(self.align, i, lq, lk)
                seen = np.ones((), dtype=bool)
                if self.left is not None and self.right != 0:
                    seen = seen & (j >= own - self.left)
                if self.right is not None:
                    seen = seen & (j <= own + self.right)
                return seen""")),
    ("full_tile_by_first_row",
     "Whether a tile needs masking is decided by its first row alone (right for causal), so a tile whose first row "
     "sees all its keys goes unmasked for the rows below, whose window has moved past the first keys.",
     ("arguments.py", "seen.all() else seen", "seen[:1].all() else seen")),
    ("chunk_without_offset",
     "The chunk of a query is i // chunk_size, without the bottom-right offset lk - lq.",
     mask_kind("Chunked", "                return np.equal(j // self.size, i // self.size)")),
    ("offset_of_padded_lengths",
     "Masks are aligned by the padded lengths Lk - Lq instead of those of the batch entry, lk - lq.",
     ("rules.py", GEOMETRY, """    def geometry(self, mask: Any) -> Any:
        import dataclasses
        if not hasattr(mask, "q_lens"):
            return mask
        exists = dataclasses.replace(mask, mask=None).tile()
        return exists & dataclasses.replace(mask, q_lens=None, k_lens=None).tile()
""")),
    # empty rows and sentinels
    ("hidden_is_minus_10000",
     "Hidden scores are filled with -10000 instead of -inf, so a row that sees no key averages the hidden values.",
     ("rules.py", "np.copyto(s, -np.inf, where=~visible)", "np.copyto(s, -10000.0, where=~visible)")),
    ("empty_lse_is_plus_inf",
     "The lse of a row that sees no key is returned as +inf instead of -inf.",
     ("rules.py", "    def lse(self, lse: Array) -> Array:\n        return lse\n",
      "    def lse(self, lse: Array) -> Array:\n        return np.where(np.isneginf(lse), np.inf, lse)\n")),
    ("early_return_leaves_lse",
     "A tile of queries that sees no key returns early without writing its lse, which stays at the buffer's 0.",
     ("forward.py", "        if head.sink is not None:\n            state = online.join_sink",
      "        if not seen.any():\n            continue\n        if head.sink is not None:\n            state = online.join_sink")),
    # tails and unused memory
    ("zero_weight_times_nan",
     "P·V multiplies the values of hidden keys by a weight of 0 instead of skipping or zeroing them, so NaN there reaches out (and the gradients).",
     ("rules.py", "        if visible is None:\n            return self.matmul(w, x)\n", "        return self.matmul(w, x)\n")),
    ("tail_keys_not_masked",
     "Without a mask the bounds check of the last key tile is compiled out: its missing keys are loaded as zeros, and "
     "each adds exp(0 - m) to the row sum.",
     ("forward.py", "                state = rules.update(state, t, head.v[keys, :0] if normalised else head.v[keys], visible, kept)\n",
      "                v = head.v[keys, :0] if normalised else head.v[keys]\n"
      "                short = rules.schedule.tile_k - t.shape[1]\n"
      "                if visible is None and kept is None:\n"
      "                    t, v = np.pad(t, ((0, 0), (0, short))), np.pad(v, ((0, short), (0, 0)))\n"
      "                state = rules.update(state, t, v, visible, kept)\n")),
    ("store_bounded_by_lk",
     "The store of out is predicated on row < Lk instead of row < Lq, so rows from Lk on stay 0.",
     ("__init__.py", "            out[b, h] = rule.store(done.out, precision.out)\n",
      "            out[b, h, : x.Lk] = rule.store(done.out, precision.out)[: x.Lk]\n")),
    ("head_dim_tail_dropped",
     "The loop over the head dimension goes by 8 and stops at the last whole step, so q·k misses the last D % 8 products.",
     ("rules.py", "        factor = self.dtype.type(scale)\n",
      "        factor = self.dtype.type(scale)\n        D = max(q.shape[1] // 8 * 8, 8)\n        q, k = q[:, :D], k[:, :D]\n")),
    # softmax state and merges of splits
    ("lazy_rescale_without_old_max",
     "The rescaling of l and o is skipped when the maximum grows by less than 8, but the tile is still weighted against the new maximum.",
     ("online.py", "    keep = exp(state.m, shift)\n",
      "    keep = exp(state.m, shift)\n    keep = np.where(m - state.m < 8, np.ones_like(keep), keep)\n")),
    ("max_of_tile_replaces_running_max",
     "The running maximum is overwritten by the tile's own instead of taking the larger of both, so a row for which a later "
     "tile is all hidden loses what it had.",
     ("online.py", "    m = np.maximum(state.m, scores.max(-1, initial=-np.inf))\n", "    m = scores.max(-1, initial=-np.inf)\n")),
    ("splits_drop_remainder",
     "Key tiles per split are tiles // splits, rounded down, so the tiles left over belong to no split.",
     SPLITS,
     ("forward.py", "        yield every[i * len(every) // splits : (i + 1) * len(every) // splits]\n",
      "        each = max(1, len(every) // splits)\n        yield every[i * each : (i + 1) * each]\n")),
    ("sink_in_each_split",
     "Each of the two splits adds the sink to its row sum, so after the merge it counts twice.",
     SPLITS,
     ("forward.py", "        states.append(state)\n",
      "        if states and head.sink is not None:\n            state = online.join_sink(state, head.sink, rules.exp)\n        states.append(state)\n")),
    # heads and strides
    ("sink_of_key_head",
     "The sink is looked up by the key head instead of the query head.",
     ("forward.py", "rules.sink(x.sinks, h)", "rules.sink(x.sinks, self.key_head)")),
    ("bias_batch_stride_from_heads",
     "The batch stride of the bias is computed as heads * head stride, so with a broadcast head dimension it is 0 and every batch "
     "entry reads the bias of the first.",
     ("arguments.py", "bias = self._bias[b, h, rows, keys]", "bias = self._bias[b if self.bias.shape[1] > 1 or self.H == 1 else 0, h, rows, keys]")),
    ("k_taken_for_contiguous",
     "The strides of k are ignored: it is read as a contiguous (B, H, L, D) array whatever its layout in memory.",
     taken("""        if kind == "Dense" and storage.layout != "BHLD":
            order = ["BHLD".index(letter) for letter in storage.layout]
            dense["k"] = dense["k"].transpose(order).reshape(dense["k"].shape)""")),
    # scale, bias, softcap, score_mod
    ("softcap_before_scale",
     "The softcap is applied to q·k before the scale instead of after it.",
     ("forward.py", "t = self.rules.logits(s, x.softcap, bias,",
      "cap = x.softcap and (x.softcap * abs(self.scale) or None)\n        t = self.rules.logits(s, cap, bias,"),
     ("forward.py", "self.rules.logits(np.array(s), self.x.softcap,",
      "self.rules.logits(np.array(s), self.x.softcap and (self.x.softcap * abs(self.scale) or None),")),
    ("score_mod_gets_tile_index",
     "score_mod is given the key's index within the tile instead of its index in the sequence.",
     ("arguments.py", "np.arange(self.Lk)[None, keys]\n", "np.arange(keys.stop - keys.start)[None]\n")),
    ("scale_from_value_dim",
     "The default scale is 1/sqrt of the values' head dimension Dv instead of that of q and k.",
     ("forward.py", "rules.default_scale(x.D)", "rules.default_scale(x.Dv)")),
    # precision and quantisation
    ("row_sum_in_half",
     "The row sum of each tile is rounded to the weights' dtype instead of kept in float32.",
     ("rules.py", "        return summed.sum(-1), self.selected", "        return self.round(summed.sum(-1), self.precision.weights), self.selected")),
    ("bf16_store_truncates",
     "out and the gradients are converted to bfloat16 by dropping the low 16 bits instead of rounding to nearest.",
     ("rules.py", "        y = round_to(x, name)\n",
      "        y = round_to(x, name)\n        if name == \"bfloat16\":\n"
      "            y = (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)\n")),
    ("nibbles_interleaved",
     "The two nibbles of a q4_0 byte are unpacked as entries 2t and 2t + 1 instead of t and t + 16.",
     ("rules.py", "        return self.round(dequantise(codes, scale, kind).astype(self.dtype), self.precision.dequantised)\n",
      "        y = dequantise(codes, scale, kind)\n"
      "        if kind == \"q4_0\":\n"
      "            y = y.reshape(*y.shape[:3], y.shape[3] // 32, 2, 16).swapaxes(4, 5).reshape(y.shape)\n"
      "        return self.round(y.astype(self.dtype), self.precision.dequantised)\n")),
    ("descale_of_batch_0",
     "The descale factor is indexed by head only, so every batch entry is dequantised with the factors of the first.",
     ("rules.py", "        return self.round(dequantise(codes, scale, kind).astype(self.dtype), self.precision.dequantised)\n",
      "        if kind not in (\"q8_0\", \"q4_0\"):\n"
      "            scale = np.broadcast_to(scale[:1], scale.shape)\n"
      "        return self.round(dequantise(codes, scale, kind).astype(self.dtype), self.precision.dequantised)\n")),
    # integer width
    ("row_offset_wraps_at_32_bits",
     "The offset row * stride of k and v within a head is a 32-bit unsigned product, so rows from 2**32 / stride on wrap to the first ones.",
     taken("""        if kind == "Strided":
            for name in "kv":
                L = dense[name].shape[2]
                dense[name] = dense[name][:, :, np.arange(L) * storage.row % 2**32 // storage.row]""")),
    ("head_offset_wraps_at_32_bits",
     "The offset of a head, (b * H + h) * L * stride, is a 32-bit unsigned product, so later heads read q from rows of earlier ones.",
     taken("""        if kind == "Strided":
            B, H, L, D = dense["q"].shape
            base = np.arange(B * H) * L * storage.row % 2**32 // storage.row
            dense["q"] = dense["q"].reshape(B * H * L, D)[base[:, None] + np.arange(L)].reshape(B, H, L, D)""")),
    ("loads_beyond_4_gib_are_zero",
     "k is read by buffer loads with a 32-bit byte offset from the head's start: rows 4 GiB or more away are out of range and read as 0.",
     taken("""        if kind == "Strided":
            far = np.arange(case.Lk) * storage.row * dense["k"].dtype.itemsize >= 2**32
            dense["k"] = np.where(far[:, None], np.zeros_like(dense["k"]), dense["k"])""")),
    # varlen, paged, cache
    ("v_starts_from_cu_seqlens_q",
     "v of a packed sequence is read from cu_seqlens_q[b] on instead of cu_seqlens_k[b].",
     taken("""        if kind == "Packed":
            for b, n in enumerate(k_lens):
                if n:
                    at = np.minimum(int(given["cu_seqlens_q"][b]) + np.arange(n), len(given["v"]) - 1)
                    dense["v"][b, :, :n] = given["v"][at].swapaxes(0, 1)""")),
    ("block_table_stride_of_own_pages",
     "The row of an entry in the block table is found with a stride of the entry's own number of pages instead of the table's width.",
     taken("""        if kind == "Paged":
            table = given["block_table"]
            own = table.copy()
            for b, n in enumerate(k_lens):
                pages = -(-n // storage.page_size)
                own[b, :pages] = np.maximum(table.reshape(-1)[b * pages : (b + 1) * pages], 0)
            dense = memory.take(case, {**given, "block_table": own})""")),
    ("one_page_lookup_per_tile",
     "The block table is looked up once for each tile of 32 keys; pages smaller than a tile are then read on in physical order.",
     taken("""        if kind == "Paged":
            for name in "kv":
                tokens = given[name].reshape(-1, *given[name].shape[2:])
                for b, n in enumerate(k_lens):
                    first = np.arange(n) // 32 * 32
                    at = given["block_table"][b, first // storage.page_size] * np.int64(storage.page_size)
                    at = (at + first % storage.page_size + np.arange(n) % 32) % len(tokens)
                    dense[name][b, :, :n] = tokens[at].swapaxes(0, 1)""")),
    ("append_at_length_of_entry_0",
     "New keys and values are appended at cache_lens[0] for every batch entry instead of at cache_lens[b].",
     taken("""        if kind == "Cache":
            first = int(given["cache_lens"][0])
            for name in "kv":
                for b, n in enumerate(given["cache_lens"]):
                    dense[name][b, :, n : n + case.Lq] = given[f"{name}_cache"][b, n : n + case.Lq].swapaxes(0, 1)
                    dense[name][b, :, first : first + case.Lq] = given[name][b]""")),
    # rotary
    ("rotary_halves_of_head_dim",
     "With partial rotary, not interleaved, coordinate i is paired with i + D/2 instead of i + rotary_dim/2.",
     ("rules.py", "        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)\n",
      "        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)\n"
      "        if not rotary.interleaved:\n"
      "            y, c, s = x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype)\n"
      "            half, far = c.shape[-1], x.shape[-1] // 2\n"
      "            a, z = y[..., :half].copy(), y[..., far : far + half].copy()\n"
      "            y[..., :half], y[..., far : far + half] = a * c - z * s, z * c + a * s\n")),
    ("cache_rotated_again",
     "Keys that come from the cache, already rotated, are rotated once more.",
     ("rules.py", "return past & isinstance(case.storage, Cache)", "return past & False")),
    ("dk_rotated_forward",
     "dk is rotated by the angle once more instead of being turned back by it.",
     ("prepare.py", '"dk": rules.unrotate(gradients["dk"]', '"dk": rules.rotate(gradients["dk"]')),
    # backward
    ("dsinks_without_dlse",
     "dsinks leaves out the gradient that arrives at lse: -p_sink * delta instead of p_sink * (dlse - delta).",
     ("backward.py", "np.where(alive, share * incoming, 0).sum()", "np.where(alive, share * -delta, 0).sum()")),
    ("dq_of_last_key_tile",
     "dq is stored for each key tile instead of accumulated, so only the last key tile's part is left.",
     ("backward.py", 'dq[rows] = _add(rules, "dq", dq[rows], part_q, contract.grad_k_block)', "dq[rows] = part_q")),
    ("softcap_slope_of_capped_score",
     "The slope of the softcap is taken as 1 - t² of the capped score t instead of 1 - (t / softcap)².",
     ("backward.py", "slope = rules.slope(in_caps)", "slope = 1 - (x.dtype.type(x.softcap) * np.tanh(in_caps)) ** 2")),
    ("dbias_overwritten",
     "dbias is written instead of added, so of the entries, heads or tiles that share an element of the bias the last one wins.",
     ("rules.py", "        return so_far + part\n", "        return part if name == \"dbias\" else so_far + part\n")),
    # dropout
    ("row_sum_after_dropout",
     "The row sum is taken of the weights after dropout, so the softmax is normalised over the kept keys only.",
     ("rules.py", "        return summed.sum(-1), self.selected", "        return self.drop(summed, kept).sum(-1), self.selected")),
    ("backward_mask_from_tile_start",
     "The backward regenerates the dropout mask with key indices that start from 0 in each tile, so it is another than the forward's.",
     ("backward.py", "kept = None if kept is None else rules.kept_again(kept)",
      "kept = None if kept is None else x.kept(b, h, rows, slice(0, keys.stop - keys.start))")),
    ("dropout_mask_of_batch_0",
     "The batch entry is missing from the offset into the dropout mask: all entries use that of the first.",
     ("arguments.py", "np.asarray(self.keep[b, h, rows, keys])", "np.asarray(self.keep[0, h, rows, keys])")),
]
