"""Chapter shapes: small sizes, tiles of 16 to 256 plus and minus one, every D, values wider or narrower than keys."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..case import Case
from ..masks import Causal
from .row import BF16, F16, F32, F64, Sizes, row

__all__ = ["CASES"]

_row = partial(row, "shapes")
_CAUSAL = Causal("top_left")


def _tile(sizes: Sizes, dtype: str, family: str, flags: str, **features: Any) -> Case:
    _, _, _, Lq, Lk, D, _ = sizes
    short = {F64: "f64", F32: "f32", F16: "f16", BF16: "bf16"}[dtype]
    why = f"Lq={Lq} and Lk={Lk} stand at the edge of tiles, at D={D}."
    return _row(f"tile-{Lq}x{Lk}-{short}", why, flags, sizes, dtype, family, **features)


def _tail(n: int, dtype: str) -> Case:
    short = {F32: "f32", F16: "f16", BF16: "bf16"}[dtype]
    why = f"{n} queries, and {n} keys more than a tile of 64."
    return _row(f"tail-{n}-{short}", why, "last_tile tail_queries", (1, 1, 1, n, 64 + n, 16, 16), dtype, "peaked")


_TAILS = (
    4, 6, *range(8, 15), *range(18, 31), 34, 35, 36, *range(38, 53), *range(54, 63),
)  # fmt: skip
"""with these, plain cases have all lengths of a tail that a tile of 64 can leave, of queries and of keys"""

CASES = (
    _row("small-1x2-f32", "The smallest choice: one query, two keys.",
         "one_length last_tile", (3, 5, 5, 1, 2, 16, 16), F32, "needle"),
    _row("small-1x5-f64", "One query over five keys.",
         "tail_scored one_length", (2, 3, 3, 1, 5, 8, 8), F64, "all_negative_logits"),
    _row("one-query-top-left-f32", "Aligned at the top left, one query sees key 0 alone: the mask is not void.",
         "causal_ignored one_length", (2, 3, 3, 1, 5, 16, 16), F32, "one_hot_v", mask=_CAUSAL),
    _row("one-query-uneven-f16", "One query, and lengths that differ by far: each has splits of its own.",
         "merge_empty batch_dropped", (2, 3, 1, 1, 300, 32, 32), F16, "peaked", k_lens=(7, 300)),
    _row("small-2x1-bf16", "More queries than the one key: every row is v.",
         "one_length tail_scored", (1, 3, 3, 2, 1, 8, 8), BF16, "all_negative_logits"),
    _row("small-3x2-f32", "Three queries, two keys.",
         "one_length v_is_k", (1, 5, 5, 3, 2, 8, 8), F32, "one_hot_v"),
    _row("small-5x3-f32", "Heads, lengths and batch are 2, 5 and 3: exchanging any two is seen.",
         "layout_confused batch_dropped", (3, 2, 2, 5, 3, 8, 8), F32, "one_hot_v"),
    _row("small-3x5-bf16", "As before, exchanged, in bfloat16.",
         "layout_confused head_dropped", (2, 5, 5, 3, 5, 32, 32), BF16, "needle"),
    _row("d1-f32", "D = Dv = 1: no vector is a whole register wide.",
         "scale_from_d tail_scored", (2, 3, 3, 17, 33, 1, 1), F32, "normal"),
    _row("d3-f32", "D = Dv = 3, an odd size.",
         "scale_from_d layout_confused", (1, 2, 2, 15, 31, 3, 3), F32, "peaked"),
    _tile((2, 3, 3, 15, 257, 8, 8), F32, "all_negative_logits", "tail_scored"),
    _tile((1, 3, 3, 16, 129, 64, 64), BF16, "needle", "last_tile"),
    _tile((3, 2, 2, 17, 63, 32, 32), F16, "one_hot_v", "tail_queries"),
    _tile((2, 3, 3, 31, 65, 40, 40), F32, "falling", "last_tile scale_from_d"),
    _tile((1, 2, 2, 32, 255, 80, 80), F16, "all_negative_logits", "tail_scored scale_from_d"),
    _tile((2, 3, 3, 33, 64, 24, 24), F64, "rising", "tail_queries missing_rescale"),
    _tile((1, 2, 2, 63, 17, 96, 96), F32, "needle", "tail_queries scale_from_d"),
    _tile((1, 2, 2, 64, 127, 128, 128), BF16, "peaked", "last_tile tail_scored"),
    _tile((1, 3, 3, 65, 256, 64, 64), F16, "rising", "tail_queries missing_rescale"),
    _tile((2, 3, 3, 127, 31, 48, 48), F32, "one_hot_v", "tail_queries last_tile"),
    _tile((1, 2, 2, 128, 33, 112, 112), BF16, "all_negative_logits", "tail_scored scale_from_d"),
    _tile((2, 3, 3, 129, 15, 16, 16), F64, "needle", "tail_queries"),
    _tile((1, 2, 2, 255, 128, 32, 32), F32, "peaked", "tail_queries one_length"),
    _tile((1, 3, 3, 256, 16, 72, 72), BF16, "one_hot_v", "one_length scale_from_d"),
    _tile((1, 2, 2, 257, 32, 256, 256), F16, "needle", "tail_queries"),
    _row("causal-tile-255-f32", "Square causal, one token short of a tile of 256.",
         "causal_off_by_one tail_scored", (1, 2, 2, 255, 255, 16, 16), F32, "all_negative_logits", mask=_CAUSAL),
    _row("mla-192-128-bf16", "Keys wider than values, as in latent attention.",
         "dv_is_d scale_from_d", (1, 3, 3, 33, 65, 192, 128), BF16, "peaked"),
    _row("dv-wide-f32", "Values wider than keys.",
         "dv_is_d", (2, 3, 3, 17, 31, 8, 80), F32, "one_hot_v"),
    _row("dv-one-f64", "Values of one number.",
         "dv_is_d float64_demoted", (2, 3, 3, 15, 33, 32, 1), F64, "peaked"),
    *(_tail(n, (F32, F16, BF16)[n % 3]) for n in _TAILS),
)  # fmt: skip
