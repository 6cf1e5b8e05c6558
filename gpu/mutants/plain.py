"""Bugs in the kernels on float32 and float64, k1 and k2."""

from __future__ import annotations

from .mutant import Row, mutants_of

__all__ = ["MUTANTS"]

K1: tuple[Row, ...] = (
    ("keys beyond the window are seen", "naive-window", "bound",
     "first <= j and j <= last",
     "first <= j"),
    ("largest score is at least 0", "naive-packed", "bound",
     "top = max(top, weights",
     "top = max(real(0), weights"),
    ("sink not in the sum", "naive-window", "bound",
     "if sink > hidden:\n                total",
     "if False:\n                total"),
    ("hidden weights are exp(-inf)", "naive-window", "bound",
     "                if weights[b, h, i, j] != hidden:\n                    total +=",
     "                if True:\n                    total +="),
    ("rows beyond a sequence are written", "naive-packed", "",
     "if i < Lq or given.start_q == 0:\n                out",
     "if True:\n                out"),
)  # fmt: skip

K2_DELTA: tuple[Row, ...] = (
    ("dlse is lost", "tiled-grad", "bound",
     "                    total -= dlse[entry, h, first + i]",
     "                    total -= 0"),
    ("a tree of sums without barriers", "tiled-grad", "Race",
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
    ("first head of the group alone", "tiled-grad", "bound",
     "for h in range(head_k * shape.group, (head_k + int32(1)) * shape.group)",
     "for h in range(head_k * shape.group, head_k * shape.group + 1)"),
    ("a tile of queries is overwritten without a barrier", "tiled-grad", "Race",
     "                cuda.syncthreads()  # nobody",
     "                # nobody"),
    ("a tile of queries is read without a barrier", "tiled-grad", "Race",
     "                cuda.syncthreads()\n                products",
     "                products"),
    ("a tile of keys is overwritten without a barrier", "tiled-grad", "Race",
     "            cuda.syncthreads()  # nobody reads the last tile any more\n            at, stop = first_k",
     "            at, stop = first_k"),
    ("dk without the scale", "tiled-grad", "bound",
     "own[c] * scale",
     "own[c]"),
)  # fmt: skip

K2_TILED: tuple[Row, ...] = (
    ("a tile is overwritten without a barrier", "tiled-causal", "Race",
     "            cuda.syncthreads()  # nobody reads the last tile any more\n",
     ""),
    ("a tile is read without a barrier", "tiled-causal", "Race",
     "            cuda.syncthreads()\n            products",
     "            products"),
    ("sum not rescaled", "tiled-causal", "bound",
     "            total *= shrink\n",
     ""),
    ("output not rescaled", "tiled-causal", "bound",
     "                o[c] *= shrink\n",
     "                pass\n"),
    ("-inf - -inf where no key was seen", "tiled-causal", "bound",
     "            if top > m:",
     "            if True:"),
    ("key head h % Hkv", "tiled-causal", "bound",
     "head_k = h // shape.group",
     "head_k = h % (shape.H // shape.group)"),
    ("sink does not join the maximum", "tiled-causal", "bound",
     "top = max(m, sink)",
     "top = m"),
    ("columns beyond Dv are written", "tiled-causal", "",
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
    ("window a key wider", "naive-window", "bound",
     "max(diagonal - band.left, int32(0))",
     "max(diagonal - band.left - 1, int32(0))"),
    ("a product of four reads one twice", "tiled-causal", "bound",
     "total += x2 * memory[tile + j * D + d + 2]",
     "total += x2 * memory[tile + j * D + d + 1]"),
)  # fmt: skip

MUTANTS = mutants_of(
    {"k1_naive": K1, "k2_delta": K2_DELTA, "k2_gradients": K2_GRADIENTS, "k2_tiled": K2_TILED, "plain": PLAIN}
)  # fmt: skip
