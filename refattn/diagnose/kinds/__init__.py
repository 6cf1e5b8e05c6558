"""Families of hypotheses, a file for each subject; importing this enters all of them.

The order is that in which they are asked, and named where cases cannot tell them apart.
"""

from . import (  # isort: skip
    written, early_exit, alignment, patterns, sparse_masks, lengths, mask_reading, other_questions, packed_rows, scores,
    bias, rows, sinks, results, matrices, arrays, addresses, dropout, renormalised, kept_tiles, gradients, dsinks,
    dbias, through_softmax, weights_again, backward_products, row_places, delta_sums, rows_by_keys, scalar_gradients,
    rows_in_backward, scaled_sums, keys_left, grids, stale_operands, hidden_in_backward, bias_in_backward, beyond,
    packed, packed_boundaries, storage, caches, rings, code_bytes, codes, rotation, cache_positions, rotary_pairs,
    rotary_products, maxima, tails, functions, roundings, score_roundings, partial_roundings, gradient_roundings,
    saved_roundings, mask_tiles, mask_bits, tile_bounds, packed_bounds, hidden_tiles, lowest, both_edges, from_range,
    partial_sums, parts_of_keys, strides, stale, online, carried, lazy, lazy_roundings, lazy_tiles, full_tiles,
    loop_ends, shorter, unused_splits, merges, unseen_splits, merged_lse, splits, tiles_in_splits, length_sources,
    narrowing, fragments, sinks_in_sums,
)  # fmt: skip

__all__ = [
    "addresses", "alignment", "arrays", "backward_products", "beyond", "bias", "bias_in_backward", "both_edges",
    "cache_positions", "caches", "carried", "code_bytes", "codes", "dbias", "delta_sums", "dropout", "dsinks",
    "early_exit", "fragments", "from_range", "full_tiles", "functions", "gradient_roundings", "gradients", "grids",
    "hidden_in_backward", "hidden_tiles", "kept_tiles", "keys_left", "lazy", "lazy_roundings", "lazy_tiles",
    "length_sources", "lengths", "loop_ends", "lowest", "mask_bits", "mask_reading", "mask_tiles", "matrices", "maxima",
    "merged_lse", "merges", "narrowing", "online", "other_questions", "packed", "packed_boundaries", "packed_bounds",
    "packed_rows", "partial_roundings", "partial_sums", "parts_of_keys", "patterns", "renormalised", "results", "rings",
    "rotary_pairs", "rotary_products", "rotation", "roundings", "row_places", "rows", "rows_by_keys",
    "rows_in_backward", "saved_roundings", "scalar_gradients", "scaled_sums", "score_roundings", "scores", "shorter",
    "sinks", "sinks_in_sums", "sparse_masks", "splits", "stale", "stale_operands", "storage", "strides", "tails",
    "through_softmax", "tile_bounds", "tiles_in_splits", "unseen_splits", "unused_splits", "weights_again", "written",
]  # fmt: skip
