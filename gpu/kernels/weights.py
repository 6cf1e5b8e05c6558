"""The backward's weights and score gradients on C fragments, in base 2.

With t the scores (scale, softcap, bias, ALiBi), x = scale q·k and dp = dout·v:

    p = 2**(t log2(e) - less),   ds = p (dp - delta) [(1 - tanh²(x / softcap))]

`less` = lse log2(e) and delta belong to the query (`k4_delta`); less is +inf where it sees nothing, so that p and ds
are 0.  Each lane holds, of stripe t, fragment rows g = l // 4 and g + 8, columns 8 n + 2 (l % 4) and the next.
Fragment rows are queries, or, if `transposed`, keys: then p and ds, rounded in pairs, are A fragments of sums over
queries.

Source: Dao 2023, FlashAttention-2, algorithm 2; the slope of softcap by differentiating tanh.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import device

from .softmax import INFINITE, LOG2E
from .spec import Spec

__all__ = ["ROW_BYTES", "Weights", "finish_of", "load_rows_of", "weights_of"]

ROW_BYTES = 8
"""Bytes of `less` and delta of a query, two float32 that lie side by side."""


class Weights(NamedTuple):
    """Device functions on `s` and `dp`: `stripes` times 16 fragment rows, `columns` columns."""

    unit_of: Any
    """unit_of(scores): what q·k is multiplied by first."""
    prepare: Any
    """prepare(s, dp, rows, unit, scores, bias, slope, row, key, offset, Lq, Lk, lane): s becomes the exponent of the
    weight, dp what the weight is multiplied by.  `rows` is the shared address of less and delta of the queries row,
    row + 1, ...; `key` is the first key."""
    full: Any
    """full(shift, exist, band): whether nothing is to be hidden; arguments as in `hide`."""
    hide: Any
    """hide(s, dp, shift, exist, band, lane): -inf and 0 where a query does not see a key, and in columns from `exist`
    on.  The first query lies `shift` below the diagonal of the first key: shift = row + offset - key."""
    weigh: Any
    """weigh(s, dp): the weights, and the gradients of the scores."""


def weights_of(spec: Spec, stripes: int, columns: int, transposed: bool) -> Weights:
    """The functions for `stripes` stripes and `columns` columns."""
    BLOCKS, SIZE = columns // 8, stripes * columns // 2
    DOWN, RIGHT = (columns, 16 * stripes) if transposed else (16 * stripes, columns)
    softcap, biased, alibi, modified = spec.softcap, spec.bias is not None, spec.alibi, spec.modified
    bias_bytes = 4 if spec.bias == "float32" else 2
    widen = ptx.unpack_low_bf16 if spec.dtype == "bfloat16" else ptx.unpack_low_f16

    @device
    def unit_of(scores):  # type: ignore[no-untyped-def]
        if softcap:
            return scores.scale / scores.softcap
        return scores.scale if modified else scores.scale * LOG2E

    @device
    def exponent(x, dp, less, delta, unit, scores, bias, slope, i, j, offset, Lq, Lk):  # type: ignore[no-untyped-def]
        """(exponent of the weight, what it is multiplied by) of query i and key j."""
        dp -= delta
        x *= unit
        if not modified:
            return x - less, dp
        if softcap:
            bent = float32(math.tanh(x))
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
    def prepare_transposed(  # type: ignore[no-untyped-def]
        s, dp, rows, unit, scores, bias, slope, row, key, offset, Lq, Lk, lane
    ):
        for n in range(BLOCKS):
            right = n * 8 + (lane & 3) * 2
            i = int32(row + right)
            less0, delta0, less1, delta1 = ptx.load_shared_f32x4(int32(rows + right * ROW_BYTES))
            for t in range(stripes):
                for half in range(2):
                    c = (t * BLOCKS + n) * 4 + half * 2
                    j = int32(key + t * 16 + half * 8 + (lane >> 2))
                    s[c], dp[c] = exponent(s[c], dp[c], less0, delta0, unit, scores, bias, slope, i, j, offset, Lq, Lk)
                    s[c + 1], dp[c + 1] = exponent(
                        s[c + 1], dp[c + 1], less1, delta1, unit, scores, bias, slope, int32(i + 1), j, offset, Lq, Lk
                    )

    @device
    def prepare(  # type: ignore[no-untyped-def]
        s, dp, rows, unit, scores, bias, slope, row, key, offset, Lq, Lk, lane
    ):
        for t in range(stripes):
            for half in range(2):
                down = t * 16 + half * 8 + (lane >> 2)
                i = int32(row + down)
                less, delta = ptx.load_shared_f32x2(int32(rows + down * ROW_BYTES))
                for n in range(BLOCKS):
                    for e in range(2):
                        c = (t * BLOCKS + n) * 4 + half * 2 + e
                        j = int32(key + n * 8 + e + (lane & 3) * 2)
                        s[c], dp[c] = exponent(
                            s[c], dp[c], less, delta, unit, scores, bias, slope, i, j, offset, Lq, Lk
                        )

    @device
    def full(shift, exist, band):  # type: ignore[no-untyped-def]
        return exist >= columns and shift + int32(DOWN - 1) <= band.left and int32(RIGHT - 1) - shift <= band.right

    @device
    def hide(s, dp, shift, exist, band, lane):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for half in range(2):
                down = int32(t * 16 + half * 8 + (lane >> 2))
                for n in range(BLOCKS):
                    for e in range(2):
                        right = int32(n * 8 + e + (lane & 3) * 2)
                        away = int32(shift + right - down) if transposed else int32(shift + down - right)
                        if away > band.left or -away > band.right or right >= exist:
                            s[(t * BLOCKS + n) * 4 + half * 2 + e] = -INFINITE
                            dp[(t * BLOCKS + n) * 4 + half * 2 + e] = float32(0)

    @device
    def weigh(s, dp):  # type: ignore[no-untyped-def]
        for c in range(SIZE):
            s[c] = ptx.ex2(s[c])
            dp[c] *= s[c]

    return Weights(unit_of, prepare_transposed if transposed else prepare, full, hide, weigh)


def load_rows_of(rows: int, threads: int) -> Any:
    """load(shared, first, row, limit, thread): begins to copy less and delta of `rows` queries; 0 from `limit` on."""
    LOADS = (rows + threads - 1) // threads

    @device
    def load(shared, first, row, limit, thread):  # type: ignore[no-untyped-def]
        for n in range(LOADS):
            i = int32(thread + n * threads)
            if i < rows:
                exists = int32(row + i) < limit
                source = first + int64(int32(row + i)) * ROW_BYTES  # any address, where nothing is read
                ptx.copy_async_b64(int32(shared + i * ROW_BYTES), source, int32(ROW_BYTES) if exists else int32(0))

    return load


def finish_of(stripes: int, width: int) -> Any:
    """finish(c, factor, exist, lane): C fragments (16 T x width) times a factor; 0 in rows from `exist` on."""
    BLOCKS = width // 8

    @device
    def finish(c, factor, exist, lane):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for n in range(BLOCKS):
                for e in range(4):
                    i = (t * BLOCKS + n) * 4 + e
                    c[i] = c[i] * factor if t * 16 + (e >> 1) * 8 + (lane >> 2) < exist else float32(0)

    return finish
