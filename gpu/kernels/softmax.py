"""The online softmax on C fragments of scores (16 T rows x N keys), in base 2, and what comes before it.

Lane l holds, of stripe t, rows g = l // 4 and g + 8, keys 8 n + 2 (l % 4) and the next.  The four lanes of a row
agree on its maximum m; each keeps its own part l of the sum, which is added up at the end.  m and l have
an entry for each row of the lane: 2 t, and 2 t + 1 for the row eight below.

With `unit` = scale · log2(e) > 0, weights are 2**(s unit - m unit).  Where scores are modified (softcap, bias, ALiBi)
they are in base 2 already, and unit is 1.  Source: Dao 2023, FlashAttention-2, algorithm 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy import float32, int32, int64

from gpu import ptx
from gpu.target import device

from .spec import Spec

__all__ = ["INFINITE", "LN2", "LOG2E", "Softmax", "softmax_of", "unit_of", "weighing"]

LOG2E, LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
INFINITE, TINY = np.float32(np.inf), np.float32(2.0**-126)


class Softmax(NamedTuple):
    """Device functions on the scores `s` of `stripes` times 16 rows."""

    modify: Any
    """modify(s, scores, bias, slope, row, key, offset, Lq, Lk, lane): scale, softcap, bias and ALiBi, in base 2."""
    hide: Any
    """hide(s, row, key, offset, band, Lk, lane): -inf at the keys that the rows from `row` on do not see."""
    update: Any
    """update(s, m, l, o, unit): scores to weights; m, l and the running output o follow."""
    finish: Any
    """finish(m, l, unit, sink, factor, lse): the factor of each row's output, and its lse; sink in nats, or -inf."""
    apply: Any
    """apply(o, factor): each row of the output times its factor."""


@device
def unit_of(scale, modified):  # type: ignore[no-untyped-def]
    """(unit > 0, whether the scores change their sign): with a negative scale the largest product is the smallest."""
    unit = scale * LOG2E
    negative = unit < 0 and not modified
    if modified:
        unit = float32(1)
    elif negative:
        unit = -unit
    elif unit == 0:
        unit = TINY  # so that hidden scores stay -inf
    return unit, negative


def weighing(keys: int) -> Any:
    """weigh_row(s, m, l, unit, t, half): the scores of one row of the lane to weights; m and l follow.

    Gives the factor by which the running output of the row has to be multiplied.
    """
    BLOCKS = keys // 8

    @device
    def weigh_row(s, m, l, unit, t, half):  # type: ignore[no-untyped-def]  # noqa: E741
        r = 2 * t + half
        new = m[r]
        for n in range(BLOCKS):
            i = (t * BLOCKS + n) * 4 + half * 2
            new = max(new, max(s[i], s[i + 1]))
        new = max(new, ptx.shuffle_xor(new, 1))
        new = max(new, ptx.shuffle_xor(new, 2))
        top = new * unit if new > -INFINITE else float32(0)  # no key seen yet: not -inf - (-inf)
        shrink = ptx.ex2(m[r] * unit - top)
        total = l[r] * shrink
        for n in range(BLOCKS):
            i = (t * BLOCKS + n) * 4 + half * 2
            s[i] = ptx.ex2(s[i] * unit - top)
            s[i + 1] = ptx.ex2(s[i + 1] * unit - top)
            total += s[i] + s[i + 1]
        m[r], l[r] = new, total
        return shrink

    return weigh_row


def softmax_of(spec: Spec, stripes: int, keys: int, width: int) -> Softmax:
    """The functions for `stripes` stripes of rows, `keys` keys, and a running output of `width` columns."""
    BLOCKS, COLUMNS, HALVES = keys // 8, width // 8, 2 * stripes
    weigh_row = weighing(keys)
    softcap, biased, alibi = spec.softcap, spec.bias is not None, spec.alibi
    bias_bytes = 4 if spec.bias == "float32" else 2
    widen = ptx.unpack_low_bf16 if spec.dtype == "bfloat16" else ptx.unpack_low_f16

    @device
    def modify(s, scores, bias, slope, row, key, offset, Lq, Lk, lane):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for n in range(BLOCKS):
                for e in range(4):
                    i = int32(row + t * 16 + (lane >> 2) + (e >> 1) * 8)
                    j = int32(key + n * 8 + (lane & 3) * 2 + (e & 1))
                    x = s[(t * BLOCKS + n) * 4 + e] * scores.scale
                    if softcap:
                        x = math.tanh(x / scores.softcap) * scores.softcap
                    if alibi:
                        x -= slope * float32(abs(int32(i + offset - j)))
                    if biased:
                        if i < Lq and j < Lk:
                            at = bias.ptr + int64(i) * bias.row + int64(j) * bias.column
                            if bias_bytes == 4:
                                x += ptx.load_global_f32(at)
                            else:
                                x += widen(ptx.load_global_b16(at))
                    s[(t * BLOCKS + n) * 4 + e] = x * LOG2E

    @device
    def hide(s, row, key, offset, band, Lk, lane):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for half in range(2):
                own = int32(row + t * 16 + (lane >> 2) + half * 8 + offset)
                first, last = int32(own - band.left), min(int32(own + band.right), int32(Lk - 1))
                for n in range(BLOCKS):
                    for e in range(2):
                        j = int32(key + n * 8 + (lane & 3) * 2 + e)
                        if j < first or j > last:
                            s[(t * BLOCKS + n) * 4 + half * 2 + e] = -INFINITE

    @device
    def update(s, m, l, o, unit):  # type: ignore[no-untyped-def]  # noqa: E741
        for t in range(stripes):
            for half in range(2):
                shrink = weigh_row(s, m, l, unit, t, half)
                for n in range(COLUMNS):
                    i = (t * COLUMNS + n) * 4 + half * 2
                    o[i] *= shrink
                    o[i + 1] *= shrink

    @device
    def finish(m, l, unit, sink, factor, lse):  # type: ignore[no-untyped-def]  # noqa: E741
        for r in range(HALVES):
            total = l[r] + ptx.shuffle_xor(l[r], 1)
            total += ptx.shuffle_xor(total, 2)
            if total == 0 and sink == -INFINITE:  # no key and no sink; a NaN goes on
                factor[r], lse[r] = float32(0), -INFINITE
            else:
                top = max(m[r] * unit, sink * LOG2E)
                shrink = ptx.ex2(m[r] * unit - top)
                total = total * shrink + ptx.ex2(sink * LOG2E - top)
                factor[r] = shrink / total
                lse[r] = (top + ptx.lg2(total)) * LN2

    @device
    def apply(o, factor):  # type: ignore[no-untyped-def]
        for t in range(stripes):
            for n in range(COLUMNS):
                for e in range(4):
                    o[(t * COLUMNS + n) * 4 + e] *= factor[2 * t + (e >> 1)]

    return Softmax(modify, hide, update, finish, apply)
