"""Chapter heads: groups of query heads on one key head, and the order arrays have in memory."""

from __future__ import annotations

from functools import partial

from ..case import Dense
from ..masks import Causal
from ..masks import Dense as Drawn
from .row import BF16, E4M3, F16, F32, F64, row

__all__ = ["CASES"]

_row = partial(row, "heads")
_TL, _BR = Causal("top_left"), Causal("bottom_right")

CASES = (
    _row("gqa-2x2-f32", "Two groups of two: the smallest in which tiling and repeating differ.",
         "gqa_tiled heads_transposed", (1, 4, 2, 3, 5, 8, 8), F32, "one_hot_v"),
    _row("mqa-f32", "Six query heads on one key head.",
         "gqa_group head_dropped", (2, 6, 1, 17, 33, 16, 16), F32, "peaked"),
    _row("gqa-4-f32", "Groups of four.",
         "gqa_tiled heads_transposed", (3, 8, 2, 17, 31, 16, 16), F32, "peaked"),
    _row("gqa-6-bf16", "Groups of six.",
         "gqa_group gqa_tiled", (3, 12, 2, 33, 17, 64, 64), BF16, "one_hot_v"),
    _row("gqa-3-decode-bf16", "One query in each of twelve heads: kernels pack a group into one tile.",
         "gqa_group heads_transposed", (2, 12, 4, 1, 129, 64, 64), BF16, "needle", mask=_BR),
    _row("gqa-3-decode-sinks-bf16", "One query, a sink: whatever splits the keys counts it once, and by query head.",
         "sinks_per_split sinks_dropped", (1, 6, 2, 1, 190, 32, 32), BF16, "peaked", sinks="normal"),
    _row("decode-sinks-f16", "The same without groups and beyond a power of two.",
         "sinks_per_split sinks_in_lse", (1, 3, 3, 1, 257, 16, 16), F16, "peaked", sinks="normal"),
    _row("gqa-6-speculative-f16", "Five queries of six heads packed together, each with its own diagonal.",
         "gqa_group causal_off_by_one", (1, 12, 2, 5, 67, 64, 64), F16, "one_hot_v", mask=_BR),
    _row("gqa-causal-br-ragged-bf16", "Groups, a ragged cache and causal together.",
         "gqa_group lengths_unshifted causal_top_left", (3, 12, 2, 17, 41, 32, 32), BF16, "poisoned",
         mask=_BR, k_lens=(41, 18, 29)),
    _row("gqa-mask-per-head-f32", "Masks that differ within a group.",
         "mask_broadcast gqa_tiled", (1, 4, 2, 2, 3, 8, 8), F32, "one_hot_v",
         mask=Drawn((("x..", ".xx"), (".x.", "x.x"), ("..x", "xx."), ("x.x", "..x")))),
    _row("heads-16-f64", "Many heads of few tokens.",
         "lse_head head_dropped", (3, 16, 16, 5, 7, 8, 8), F64, "peaked"),
    _row("heads-1-batch-5-f32", "One head, five batch entries.",
         "batch_dropped lse_head", (5, 1, 1, 7, 11, 16, 16), F32, "one_hot_v"),
    _row("blhd-f32", "Tokens before heads in memory, as projections leave them.",
         "strides_ignored", (2, 3, 3, 17, 33, 16, 16), F32, "peaked", storage=Dense("BLHD")),
    _row("blhd-gqa-causal-bf16", "The same with groups and causal.",
         "strides_ignored gqa_tiled layout_confused", (5, 6, 2, 33, 33, 64, 64), BF16, "peaked",
         storage=Dense("BLHD"), mask=_TL),
    _row("lbhd-f16", "Tokens first in memory.",
         "strides_ignored batch_dropped", (2, 3, 3, 33, 17, 32, 32), F16, "one_hot_v", storage=Dense("LBHD")),
    _row("bhdl-f32", "Transposed: the last stride is not 1, and Dv differs from D.",
         "strides_ignored dv_is_d", (2, 3, 3, 15, 31, 16, 24), F32, "peaked", storage=Dense("BHDL")),
    _row("hbld-gqa-f64", "Heads before batches in memory.",
         "strides_ignored head_dropped gqa_tiled", (3, 10, 2, 17, 23, 8, 8), F64, "one_hot_v", storage=Dense("HBLD")),
    _row("gqa-e4m3", "Groups of three in float8.",
         "gqa_group gqa_tiled", (5, 6, 2, 19, 35, 32, 32), E4M3, "one_hot_v"),
)  # fmt: skip
