"""Bugs in the kernels on float32 and float64, k1 and k2."""

from __future__ import annotations

from .mutant import Row, mutants_of

__all__ = ["MUTANTS"]

K1: tuple[Row, ...] = (
    ("largest score is at least 0", "naive-packed", "bound",
     "top = max(top, weights",
     "top = max(real(0), weights"),
    ("sink not in the sum", "naive-window", "bound",
     "if sink > hidden:\n                total",
     "if False:\n                total"),
)  # fmt: skip

K2_DELTA: tuple[Row, ...] = (
    ("dlse is lost", "tiled-grad", "bound",
     "                    total -= dlse[entry, h, first + i]",
     "                    total -= 0"),
    ("a tree of sums without barriers", "tiled-grad", "Race or UninitialisedRead",
     "            cuda.syncthreads()\n            if thread < half",
     "            if thread < half"),
)  # fmt: skip

K2_GRADIENTS: tuple[Row, ...] = (
    ("slope of softcap", "tiled-grad", "bound",
     "/ ((real(1) + e) * (real(1) + e))",
     "/ (real(1) + e)"),
    ("rows and keys of the band exchanged", "tiled-grad", "bound",
     "Band(band.right, band.left, band.bottom_right)",
     "band"),
    ("a tile of queries is overwritten without a barrier", "tiled-grad", "Race",
     "                cuda.syncthreads()  # nobody",
     "                # nobody"),
    ("a tile of queries is read without a barrier", "tiled-grad", "UninitialisedRead",
     "                cuda.syncthreads()\n                products",
     "                products"),
    ("a tile of keys is read without a barrier", "tiled-grad", "UninitialisedRead",
     "            cuda.syncthreads()\n            products",
     "            products"),
    ("a tile of keys is overwritten without a barrier", "tiled-grad", "Race",
     "            cuda.syncthreads()  # nobody reads the last tile any more\n            at, stop = first_k",
     "            at, stop = first_k"),
)  # fmt: skip

K2_TILED: tuple[Row, ...] = (
    ("a tile is overwritten without a barrier", "tiled-causal", "Race",
     "            cuda.syncthreads()  # nobody reads the last tile any more\n",
     ""),
    ("a tile is read without a barrier", "tiled-causal", "UninitialisedRead",
     "            cuda.syncthreads()\n            products",
     "            products"),
    ("output not rescaled", "tiled-causal", "bound",
     "                o[c] *= shrink\n",
     "                pass\n"),
    ("-inf - -inf where no key was seen", "tiled-causal", "bound",
     "            if top > m:",
     "            if True:"),
    ("sink does not join the maximum", "tiled-causal", "bound",
     "top = max(m, sink)",
     "top = m"),
    ("columns beyond Dv are written", "tiled-causal", "OutOfBounds",
     "if column + c < shape.Dv",
     "if True"),
)  # fmt: skip

PLAIN: tuple[Row, ...] = (
    ("rows beyond the tail are read", "tiled-causal", "OutOfBounds",
     "            if row + r < end and column",
     "            if column"),
    ("ALiBi from the top left", "naive-alibi", "bound",
     "abs(i + (Lk - Lq) - j)",
     "abs(i - j)"),
)  # fmt: skip

MUTANTS = mutants_of(
    {"k1_naive": K1, "k2_delta": K2_DELTA, "k2_gradients": K2_GRADIENTS, "k2_tiled": K2_TILED, "plain": PLAIN}
)  # fmt: skip
