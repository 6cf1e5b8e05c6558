"""Chapter precision: input families that are hard for a format, each where it bites."""

from __future__ import annotations

from functools import partial

from ..masks import Causal, Window
from .row import BF16, E4M3, E5M2, F16, F32, F64, row

__all__ = ["CASES"]

_row = partial(row, "precision")
_TL = Causal("top_left")

CASES = (
    _row("uniform-f32", "A control: U[0, 1), where softmax is flat and the mean of v nearly passes.",
         "mean_of_v tf32", (2, 3, 3, 33, 129, 64, 64), F32, "uniform"),
    _row("large-logits-f64", "Scores beyond a thousand in double precision.",
         "large_logits float64_demoted", (2, 3, 3, 33, 65, 32, 32), F64, "large_logits"),
    _row("large-logits-f32", "Scores of several hundred: exp overflows without the maximum.",
         "large_logits", (2, 3, 3, 65, 129, 64, 64), F32, "large_logits"),
    _row("large-logits-bf16", "Scores stored in bfloat16 would be off by whole units.",
         "large_logits scores_16_bit", (1, 2, 2, 65, 129, 64, 64), BF16, "large_logits"),
    _row("negative-f64", "Every score about -1000.",
         "max_zero_start", (2, 3, 3, 17, 33, 16, 16), F64, "all_negative_logits"),
    _row("far-below-f32", "Every score about -20000: a maximum that starts at a finite number stays there.",
         "max_zero_start", (2, 3, 3, 33, 95, 24, 24), F32, "far_below"),
    _row("negative-window-f32", "Scores about -150, and for most rows the first tile of keys or the last is hidden.",
         "max_zero_start first_tile_masked", (1, 1, 1, 150, 150, 16, 16), F32, "all_negative_logits",
         mask=Window(20, 0, "top_left")),
    _row("offset-f32", "131072 on every q·k: softmax does not change.",
         "large_logits tf32", (2, 3, 3, 33, 65, 64, 64), F32, "huge_offset"),
    _row("offset-f16", "131072 on every q·k, beyond float16, inputs well within.",
         "qk_fp16", (2, 3, 3, 33, 65, 64, 64), F16, "huge_offset"),
    _row("offset-bf16", "131072 on every q·k; stored in bfloat16 all scores agree.",
         "scores_16_bit", (2, 3, 3, 33, 65, 128, 128), BF16, "huge_offset"),
    _row("needle-bf16", "In bfloat16 out must be that very value.",
         "lse_16_bit last_tile", (2, 3, 3, 31, 129, 32, 32), BF16, "needle"),
    _row("rising-bf16", "The same in bfloat16, several tiles of any size.",
         "missing_rescale", (1, 2, 2, 17, 600, 64, 64), BF16, "rising"),
    _row("falling-f32", "The first tile holds the maximum; what follows adds little.",
         "merge_plain", (2, 3, 3, 33, 300, 56, 56), F32, "falling"),
    _row("ties-bf16", "Equal scores round equally: errors add, and the bound must know.",
         "tail_scored last_tile", (1, 2, 2, 33, 500, 64, 64), BF16, "ties"),
    _row("near-ties-f32", "The two best keys are one unit in the last place apart.",
         "tf32", (2, 3, 3, 33, 65, 32, 32), F32, "near_ties"),
    _row("sparse-q-bf16", "Three score levels in a row.",
         "tail_scored last_tile", (1, 2, 2, 33, 513, 64, 64), BF16, "sparse_q"),
    _row("v-of-k-bf16", "Values depend on the score level: errors of weights are coherent.",
         "accumulator_16_bit", (1, 2, 2, 33, 600, 64, 64), BF16, "v_of_k"),
    _row("constant-v-f16", "Values of 100 and a flat softmax: the sum before division exceeds 65504.",
         "pv_fp16", (1, 2, 2, 5, 1024, 64, 64), F16, "constant_v"),
    _row("cancelling-f32", "Values of opposite sign: out is far below its terms.",
         "tf32", (2, 3, 3, 33, 130, 32, 32), F32, "cancelling_v"),
    _row("cancelling-bf16", "The same in bfloat16.",
         "last_tile", (2, 3, 3, 33, 130, 64, 64), BF16, "cancelling_v"),
    _row("outliers-f16", "Two channels and a few values many times larger than the rest.",
         "qk_fp16 scores_16_bit", (2, 3, 3, 33, 65, 128, 128), F16, "outliers"),
    _row("outliers-bf16", "The same in bfloat16, causal.",
         "scores_16_bit", (2, 3, 3, 65, 65, 64, 64), BF16, "outliers", mask=_TL),
    _row("tiny-f32", "Values about the smallest normal number.",
         "subnormal", (2, 3, 3, 17, 33, 16, 16), F32, "tiny"),
    _row("tiny-f16", "Outputs are subnormal in float16.",
         "subnormal", (2, 3, 3, 33, 65, 64, 64), F16, "tiny"),
    _row("underflow-f32", "Weights of 1e-9 to 1e-35 times values to match are the whole answer.",
         "rescale_underflow", (2, 3, 3, 17, 65, 32, 32), F32, "underflow"),
    _row("underflow-f16", "Weights down to the subnormals of float16 carry the answer.",
         "p_underflow", (2, 3, 3, 17, 65, 64, 64), F16, "underflow"),
    _row("mixed-bf16-out-f32", "bfloat16 inputs, float32 output.",
         "lse_16_bit", (2, 3, 3, 33, 49, 64, 64), BF16, "peaked", out_dtype=F32),
    # without structure, 256 rows: what is systematic, and too small for any element, shows in all of them together
    _row("generic-f32", "A thousand keys without structure: all errors are roundings, as likely up as down.",
         "tf32", (1, 1, 1, 256, 1024, 64, 64), F32, "normal"),
    _row("generic-f16", "The same in float16: a scale off by 0.01 % is seen over 256 rows.",
         "scores_16_bit accumulator_16_bit", (1, 1, 1, 256, 1024, 64, 64), F16, "normal"),
    _row("generic-bf16", "The same in bfloat16: a scale off by 0.1 % is seen over 256 rows.",
         "scores_16_bit accumulator_16_bit", (1, 1, 1, 256, 1024, 64, 64), BF16, "normal"),
    # float8
    _row("generic-e4m3", "Inputs of float8 without structure: the same.",
         "scores_16_bit accumulator_16_bit", (1, 1, 1, 256, 1024, 64, 64), E4M3, "normal"),
    _row("generic-e5m2", "And of two bits.",
         "scores_16_bit accumulator_16_bit", (1, 1, 1, 256, 1024, 64, 64), E5M2, "normal"),
    _row("normal-e4m3", "float8 with three bits of fraction, output in bfloat16.",
         "p_underflow", (2, 3, 3, 33, 65, 64, 64), E4M3, "normal"),
    _row("causal-e4m3-f16", "The same, causal, output in float16.",
         "causal_ignored p_underflow", (1, 2, 2, 65, 65, 64, 64), E4M3, "peaked", mask=_TL, out_dtype=F16),
    _row("needle-e4m3", "One key takes all: its weight must not saturate.",
         "p_underflow", (2, 3, 3, 17, 65, 32, 32), E4M3, "needle"),
    _row("offset-e4m3", "65536 on every q·k, from inputs of 256.",
         "qk_fp16", (2, 3, 3, 17, 33, 128, 128), E4M3, "huge_offset"),
    _row("peaked-e5m2", "float8 with two bits of fraction.",
         "p_underflow", (2, 3, 3, 33, 65, 64, 64), E5M2, "peaked"),
)  # fmt: skip
