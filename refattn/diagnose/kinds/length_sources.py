"""Hypotheses on where the lengths come from that a mask is told: of another entry, the padded one, what is unused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Cache, Case, Packed, Paged
from ...masks import Mask
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import ALIGNED, Asked

__all__ = ["SOURCES"]

Source = Callable[[Case, Array, int], Array]
"""(case, the lengths of queries or keys, the longest there may be) -> those that are taken for them"""


def _with_gap(case: Case, n: Array, most: int) -> Array:
    return n + case.storage.gap if isinstance(case.storage, Packed) else n


def _ends(case: Case, n: Array, most: int) -> Array:
    gap = case.storage.gap if isinstance(case.storage, Packed) else 0
    return np.asarray(np.cumsum(n + gap)) if isinstance(case.storage, Packed) else n


def _pages(case: Case, n: Array, most: int, up: int) -> Array:
    size = case.storage.page_size if isinstance(case.storage, Paged) else 1
    return -(-n // size) * size if up else n // size * size


SOURCES: dict[str, Source] = {
    "that of the padded array": lambda c, n, most: 0 * n + most,
    "that of the longest entry": lambda c, n, most: 0 * n + n.max(initial=0),
    "that of the shortest entry": lambda c, n, most: 0 * n + n.min(initial=most),
    "that of the first entry": lambda c, n, most: 0 * n + n[:1].sum(),
    "that of the last entry": lambda c, n, most: 0 * n + n[-1:].sum(),
    "that of the next entry": lambda c, n, most: np.roll(n, -1),
    "that of the entry before": lambda c, n, most: np.roll(n, 1),
    "the mean of all": lambda c, n, most: 0 * n + n.sum() // max(len(n), 1),
    "that of all together": lambda c, n, most: 0 * n + n.sum(),
    "the difference of cu_seqlens, with what is unused": _with_gap,
    "the difference of cu_seqlens, with what is unused, up to the longest":
        lambda c, n, most: np.minimum(_with_gap(c, n, most), most),
    "cu_seqlens of its end": _ends,
    "that of whole pages, rounded up": lambda c, n, most: _pages(c, n, most, 1),
    "that of whole pages, rounded down": lambda c, n, most: _pages(c, n, most, 0),
    "without the new tokens of the cache": lambda c, n, most: n - c.Lq if isinstance(c.storage, Cache) else n,
    "with the new tokens of the cache twice": lambda c, n, most: n + c.Lq if isinstance(c.storage, Cache) else n,
    "one more": lambda c, n, most: n + 1,
    "one less": lambda c, n, most: n - 1,
    "0": lambda c, n, most: 0 * n,
}  # fmt: skip
for _n in (16, 64, 128):
    SOURCES[f"rounded up to {_n}"] = lambda c, n, most, m=_n: -(-n // m) * m  # type: ignore[misc]
WHICH = {"queries": (1, 0), "keys": (0, 1), "queries and that of keys": (1, 1)}


def _lengths(case: Case, how: Any) -> tuple[Array, ...]:
    """Of queries and keys, as they are taken."""
    own = (np.array(n) for n in case.lengths)
    return tuple(
        how.source(case, n, most) if on else n for n, most, on in zip(own, (case.Lq, case.Lk), how.of, strict=True)
    )


def _differs(case: Case, how: Any) -> bool:
    aligned = any(f"{m.__name__}(" in repr(case.mask) for m in ALIGNED) and "bottom_right" in repr(case.mask)
    if not aligned:
        return False
    q, k = _lengths(case, how)
    return bool((k - q != np.subtract(*map(np.array, case.lengths[::-1]))).any())


def _offsets(case: Case, how: Any) -> tuple[int, ...]:
    q, k = _lengths(case, how)
    return tuple(map(int, k - q))


@kind(_differs, of=WHICH, source=SOURCES)
class mask_told_length(Model):
    """The mask, which hides by the diagonal, is told as the number of {of}: {source}."""

    of = (1, 0)
    source: Source

    def visible(self) -> Array:
        q, k = _lengths(self.case, type(self))

        def told(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            return m(b, h, i, j, q[b], k[b])

        mask = None if self.case.mask is None else Asked(self.case.mask, told)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())
