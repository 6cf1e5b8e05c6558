"""Chapter scores: what happens between q·k and softmax: scale, softcap, bias, sinks."""

from __future__ import annotations

from functools import partial

from ..case import BiasSpec, Dense
from ..masks import Causal, Window
from .row import BF16, F16, F32, F64, row

__all__ = ["CASES"]

_row = partial(row, "scores")
_TL, _BR = Causal("top_left"), Causal("bottom_right")

CASES = (
    # scale
    _row("scale-1-f32", "A scale of 1, which is not the default.",
         "scale_hard_coded lse_scale", (2, 3, 3, 17, 33, 16, 16), F32, "peaked", scale=1.0),
    _row("scale-small-f16", "A scale below the default: q is large where 16-bit kernels pre-scale it.",
         "scale_hard_coded qk_fp16", (2, 3, 3, 49, 33, 64, 64), F16, "large_logits", scale=0.03),
    _row("scale-negative-f32", "A negative scale turns the order of the keys round.",
         "scale_negative scale_hard_coded", (2, 3, 3, 17, 29, 16, 16), F32, "needle", scale=-0.5),
    _row("scale-negative-causal-f32", "The maximum over scores is not scale times the maximum over q·k.",
         "scale_negative scale_hard_coded causal_ignored", (2, 3, 3, 23, 111, 8, 8), F32, "rising",
         scale=-1.25, mask=_TL),
    _row("scale-0-f32", "A scale of 0: out is the mean of v, lse the log of the count.",
         "scale_zero", (2, 3, 3, 9, 21, 16, 16), F32, "normal", scale=0.0),
    # softcap
    _row("softcap-1-f32", "A cap well below the scores.",
         "softcap_dropped", (2, 3, 3, 17, 33, 16, 16), F32, "normal", softcap=1.0),
    _row("softcap-1-causal-f32", "A small cap under a mask: -inf must not become -1.",
         "softcap_after_mask", (2, 3, 3, 33, 33, 24, 24), F32, "peaked", softcap=1.0, mask=_TL),
    _row("softcap-50-bf16", "The cap that large models use.",
         "softcap_dropped", (1, 2, 2, 65, 129, 64, 64), BF16, "large_logits", softcap=50.0,
         mask=_BR),
    _row("softcap-4-scale-f64", "Cap after scale: exchanging the two is seen.",
         "softcap_dropped scale_hard_coded", (2, 3, 3, 19, 27, 16, 16), F64, "peaked", softcap=4.0, scale=0.7),
    _row("softcap-bias-f32", "The cap goes over the scores, not over the bias.",
         "softcap_after_bias softcap_dropped", (2, 3, 3, 21, 37, 16, 16), F32, "peaked", softcap=2.0, bias=BiasSpec()),
    # bias
    _row("bias-f32", "A bias in full.",
         "bias_dropped bias_scaled", (2, 3, 3, 17, 33, 16, 16), F32, "normal", bias=BiasSpec()),
    _row("bias-heads-bf16", "One bias for each head, in bfloat16.",
         "bias_broadcast bias_scaled", (2, 3, 3, 31, 47, 32, 32), BF16, "peaked", bias=BiasSpec("HQK", BF16)),
    _row("bias-batch-f16", "One bias for each batch entry, in float16.",
         "bias_broadcast batch_dropped", (2, 3, 3, 31, 47, 64, 64), F16, "peaked", bias=BiasSpec("BQK", F16)),
    _row("bias-keys-f32", "A bias of (B, 1, 1, Lk), as padding masks come.",
         "bias_broadcast", (2, 2, 2, 5, 7, 8, 8), F32, "one_hot_v", bias=BiasSpec("BK")),
    _row("bias-queries-f32", "A bias that is constant over a row: out does not change, lse does.",
         "bias_broadcast lse_scale", (2, 3, 3, 7, 5, 8, 8), F32, "peaked", bias=BiasSpec("HQ")),
    _row("bias-strided-f32", "The bias lies transposed in memory.",
         "bias_strides strides_ignored", (2, 3, 3, 15, 23, 16, 16), F32, "normal", bias=BiasSpec(),
         storage=Dense("BHDL")),
    _row("bias-minus-inf-f32", "-inf in the bias hides keys.",
         "bias_minus_inf", (2, 3, 3, 17, 33, 16, 16), F32, "poisoned", bias=BiasSpec("BHQK", F32, "minus_inf")),
    _row("bias-1e9-negative-f64", "A bias of -1e9 on scores of -1000: rows that lie below any sentinel that is finite.",
         "max_zero_start finite_mask_value", (2, 3, 3, 10, 23, 16, 16), F64, "all_negative_logits",
         bias=BiasSpec("BQK", F64, "minus_1e9")),
    _row("bias-padding-f32", "-inf in the bias alone hides whole keys, NaN in them, and whole queries.",
         "bias_minus_inf unused_slots_nan empty_rows_nan", (2, 3, 3, 23, 39, 16, 16), F32, "poisoned",
         bias=BiasSpec("BHQK", F32, "padding")),
    _row("bias-padding-bf16", "The same in bfloat16, for each head; lse of the empty rows too.",
         "bias_minus_inf empty_lse first_tile_masked", (1, 3, 3, 71, 93, 32, 32), BF16, "poisoned",
         bias=BiasSpec("HQK", BF16, "padding")),
    _row("bias-minus-inf-causal-f16", "-inf in a bias of float16, joined to causal.",
         "bias_minus_inf mask_union", (2, 3, 3, 33, 41, 32, 32), F16, "peaked",
         bias=BiasSpec("BK", F16, "minus_inf"), mask=_TL),
    _row("bias-lowest-f32", "The lowest finite number in a float32 bias: adding to it may overflow.",
         "finite_mask_value", (2, 3, 3, 17, 31, 16, 16), F32, "normal", bias=BiasSpec("BQK", F32, "finite_min")),
    _row("bias-alibi-causal-bf16", "Slopes of ALiBi for three heads, which is no power of two.",
         "bias_dropped bias_broadcast", (2, 3, 3, 33, 65, 32, 32), BF16, "normal",
         bias=BiasSpec("HQK", F32, "alibi"), mask=_BR),
    _row("bias-poisoned-f32", "NaN in the bias where the mask hides.",
         "bias_nan unused_slots_nan", (2, 3, 3, 21, 33, 16, 16), F32, "poisoned", bias=BiasSpec("BHQK"), mask=_TL),
    # sinks
    _row("sinks-f32", "A sink of about the weight of the largest key.",
         "sinks_dropped sinks_in_lse", (2, 3, 3, 17, 33, 16, 16), F32, "peaked", sinks="normal"),
    _row("sinks-one-key-f16", "One key against the sink.",
         "sinks_dropped", (3, 5, 5, 2, 1, 8, 8), F16, "normal", sinks="zero"),
    _row("sinks-large-bf16", "The sink takes nearly all, in groups.",
         "sinks_dropped gqa_tiled sinks_per_split", (5, 6, 2, 33, 65, 64, 64), BF16, "peaked", sinks="large"),
    _row("sinks-window-bf16", "Sinks and a window, as in gpt-oss.",
         "sinks_dropped window_off_by_one", (1, 6, 2, 65, 129, 64, 64), BF16, "peaked", sinks="normal",
         mask=Window(31, 0, "bottom_right")),
    _row("everything-f32", "Scale, softcap, bias, sinks, groups, lengths and causal at once.",
         "softcap_after_bias sinks_dropped bias_scaled lengths_unshifted", (3, 10, 2, 17, 33, 16, 24), F32, "poisoned",
         scale=0.4, softcap=5.0, bias=BiasSpec("HQK"), sinks="normal", mask=_BR, k_lens=(33, 17, 24)),
    _row("everything-bf16", "The same in bfloat16, with tokens before heads in memory.",
         "softcap_after_mask sinks_dropped bias_broadcast strides_ignored", (3, 10, 2, 33, 49, 64, 64), BF16, "peaked",
         scale=0.2, softcap=20.0, bias=BiasSpec("BQK", BF16), sinks="normal", mask=Window(24, 0, "bottom_right"),
         storage=Dense("BLHD")),
)  # fmt: skip
