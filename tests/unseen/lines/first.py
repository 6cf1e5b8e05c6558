"""Bugs of attention kernels: (name, sentence, (file, old, new), ...), each one thing wrong."""

# ruff: noqa: E501, F401 - as their author wrote them

READ = '        """The case as it is understood."""\n        return case\n'
TAKE = "        return memory.take(case, given)\n"
DEQUANT = "        return self.round(dequantise(codes, scale, kind).astype(self.dtype), self.precision.dequantised)\n"
SPLITS = ("__init__.py", "USUAL = Schedule()", "USUAL = Schedule(splits=2)")


def _masks(kind, expression):
    """Each mask m of a kind becomes `expression`, of m, b, h, i, j, lq, lk."""
    return ("rules.py", READ, f'''\
        """The case as it is understood."""
        import dataclasses
        from refattn import masks

        @dataclass(frozen=True)
        class Wrong(masks.Mask):
            m: Any

            def __call__(self, b, h, i, j, lq, lk):
                m = self.m
                return {expression}

        def changed(m):
            if isinstance(m, (masks.And, masks.Or)):
                return type(m)(changed(m.left), changed(m.right))
            if isinstance(m, masks.Not):
                return masks.Not(changed(m.mask))
            return Wrong(m) if isinstance(m, masks.{kind}) else m

        return case if case.mask is None else dataclasses.replace(case, mask=changed(case.mask))
''')


BUGS = [
    # mask geometry
    ("diagonal_padded_lens",
     "The bottom-right diagonal (and everything else placed by it) is anchored at max_seqlen_k - max_seqlen_q, the "
     "padded sizes, instead of each batch entry's own lengths.",
     ("arguments.py", "            seen = self.mask.tile(rows, keys, b, h)\n",
      "            own = self.mask\n"
      "            seen = Visibility(None, own.B, own.H, own.Lq, own.Lk, own.q_lens, own.k_lens).tile(rows, keys, b, h)\n"
      "            seen = seen & Visibility(own.mask, own.B, own.H, own.Lq, own.Lk).tile(rows, keys, b, h)\n")),
    ("window_left_exclusive",
     "The left edge of the sliding window is exclusive (j > i - left), so the oldest key of each window is lost.",
     _masks("Window", "m(b, h, i, j, lq, lk) & (m.left is None or j != (i if m.align == 'top_left' else i + lk - lq) - m.left)")),
    ("key_tiles_end_at_first_row",
     "Whether a key tile is needed is decided by the first row of the query tile instead of all of its rows, so tiles "
     "that only later rows see are skipped.",
     ("forward.py", "if visible is not None and not visible.any():", "if visible is not None and not visible[:1].any():")),
    ("chunk_of_local_row",
     "Chunked attention takes a query's chunk from its row index i, forgetting the offset lk - lq of bottom-right "
     "alignment.",
     _masks("Chunked", "np.equal(j // m.size, i // m.size)")),
    # empty rows and sentinels
    ("hidden_is_minus_1e9",
     "Hidden scores are set to -1e9 instead of -inf, so a row that sees nothing averages over the keys of its tiles "
     "and its lse is about -1e9.",
     ("rules.py", "np.copyto(s, -np.inf, where=~visible)", "np.copyto(s, -1e9, where=~visible)")),
    ("no_guard_for_max_minus_inf",
     "The shift is the running max even where that is still -inf, so a row whose first tile is all hidden gets "
     "exp(-inf - -inf) = NaN.",
     ("online.py", "return np.where(np.isneginf(m), np.zeros_like(m), m)", "return m")),
    ("empty_row_skips_sink",
     "A row that sees no key leaves before the sink is added, so its lse is -inf instead of the sink's logit.",
     ("forward.py", "            state = online.join_sink(state, head.sink, rules.exp)\n",
      "            joined = online.join_sink(state, head.sink, rules.exp)\n"
      "            state = State(np.where(seen, joined.m, state.m), np.where(seen, joined.l, state.l), joined.o)\n")),
    ("gather_filler_is_key_0",
     "The filler -1 among gathered key indices is clamped to 0 and not masked, so rows with fillers see key 0 as well.",
     _masks("Gathered", "m(b, h, i, j, lq, lk) | ((j == 0) & m(b, h, i, 0 * j - 1, lq, lk))")),
    # tails and unused memory
    ("last_tile_moved_back",
     "The last key tile is moved back so that it is full, and the keys that it shares with the tile before it are not "
     "masked: they count twice.",
     ("forward.py", "    every = tiles(n, size or schedule.tile_k)\n",
      "    every = tiles(n, size or schedule.tile_k)\n"
      "    every = [slice(max(0, min(s.start, n - (size or schedule.tile_k))), s.stop) for s in every]\n")),
    ("padded_keys_in_row_sum",
     "The zero-filled keys that pad the last key tile are not masked: each adds exp(0 - m) to the row sum and to the "
     "max (their values are 0).",
     ("rules.py", "        return online.update(state, t, v, self.exp, lambda p, v: self.weigh(p, v, visible, kept))\n",
      "        state = online.update(state, t, v, self.exp, lambda p, v: self.weigh(p, v, visible, kept))\n"
      "        pad = self.schedule.tile_k - t.shape[1]\n"
      "        zeros = State(np.zeros_like(state.m), np.full_like(state.l, pad), np.zeros_like(state.o))\n"
      "        return online.merge(state, zeros, self.exp) if pad > 0 else state\n")),
    ("hidden_values_times_zero",
     "Values of hidden keys are multiplied by a weight of 0 instead of being left out, so NaN in unused memory reaches "
     "the output.",
     ("rules.py", "        if finite.all():\n", "        if True:\n")),
    # softmax state and merges of splits
    ("splits_merged_by_max",
     "With two splits of the keys, each part's normalised output is weighted by exp(max) instead of exp(lse) when they "
     "are combined: the parts' row sums are lost.",
     SPLITS,
     ("rules.py", "        return online.merge(a, b, self.exp)\n",
      "        def part(s: State) -> State:\n"
      "            return State(s.m, (s.l != 0).astype(s.l.dtype), s.o / np.where(s.l == 0, 1, s.l)[..., None])\n\n"
      "        return online.merge(part(a), part(b), self.exp)\n")),
    ("lazy_rescale_with_new_max",
     "Rescaling of row sum and accumulator is skipped while the max grows by less than 8, but the new max is used as "
     "the shift all the same.",
     ("online.py", "    keep = exp(state.m, shift)\n",
      "    keep = exp(state.m, shift)\n    keep = np.where(m - state.m < 8, np.ones_like(keep), keep)\n")),
    ("max_starts_at_flt_min",
     "The running max starts at FLT_MIN, the smallest positive number, instead of -inf, so rows whose scores are all "
     "far below 0 underflow.",
     ("online.py", "np.full(shape, -np.inf, dtype)", "np.full(shape, np.finfo(dtype).tiny, dtype)")),
    ("sink_in_each_split",
     "With two splits of the keys, the sink joins the softmax of each split instead of once, so it counts twice.",
     SPLITS,
     ("forward.py", "        if head.sink is not None:\n            state = online.join_sink(state, head.sink, rules.exp)\n", ""),
     ("forward.py", "        states.append(state)\n",
      "        states.append(state if head.sink is None else online.join_sink(state, head.sink, rules.exp))\n")),
    # heads and strides
    ("key_head_modulo",
     "Grouped queries: query head h uses key head h % Hkv instead of h // (H // Hkv).",
     ("rules.py", "        return h // (H // Hkv)\n", "        return h % Hkv\n")),
    ("v_with_row_stride_of_k",
     "The rows of v are addressed with the row stride of k, which is D and not Dv elements.",
     ("forward.py", "        self.scale = rules.default_scale(x.D)",
      "        at = self.key_head * x.Lk * x.Dv + np.arange(x.Lk)[:, None] * x.D + np.arange(x.Dv)\n"
      "        if at.size and x.D != x.Dv:\n"
      "            self.v = np.take(np.ascontiguousarray(x.v[b], x.dtype).reshape(-1), at, mode='clip')\n"
      "        self.scale = rules.default_scale(x.D)")),
    ("strides_ignored",
     "q, k and v are read as if they were contiguous (B, H, L, D), whatever strides they come with.",
     ("rules.py", TAKE,
      "        given = {n: x.ravel(order='K').reshape(x.shape) if n in ('q', 'k', 'v') else x for n, x in given.items()}\n"
      + TAKE)),
    # scale, bias, softcap, score_mod
    ("scale_of_value_size",
     "The default scale is 1 / sqrt(Dv), the size of the values, instead of 1 / sqrt(D).",
     ("forward.py", "rules.default_scale(x.D)", "rules.default_scale(x.Dv)")),
    ("bias_is_scaled",
     "The bias is added before the scale is applied, so it is multiplied by the scale too.",
     ("forward.py", "        visible, bias = x.tile(b, h, rows, keys)\n",
      "        visible, bias = x.tile(b, h, rows, keys)\n"
      "        bias = None if bias is None else bias * x.dtype.type(self.scale)\n"),
     ("matrices.py", "rules.round(capped + bias, rules", "rules.round(capped + bias * x.dtype.type(head.scale), rules")),
    ("softcap_after_bias",
     "The softcap is applied after the bias was added instead of before, so the bias is capped too.",
     ("rules.py", "        s, in_caps = self.capped(s, softcap)\n        before = None\n", "        before = None\n"),
     ("rules.py", "            s = self.round(s + bias, self.precision.scores)\n",
      "            s = self.round(s + bias, self.precision.scores)\n        s, in_caps = self.capped(s, softcap)\n")),
    ("score_mod_tile_local_key",
     "score_mod is told a key's index within its tile instead of its index in the sequence.",
     ("rules.py", "        return b, h, i, j\n", "        return b, h, i, j - j[..., :1]\n")),
    # precision and quantisation
    ("v_with_scale_of_k",
     "Quantised v is multiplied by the scale of k.",
     ("prepare.py", '                made[name] = rules.dequantise(name, x[name], x[f"{name}_scale"], case.quant.kind)\n',
      '                scale = np.resize(x["k_scale"], x["v_scale"].shape) if name == "v" else x[f"{name}_scale"]\n'
      '                made[name] = rules.dequantise(name, x[name], scale, case.quant.kind)\n')),
    ("q4_nibbles_interleaved",
     "q4_0: the two nibbles of byte t are taken for entries 2t and 2t + 1 of the block instead of t and t + 16.",
     ("rules.py", DEQUANT,
      "        x = dequantise(codes, scale, kind)\n"
      "        if kind == 'q4_0':\n"
      "            x = x.reshape(*x.shape[:3], x.shape[3] // 32, 2, 16).swapaxes(-1, -2).reshape(x.shape)\n"
      "        return self.round(x.astype(self.dtype), self.precision.dequantised)\n")),
    ("row_sum_in_half",
     "The running row sum of the softmax is kept in the output's 16-bit dtype instead of float32.",
     ("rules.py", "        return online.update(state, t, v, self.exp, lambda p, v: self.weigh(p, v, visible, kept))\n",
      "        state = online.update(state, t, v, self.exp, lambda p, v: self.weigh(p, v, visible, kept))\n"
      "        return state._replace(l=self.round(state.l, self.precision.out))\n")),
    # integer width
    ("key_row_offset_int32",
     "row * stride of k is computed in int32, so from 2**31 elements on the offset within a head is negative: rows of "
     "earlier heads are read, or 0 before the start of the memory.",
     ("rules.py", TAKE,
      "        dense = memory.take(case, given)\n"
      "        k = given['k']\n"
      "        if isinstance(case.storage, memory.Strided) and k.size:\n"
      "            step = k.strides[2] // k.itemsize\n"
      "            offset = (np.arange(case.Lk, dtype=np.int64) * step).astype(np.int32).astype(np.int64)\n"
      "            at = np.arange(case.B * case.Hkv)[:, None] * case.Lk + offset // step\n"
      "            read = k.reshape(-1, case.D)[np.maximum(at, 0)]\n"
      "            read[at < 0] = 0\n"
      "            dense['k'] = read.reshape(k.shape)\n"
      "        return dense\n")),
    ("value_head_offset_uint32",
     "The offset of a head of v, (b * Hkv + h) * stride, is computed in uint32 and wraps at 2**32 elements, so later "
     "heads start at rows of earlier ones.",
     ("rules.py", TAKE,
      "        dense = memory.take(case, given)\n"
      "        v = given['v']\n"
      "        if isinstance(case.storage, memory.Strided) and v.size:\n"
      "            step = v.strides[2] // v.itemsize\n"
      "            offset = (np.arange(case.B * case.Hkv, dtype=np.int64) * case.Lk * step).astype(np.uint32)\n"
      "            at = offset.astype(np.int64)[:, None] // step + np.arange(case.Lk)\n"
      "            dense['v'] = v.reshape(-1, case.Dv)[at].reshape(v.shape)\n"
      "        return dense\n")),
    ("q4_zero_point_in_uint8",
     "q4_0: the zero point 8 is subtracted from the nibble in uint8, so nibbles below 8 wrap to 248..255.",
     ("rules.py", DEQUANT,
      "        x = dequantise(codes, scale, kind)\n"
      "        if kind == 'q4_0':\n"
      "            blocks = codes.reshape(*codes.shape[:3], codes.shape[3] // 16, 16)\n"
      "            nibbles = np.concatenate([blocks & 15, blocks >> 4], axis=4).reshape(x.shape).astype(np.uint8)\n"
      "            x = (nibbles - np.uint8(8)).astype(np.float64) * np.repeat(scale.astype(np.float64), 32, axis=3)\n"
      "        return self.round(x.astype(self.dtype), self.precision.dequantised)\n")),
    # varlen, paged, cache
    ("keys_at_cu_seqlens_q",
     "Packed keys and values of a sequence are read from cu_seqlens_q[b] on instead of cu_seqlens_k[b].",
     ("rules.py", TAKE,
      "        dense = memory.take(case, given)\n"
      "        if isinstance(case.storage, memory.Packed):\n"
      "            for name in 'kv':\n"
      "                for b, n in enumerate(case.lengths[1]):\n"
      "                    at = np.minimum(given['cu_seqlens_q'][b] + np.arange(n), len(given[name]) - 1)\n"
      "                    dense[name][b, :, :n] = given[name][at].swapaxes(0, 1)\n"
      "        return dense\n")),
    ("packed_keys_without_gaps",
     "Where packed keys lie with gaps, a sequence's first key is sought at the sum of the used lengths before it, "
     "without the gaps.",
     ("rules.py", TAKE,
      "        dense = memory.take(case, given)\n"
      "        if isinstance(case.storage, memory.Packed) and case.storage.gap:\n"
      "            starts = np.cumsum([0, *given['seqused_k']])\n"
      "            for name in 'kv':\n"
      "                for b, n in enumerate(case.lengths[1]):\n"
      "                    dense[name][b, :, :n] = given[name][starts[b] : starts[b] + n].swapaxes(0, 1)\n"
      "        return dense\n")),
    ("one_page_for_each_tile",
     "The block table is looked up once for each tile of 16 keys, at its first key, and the other keys are read on "
     "from there, also where the page ends within the tile.",
     ("rules.py", TAKE,
      "        dense = memory.take(case, given)\n"
      "        if isinstance(case.storage, memory.Paged):\n"
      "            size = case.storage.page_size\n"
      "            for name in 'kv':\n"
      "                flat = given[name].reshape(-1, *given[name].shape[2:])\n"
      "                for b, n in enumerate(case.lengths[1]):\n"
      "                    j = np.arange(n)\n"
      "                    first = j // 16 * 16\n"
      "                    at = given['block_table'][b, first // size].astype(np.int64) * size + first % size + j - first\n"
      "                    dense[name][b, :, :n] = flat[np.minimum(at, len(flat) - 1)].swapaxes(0, 1)\n"
      "        return dense\n")),
    ("append_at_length_of_entry_0",
     "New keys and values are appended to the cache at cache_lens[0] in every batch entry instead of at cache_lens[b].",
     ("rules.py", TAKE,
      "        if 'cache_lens' in given:\n"
      "            lens = given['cache_lens']\n"
      "            given = {**given, 'cache_lens': np.broadcast_to(lens[:1], lens.shape)}\n" + TAKE)),
    # rotary
    ("rotary_pairs_half_of_D",
     "Rotary of fewer than D coordinates, not interleaved: the forward pairs coordinate i with i + D/2 instead of "
     "i + rotary_dim/2.",
     ("rules.py",
      "        y = rotate(x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype), rotary.interleaved)\n",
      "        x, cos, sin = x.astype(self.dtype), cos.astype(self.dtype), sin.astype(self.dtype)\n"
      "        y = rotate(x, cos, sin, rotary.interleaved)\n"
      "        if not rotary.interleaved:\n"
      "            n, far, y = cos.shape[-1], x.shape[-1] // 2, x.copy()\n"
      "            y[..., :n] = x[..., :n] * cos - x[..., far : far + n] * sin\n"
      "            y[..., far : far + n] = x[..., far : far + n] * cos + x[..., :n] * sin\n")),
    ("cached_keys_rotated_twice",
     "Keys that lie in the cache already rotated are rotated again when they are read.",
     ("rules.py", "        return past & isinstance(case.storage, Cache)\n", "        return past & False\n")),
    ("query_rotated_at_its_row",
     "Queries are rotated by their row index i instead of by their position i + lk - lq among the keys.",
     ("rules.py", "        return i + lk - lq\n", "        return i\n")),
    # backward
    ("dk_without_scale",
     "dk is not multiplied by the scale.",
     ("rules.py", "        return dk * scale\n", "        return dk\n")),
    ("dq_of_last_key_tile",
     "dq is stored by each key tile instead of added up, so only the last key tile's share remains.",
     ("rules.py", "        return so_far + part\n", "        return part if name == 'dq' else so_far + part\n")),
    ("dbias_of_last_writer",
     "dbias of a bias that is broadcast is stored instead of added up, so what remains is the share of the last batch "
     "entry, head or tile to write.",
     ("backward.py", '        head[rows, keys] = rules.add_up("dbias", head[rows, keys], dt)\n', "        head[rows, keys] = dt\n")),
    ("dlse_dropped",
     "The gradient that arrives at lse is ignored by the backward.",
     ("rules.py", "        return dlse\n", "        return np.zeros_like(dlse)\n")),
    # dropout
    ("dropout_in_row_sum",
     "Dropped weights are left out of the softmax's row sum too, so the weights that are kept are normalised among "
     "themselves (and lse is off).",
     ("rules.py", "        return summed.sum(-1), self.selected", "        return self.drop(summed, kept).sum(-1), self.selected")),
    ("dv_without_1_over_keep",
     "dv lacks the factor 1 / (1 - dropout).",
     ("backward.py", "            part_v = part_v if kept is None else part_v * undropped\n", "")),
    ("backward_keep_of_head_0",
     "The backward takes the dropout mask of head 0 for every head.",
     ("backward.py", "            kept = None if kept is None else rules.kept_again(kept)\n",
      "            kept = x.kept(b, 0, rows, keys)\n")),
]
