"""Which keys each row sees, for the kernels: an interval of keys, or else bits, some rows at a time.

Most masks show each row an interval lo <= j < hi.  `spans` has it by arithmetic, two numbers a row, so that memory is
O(N) and tiles that are wholly hidden or wholly seen are known without a look at the mask.  For any other mask `strips`
asks the predicate, as many rows at a time as a budget of bytes holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..masks import Causal, Chunked, Documents, Mask, Padding, Prefix, SinkTokens, Visibility, Window
from ..streaming.arguments import Arguments
from ..visibility import And, Or, diagonal

__all__ = ["spans", "strip_rows", "strips"]

Array = np.ndarray[Any, Any]
Span = tuple[Array, Array]
Ends = tuple[Any, Any]
"""lo and hi before they are cut to what exists: ints, or arrays that broadcast to (B, 1, Lq)"""

BUDGET = 1 << 25
"""bytes of a strip"""
BLOCK = 1 << 18
"""pairs of which a predicate is asked at once: its arrays, of up to 8 bytes a pair, are to be small beside a strip"""
ROWS = 64
"""a strip holds a multiple of so many rows, but the last: whole tiles of queries, whatever the width of a vector"""


def spans(mask: Visibility | Array | None, shape: tuple[int, int, int, int]) -> Span | None:
    """(lo, hi), int64, read-only views of shape (B, H, Lq): row i of (b, h) sees the keys lo <= j < hi and no other.

    Rows that see nothing, and those that do not exist, have lo = hi = 0.  None: not known to be intervals.  `mask` as
    `Arguments` has it, `shape` = (B, H, Lq, Lk).  A `Mask` is not asked pair by pair; an array is read.

    >>> from refattn.masks import Window
    >>> lo, hi = spans(Visibility(Window(1, 0, "top_left"), 1, 1, 3, 3), (1, 1, 3, 3))
    >>> lo.ravel().tolist(), hi.ravel().tolist()
    ([0, 0, 1], [1, 2, 3])
    """
    B, H, Lq, Lk = shape
    if isinstance(mask, np.ndarray):
        found = _of_array(mask)
    else:
        seen = Visibility(None, *shape) if mask is None else mask
        found = _Rows(seen).of(seen.mask)
    if found is None:
        return None
    lo, hi = (np.broadcast_to(x, (B, H, Lq)) for x in found)
    return lo, hi


def strip_rows(Lk: int, budget_bytes: int = BUDGET) -> int:
    """How many rows a strip has, but the last: as many as the budget holds, and ROWS at least."""
    return max(ROWS, budget_bytes // max(1, Lk) // ROWS * ROWS)


def strips(x: Arguments, budget_bytes: int = BUDGET) -> Iterator[tuple[int, int, slice, Array, Array, Array]]:
    """(b, h, rows, lo, hi, bits): what a mask shows, some rows of a head at a time; for masks that `spans` cannot say.

    bits (rows, Lk), uint8, is 0 where a pair is hidden, else 1; what a row sees lies within its lo <= j < hi.  The mask
    is asked once for all heads where it does not depend on h: then those of one b and the same rows follow each other
    with the same arrays.

    >>> from refattn.masks import Dilated
    >>> q = np.zeros((1, 1, 2, 4))
    >>> plain = dict.fromkeys(("bias", "scale", "softcap", "sinks"))
    >>> x = Arguments(q, q, q, mask=Dilated(1, 2, "top_left") | Dilated(0, 1, "top_left"), **plain, dtype=q.dtype)
    >>> [(rows, lo.tolist(), hi.tolist(), bits.tolist()) for _, _, rows, lo, hi, bits in strips(x)]
    [(slice(0, 2, None), [0, 1], [1, 2], [[1, 0], [0, 1]])]
    """
    if x.mask is None:
        return
    for b in range(x.B):
        alike = _heads_are_alike(x.mask, b)
        for rows in _parts(slice(0, x.Lq), strip_rows(x.Lk, budget_bytes)):
            for h in range(x.H):
                if h == 0 or not alike:
                    found = _strip(x.mask, b, h, rows, x.Lk)
                yield b, h, rows, *found


class _Rows:
    """The rows of a `Visibility`, as arrays (B or 1, 1, Lq or 1), and the keys lo <= j < hi that a mask shows them."""

    def __init__(self, seen: Visibility) -> None:
        end = slice(-1, None)
        seen.tile(end, end)  # refuses a mask or lengths that do not fit
        self.B, self.Lq, self.Lk = seen.B, seen.Lq, seen.Lk
        self.i = np.arange(seen.Lq)
        self.lq = self.by_batch(seen.q_lens or seen.Lq)
        self.lk = self.by_batch(seen.k_lens or seen.Lk)

    def by_batch(self, value: int | tuple[int, ...]) -> Array:
        return np.array(value, np.int64).reshape(-1, 1, 1)[: self.B]

    def of(self, mask: Mask | None) -> Span | None:
        """The keys that each row sees, of those that exist; None where they are not known to be an interval."""
        if isinstance(mask, (And, Or)):
            left, right = self.of(mask.left), self.of(mask.right)
            if left is None or right is None:
                return None
            return _intersection(left, right) if isinstance(mask, And) else _union(left, right)
        kind = KINDS.get(type(mask))
        found = None if kind is None else kind(self, mask)
        if found is None:
            return None
        lo, hi = found
        return _cleared(np.maximum(lo, 0), np.where(self.i < self.lq, np.minimum(hi, self.lk), 0))

    def every(self, mask: None) -> Ends:
        return 0, self.lk

    def causal(self, mask: Causal) -> Ends:
        return 0, diagonal(mask.align, self.i, self.lq, self.lk) + 1

    def window(self, mask: Window) -> Ends:
        own = diagonal(mask.align, self.i, self.lq, self.lk)
        return 0 if mask.left is None else own - mask.left, self.lk if mask.right is None else own + mask.right + 1

    def prefix(self, mask: Prefix) -> Ends:
        return 0, np.maximum(self.by_batch(mask.length), diagonal(mask.align, self.i, self.lq, self.lk) + 1)

    def padding(self, mask: Padding) -> Ends:
        return 0, self.by_batch(mask.lengths)

    def sink_tokens(self, mask: SinkTokens) -> Ends:
        return 0, mask.n

    def chunked(self, mask: Chunked) -> Ends:
        first = diagonal(mask.align, self.i, self.lq, self.lk) // mask.size * mask.size
        return first, first + mask.size

    def documents(self, mask: Documents) -> Ends | None:
        """The run of the keys that have the row's id; None if those of some row are several runs."""
        ids = mask.q_ids, mask.q_ids if mask.k_ids is None else mask.k_ids
        tables = [np.atleast_2d(np.array(x, np.int64))[: self.B] for x in ids]
        n = max(map(len, (*tables, self.lq, self.lk)))
        q_ids, k_ids = (np.broadcast_to(x, (n, x.shape[1])) for x in tables)
        lo, hi = np.zeros((2, n, 1, self.Lq), np.int64)
        for b in range(n):
            lq, lk = (int(lens[min(b, len(lens) - 1), 0, 0]) for lens in (self.lq, self.lk))
            own, order = q_ids[b, :lq], np.argsort(k_ids[b, :lk], kind="stable")
            start, stop = (np.searchsorted(k_ids[b, order], own, side) for side in ("left", "right"))
            order = np.append(order, 0)  # for rows whose id no key has
            first, last = order[start], order[stop - 1]
            if np.any((start < stop) & (last - first != stop - 1 - start)):
                return None
            lo[b, 0, :lq], hi[b, 0, :lq] = first, np.where(start < stop, last + 1, 0)
        return lo, hi


KINDS: dict[type, Callable[[_Rows, Any], Ends | None]] = {
    type(None): _Rows.every, Causal: _Rows.causal, Window: _Rows.window, Prefix: _Rows.prefix, Padding: _Rows.padding,
    SinkTokens: _Rows.sink_tokens, Chunked: _Rows.chunked, Documents: _Rows.documents,
}  # fmt: skip


def _cleared(lo: Array, hi: Array) -> Span:
    """lo = hi = 0 where no key is left."""
    return np.where(lo < hi, lo, 0), np.where(lo < hi, hi, 0)


def _intersection(x: Span, y: Span) -> Span:
    return _cleared(np.maximum(x[0], y[0]), np.minimum(x[1], y[1]))


def _union(x: Span, y: Span) -> Span | None:
    """None if there is a gap in some row."""
    lone = (x[1] == 0) | (y[1] == 0)
    if np.any(~lone & (np.maximum(x[0], y[0]) > np.minimum(x[1], y[1]))):
        return None
    return np.where(lone, x[0] + y[0], np.minimum(x[0], y[0])), np.maximum(x[1], y[1])


def _of_array(mask: Array) -> Span | None:
    """The interval of each row of a boolean array (B, H, Lq, Lk), over dimensions that are broadcast once."""
    mask = mask[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in mask.strides[:3])]
    lo, hi = np.zeros((2, *mask.shape[:3]), np.int64)
    for b, h in np.ndindex(mask.shape[:2]):
        for rows in _parts(slice(0, mask.shape[2]), BLOCK // max(1, mask.shape[3])):
            seen = mask[b, h, rows]
            lo[b, h, rows], hi[b, h, rows] = _hull(seen)
            if np.any(seen.sum(1) != hi[b, h, rows] - lo[b, h, rows]):
                return None
    return lo, hi


def _strip(mask: Visibility | Array, b: int, h: int, rows: slice, Lk: int) -> tuple[Array, Array, Array]:
    lo, hi = np.zeros((2, rows.stop - rows.start), np.int64)
    bits = np.empty((len(lo), Lk), np.uint8)
    for part in _parts(rows, BLOCK // max(1, Lk)):
        seen = mask[b, h, part] if isinstance(mask, np.ndarray) else mask.tile(part, b=b, h=h)
        at = slice(part.start - rows.start, part.stop - rows.start)
        bits[at], (lo[at], hi[at]) = seen, _hull(seen)
    return lo, hi, bits


def _heads_are_alike(mask: Visibility | Array, b: int) -> bool:
    """Whether it is known of a mask that it shows each head the same: nothing was made for each head apart."""
    one = slice(0, 1)
    return (mask[b : b + 1] if isinstance(mask, np.ndarray) else mask.tile(one, one, b)).strides[1] == 0


def _hull(seen: Array) -> Span:
    """From the first key that each row sees to the last; 0, 0 where there is none."""
    if not seen.shape[1]:
        return np.zeros(len(seen), np.int64), np.zeros(len(seen), np.int64)
    return seen.argmax(1), np.where(seen.any(1), seen.shape[1] - seen[:, ::-1].argmax(1), 0)


def _parts(rows: slice, size: int) -> Iterator[slice]:
    """The rows, no more than `size` at a time and one at least."""
    for start in range(rows.start, rows.stop, max(1, size)):
        yield slice(start, min(start + max(1, size), rows.stop))
