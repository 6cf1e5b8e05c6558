"""The forward: tiles of queries against tiles of keys, with the online softmax of `refattn.online`.

A task is `sub` tiles of WIDE queries of one head, which share each tile of KEYS keys while it is in the
cache.  A tile of keys that a tile of queries does not see is skipped; one that it sees whole meets no
mask.  Where there is neither bias nor softcap the scores stay q·k, in units of 1/scale: the scale is a
factor of the exponent, after the maximum was subtracted, so that equal scores stay equal.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload

from .compiled import compiled, inlined
from .products import ROWS, cap, keep, product, product_rescaled, scores, softmax, take
from .state import settled, units_of
from .turning import pack, unpack

__all__ = ["KEYS", "aligned", "forward", "hide", "modify", "spans_of"]

KEYS = 64
"""keys of a tile"""


@inlined
def aligned(n, like):  # type: ignore[no-untyped-def]
    """n numbers that begin with a line of the cache."""
    room = np.empty(n + 64 // like.itemsize, like.dtype)
    first = (64 - room.ctypes.data % 64) % 64 // like.itemsize
    return room[first : first + n]


def meeting(S, like):  # type: ignore[no-untyped-def]
    """What weights S are when they meet values of `like`: S itself, or room for pairs of them."""


@overload(meeting)
def _meeting(S, like):  # type: ignore[no-untyped-def]
    if S.dtype == like.dtype:
        return lambda S, like: S
    return lambda S, like: aligned(S.size // 2, like)


@inlined
def spans_of(lo, hi, at, step, rows, wide, first, last):  # type: ignore[no-untyped-def]
    """The keys that each of `wide` rows sees; and (some row sees from, to, all rows see from, to)."""
    least, most, inner, outer = np.int64(1) << 62, np.int64(0), np.int64(0), np.int64(1) << 62
    for i in range(wide):
        place = at + min(i, rows - 1) * step
        first[i], last[i] = lo[place], hi[place]
        if first[i] < last[i]:
            least, most = min(least, first[i]), max(most, last[i])
        inner, outer = max(inner, first[i]), min(outer, last[i])
    return least, most, inner, outer


@inlined
def modify(S, n, wide, scale, softcap, bias, at, step, along, rows):  # type: ignore[no-untyped-def]
    """S = softcap tanh(S scale / softcap) + bias; softcap 0 for none, bias empty for none."""
    if softcap > 0:
        cap(S, n, scale, softcap)
    else:
        for x in range(n * wide):
            S[x] *= scale
    if bias.size:
        if along:
            for i in range(wide):
                line = at + min(i, rows - 1) * step
                for j in range(n):
                    S[j * wide + i] += bias[line + j * along]
        else:
            for j in range(n):
                for i in range(wide):
                    S[j * wide + i] += bias[at + min(i, rows - 1) * step]


@inlined
def hide(S, n, wide, j0, first, last, bits, row, rows, start, stop, largest):  # type: ignore[no-untyped-def]
    """S = -inf where row i does not see key j0 + j, and largest = max(largest, S); bits are (rows, keys), or empty."""
    if bits.size:
        for i in range(wide):
            line = row + min(i, rows - 1)
            for j in range(n):
                x = S[j * wide + i]
                S[j * wide + i] = x if bits[line, j0 + j] else -np.inf
    for i in range(wide):
        start[i], stop[i] = max(first[i] - j0, 0), min(max(last[i] - j0, 0), n)
    keep(S, n, start, stop, largest)


@compiled
def forward(counter, order, operands, seen, more, results, sizes):  # type: ignore[no-untyped-def]
    """out (B, H, Lq, Dv) and, each (B, H, Lq), lse, and shift and factor with p = exp2((S - shift) c) factor.

    operands q (B, H, Lq, D), k (B, Hkv, keys, D), v (B, Hkv, keys / held, columns), keys and columns multiples of
              ROWS; held is 1, or 2 where an element is a pair of bfloat16, neighbours in D or in keys
    seen      lo and hi with the strides of (b, h, i), and bits (rows, Lk) of the rows from origin on, or none
    more      bias with the strides of (b, h, i, j), or empty; scale; softcap, or 0; sinks (H,), or empty

    All arrays but bits are flat.  An `out` of 16-bit integers gets the bits of bfloat16.
    """
    q, k, v = operands
    lo, hi, strides, bits, origin = seen
    bias, places, scale, softcap, sinks = more
    out, lse, shift, factor = results
    H, Hkv, Lq, D, Dv, keys, columns, held, sub, wide = sizes
    plain, unit, sign, c = units_of(scale, softcap, bias)
    blocks = (Lq + sub * wide - 1) // (sub * wide)
    Q, S, O = aligned(sub * D * wide, q), aligned(KEYS * wide, lse), aligned(sub * columns * wide, lse)  # noqa: E741
    P = meeting(S, v)
    m, l, largest, rescale = aligned(sub * wide, lse), aligned(sub * wide, lse), aligned(wide, lse), aligned(wide, lse)  # noqa: E741  # fmt: skip
    begin, end = aligned(wide, lse), aligned(wide, lse)
    first, last = np.empty((sub, wide), np.int64), np.empty((sub, wide), np.int64)
    ranges = np.empty((sub, 4), np.int64)
    while True:
        task = take(counter)
        if task >= len(order):
            break
        head, i0 = order[task] // blocks, order[task] % blocks * sub * wide
        b, h = head // H, head % H
        kv = b * Hkv + h // (H // Hkv)
        tiles = min(sub, (Lq - i0 + wide - 1) // wide)
        O[:], m[:], l[:] = 0, -np.inf, 0
        start, stop = np.int64(1) << 62, np.int64(0)
        for s in range(tiles):
            row, rows = i0 + s * wide, min(wide, Lq - i0 - s * wide)
            pack(q, head * Lq + row, rows, D, sign, wide, Q, s * D * wide)
            at = b * strides[0] + h * strides[1] + row * strides[2]
            ranges[s] = spans_of(lo, hi, at, strides[2], rows, wide, first[s], last[s])
            start, stop = min(start, ranges[s, 0]), max(stop, ranges[s, 1])
        for j0 in range(start // KEYS * KEYS, stop, KEYS):
            at_k, at_v = (kv * keys + j0) * D, (kv * keys + j0) // held * columns
            for s in range(tiles):
                n = min(KEYS, ranges[s, 1] - j0)
                if n <= 0 or j0 + n <= ranges[s, 0]:
                    continue
                row, rows = i0 + s * wide, min(wide, Lq - i0 - s * wide)
                first_lane, last_lane = s * wide, (s + 1) * wide
                whole = bits.size == 0 and ranges[s, 2] <= j0 and j0 + n <= ranges[s, 3]
                largest[:] = m[first_lane:last_lane]
                up = (n + ROWS - 1) // ROWS * ROWS
                if plain and whole and up == n:  # a padded key, whose score is 0, is no maximum
                    scores(k, at_k, D, 1, up, D, Q, s * D * wide, wide, S, 0, wide, largest)
                else:
                    product(k, at_k, D, 1, up, D, Q, s * D * wide, wide, S, 0, wide, largest)
                    if not plain:
                        at = b * places[0] + h * places[1] + row * places[2] + j0 * places[3]
                        modify(S, n, wide, scale, softcap, bias, at, places[2], places[3], rows)
                    hide(S, n, wide, j0, first[s], last[s], bits, row - origin, rows, begin, end, largest)
                softmax(S, n, c, largest, m[first_lane:last_lane], l[first_lane:last_lane], rescale, P)
                terms, into = (n + held - 1) // held, s * columns * wide
                product_rescaled(v, at_v, 1, columns, columns, terms, P, 0, wide, O, into, wide, rescale)
        for s in range(tiles):
            for i in range(min(wide, Lq - i0 - s * wide)):
                at = head * Lq + i0 + s * wide + i
                lost = plain and first[s, i] < last[s, i]
                state = settled(m[s * wide + i], l[s * wide + i], unit, lost, sinks, h)
                lse[at], shift[at], factor[at] = state
            row, rows = i0 + s * wide, min(wide, Lq - i0 - s * wide)
            unpack(O, s * columns * wide, rows, Dv, wide, factor, head * Lq + row, out)
