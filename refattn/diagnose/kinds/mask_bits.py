"""Hypotheses on masks that are packed into bits: the padding of rows, the order of bits, where a row begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...case import Case
from ...masks import BlockSparse, Dense, Dilated, Gathered, GlobalTokens, Mask, Tree
from ...mutants import rewritten
from ..hypothesis import kind
from ..model import Array
from .alignment import Asked
from .bounds import Bounds, hides

__all__: list[str] = []


@dataclass(frozen=True)
class Sizes:
    """Of each entry (B, 1, 1, 1) its numbers of queries and keys, and the padded ones."""

    lq: Array
    lk: Array
    Lq: int
    Lk: int


class Bit(Protocol):
    def __call__(self, h: Array, i: Array, j: Array, n: Sizes) -> tuple[Array, Array, Array]:
        """Of a head, query and key those whose bit is read."""


def _up(n: Any, size: int) -> Any:
    return np.maximum(-(-n // size) * size, 1)


def _row(h: Array, p: Array, n: Any, heads: bool, lq: Any) -> tuple[Array, Array, Array]:
    """Bit p of rows of n bits, from the first row of a head, or of head 0."""
    row = p // n
    return (row // np.maximum(lq, 1), row % np.maximum(lq, 1), p % n) if heads else (h, row, p % n)


def _stored(
    h: Array, i: Array, j: Array, n: Sizes, written: int, read: int, heads: bool = False, tile: int = 2**30
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Rows are written in so many bits, and read as if in others: a multiple of these, or as many as all have for 0."""
    long, taken = (_up(n.lk, size) if size else np.full_like(n.lk, max(n.Lk, 1)) for size in (written, read))
    first = h * n.lq + i if heads else i % tile
    h, row, key = _row(h, first * taken + j, long, heads, n.lq)
    return h, row + i // tile * tile, key


def _by_queries(h: Array, i: Array, j: Array, n: Sizes) -> tuple[Array, Array, Array]:
    return _row(h, i * n.lq + j, _up(n.lk, 1), False, n.lq)


def _turned(h: Array, i: Array, j: Array, n: Sizes, word: int) -> tuple[Array, Array, Array]:
    return h, i, j // word * word + word - 1 - j % word


def _bytes_turned(h: Array, i: Array, j: Array, n: Sizes) -> tuple[Array, Array, Array]:
    return h, i, j // 32 * 32 + (3 - j % 32 // 8) * 8 + j % 8


def _moved(h: Array, i: Array, j: Array, n: Sizes, times: int, over: int) -> tuple[Array, Array, Array]:
    return h, i, j * times // over


def _first(h: Array, i: Array, j: Array, n: Sizes, size: int) -> tuple[Array, Array, Array]:
    return h, i, j // size * size


FROM: dict[str, dict[str, Any]] = {"": {}, ", of all heads": {"heads": True}}
FROM |= {f", of each tile of {n} rows": {"tile": n} for n in (16, 64, 128)}
HOW: dict[str, tuple[Bit, int]] = {
    f"rows are {'padded to' if padded else 'taken for'} multiples of {size} keys{words}, and {end}":
        (partial(_stored, written=size if padded else 1, read=1 if padded else size, **of), size)
    for words, of in FROM.items() for size in (8, 16, 32, 64, 128, 256) for padded, end in (
        (True, "read as if one followed the other"), (False, "are written one after the other"))
    if "tile" not in of or size in (8, 32)
} | {
    "rows are as long as the longest, and read by an entry's own length": (
        partial(_stored, written=0, read=1), 0),
    "rows are as long as an entry's own, and read by that of the longest": (
        partial(_stored, written=1, read=0), 0),
    "rows are taken to be as long as there are queries": (_by_queries, 0),
    "the bits of a byte are read in reverse": (partial(_turned, word=8), 0),
    "the bits of words of 32 are read in reverse": (partial(_turned, word=32), 0),
    "the bytes of words of 32 bits are read in reverse": (_bytes_turned, 0),
    "bit j is looked for in byte j": (partial(_moved, times=8, over=1), 0),
    "byte j // 8 is taken for bit j": (partial(_moved, times=1, over=8), 0),
    "the first bit of a byte is taken for all": (partial(_first, size=8), 0),
    "the first bit of a word of 32 is taken for all": (partial(_first, size=32), 0),
}  # fmt: skip
OF: dict[str, tuple[type[Mask], ...]] = {
    "A mask": (), "A drawn mask": (BlockSparse, Dense, Dilated, Gathered, GlobalTokens, Tree),
}  # fmt: skip
AMONG = {"": 0, "; of the keys that a tile of 16 rows sees": 16, "; of the keys that a tile of 64 rows sees": 64,
         "; of the keys that a tile of 128 rows sees": 128}  # fmt: skip


def _packed(case: Case, how: Any) -> bool:
    if case.mask is None or (how.among and not hides(case)):
        return False
    size = how.how[1]
    drawn = not how.of or any(f"{one.__name__}(" in repr(case.mask) for one in how.of)
    return drawn and (not size or any(n % size for n in case.lengths[1]))


@kind(_packed, of=OF, how=HOW, among=AMONG)
class mask_bits(Bounds):
    """{of} is packed into bits: {how}{among}."""

    of: tuple[type[Mask], ...] = ()
    how: tuple[Bit, int]
    among = 0

    def visible(self) -> Array:
        case, seen = self.case, self.case.visibility
        real = np.asarray(replace(seen, mask=None).tile())
        if self.of:
            found = np.asarray(replace(seen, mask=rewritten(case.mask, self.other)).tile())
        else:
            found = self.read_as(np.asarray(seen.tile()))
        if self.among:
            self.rows = self.among, False
            first, last = self.ends(np.asarray(seen.tile()))
            low, high = self.of_tile(first, lambda x: x.min(-1)), self.of_tile(last, lambda x: x.max(-1))
            j = np.arange(case.Lk)
            found = found & (j >= low[..., None]) & (j < high[..., None])
        return found & real

    def other(self, mask: Any) -> Mask:
        if not isinstance(mask, self.of):
            return mask
        bits = self.read_as(np.asarray(replace(self.case.visibility, mask=mask).tile()))
        return Asked(mask, lambda m, b, h, i, j, lq, lk: bits[b, h, i, j])

    def read_as(self, bits: Array) -> Array:
        """Bits (B, H, Lq, Lk) as they are read; what is not there is 0."""
        case = self.case
        lq, lk = (np.array(n, np.int64)[:, None, None, None] for n in case.lengths)
        b, h, i, j = np.ogrid[tuple(map(slice, bits.shape))]
        h, i, j = self.how[0](h + 0 * b, i, j, Sizes(lq, lk, case.Lq, case.Lk))
        there = (h < case.H) & (i < lq) & (j < lk)
        last = (max(n - 1, 0) for n in bits.shape[1:])
        h, i, j = (np.minimum(x, n) for x, n in zip((h, i, j), last, strict=True))
        return np.asarray(bits[b, h, i, j] & there)
