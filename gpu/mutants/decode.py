"""Bugs in the decode, k5: the splits of the keys, packed rows, and the merge."""

from __future__ import annotations

from .mutant import Row, mutants_of

__all__ = ["MUTANTS"]

GROUPED: tuple[Row, ...] = (
    ("rows in the order of the heads", "few-alibi", "OutOfBounds",
     "            h = head + own - i * group\n",
     "            h = head + i\n"),
    ("ALiBi from the top left", "few-alibi", "bound",
     "float32(abs(query[r] + offset - j))",
     "float32(abs(query[r] - j))"),
    ("bias is read beyond the last key", "few-modified", "OutOfBounds",
     "query[r] < Lq and j < Lk",
     "query[r] < Lq"),
    ("rows beyond the last query are read", "few", "OutOfBounds",
     "exists = query < Lq and chunk",
     "exists = chunk"),
)  # fmt: skip

SPLIT: tuple[Row, ...] = (
    ("q is read without a barrier", "few", "Race or UninitialisedRead",
     "        cuda.syncthreads()  # q has arrived\n",
     ""),
    ("q is not waited for", "few", "Race",
     "        ptx.wait_copies_but_one()\n        cuda.syncthreads()",
     "        cuda.syncthreads()"),
    ("a tile is not waited for", "few", "Race",
     "            ptx.wait_copies_but_one()\n            cuda.syncwarp()",
     "            cuda.syncwarp()"),
    ("no empty group in the last turn", "few", "Race",
     "            ptx.commit_copies()  # an empty",
     "            # an empty"),
    ("a tile is read without syncwarp", "few", "Race",
     "            cuda.syncwarp()  # this tile has arrived\n",
     ""),
    ("a tile is overwritten without syncwarp", "few-long", "Race",
     "            cuda.syncwarp()  # no lane reads this tile any more\n",
     ""),
    ("sums are read without a barrier", "few", "UninitialisedRead",
     "        cuda.syncthreads()  # all warps' sums are there\n",
     ""),
    ("outputs are read without a barrier", "few", "Race or UninitialisedRead",
     "        cuda.syncthreads()  # all warps' outputs are there\n",
     ""),
    ("buffers are not exchanged", "few-long", "Race",
     "            current, other = other, current\n",
     ""),
    ("splits overlap", "few", "bound",
     "min(part, more)",
     "int32(0)"),
    ("tiles that do not divide are forgotten", "few", "bound",
     "(int32(1) if part < more else int32(0))",
     "int32(0)"),
    ("warps' outputs are not rescaled", "few", "bound",
     "        apply(o, l)\n",
     ""),
    ("-inf - -inf in a warp without keys", "few-hidden", "bound",
     "                if part_total != 0:",
     "                if True:"),
)  # fmt: skip

MERGE: tuple[Row, ...] = (
    ("maxima are read without a barrier", "few", "UninitialisedRead",
     "        cuda.syncthreads()  # the warps' largest scores are there\n",
     ""),
    ("weights are read without a barrier", "few", "UninitialisedRead",
     "        cuda.syncthreads()  # weights and the warps' sums are there\n",
     ""),
    ("sums are read without a barrier", "few", "UninitialisedRead",
     "        cuda.syncthreads()  # the subsets' sums are there\n",
     ""),
    ("outputs of empty splits are read", "few-rows", "bound",
     "            weight = float32(-1)  # this split",
     "            weight = float32(0)  # this split"),
    ("some splits are read twice", "few-long", "bound",
     "int32(4 * SUBSETS)",
     "int32(3 * SUBSETS)"),
    ("sum of four lanes alone", "few-long", "bound",
     "        for bit in range(5):\n            whole +=",
     "        for bit in range(2):\n            whole +="),
    ("sink in each split", "few", "bound",
     "            whole += ptx.ex2(sink - highest)",
     "            whole += ptx.ex2(sink - highest) * float32(splits)"),
    ("lse in base 2", "few", "bound",
     "(highest + ptx.lg2(whole)) * LN2",
     "highest + ptx.lg2(whole)"),
    ("rows of the next sequence are written", "few-packed", "Race",
     "limit = Lq if lengths.start_q != 0 else shape.Lq",
     "limit = shape.Lq"),
)  # fmt: skip

TILES: tuple[Row, ...] = (
    ("columns beyond D are read by a warp", "few-negative", "OutOfBounds",
     "exists = left > i * ROWS_AT_ONCE and column < used",
     "exists = left > i * ROWS_AT_ONCE"),
    ("rows beyond the tail are read by a warp", "few", "OutOfBounds or Race",
     "exists = left > i * ROWS_AT_ONCE and column < used",
     "exists = column < used"),
    ("a warp loads the same rows again", "few", "bound",
     "            source += ROWS_AT_ONCE * stride\n",
     ""),
)  # fmt: skip

MUTANTS = mutants_of({"grouped": GROUPED, "k5_decode": SPLIT, "k5_merge": MERGE, "tiles": TILES})
