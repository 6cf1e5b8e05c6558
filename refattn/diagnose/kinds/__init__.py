"""Families of hypotheses, a file for each subject; importing this enters all of them.

The order is that in which they are asked, and named where cases cannot tell them apart.
"""

from . import (  # isort: skip
    alignment, patterns, lengths, mask_reading, scores, bias, rows, sinks, results, arrays, dropout, gradients,
    through_softmax, weights_again, storage, online, tails, roundings, gradient_roundings, functions, tile_bounds,
    partial_sums, splits, tiles_in_splits, caches, beyond, written,
)  # fmt: skip

__all__ = [
    "alignment", "arrays", "beyond", "bias", "caches", "dropout", "functions", "gradient_roundings", "gradients",
    "lengths", "mask_reading", "online", "partial_sums", "patterns", "results", "roundings", "rows", "scores",
    "sinks", "splits", "storage", "tails", "through_softmax", "tile_bounds", "tiles_in_splits", "weights_again",
    "written",
]  # fmt: skip
