"""Chapter patterns: chunks, dilated windows, global tokens, token trees, gathered keys; ALiBi and finite masks."""

from __future__ import annotations

from functools import partial

from ..case import BiasSpec
from ..masks import Causal, Chunked, Dilated, Gathered, GlobalTokens, SinkTokens, Tree, Window
from .row import BF16, F16, F32, F64, GRAD, row

__all__ = ["CASES"]

_row = partial(row, "patterns")
_TL, _BR = Causal("top_left"), Causal("bottom_right")
_NONE = (-1,)


def _top(rows: int, keys: int, k: int, first: int = 0, causal: bool = False) -> tuple[tuple[int, ...], ...]:
    """k different keys for each row, in no order; -1 for those that a causal mask would hide."""
    table = [[(first + 5 * i + 7 * c) % keys for c in range(k)] for i in range(rows)]
    return tuple(tuple(j if not causal or j <= i + keys - rows else -1 for j in row) for i, row in enumerate(table))


CASES = (
    # chunks
    _row("chunks-causal-f32", "Chunks of 16 under a causal mask, as in Llama 4; the last chunk is partial.",
         "chunk_boundary mask_union", (2, 3, 3, 41, 41, 16, 16), F32, "peaked", mask=Chunked(16, "top_left") & _TL),
    _row("chunks-br-bf16", "Chunks are counted from the first key of the cache, not from the first query.",
         "chunk_boundary causal_top_left", (1, 2, 2, 21, 147, 64, 64), BF16, "one_hot_v",
         mask=Chunked(32, "bottom_right") & _BR),
    _row("chunks-decode-f16", "The query is the first of its chunk: it sees itself alone, not the last 64.",
         "chunk_boundary window_decode", (3, 5, 5, 1, 65, 8, 8), F16, "one_hot_v",
         mask=Chunked(64, "bottom_right") & _BR),
    _row("chunks-tall-f64", "Queries that stand before key 0: a quotient rounded to 0 would show them chunk 0.",
         "chunk_boundary empty_rows_nan", (2, 3, 3, 29, 19, 8, 8), F64, "peaked", mask=Chunked(7, "bottom_right")),
    _row("chunks-k-lens-f32", "A ragged cache: where a query stands in its chunk depends on the batch entry.",
         "lengths_unshifted chunk_boundary", (3, 2, 2, 17, 53, 16, 16), F32, "poisoned",
         mask=Chunked(12, "bottom_right") & _BR, k_lens=(53, 17, 40)),
    _row("chunks-sink-tokens-bf16", "Chunks, and three first tokens that all see; a sink in the denominator too.",
         "mask_union chunk_boundary sinks_dropped", (1, 6, 2, 37, 129, 64, 64), BF16, "peaked",
         mask=(Chunked(16, "bottom_right") | SinkTokens(3)) & _BR, sinks="normal"),
    _row("chunks-grad-bf16", "Backward over chunks with groups: keys of an earlier chunk get nothing.",
         "chunk_boundary group_not_summed", (5, 6, 2, 33, 49, 32, 32), BF16, "peaked", want=GRAD,
         mask=Chunked(24, "bottom_right") & _BR),
    # dilated windows
    _row("dilated-f32", "Every second key, three to each side.",
         "dilation_ignored window_off_by_one", (2, 3, 3, 35, 41, 16, 16), F32, "one_hot_v",
         mask=Dilated(3, 2, "top_left")),
    _row("dilated-per-head-bf16", "A dilation for each head, 1 among them.",
         "dilation_ignored head_dropped", (2, 3, 3, 49, 71, 32, 32), BF16, "peaked",
         mask=Dilated(6, (1, 2, 5), "top_left")),
    _row("dilated-causal-f16", "Every third key back from the end of a cache, with groups; Dv differs from D.",
         "dilation_ignored causal_top_left dv_is_d", (1, 6, 2, 19, 67, 32, 48), F16, "peaked",
         mask=Dilated(4, 3, "bottom_right") & _BR),
    _row("dilated-not-f64", "All but a dilated window.",
         "polarity dilation_ignored", (2, 3, 3, 13, 31, 16, 16), F64, "peaked", mask=~Dilated(2, 4, "bottom_right")),
    _row("dilated-grad-f32", "Backward: keys between the seen ones get nothing.",
         "dilation_ignored tail_backward", (2, 3, 3, 21, 65, 16, 16), F32, "peaked", want=GRAD,
         mask=Dilated(5, 3, "bottom_right")),
    # global tokens
    _row("longformer-f32", "A window and two global tokens, which see all and are seen by all.",
         "global_lost global_one_way mask_union", (2, 3, 3, 47, 47, 16, 16), F32, "one_hot_v",
         mask=Window(4, 4, "top_left") | GlobalTokens((0, 20), "top_left")),
    _row("longformer-per-batch-bf16", "Other global tokens in each batch entry, and another number of them.",
         "global_lost batch_dropped dilation_ignored", (3, 2, 2, 65, 65, 32, 32), BF16, "peaked",
         mask=Dilated(2, 3, "top_left") | GlobalTokens(((0,), (), (5, 33, 64)), "top_left")),
    _row("longformer-causal-f16", "Global tokens under a causal mask, one of them among the queries.",
         "global_not_causal global_one_way", (1, 3, 3, 33, 81, 64, 64), F16, "peaked",
         mask=(Window(8, 8, "bottom_right") | GlobalTokens((1, 70), "bottom_right")) & _BR),
    _row("longformer-k-lens-grad-f32", "Which query is global depends on the length; gradients, NaN beyond.",
         "lengths_unshifted global_one_way unused_slots_nan", (3, 2, 2, 19, 37, 16, 16), F32, "poisoned", want=GRAD,
         mask=Window(3, 0, "bottom_right") | GlobalTokens((2, 25), "bottom_right"), k_lens=(37, 30, 19)),
    # token trees: the stale mask of the first would show in the second
    _row("tree-f32", "Seven drafted tokens after 24 keys: siblings must not see one another.",
         "tree_as_causal", (2, 3, 3, 7, 31, 20, 20), F32, "one_hot_v", mask=Tree((-1, 0, 0, 1, 1, 2, 5))),
    _row("tree-then-causal-f32", "The same sizes with a causal mask, after a tree.",
         "tree_mask_stale", (2, 3, 3, 7, 31, 20, 20), F32, "one_hot_v", mask=_BR, seed=1),
    _row("tree-ragged-bf16", "Trees of different sizes after caches of different lengths, ten heads on two.",
         "tree_prefix lengths_unshifted batch_dropped", (3, 10, 2, 9, 69, 64, 64), BF16, "poisoned",
         mask=Tree(((-1, 0, 1, 1, 0, 4, 4, 2, 7), (-1, -1, 0, 1), (-1, 0, 0, 2, 2, 1))), q_lens=(9, 4, 6),
         k_lens=(69, 20, 33)),
    _row("tree-window-f16", "Two roots, in a layer with a window: the prefix is cut, the tree is not.",
         "tree_as_causal mask_union window_decode", (1, 2, 2, 5, 129, 32, 32), F16, "peaked",
         mask=Tree((-1, -1, 0, 1, 1)) & Window(20, 0, "bottom_right")),
    _row("tree-prefill-f32", "Queries before the tree as well, which are causal.",
         "tree_prefix tree_as_causal", (2, 3, 3, 13, 29, 16, 16), F32, "peaked", mask=Tree((-1, 0, 0, 2, 0, 1))),
    _row("tree-grad-f64", "Backward through a tree, whose tokens share their ancestors.",
         "tree_as_causal", (2, 3, 3, 6, 17, 8, 8), F64, "peaked", want=GRAD, mask=Tree((-1, 0, 1, 0, 3, 3))),
    # gathered keys
    _row("gathered-f32", "Eight keys of 53 for each query, in no order; one key head, Dv < D, as in sparse MLA.",
         "gathered_none dv_is_d", (3, 5, 1, 11, 53, 24, 16), F32, "peaked",
         mask=Gathered(_top(11, 53, 8, 30, True))),
    _row("gathered-first-none-bf16", "Lists that begin with a tile of -1, and one without a key.",
         "first_tile_masked gathered_none empty_rows_nan", (1, 2, 2, 5, 130, 64, 64), BF16, "peaked",
         mask=Gathered(tuple(_NONE * 64 + keys for keys in _top(4, 130, 16, 3)) + (_NONE * 80,))),
    _row("gathered-per-head-f16", "A list for each batch entry and head.",
         "mask_broadcast batch_dropped head_dropped", (2, 3, 3, 5, 19, 32, 32), F16, "one_hot_v",
         mask=Gathered(tuple(tuple(_top(5, 19, 6, 3 * h + 8 * b) for h in range(3)) for b in range(2)))),
    _row("gathered-k-lens-f32", "Indices beyond the length of a batch entry name no key.",
         "lengths_ignored unused_slots_nan", (3, 2, 2, 7, 41, 16, 16), F32, "poisoned",
         mask=Gathered(_top(7, 41, 12, 2)) & _BR, k_lens=(41, 9, 22)),
    _row("gathered-grad-bf16", "dk and dv are scattered by index: -1 must not reach the last key.",
         "gathered_none group_not_summed", (2, 3, 1, 17, 33, 64, 32), BF16, "peaked", want=GRAD,
         mask=Gathered(_top(17, 33, 9, 11, True))),
    # ALiBi
    _row("alibi-5-heads-f32", "Slopes of five heads, on both sides of the diagonal.",
         "alibi_slopes alibi_distance", (2, 5, 5, 23, 45, 16, 16), F32, "normal", bias=BiasSpec("HQK", F32, "alibi")),
    _row("alibi-decode-bf16", "One query at the end of a cache, six heads: the distance is that to the last key.",
         "alibi_distance alibi_slopes", (5, 6, 2, 1, 97, 64, 64), BF16, "normal", bias=BiasSpec("HQK", BF16, "alibi"),
         mask=_BR),
    _row("alibi-signed-f32", "The signed distance from the first key: out as in the other convention, lse not.",
         "alibi_distance lse_scale", (2, 3, 3, 31, 43, 16, 16), F32, "normal",
         bias=BiasSpec("HQK", F32, "alibi_signed"), mask=_TL),
    # additive masks of finite value
    _row("mask-minus-10000-f32", "-10000 for keys, and for whole queries, which then see all as if unmasked.",
         "finite_value_hides", (2, 3, 3, 19, 43, 16, 16), F32, "peaked", bias=BiasSpec("BQK", F32, "minus_10000")),
    _row("mask-minus-1e9-f64", "The same with -1e9, which float64 can still tell from its neighbours.",
         "finite_value_hides float64_demoted", (3, 2, 2, 15, 29, 16, 16), F64, "normal",
         bias=BiasSpec("BQK", F64, "minus_1e9")),
    _row("mask-minus-10000-grad-bf16", "Backward through it: dbias of such rows is not 0.",
         "finite_value_hides dbias_not_reduced", (2, 3, 3, 25, 39, 32, 32), BF16, "peaked", want=GRAD | {"dbias"},
         bias=BiasSpec("HQK", BF16, "minus_10000")),
)  # fmt: skip
