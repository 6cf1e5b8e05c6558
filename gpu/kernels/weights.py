"""The backward's weights and score gradients on C fragments, in base 2.

With t the scores (scale, softcap, bias, ALiBi), x = scale q·k and dp = dout·v:

    p = 2**(t log2(e) - less),   ds = p (dp - delta) [(1 - tanh²(x / softcap))]

`less` = lse log2(e) and delta belong to the row of queries (`k4_delta`); `less` is +inf where a row sees no key, so that
p and ds are 0 there.  Each lane holds, of stripe t, fragment rows g = l // 4 and g + 8, columns 8 n + 2 (l % 4) and the next.
Fragment rows are queries, or, if `transposed`, keys: then p and ds, rounded, are A fragments of what is summed over
queries.  Source: Dao 2023, FlashAttention-2, algorithm 2; the slope of softcap by differentiating tanh.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import device

from .softmax import INFINITE, LOG2E
from .spec import Spec

__all__ = ["ROW_BYTES", "Weights", "load_rows_of", "weights_of"]

ROW_BYTES = 8
"""Bytes of `less` and delta of a row, two float32 that lie side by side."""


class Weights(NamedTuple):
    """Device functions on scores `s` and `dp`: `stripes` times 16 fragment rows, `columns` columns."""

    prepare: Any
    """prepare(s, dp, rows, unit, scores, bias, slope, row, key, offset, Lq, Lk, lane): s becomes the exponent of the
    weight, dp what the weight is multiplied by.  `rows` holds less and delta: two for each row of the lane, a local
    array; if transposed, the shared address of those of the queries row, row + 1, ..."""
    hide: Any
    """hide(s, dp, row, key, offset, band, Lq, Lk, lane): -inf and 0 where a query from `row` on does not see a key."""
    weigh: Any
    """weigh(s, dp): the weights, and the gradients of the scores."""


def weights_of(spec: Spec, stripes: int, columns: int, transposed: bool) -> Weights:
    """The functions for `stripes` stripes and `columns` columns; `row` and `key` are the first query and the first key."""
    BLOCKS, SIZE = columns // 8, stripes * columns // 2
    softcap, biased, alibi, modified = spec.softcap, spec.bias is not None, spec.alibi, spec.modified
    bias_bytes = 4 if spec.bias == "float32" else 2
    widen = ptx.unpack_low_bf16 if spec.dtype == "bfloat16" else ptx.unpack_low_f16

    @device
    def exponent(x, dp, less, delta, unit, scores, bias, slope, i, j, offset, Lq, Lk):  # type: ignore[no-untyped-def]
        """(exponent of the weight, what it is multiplied by) of query i and key j."""
        dp -= delta
        if not modified:
            return x * unit - less, dp
        x *= scores.scale
        if softcap:
            bent = float32(math.tanh(x / scores.softcap))
            dp *= float32(1) - bent * bent
            x = bent * scores.softcap
        if alibi:
            x -= slope * float32(abs(int32(i + offset - j)))
        if biased:
            if i < Lq and j < Lk:
                at = bias.ptr + int64(i) * bias.row + int64(j) * bias.column
                if bias_bytes == 4:
                    x += ptx.load_global_f32(at)
                else:
                    x += widen(ptx.load_global_b16(at))
        return x * LOG2E - less, dp

    @device
    def prepare(  # type: ignore[no-untyped-def]
        s, dp, rows, unit, scores, bias, slope, row, key, offset, Lq, Lk, lane
    ):
        for n in range(BLOCKS):
            i = int32(row + n * 8 + (lane & 3) * 2)
            less0, delta0, less1, delta1 = ptx.load_shared_f32x4(rows + n * 64 + (lane & 3) * 16)
            for t in range(stripes):
                for half in range(2):
                    c = (t * BLOCKS + n) * 4 + half * 2
                    j = int32(key + t * 16 + half * 8 + (lane >> 2))
                    s[c], dp[c] = exponent(s[c], dp[c], less0, delta0, unit, scores, bias, slope, i, j, offset, Lq, Lk)
                    s[c + 1], dp[c + 1] = exponent(
                        s[c + 1], dp[c + 1], less1, delta1, unit, scores, bias, slope, int32(i + 1), j, offset, Lq, Lk
                    )

    @device
    def prepare_straight(  # type: ignore[no-untyped-def]
        s, dp, rows, unit, scores, bias, slope, row, key, offset, Lq, Lk, lane
    ):
        for t in range(stripes):
            for half in range(2):
                i = int32(row + t * 16 + half * 8 + (lane >> 2))
                less, delta = rows[(2 * t + half) * 2], rows[(2 * t + half) * 2 + 1]
                for n in range(BLOCKS):
                    for e in range(2):
                        c = (t * BLOCKS + n) * 4 + half * 2 + e
                        j = int32(key + n * 8 + e + (lane & 3) * 2)
                        s[c], dp[c] = exponent(
                            s[c], dp[c], less, delta, unit, scores, bias, slope, i, j, offset, Lq, Lk
                        )

    @device
    def hide(s, dp, row, key, offset, band, Lq, Lk, lane):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for half in range(2):
                for n in range(BLOCKS):
                    for e in range(2):
                        across, along = t * 16 + half * 8 + (lane >> 2), n * 8 + e + (lane & 3) * 2
                        i, j = int32(row + across), int32(key + along)
                        if transposed:
                            i, j = int32(row + along), int32(key + across)
                        away = int32(i + offset - j)
                        if away > band.left or -away > band.right or i >= Lq or j >= Lk:
                            s[(t * BLOCKS + n) * 4 + half * 2 + e] = -INFINITE
                            dp[(t * BLOCKS + n) * 4 + half * 2 + e] = float32(0)

    @device
    def weigh(s, dp):  # type: ignore[no-untyped-def]
        for c in range(SIZE):
            s[c] = ptx.ex2(s[c])
            dp[c] *= s[c]

    return Weights(prepare if transposed else prepare_straight, hide, weigh)


def load_rows_of(rows: int, threads: int) -> Any:
    """load(shared, first, row, limit, thread): begins the copy of less and delta of `rows` rows; 0 from `limit` on."""
    LOADS = (rows + threads - 1) // threads

    @device
    def load(shared, first, row, limit, thread):  # type: ignore[no-untyped-def]
        for n in range(LOADS):
            i = int32(thread + n * threads)
            if i < rows:
                exists = row + i < limit
                source = first + int64(row + i) * int64(ROW_BYTES) if exists else first
                ptx.copy_async_b64(shared + i * ROW_BYTES, source, int32(ROW_BYTES) if exists else int32(0))

    return load
