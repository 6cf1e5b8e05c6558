"""Chapter long: rows of 1024 to 16384 keys, for what splits, rescales or sums in few bits."""

from __future__ import annotations

from functools import partial

from ..masks import Causal, Documents, Window
from .row import BF16, F16, F32, F64, row

__all__ = ["CASES"]

_row = partial(row, "long")
_TL, _BR = Causal("top_left"), Causal("bottom_right")

CASES = (
    _row("long-decode-16k-f32", "One query over 16384 keys: split along the keys, then merged.",
         "lse_base_2 merge_plain", (1, 3, 1, 1, 16384, 64, 64), F32, "peaked"),
    _row("long-flat-16k-f16", "16384 nearly equal weights: a row sum in float16 stands still at 2048.",
         "row_sum_fp16 pv_fp16", (1, 2, 2, 3, 16384, 32, 32), F16, "constant_v"),
    _row("long-flat-16k-bf16", "The same in bfloat16: an accumulator of 16 bits stands still too.",
         "accumulator_16_bit", (1, 3, 3, 2, 16384, 64, 64), BF16, "constant_v"),
    _row("long-16k-f64", "The oracle's own error over a long row.",
         "float64_demoted last_tile", (1, 2, 2, 3, 16383, 16, 16), F64, "normal"),
    _row("long-rising-4k-f32", "A rescale in every tile of 4097 keys.",
         "missing_rescale merge_plain", (1, 2, 2, 5, 4097, 32, 32), F32, "rising"),
    _row("long-needle-8k-f16", "One key in 8191, anywhere in the splits.",
         "last_tile", (1, 2, 2, 33, 8191, 32, 32), F16, "needle"),
    _row("long-window-end-8k-bf16", "A window at the end of a cache: all splits but the last see nothing.",
         "merge_empty first_tile_masked window_decode", (2, 3, 3, 1, 8192, 64, 64), BF16, "peaked",
         mask=Window(100, 0, "bottom_right")),
    _row("long-ragged-16k-f32", "Caches of 16384, 5 and 9000 keys in one batch; NaN beyond.",
         "merge_empty lengths_unshifted unused_slots_nan", (3, 4, 1, 2, 16384, 32, 32), F32, "poisoned",
         mask=_BR, k_lens=(16384, 5, 9000)),
    _row("long-sinks-16k-bf16", "A sink counted once in each split would show; lse to more than 16 bits.",
         "sinks_per_split sinks_in_lse lse_16_bit", (1, 6, 2, 5, 16384, 64, 64), BF16, "peaked", sinks="normal"),
    _row("long-causal-1k-f32", "1024 tokens, causal: many tiles, half of them skipped.",
         "causal_ignored missing_rescale", (1, 1, 1, 1024, 1024, 64, 64), F32, "peaked", mask=_TL),
    _row("long-documents-1k-f16", "Four documents packed into 1000 tokens: whole tiles are hidden.",
         "documents_lost first_tile_masked", (1, 1, 1, 1000, 1000, 32, 32), F16, "peaked",
         mask=Documents((0,) * 300 + (1,) * 90 + (2,) * 410 + (3,) * 200) & _TL),
)  # fmt: skip
