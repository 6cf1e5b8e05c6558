"""Chapter gradients: dq, dk, dv of every feature, dbias and dsinks, with and without a gradient at lse."""

from __future__ import annotations

from functools import partial

from ..case import BiasSpec, Dense
from ..masks import BlockSparse, Causal, Documents, SinkTokens, Window
from .row import BF16, F16, F32, F64, GRAD, row

__all__ = ["CASES"]

_row = partial(row, "gradients", want=GRAD)
_with = partial(row, "gradients")
_TL, _BR = Causal("top_left"), Causal("bottom_right")
_LSE = GRAD | {"lse"}

CASES = (
    # plain, in every format
    _row("grad-1x1-f32", "One query, one key: dq and dk are 0, dv is dout.",
         "delta_missing", (1, 3, 3, 1, 1, 8, 8), F32, "normal"),
    _row("grad-2x3-f64", "Small enough to be worked out by hand.",
         "one_length delta_missing", (1, 5, 5, 2, 3, 8, 8), F64, "normal"),
    _row("grad-f32", "Plain attention.",
         "delta_missing grad_scale tf32", (2, 3, 3, 37, 53, 16, 16), F32, "peaked"),
    _row("grad-f64", "Plain attention in double precision.",
         "float64_demoted grad_scale", (2, 3, 3, 29, 45, 24, 24), F64, "peaked"),
    _row("grad-f16", "Plain attention in float16.",
         "delta_missing grad_scale", (2, 3, 3, 37, 53, 32, 32), F16, "peaked"),
    _row("grad-bf16", "Plain attention in bfloat16.",
         "one_length grad_scale", (2, 3, 3, 53, 37, 64, 64), BF16, "peaked"),
    _row("grad-tile-65x127-f32", "Past a tile of queries, short of a tile of keys.",
         "tail_backward grad_overflow", (1, 2, 2, 65, 127, 40, 40), F32, "all_negative_logits"),
    _row("grad-tile-31x257-f16", "More keys than queries.",
         "tail_backward one_length", (1, 2, 2, 31, 257, 80, 80), F16, "all_negative_logits"),
    _row("grad-dv-wide-f32", "Dv > D: dv and dk differ in width.",
         "dv_is_d", (2, 3, 3, 17, 33, 16, 40), F32, "peaked"),
    # masks
    _row("grad-causal-f32", "Square causal.",
         "causal_ignored causal_off_by_one", (2, 3, 3, 49, 49, 16, 16), F32, "outliers", mask=_TL),
    _row("grad-causal-br-f16", "More keys than queries, aligned at the last.",
         "causal_top_left", (2, 3, 3, 33, 65, 32, 32), F16, "peaked", mask=_BR),
    _row("grad-causal-tl-f64", "More keys than queries, aligned at the first: late keys get gradient 0.",
         "causal_bottom_right", (2, 3, 3, 17, 33, 16, 16), F64, "peaked", mask=_TL),
    _row("grad-window-f32", "A window, no other mask.",
         "window_off_by_one window_alone", (2, 3, 3, 41, 41, 16, 16), F32, "peaked", mask=Window(5, 3, "top_left")),
    _row("grad-sink-tokens-bf16", "A window and first tokens at the end of a cache.",
         "mask_union window_off_by_one", (2, 3, 3, 37, 70, 32, 32), BF16, "peaked",
         mask=(Window(8, 0, "bottom_right") | SinkTokens(2)) & _BR),
    _row("grad-documents-f16", "Documents that differ by batch entry.",
         "documents_lost batch_dropped", (2, 3, 3, 36, 36, 32, 32), F16, "peaked",
         mask=Documents(((0,) * 11 + (1,) * 25, (0,) * 30 + (2,) * 6))),
    _row("grad-blocks-f32", "Blocks of keys, some rows of blocks empty for a head.",
         "block_mask_scaled mask_broadcast empty_rows_nan", (1, 2, 2, 35, 50, 16, 16), F32, "peaked",
         mask=BlockSparse((("x..x", ".x..", "..xx"), (".xx.", "....", "x..x")), 16, 16)),
    _row("grad-poisoned-pairs-f32", "NaN in a row of q and of dout: dk and dv of keys it does not see must not notice.",
         "hidden_pairs_nan", (2, 3, 3, 31, 31, 16, 16), F32, "poisoned_pairs", mask=_TL),
    # lengths
    _row("grad-k-lens-br-bf16", "A ragged cache; NaN beyond it.",
         "lengths_unshifted unused_slots_nan tail_backward", (3, 2, 2, 19, 45, 64, 64), BF16, "poisoned",
         mask=_BR, k_lens=(45, 19, 30)),
    _row("grad-q-lens-f32", "Rows beyond q_lens must add nothing to dk and dv.",
         "rows_past_end_backward lengths_ignored", (3, 2, 2, 37, 21, 16, 16), F32, "poisoned", q_lens=(37, 1, 20)),
    _with("grad-q-k-lens-br-f16", "Ragged in both, with sinks and a gradient at lse.",
          "rows_past_end_backward lengths_unshifted dlse_ignored", (3, 2, 2, 35, 50, 32, 32), F16, "poisoned",
          want=_LSE | {"dsinks"}, sinks="normal", mask=_BR, q_lens=(35, 8, 20), k_lens=(50, 31, 20)),
    # groups and layout
    _row("grad-gqa-3-f32", "Groups of three: dk and dv are sums over the group.",
         "group_not_summed gqa_backward", (5, 6, 2, 17, 31, 16, 16), F32, "peaked"),
    _row("grad-gqa-6-causal-bf16", "Groups of six, causal.",
         "group_not_summed gqa_group gqa_backward", (1, 12, 2, 33, 65, 64, 64), BF16, "peaked", mask=_BR),
    _row("grad-lbhd-gqa-bf16", "Tokens first in memory, with groups.",
         "strides_ignored layout_confused group_not_summed", (5, 6, 2, 33, 21, 32, 32), BF16, "peaked",
         storage=Dense("LBHD")),
    # scores
    _row("grad-scale-f32", "dq and dk carry the scale, dv does not.",
         "grad_scale scale_hard_coded", (2, 3, 3, 17, 33, 16, 16), F32, "peaked", scale=1.7),
    _row("grad-scale-0-f32", "A scale of 0: dq and dk are 0, dv is not.",
         "scale_zero grad_scale", (2, 3, 3, 7, 11, 8, 8), F32, "normal", scale=0.0),
    _row("grad-softcap-f32", "The slope of tanh where scores exceed the cap.",
         "softcap_slope", (2, 3, 3, 17, 33, 16, 16), F32, "large_logits", softcap=30.0),
    _row("grad-softcap-causal-f64", "A small cap, under a mask.",
         "softcap_slope softcap_dropped", (2, 3, 3, 23, 23, 16, 16), F64, "peaked", softcap=2.0, mask=_TL),
    _row("grad-softcap-bf16", "The cap that large models use, at the end of a cache.",
         "softcap_slope softcap_dropped", (2, 3, 3, 33, 49, 64, 64), BF16, "large_logits", softcap=50.0, mask=_BR),
    _with("grad-bias-f32", "The bias in full: dbias is dt.",
          "bias_dropped delta_missing", (2, 3, 3, 17, 29, 16, 16), F32, "peaked", want=GRAD | {"dbias"},
          bias=BiasSpec()),
    _with("grad-bias-heads-bf16", "A bias for each head: dbias is summed over batches.",
          "dbias_not_reduced", (2, 3, 3, 33, 21, 32, 32), BF16, "peaked", want=GRAD | {"dbias"},
          bias=BiasSpec("HQK", BF16)),
    _with("grad-bias-keys-f64", "A bias for each key: dbias is summed over heads and queries.",
          "dbias_not_reduced bias_broadcast", (2, 3, 3, 13, 17, 8, 8), F64, "peaked", want=GRAD | {"dbias"},
          bias=BiasSpec("BK", F64), mask=_TL),
    _with("grad-bias-lse-f16", "A float16 bias, softcap between it and the scores, a gradient at lse.",
          "dbias_not_reduced dlse_ignored softcap_slope", (2, 3, 3, 21, 33, 32, 32), F16, "peaked",
          want=_LSE | {"dbias"}, bias=BiasSpec("BQK", F16), softcap=4.0),
    _with("grad-bias-minus-inf-f32", "-inf in the bias: dbias is 0 there.",
          "bias_minus_inf dbias_not_reduced", (2, 3, 3, 15, 27, 16, 16), F32, "poisoned", want=GRAD | {"dbias"},
          bias=BiasSpec("HQK", F32, "minus_inf")),
    _with("grad-sinks-f32", "Sinks take part in delta and get a gradient.",
          "dsinks_not_reduced sinks_dropped", (2, 3, 3, 17, 33, 16, 16), F32, "peaked", want=GRAD | {"dsinks"},
          sinks="normal"),
    _with("grad-sinks-lse-gqa-bf16", "Sinks, groups and a gradient at lse.",
          "dsinks_not_reduced dlse_ignored group_not_summed", (5, 6, 2, 17, 29, 64, 64), BF16, "peaked",
          want=_LSE | {"dsinks"}, sinks="normal", mask=_BR),
    _with("grad-sinks-f64", "A sink of 0 in double precision, with lengths of queries.",
          "dsinks_not_reduced rows_past_end_backward", (3, 2, 2, 13, 19, 16, 16), F64, "poisoned",
          want=_LSE | {"dsinks"}, sinks="zero", q_lens=(13, 2, 7)),
    _with("grad-lse-f32", "A gradient at lse, plain.",
          "dlse_ignored", (2, 3, 3, 17, 33, 16, 16), F32, "peaked", want=_LSE),
    # hard inputs
    _row("grad-needle-f32", "One key takes all: dq and dk nearly vanish.",
         "delta_missing last_tile", (2, 3, 3, 33, 65, 32, 32), F32, "needle"),
    _row("grad-rising-bf16", "p is recomputed from lse: overflow shows beyond a causal edge.",
         "grad_overflow causal_ignored", (1, 2, 2, 97, 97, 64, 64), BF16, "rising", mask=_TL),
    _row("grad-v-of-k-bf16", "Few score levels and values that depend on them: coherent errors in dq.",
         "delta_rounded", (1, 2, 2, 33, 200, 32, 32), BF16, "v_of_k"),
    _row("grad-cancelling-f32", "out is far below its terms, and so is delta.",
         "delta_missing tf32", (2, 3, 3, 17, 66, 32, 32), F32, "cancelling_v"),
    _row("grad-long-1k-bf16", "1025 queries: dk and dv are sums over many tiles.",
         "delta_rounded", (1, 2, 2, 1025, 150, 64, 64), BF16, "peaked"),
    _row("grad-long-4k-f32", "4096 keys: dq is a sum over many tiles.",
         "merge_empty tail_queries", (1, 2, 1, 33, 4096, 32, 32), F32, "peaked", mask=Window(200, 0, "bottom_right")),
    _with("everything-grad-f32", "Scale, softcap, bias, sinks, groups, lengths, causal and a gradient at lse at once.",
          "dbias_not_reduced dsinks_not_reduced softcap_slope group_not_summed", (3, 10, 2, 17, 33, 16, 24), F32,
          "poisoned", want=_LSE | {"dbias", "dsinks"}, scale=0.4, softcap=5.0, bias=BiasSpec("HQK"), sinks="normal",
          mask=_BR, k_lens=(33, 17, 24)),
)  # fmt: skip
