"""Bugs in the backward on tensor cores, k4."""

from __future__ import annotations

from .mutant import Row, mutants_of

__all__ = ["MUTANTS"]

DELTA: tuple[Row, ...] = (
    ("rows beyond the tail are read", "grad-hidden", "OutOfBounds",
     "        if i < Lq and chunk * 8 < shape.Dv:",
     "        if chunk * 8 < shape.Dv:"),
    ("shuffle in a divergent branch", "grad", "Divergence",
     "        for step in range(STEPS):\n",
     "        for step in range(STEPS if i < Lq else 0):\n"),
    ("rows without keys have weights", "grad-hidden", "bound",
     "            if less == -INFINITE:",
     "            if less != less:"),
    ("lse in base e", "grad", "bound",
     "(start_q + i) * 4) * LOG2E",
     "(start_q + i) * 4)"),
    ("dlse is lost", "grad", "bound",
     "            elif dlse.ptr != 0:",
     "            elif dlse.ptr < 0:"),
    ("sums of warps are read without a barrier", "grad", "Race or UninitialisedRead",
     "    cuda.syncthreads()\n",
     ""),
)  # fmt: skip

KEYS: tuple[Row, ...] = (
    ("a tile is read without a barrier", "grad", "Race or UninitialisedRead",
     "            cuda.syncthreads()  # this tile",
     "            # this tile"),
    ("copies are not waited for", "grad", "Race",
     "            ptx.wait_copies()\n",
     ""),
    ("copies of the next tile are not committed", "grad", "Race",
     "                ptx.commit_copies()\n            for i",
     "            for i"),
    ("the next tile overwrites this one", "grad", "Race",
     "            other = int32(both - current)\n",
     "            other = current\n"),
    ("buffers are not exchanged", "grad", "bound",
     "current, head, row = other, next_head, next_row",
     "head, row = next_head, next_row"),
    ("gradients overwrite keys while they are read", "grad-window", "Race",
     "        cuda.syncthreads()  # nobody reads keys",
     "        # nobody reads keys"),
    ("no syncwarp between save and store", "grad", "Race",
     "        cuda.syncwarp()\n",
     ""),
    ("warps without keys leave before the barriers", "grad", "Divergence",
     "        while head < last:\n",
     "        while head < last and own_key < Lk:\n"),
    ("first head of the group alone", "grad", "bound",
     "int32(head + shape.group) if begin < end",
     "int32(head + 1) if begin < end"),
    ("dk without the scale", "grad", "bound",
     "finish_dk(sum_k, scores.scale,",
     "finish_dk(sum_k, float32(1),"),
)  # fmt: skip

QUERIES: tuple[Row, ...] = (
    ("a tile is read without a barrier", "grad-window", "Race",
     "            cuda.syncthreads()  # this tile",
     "            # this tile"),
    ("copies are not waited for", "grad-window", "Race",
     "            ptx.wait_copies()\n",
     ""),
    ("gradients overwrite q while it is read", "grad-window", "Race",
     "        cuda.syncthreads()  # nobody reads q",
     "        # nobody reads q"),
    ("no syncwarp between save and store", "grad-window", "Race",
     "        cuda.syncwarp()\n",
     ""),
    ("first tile of a window is skipped", "grad-window", "bound",
     "begin_key(row, offset, band) // KEYS * KEYS",
     "begin_key(row, offset, band) // KEYS * KEYS + KEYS"),
)  # fmt: skip

PLACES: tuple[Row, ...] = (
    ("last row that sees a key is forgotten", "grad-window", "bound",
     "return min(last - offset + band.left + int32(1), Lq)",
     "return min(last - offset + band.left, Lq)"),
    ("first rows that see a key are forgotten", "grad-window", "bound",
     "return max(key - offset - band.right, int32(0))",
     "return max(key - offset - band.right + int32(1), int32(0))"),
)  # fmt: skip

WEIGHTS: tuple[Row, ...] = (
    ("delta is not subtracted", "grad", "bound",
     "        dp -= delta\n",
     ""),
    ("softcap without its slope", "grad-modified", "bound",
     "            dp *= float32(1) - bent * bent\n",
     ""),
    ("bias is read beyond the tails", "grad-modified", "OutOfBounds",
     "            if i < Lq and j < Lk:",
     "            if i < Lq:"),
    ("band a key narrower", "grad-window", "bound",
     "if away > band.left or",
     "if away > band.left - 1 or"),
    ("what rows know is read beyond the tail", "grad-hidden", "OutOfBounds",
     "int32(ROW_BYTES) if exists else int32(0)",
     "int32(ROW_BYTES)"),
    ("what rows know is misaligned", "grad", "Misaligned",
     "int32(shared + i * ROW_BYTES), source",
     "int32(shared + i * ROW_BYTES + 4), source"),
)  # fmt: skip

MUTANTS = mutants_of(
    {"k4_delta": DELTA, "k4_keys": KEYS, "k4_queries": QUERIES, "places": PLACES, "weights": WEIGHTS}
)  # fmt: skip
