"""The backward: five products for each pair of tiles, and no sum that two tasks share.

With p = exp2((S - shift) c) factor of the forward, delta = out · dout - dlse and dp = dout vᵀ,

    dt = p (dp - delta),   ds = dt (1 - tanh² z),   z = scale q·k / softcap,
    dv += pᵀ dout,   dk += scale dsᵀ q,   dq += ds k,   dbias += dt,   dsoftcap += sum dt (tanh z - z (1 - tanh² z)).

A task owns some blocks of keys, for some heads and rows: a block, its values and their gradients stay in the cache
while tiles of WIDE queries go by.  S, dp and dq have queries in lanes, dk and dv their columns.  Each part of the keys
has a dq of its own; they are added in order.  Dao 2023, "FlashAttention-2", algorithm 2.
"""

from __future__ import annotations

import numpy as np

from .backward_scores import capped, slopes, to_bias
from .compiled import compiled, inlined
from .forward import KEYS, aligned, hide, modify, spans_of
from .products import ROWS, product, product_added, product_added_one, take, weights
from .state import units_of
from .turning import pack
from .vectors import ACROSS

__all__ = ["BLOCK", "backward"]

BLOCK = 512
"""keys that are held at a time; a multiple of KEYS"""


@inlined
def lay(x, first, rows, size, width, into):  # type: ignore[no-untyped-def]
    """Rows first, first + 1, ... of x (rows, size), each in `width` numbers, the rest of which are 0."""
    for i in range(rows):
        for d in range(size):
            into[i * width + d] = x[(first + i) * size + d]
        for d in range(size, width):
            into[i * width + d] = 0


@inlined
def add_rows(A, wide, M, T, B, size, C, c0):  # type: ignore[no-untyped-def]
    """C[m, :] += sum_t A[m, t] B[t, :]; rows of A have `wide` numbers, those of B and C `size`, in whole vectors."""
    several = size // wide * wide
    for d in range(0, several, wide):
        product_added(A, 0, wide, 1, M, T, B, d, size, C, c0 + d, size, A)
    for d in range(several, size, wide // ACROSS):
        product_added_one(A, 0, wide, 1, M, T, B, d, size, C, c0 + d, size, A)


@inlined
def add_scaled(C, width, scale, into, first, rows, size):  # type: ignore[no-untyped-def]
    """Rows first, first + 1, ... of `into` (rows, size) += scale C, whose rows have `width` numbers."""
    for j in range(rows):
        for d in range(size):
            into[(first + j) * size + d] += scale * C[j * width + d]


@compiled
def backward(counter, tasks, operands, state, seen, scores, results, sizes):  # type: ignore[no-untyped-def]
    """Adds to dq (parts, B, H, Lq, D), before the scale, to dk (B, Hkv, Lk, D), dv and dbias; sets dsoftcap (tasks).

    tasks (n, 8) are b0, b1, h0, h1, row0, row1, part, and the place in dsoftcap.  Flat arrays: q (B, H, Lq, D),
    k (B, Hkv, keys, room) and v (B, Hkv, keys, columns) with keys, room and columns multiples of ROWS; `state` are
    shift, factor and delta, each (B, H, Lq); `seen` and the bias as in `forward`; dbias has the strides `onto` of
    (part, b, h, i, j).
    """
    q, k, v, dout = operands
    shift, factor, delta = state
    lo, hi, strides, bits, origin = seen
    bias, places, scale, softcap = scores
    dq, dk, dv, dbias, onto, dsoftcap = results
    parts, B, H, Hkv, Lq, Lk, D, Dv, keys, room, columns, wide, strip = sizes
    one, none = q.dtype.type(1), q.dtype.type(0)
    plain, _, sign, c = units_of(scale, softcap, bias)
    lanes, held, group = wide // ACROSS, min(BLOCK, keys), H // max(Hkv, 1)
    over_k, over_v = (D + lanes - 1) // lanes * lanes, (Dv + lanes - 1) // lanes * lanes
    S, dP, dQ = aligned(KEYS * wide, q), aligned(KEYS * wide, q), aligned(room * wide, q)
    across_q, across_g = aligned(D * wide, q), aligned(Dv * wide, q)
    Q, G = aligned(wide * over_k, q), aligned(wide * over_v, q)
    dK, dV = aligned(held * over_k, q), aligned(held * over_v, q)
    m, inverse, less = aligned(wide, q), aligned(wide, q), aligned(wide, q)
    begin, end, largest = aligned(wide, q), aligned(wide, q), aligned(wide, q)
    first, last = np.empty(wide, np.int64), np.empty(wide, np.int64)
    of_cap = KEYS * wide if softcap > 0 else 0
    slope, share, of_softcap = aligned(of_cap, q), aligned(of_cap, q), np.zeros(wide)
    while True:
        task = take(counter)
        if task >= len(tasks):
            break
        b0, b1, h0, h1, row0, row1, part, place = tasks[task]
        of_softcap[:] = 0
        for pair in range((b1 - b0) * (h1 - h0)):
            b, h = b0 + pair // (h1 - h0), h0 + pair % (h1 - h0)
            if h != h0 and h % group:
                continue  # done with the first of its group
            kv = b * Hkv + h // group
            for k0 in range(part * BLOCK, Lk, parts * BLOCK):
                k1, heads = min(k0 + BLOCK, Lk), min(h1, (h // group + 1) * group) - h
                for turn in range((row1 - row0 + strip - 1) // strip * heads):  # as strips of bits come
                    own, top = h + turn % heads, row0 + turn // heads * strip
                    dK[:], dV[:] = 0, 0
                    for row in range(top, min(top + strip, row1), wide):
                        rows, line = min(wide, row1 - row), (b * H + own) * Lq + row
                        at = b * strides[0] + own * strides[1] + row * strides[2]
                        least, most, inner, outer = spans_of(lo, hi, at, strides[2], rows, wide, first, last)
                        start, stop = max(least, k0) // ROWS * ROWS, min((most + ROWS - 1) // ROWS * ROWS, k1)
                        if start >= stop:
                            continue
                        pack(q, line, rows, D, sign, wide, across_q, 0)
                        pack(dout, line, rows, Dv, one, wide, across_g, 0)
                        lay(q, line, rows, D, over_k, Q)
                        lay(dout, line, rows, Dv, over_v, G)
                        for i in range(wide):
                            at = line + min(i, rows - 1)
                            m[i], inverse[i], less[i] = shift[at], factor[at], delta[at]
                        dQ[:] = 0
                        for j0 in range(start, stop, KEYS):
                            n = min(KEYS, stop - j0)
                            up = (n + ROWS - 1) // ROWS * ROWS
                            at_k, at_v = (kv * keys + j0) * room, (kv * keys + j0) * columns
                            product(k, at_k, room, 1, up, D, across_q, 0, wide, S, 0, wide, S)
                            product(v, at_v, columns, 1, up, Dv, across_g, 0, wide, dP, 0, wide, S)
                            if softcap > 0:
                                capped(S, slope, share, n, scale, softcap)
                            if not plain:
                                at = b * places[0] + own * places[1] + row * places[2] + j0 * places[3]
                                rest = one if softcap > 0 else scale
                                modify(S, n, wide, rest, none, bias, at, places[2], places[3], rows)
                            if bits.size > 0 or j0 < inner or outer < j0 + n:
                                hide(S, n, wide, j0, first, last, bits, row - origin, rows, begin, end, largest)
                            weights(S, dP, n, c, m, inverse, less)
                            if dbias.size > 0:
                                at = part * onto[0] + b * onto[1] + own * onto[2] + row * onto[3] + j0 * onto[4]
                                to_bias(dP, n, wide, rows, dbias, at, onto[3], onto[4])
                            if softcap > 0:
                                slopes(dP, slope, share, n, wide, rows, of_softcap)
                            add_rows(S, wide, up, rows, G, over_v, dV, (j0 - k0) * over_v)
                            add_rows(dP, wide, up, rows, Q, over_k, dK, (j0 - k0) * over_k)
                            product_added(k, at_k, 1, room, room, n, dP, 0, wide, dQ, 0, wide, S)
                        for i in range(rows):
                            at = (part * B * H * Lq + line + i) * D
                            for d in range(D):
                                dq[at + d] += dQ[d * wide + i]
                    add_scaled(dK, over_k, scale, dk, kv * Lk + k0, k1 - k0, D)
                    add_scaled(dV, over_v, one, dv, kv * Lk + k0, k1 - k0, Dv)
        dsoftcap[place] = of_softcap.sum()
