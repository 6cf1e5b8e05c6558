"""Chapter basics: what any `f(q, k, v, mask=None)` can do.  Forward, H = Hkv, D = Dv, default scale."""

from __future__ import annotations

from functools import partial

from ..masks import Causal
from .row import BF16, F16, F32, F64, row

__all__ = ["CASES"]

_row = partial(row, "basics")
_CAUSAL = Causal("top_left")

CASES = (
    _row("one-token-f32", "One query and one key: out is v, lse the score.",
         "v_is_k lse_base_2 scale_from_d", (1, 1, 1, 1, 1, 8, 8), F32, "normal"),
    _row("full-tiny-f32", "Small enough to be worked out by hand.",
         "one_length heads_transposed", (2, 3, 3, 5, 7, 4, 4), F32, "normal"),
    _row("full-f32", "Plain attention over pairwise different sizes.",
         "batch_dropped head_dropped mean_of_v", (2, 3, 3, 37, 53, 16, 16), F32, "peaked"),
    _row("full-f64", "Plain attention in double precision.",
         "float64_demoted batch_dropped", (3, 2, 2, 29, 45, 24, 24), F64, "peaked"),
    _row("full-f16", "Plain attention in float16.",
         "lse_16_bit v_is_k", (2, 3, 3, 37, 53, 32, 32), F16, "peaked"),
    _row("full-bf16", "Plain attention in bfloat16.",
         "lse_16_bit head_dropped", (2, 3, 3, 53, 37, 32, 32), BF16, "one_hot_v"),
    _row("causal-tiny-f32", "Four tokens, each seeing itself and those before it.",
         "causal_off_by_one polarity", (1, 2, 2, 4, 4, 8, 8), F32, "one_hot_v", mask=_CAUSAL),
    _row("causal-f32", "Square causal attention over N(0, 1).",
         "causal_ignored causal_off_by_one", (2, 3, 3, 48, 48, 32, 32), F32, "normal", mask=_CAUSAL),
    _row("causal-f64", "Square causal attention in double precision.",
         "causal_ignored float64_demoted", (2, 3, 3, 31, 31, 16, 16), F64, "peaked", mask=_CAUSAL),
    _row("causal-f16", "Square causal attention in float16, scores rising along the keys.",
         "missing_rescale max_before_mask", (1, 2, 2, 64, 64, 32, 32), F16, "rising", mask=_CAUSAL),
    _row("causal-bf16", "Square causal attention in bfloat16, one key past a tile.",
         "last_tile causal_off_by_one", (1, 2, 2, 129, 129, 64, 64), BF16, "peaked", mask=_CAUSAL),
    _row("medium-f32", "Several tiles in both directions.",
         "missing_rescale tail_queries", (1, 2, 2, 160, 200, 64, 64), F32, "normal"),
)  # fmt: skip
