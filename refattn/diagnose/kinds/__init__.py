"""Families of hypotheses, a file for each subject; importing this enters all of them.

The order is that in which they are asked, and named where cases cannot tell them apart.
"""

from . import (  # isort: skip
    written, alignment, patterns, lengths, mask_reading, other_questions, packed_rows, scores, bias, rows, sinks,
    results, arrays, addresses, dropout, gradients, through_softmax, weights_again, packed, storage, caches, codes,
    rotation, maxima, tails, functions, roundings, gradient_roundings, tile_bounds, partial_sums, beyond,
    parts_of_keys, strides, stale, online, lazy, merges, splits, tiles_in_splits, length_sources, narrowing,
)  # fmt: skip

__all__ = [
    "addresses", "alignment", "arrays", "beyond", "bias", "caches", "codes", "dropout", "functions",
    "gradient_roundings", "gradients", "lazy", "length_sources", "lengths", "mask_reading", "maxima", "merges",
    "narrowing", "online", "other_questions", "packed", "packed_rows", "partial_sums", "parts_of_keys", "patterns",
    "results", "rotation", "roundings", "rows", "scores", "sinks", "splits", "stale", "storage", "strides", "tails",
    "through_softmax", "tile_bounds", "tiles_in_splits", "weights_again", "written",
]  # fmt: skip
