"""Few queries, many keys: a step of decoding, whose time is that of reading k and v once.

A task is SPLIT keys of one key head and all rows of its group (the queries of all its query heads): it
makes their states (m, l, o) of `refattn.online`, which `finish` joins in the order of the keys.  Which keys
a task has follows from the shape alone, so that any number of threads gives the same bits.  k and v are
read where they lie, whatever their dtype, if the numbers of a row are side by side.

Source of the split: Dao et al. 2023, "Flash-Decoding for long-context inference".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..streaming.arguments import Arguments
from .compiled import compiled, inlined
from .forward import aligned
from .geometry import spans, strips
from .problem import NO_BITS, Problem, flat
from .products import cap, take
from .rows import HALVES, dots, gather_four, gather_one, greatest, weigh
from .state import settled, units_of
from .threads import run
from .vectors import lanes

__all__ = ["few", "solve"]

Array = np.ndarray[Any, Any]

FEW = 4
"""up to one in so many lanes of a tile of queries, the tile would be slower"""
SPLIT = 1024
"""keys of a task, times as many as its rows are FULL"""
FULL = 64
"""rows whose states, a set for each split, are then a small part of k and v"""
KEYS = 128
"""keys of a tile"""
READING = 8
"""multiplications in the time of reading a number from memory"""


def few(problem: Problem) -> bool:
    """Whether `solve` is faster than the forward in tiles of queries."""
    return problem.x.Lq * FEW <= problem.wide


def solve(problem: Problem) -> tuple[Array, Array, Array, Array]:
    """out (B, H, Lq, Dv), lse, shift and factor, each (B, H, Lq), in the dtype that is computed in."""
    x, dtype, lane = problem.x, problem.dtype, lanes(problem.dtype)
    rows, columns = x.group * x.Lq, -(-x.Dv // lane) * lane
    split = SPLIT * -(-rows // FULL)
    splits = -(-x.Lk // split) if rows else 0
    sizes = (x.H, x.Hkv, x.Lq, x.Lk, x.D, x.Dv, rows, split, splits, columns, lane)
    seen = _seen(x)
    tasks = np.arange(x.B * x.Hkv * splits)
    m, l = np.empty((2, len(tasks) * rows), dtype)  # noqa: E741
    states = m, l, np.empty(len(tasks) * rows * columns, dtype)
    costs = np.full(len(tasks), min(split, x.Lk) * (x.D + x.Dv) * (rows + READING))
    more = (*problem.bias(), problem.scale, problem.softcap)
    run(
        decode, tasks, costs, problem.q, *_placed(x.k, problem), *_placed(x.v, problem), seen, more,
        states, sizes, problem.wide,
    )  # fmt: skip
    out = np.empty((x.B, x.H, x.Lq, x.Dv), dtype)
    lse, shift, factor = np.empty((3, x.B, x.H, x.Lq), dtype)
    results = tuple(a.reshape(-1) for a in (out, lse, shift, factor))
    finish(states, seen, more, problem.sinks, results, sizes)
    return out, lse, shift, factor


def _placed(a: Array, problem: Problem) -> tuple[Array, tuple[int, ...]]:
    """(B, heads, n, size) flat and read-only, in place if it can be, and the strides of (b, head, row)."""
    dtype: Any = problem.dtype
    if problem.kind == "bfloat16":
        a, dtype = a.view(np.uint16), np.uint16
    elif problem.kind == "float16" and HALVES:
        a, dtype = a.view(np.int16), np.int16
    if a.dtype != dtype or not a.flags.aligned or a.strides[3] != a.itemsize or min(a.strides) < 0:
        a = np.ascontiguousarray(a, dtype)
    steps = tuple(stride // a.itemsize for stride in a.strides[:3])
    if a.flags.c_contiguous or a.size == 0:
        return flat(a, dtype), steps
    extent = sum((n - 1) * step for n, step in zip(a.shape, steps, strict=False)) + a.shape[3]
    return np.lib.stride_tricks.as_strided(a, (extent,), (a.itemsize,), writeable=False), steps


def _seen(x: Arguments) -> tuple[Array, Array, Array]:
    """lo and hi of all rows (b, h, i), and their bits (rows, Lk), or none."""
    n = x.B * x.H * x.Lq
    if x.mask is None:
        return flat(np.zeros(n), np.int64), flat(np.full(n, x.Lk), np.int64), NO_BITS
    known = spans(x.mask, x.shape)
    if known is not None:
        return flat(known[0], np.int64), flat(known[1], np.int64), NO_BITS
    lo, hi = np.empty((2, x.B, x.H, x.Lq), np.int64)
    bits = np.empty(x.shape, np.uint8)
    for b, h, rows, first, last, shown in strips(x):
        lo[b, h, rows], hi[b, h, rows], bits[b, h, rows] = first, last, shown
    bits.flags.writeable = False
    return flat(lo, np.int64), flat(hi, np.int64), bits.reshape(n, x.Lk)


@inlined
def modify(S, s0, n, scale, softcap, wide, bias, at, along):  # type: ignore[no-untyped-def]
    """S = softcap tanh(S scale / softcap) + bias for n keys; softcap 0 for none, bias empty for none."""
    if softcap > 0:
        cap(S[s0:], (n + wide - 1) // wide, scale, softcap)
    else:
        for j in range(n):
            S[s0 + j] *= scale
    if bias.size:
        for j in range(n):
            S[s0 + j] += bias[at + j * along]


@compiled
def decode(counter, order, q, k, k_steps, v, v_steps, seen, more, states, sizes, wide):  # type: ignore[no-untyped-def]
    """m, l (tasks, rows) and o (tasks, rows, columns): the states of the rows after the keys of each task.

    Flat arrays: q (B, H, Lq, D), k (B, Hkv, Lk, D) and v (B, Hkv, Lk, Dv) of the strides `k_steps` and
    `v_steps`; lo and hi of all rows; bias of the strides `places`.
    """
    H, Hkv, Lq, Lk, D, Dv, rows, split, splits, columns, lane = sizes
    lo, hi, bits = seen
    bias, places, scale, softcap = more
    m, l, o = states  # noqa: E741
    plain, _, sign, c = units_of(scale, softcap, bias)
    size = (D + lane - 1) // lane * lane
    Q, S, L = aligned(rows * size, q), aligned(rows * KEYS, q), aligned(rows * lane, q)
    keep = np.empty(rows, q.dtype)
    while True:
        turn = take(counter)
        if turn >= len(order):
            break
        task = order[turn]
        head, start = task // splits, task % splits * split
        b, kv = head // Hkv, head % Hkv
        own, row = task * rows, head * rows
        m[own : own + rows], L[:] = -np.inf, 0
        o[own * columns : (own + rows) * columns] = 0
        least, most, inner, outer = np.int64(1) << 62, np.int64(0), np.int64(0), np.int64(1) << 62
        for r in range(rows):
            Q[r * size : r * size + D] = q[(row + r) * D : (row + r + 1) * D] * sign
            Q[r * size + D : (r + 1) * size] = 0
            if lo[row + r] < hi[row + r]:
                least, most = min(least, lo[row + r]), max(most, hi[row + r])
            inner, outer = max(inner, lo[row + r]), min(outer, hi[row + r])
        end = min(start + split, most)
        for j0 in range(max(start, least), end, KEYS):
            n = min(KEYS, end - j0)
            whole = bits.size == 0 and inner <= j0 and j0 + n <= outer
            filled = (n + lane - 1) // lane * lane
            at = b * k_steps[0] + kv * k_steps[1] + j0 * k_steps[2]
            for j in range(0, n, lane):
                for r in range(rows):
                    dots(Q, r * size, k, at + j * k_steps[2], k_steps[2], n - 1 - j, D, S, r * KEYS + j)
            for r in range(rows):
                if not plain:
                    h, i = kv * (H // Hkv) + r // Lq, r % Lq
                    place = b * places[0] + h * places[1] + i * places[2] + j0 * places[3]
                    modify(S, r * KEYS, n, scale, softcap, wide, bias, place, places[3])
                if not whole:
                    for j in range(n):
                        if not lo[row + r] <= j0 + j < hi[row + r] or (bits.size and not bits[row + r, j0 + j]):
                            S[r * KEYS + j] = -np.inf
                S[r * KEYS + n : r * KEYS + filled] = -np.inf
                old = m[own + r]
                new = max(old, greatest(S, r * KEYS, filled // lane))
                shift = q.dtype.type(0) if new == -np.inf else new
                keep[r] = np.exp2((old - shift) * c)
                weigh(S, r * KEYS, filled // lane, c, shift, keep[r], L, r * lane)
                m[own + r] = new
            at = b * v_steps[0] + kv * v_steps[1] + j0 * v_steps[2]
            r = 0
            while r + 4 <= rows:
                gather_four(S, r * KEYS, KEYS, v, at, v_steps[2], n, Dv, o, (own + r) * columns, columns, keep, r)
                r += 4
            while r < rows:
                gather_one(S, r * KEYS, KEYS, v, at, v_steps[2], n, Dv, o, (own + r) * columns, columns, keep, r)
                r += 1
        for r in range(rows):
            l[own + r] = L[r * lane : (r + 1) * lane].sum()


@compiled
def finish(states, seen, more, sinks, results, sizes):  # type: ignore[no-untyped-def]
    """out (B, H, Lq, Dv) and, each (B, H, Lq), lse, and shift and factor with p = exp2((S - shift) c) factor."""
    H, _, Lq, _, _, Dv, rows, _, splits, columns, _ = sizes
    m, l, o = states  # noqa: E741
    lo, hi, _ = seen
    out, lse, shift, factor = results
    bias, _, scale, softcap = more
    plain, unit, _, _ = units_of(scale, softcap, bias)
    zero = m.dtype.type(0)
    for row in range(len(lse)):
        first, r = row // rows * splits * rows + row % rows, row * Dv
        top = m.dtype.type(-np.inf)
        for s in range(splits):
            top = max(top, m[first + s * rows])
        base, total = zero if top == -np.inf else top, zero
        out[r : r + Dv] = 0
        for s in range(splits):
            part = first + s * rows
            weight = np.exp((m[part] - base) * unit)
            total += l[part] * weight
            for d in range(Dv):
                out[r + d] += o[part * columns + d] * weight
        state = settled(top, total, unit, plain and lo[row] < hi[row], sinks, row // Lq % H)
        lse[row], shift[row], factor[row] = state
        for d in range(Dv):
            out[r + d] *= factor[row]
