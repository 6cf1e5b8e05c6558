"""Rows of all the query heads that share a key head, packed: row r is query r // group of head r % group.

So few queries fill the 16 rows of a tensor-core product, and keys are read once for all heads of the group.
Functions are of one lane; arrays with an entry for each row of the lane (see `softmax`) say which query it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import device

from .softmax import INFINITE, LOG2E
from .spec import Spec
from .tiles import row_bytes

__all__ = ["Grouped", "grouped"]


class Grouped(NamedTuple):
    """Device functions for `stripes` times 16 packed rows of one key head."""

    load: Any
    """load(shared, first, operand, row, group, Lq, used, thread): as `Tile.load`, from the group's first head on."""
    identify: Any
    """identify(query, slope, bias_at, row, b, head, group, scores, bias, lane): which query each row is, its ALiBi
    slope and the address of its bias; `head`: the first of the group."""
    modify: Any
    """modify(s, query, slope, bias_at, column, scores, key, offset, Lq, Lk, lane): as `Softmax.modify`."""
    hide: Any
    """hide(s, query, key, offset, band, Lk, lane): as `Softmax.hide`."""


def grouped(spec: Spec, stripes: int, keys: int) -> Grouped:
    """The functions for scores of `stripes` times 16 rows and `keys` keys."""
    ROWS, ROW, CHUNKS, BLOCKS, THREADS = 16 * stripes, row_bytes(spec.D), spec.D // 8, keys // 8, spec.threads
    LOADS = (ROWS * CHUNKS + THREADS - 1) // THREADS
    vector, softcap, biased, alibi = spec.vector, spec.softcap, spec.bias is not None, spec.alibi
    bias_bytes = 4 if spec.bias == "float32" else 2
    widen = ptx.unpack_low_bf16 if spec.dtype == "bfloat16" else ptx.unpack_low_f16

    @device
    def load(shared, first, operand, row, group, Lq, used, thread):  # type: ignore[no-untyped-def]
        for i in range(LOADS):
            c = thread + int32(i * THREADS)
            r = c // int32(CHUNKS)
            chunk = c - r * int32(CHUNKS)
            if r < ROWS:
                query = ptx.divide(row + r, group)
                head = row + r - query * group
                exists = query < Lq and chunk * 8 < used
                at = first + int64(head) * operand.head + int64(query) * operand.row + int64(chunk * 16)
                source = at if exists else first
                to = shared + r * int32(ROW) + chunk * int32(16)
                if vector:
                    ptx.copy_async(to, source, int32(16) if exists else int32(0))
                else:
                    for e in range(8):
                        x = int32(0)
                        if exists and chunk * 8 + e < used:
                            x = ptx.load_global_b16(source + e * 2)
                        ptx.store_shared_b16(to + e * 2, x)

    @device
    def identify(query, slope, bias_at, row, b, head, group, scores, bias, lane):  # type: ignore[no-untyped-def]
        for r in range(2 * stripes):
            own = int32(row + int32(r * 8) + (lane >> 2))
            i = ptx.divide(own, group)
            h = head + own - i * group
            query[r] = i
            if alibi:
                slope[r] = ptx.load_global_f32(scores.slopes + int64(h) * 4) if scores.slopes != 0 else float32(0)
            if biased:
                bias_at[r] = bias.ptr + int64(b) * bias.batch + int64(h) * bias.head + int64(i) * bias.row

    @device
    def modify(s, query, slope, bias_at, column, scores, key, offset, Lq, Lk, lane):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for n in range(BLOCKS):
                for e in range(4):
                    r = 2 * t + (e >> 1)
                    j = int32(key + n * 8 + (lane & 3) * 2 + (e & 1))
                    x = s[(t * BLOCKS + n) * 4 + e] * scores.scale
                    if softcap:
                        x = math.tanh(x / scores.softcap) * scores.softcap
                    if alibi:
                        x -= slope[r] * float32(abs(query[r] + offset - j))
                    if biased:
                        if query[r] < Lq and j < Lk:
                            at = bias_at[r] + int64(j) * column
                            if bias_bytes == 4:
                                x += ptx.load_global_f32(at)
                            else:
                                x += widen(ptx.load_global_b16(at))
                    s[(t * BLOCKS + n) * 4 + e] = x * LOG2E

    @device
    def hide(s, query, key, offset, band, Lk, lane):  # type: ignore[no-untyped-def]
        for r in range(2 * stripes):
            own = query[r] + offset
            first, last = int32(own - band.left), int32(min(own + band.right, Lk - int32(1)))
            for n in range(BLOCKS):
                for e in range(2):
                    j = int32(key + n * 8 + (lane & 3) * 2 + e)
                    if j < first or j > last:
                        s[((r >> 1) * BLOCKS + n) * 4 + (r & 1) * 2 + e] = -INFINITE

    return Grouped(load, identify, modify, hide)
