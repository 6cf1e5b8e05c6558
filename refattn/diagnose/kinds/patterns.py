"""Hypotheses on windows, prefixes, sink tokens, chunks, documents, and masks that are joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...masks import And, Causal, Chunked, Dilated, Documents, Mask, Not, Or, Padding, Prefix, SinkTokens, Window
from ...mutants import rewritten
from ...visibility import diagonal
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import Asked, _has

__all__ = ["joined"]

def _wider(by: int, side: str) -> Callable[[Window], tuple[Any, Any]]:
    def change(w: Window) -> tuple[Any, Any]:
        left = w.left if w.left is None or "left" not in side else w.left + by
        right = w.right if w.right is None or "right" not in side else w.right + by
        return left, right

    return change


@kind(
    lambda case: _has(case, Window),
    how={
        "the left side is one key too wide": _wider(1, "left"),
        "the left side is one key too narrow: the query's own key is counted": _wider(-1, "left"),
        "the right side is one key too wide": _wider(1, "right"),
        "the right side is one key too narrow": _wider(-1, "right"),
        "both sides are one key too wide": _wider(1, "left right"),
        "both sides are one key too narrow": _wider(-1, "left right"),
        "the left side is ignored": lambda w: (None, w.right),
        "the right side is ignored": lambda w: (w.left, None),
        "the right side is taken for 0: causal": lambda w: (w.left, 0),
        "the right side is taken for 0 where it has no limit": lambda w: (w.left, 0 if w.right is None else w.right),
        "left and right are exchanged": lambda w: (w.right, w.left),
        "it reaches as far to the right as to the left": lambda w: (w.left, w.left),
        "a side of 0 is taken for no limit": lambda w: (w.left or None, w.right or None),
        "a left side of 0 is taken for no limit": lambda w: (w.left or None, w.right),
        "each side is twice as wide": lambda w: tuple(n if n is None else 2 * n for n in (w.left, w.right)),
        "the left side is twice as wide": lambda w: (w.left if w.left is None else 2 * w.left, w.right),
        "the left side is half as wide": lambda w: (w.left if w.left is None else w.left // 2, w.right),
        "the left side counts the right one too: it has left - right":
            lambda w: (w.left if w.left is None else w.left - (w.right or 0), w.right),
        "the left side is two keys too wide": _wider(2, "left"),
        "the left side is two keys too narrow": _wider(-2, "left"),
        **{f"its left side is rounded up to a multiple of {n}": (lambda w, n=n: (_to(w.left, n), w.right))
           for n in (4, 8, 16, 32, 64)},
        **{f"its left side is rounded down to a multiple of {n}": (lambda w, n=n: (
            w.left if w.left is None else w.left // n * n, w.right)) for n in (4, 8, 16, 32, 64)},
        "its size counts both sides: each has half":
            lambda w: tuple(n if n is None else n // 2 for n in (w.left, w.right)),
    },  # fmt: skip
)  # fmt: skip
class window(Model):
    """A window: {how}."""

    how: Callable[[Window], tuple[Any, Any]]

    def visible(self) -> Array:
        def other(m: Any) -> Mask:
            return _window(*type(self).how(m), m.align) if isinstance(m, Window) else m

        mask = rewritten(self.case.mask, other)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


def _to(n: int | None, size: int) -> int | None:
    return None if n is None else -(-n // size) * size


@kind(
    lambda case: _has(case, Window) and any(lq != lk for lq, lk in zip(*case.lengths, strict=True)),
    left={"top left": "top_left", "bottom right": "bottom_right"},
)  # fmt: skip
class window_sides_aligned(Model):
    """The left side of a window is aligned at the {left}, the right one at the other end."""

    left = "top_left"

    def visible(self) -> Array:
        def told(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            own = (i, i + lk - lq) if self.left == "top_left" else (i + lk - lq, i)
            after = np.ones((), bool) if m.left is None else j >= own[0] - m.left
            return np.asarray(after if m.right is None else after & (j <= own[1] + m.right))

        mask = rewritten(self.case.mask, lambda m: Asked(m, told) if isinstance(m, Window) else m)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


def _window(left: int | None, right: int | None, align: Any) -> Mask:
    """A window whose sides may be negative."""

    def seen(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        own = i if align == "top_left" else i + lk - lq
        after = np.ones((), bool) if left is None else j >= own - left
        return np.asarray(after if right is None else after & (j <= own + right))

    return Asked(Window(None, None, align), seen)


@kind(
    lambda case, how: _has(case, how.of[0]),
    of={
        "a prefix is one key too short": (Prefix, lambda m: dataclasses.replace(m, length=_plus(m.length, -1))),
        "a prefix is one key too long": (Prefix, lambda m: dataclasses.replace(m, length=_plus(m.length, 1))),
        "the prefix is lost: all is causal": (Prefix, lambda m: Causal(m.align)),
        "the prefix alone is seen": (Prefix, lambda m: SinkTokens(m.length) if isinstance(m.length, int)
                                     else Padding(m.length)),
        "the prefix of the first entry is used for all": (Prefix, lambda m: m if isinstance(m.length, int)
                                                          else Prefix(m.length[0], m.align)),
        "one sink token fewer is kept": (SinkTokens, lambda m: SinkTokens(max(m.n - 1, 0))),
        "one sink token more is kept": (SinkTokens, lambda m: SinkTokens(m.n + 1)),
        "one key more than the padding says is seen": (Padding, lambda m: Padding(_plus(m.lengths, 1))),
        "one key fewer than the padding says is seen": (Padding, lambda m: Padding(_plus(m.lengths, -1))),
        "the padding of the first entry is used for all": (Padding, lambda m: Padding(m.lengths[:1] * len(m.lengths))),
        "a chunk is taken for a window of its size": (Chunked, lambda m: Window(m.size - 1, None, m.align)),
        "a chunk is taken for a causal window of its size": (Chunked, lambda m: Window(m.size - 1, 0, m.align)),
        "a chunk is taken for a window of one key more": (Chunked, lambda m: Window(m.size, None, m.align)),
        "a chunk is one key too long": (Chunked, lambda m: dataclasses.replace(m, size=m.size + 1)),
        "a chunk is one key too short": (Chunked, lambda m: dataclasses.replace(m, size=max(1, m.size - 1))),
        "the first key of the next chunk is seen too": (Chunked, lambda m: Asked(m, _first_of_next)),
        "the last key of the chunk before is seen too": (Chunked, lambda m: Asked(m, _last_before)),
        "the first key of a chunk is hidden": (Chunked, lambda m: Asked(m, lambda m, b, h, i, j, lq, lk: (
            m(b, h, i, j, lq, lk) & (j % m.size != 0)))),
        "the last key of a chunk is hidden": (Chunked, lambda m: Asked(m, lambda m, b, h, i, j, lq, lk: (
            m(b, h, i, j, lq, lk) & (j % m.size != m.size - 1)))),
        "chunks are told by a division that rounds to 0: a query before key 0 is in the first": (
            Chunked, lambda m: Asked(m, _first_before_key_0)),
        "chunks are counted back from the last key": (Chunked, lambda m: Asked(m, lambda m, b, h, i, j, lq, lk: (
            (lk - 1 - j) // m.size == (lk - 1 - (i if m.align == "top_left" else i + lk - lq)) // m.size))),
        "all chunks up to the query's own are seen": (Chunked, lambda m: Asked(m, _later)),
        "a dilated window is one step too wide": (Dilated, lambda m: dataclasses.replace(m, window=m.window + 1)),
        "a dilated window is one step too narrow": (Dilated,
        lambda m: dataclasses.replace(m, window=max(0, m.window - 1))),
        "the document ids of the first entry are used for all": (
            Documents, lambda m: Documents(*(ids if not (ids and isinstance(ids[0], tuple)) else ids[:1] * len(ids)
                                             for ids in (m.q_ids, m.k_ids)))),
        "documents are told by the keys' ids alone": (Documents, lambda m: Documents(m.k_ids or m.q_ids)),
        "documents are told by the queries' ids alone": (Documents, lambda m: _ids_of_queries(m)),
        "a query sees the documents after its own too": (Documents, lambda m: Asked(m, _later)),
        "documents are told by the id of the next key": (Documents, lambda m: Asked(m, _beside(0, 1))),
        "documents are told by the id of the key before": (Documents, lambda m: Asked(m, _beside(0, -1))),
        "documents are told by the id of the next query": (Documents, lambda m: Asked(m, _beside(1, 0))),
        "documents are told by the id of the query before": (Documents, lambda m: Asked(m, _beside(-1, 0))),
        "documents are told by the id of the first query": (Documents, lambda m: Asked(m, _beside(-(2**20), 0))),
        "a query sees the documents before its own too": (Documents, lambda m: Asked(m, _earlier)),
    },
)  # fmt: skip
class pattern(Model):
    """{of}."""

    of: tuple[type[Mask], Callable[[Any], Mask]] = (Mask, lambda m: m)

    def visible(self) -> Array:
        def other(m: Any) -> Mask:
            return self.of[1](m) if isinstance(m, self.of[0]) else m

        mask = rewritten(self.case.mask, other)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


def _first_of_next(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    return np.asarray(m(b, h, i, j, lq, lk) | ((j % m.size == 0) & m(b, h, i, np.maximum(j - 1, 0), lq, lk)))


def _last_before(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    return np.asarray(m(b, h, i, j, lq, lk) | ((j % m.size == m.size - 1) & m(b, h, i, j + 1, lq, lk)))


def _first_before_key_0(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    own = diagonal(m.align, i, lq, lk)
    before = (own < 0) & (own > -m.size) & (j < m.size)
    return np.asarray(m(b, h, i, j, lq, lk) | before)


def _plus(n: Any, by: int) -> Any:
    return max(n + by, 0) if isinstance(n, int) else tuple(max(x + by, 0) for x in n)


def _later(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    return np.asarray(np.logical_or.accumulate(m(b, h, i, j, lq, lk), -1))


def _beside(q: int, k: int) -> Callable[..., Array]:
    """Told by the id of a query and a key so much further."""

    def told(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        row, key = (np.clip(x + by, 0, x.max(initial=0)) for x, by in ((i, q), (j, k)))
        return m(b, h, row, key, lq, lk)

    return told


def _ids_of_queries(m: Any) -> Mask:
    """The ids of queries for those of keys, the last one's for keys past them."""
    if m.k_ids is None:
        return Asked(m, _beside(0, 0))

    def longer(ids: Any, n: int) -> Any:
        return (*ids, *(ids[-1:] * n))[:n]

    if isinstance(m.q_ids[0], tuple):
        return Documents(m.q_ids, tuple(longer(ids, len(k)) for ids, k in zip(m.q_ids, m.k_ids, strict=False)))
    return Documents(m.q_ids, longer(m.q_ids, len(m.k_ids)))


def _earlier(m: Documents, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    size = max(int(i.max(initial=0)), int(j.max(initial=0))) + 1
    found = np.zeros(np.broadcast_shapes(b.shape, h.shape, i.shape, j.shape), bool)
    for back in range(size):
        found = found | m(b, h, np.maximum(i - back, 0), j, lq, lk)
    return found


def joined(mask: Any, change: Callable[[Any], Any]) -> Any:
    """The mask with each pair of joined ones changed."""
    if isinstance(mask, Not):
        return Not(joined(mask.mask, change))
    if isinstance(mask, (And, Or)):
        return change(type(mask)(joined(mask.left, change), joined(mask.right, change)))
    return mask


@kind(
    lambda case, how: f" {how.of[0]} " in repr(case.mask),
    of={
        "joined by and, the first alone is applied": ("&", And, lambda m: m.left),
        "joined by and, the second alone is applied": ("&", And, lambda m: m.right),
        "joined by and, either is enough": ("&", And, lambda m: m.left | m.right),
        "joined by and, none is applied": ("&", And, lambda m: Window(None, None, "top_left")),
        "joined by or, the first alone is applied": ("|", Or, lambda m: m.left),
        "joined by or, the second alone is applied": ("|", Or, lambda m: m.right),
        "joined by or, both are needed": ("|", Or, lambda m: m.left & m.right),
    },
)
class joined_masks(Model):
    """Of two masks {of}."""

    of: Any = ()

    def visible(self) -> Array:
        mask = joined(self.case.mask, lambda m: self.of[2](m) if isinstance(m, self.of[1]) else m)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


@kind(lambda case: "~" in repr(case.mask), how={
    "is taken as it is": lambda m: m, "is not applied": lambda m: Window(None, None, "top_left"),
    "hides all": lambda m: Not(Window(None, None, "top_left")),
})  # fmt: skip
class negated(Model):
    """A mask of which the opposite is asked {how}."""

    how: Callable[[Mask], Mask]

    def visible(self) -> Array:
        return np.asarray(dataclasses.replace(self.case.visibility, mask=self.other(self.case.mask)).tile())

    def other(self, m: Any) -> Any:
        if isinstance(m, Not):
            return type(self).how(m.mask)
        return type(m)(self.other(m.left), self.other(m.right)) if isinstance(m, (And, Or)) else m
