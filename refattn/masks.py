"""The kinds of masks: the common rules are here, drawn masks in `refattn.drawn`, patterns in `refattn.patterns`.

Their algebra and their tiles are in `refattn.visibility`; all public names can be had from here.
Each docstring shows its picture, rows = queries, x = may attend:

>>> print(picture(Causal("bottom_right"), 2, 4))
xxx.
xxxx
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .drawn import BlockSparse, Dense
from .patterns import Chunked, Dilated, Gathered, GlobalTokens, Tree
from .storage import part_from_json
from .visibility import Align, And, Mask, Not, Or, Visibility, check_align, check_int, diagonal, picture

__all__ = [
    "BlockSparse",
    "Causal",
    "Chunked",
    "Dense",
    "Dilated",
    "Documents",
    "Gathered",
    "GlobalTokens",
    "Mask",
    "Padding",
    "Prefix",
    "SinkTokens",
    "Tree",
    "Visibility",
    "Window",
    "mask_from_json",
    "picture",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Causal(Mask):
    """j <= i ("top_left") or j <= i + lk - lq ("bottom_right": the last query sees the last key).

    >>> print(picture(Causal("top_left"), 2, 4))
    x...
    xx..
    >>> print(picture(Causal("bottom_right"), 3, 2))
    ..
    x.
    xx
    """

    align: Align

    def __post_init__(self) -> None:
        super().__post_init__()
        check_align(self.align)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.less_equal(j, diagonal(self.align, i, lq, lk))

    def __repr__(self) -> str:
        return f"Causal({self.align!r})"


@dataclass(frozen=True)
class Window(Mask):
    """`left` keys before the diagonal and `right` after it, both inclusive; None = no limit.

    >>> print(picture(Window(1, 0, "top_left"), 4, 4))
    x...
    xx..
    .xx.
    ..xx
    >>> print(picture(Window(0, 1, "bottom_right"), 2, 4))
    ..xx
    ...x
    """

    left: int | None
    right: int | None
    align: Align

    def __post_init__(self) -> None:
        super().__post_init__()
        check_align(self.align)
        for name, value in (("left", self.left), ("right", self.right)):
            if value is not None:
                check_int(name, value, 0, "; pass None for no limit")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        own = diagonal(self.align, i, lq, lk)
        seen: Array = np.ones((), dtype=bool)
        if self.left is not None:
            seen = seen & (j >= own - self.left)
        if self.right is not None:
            seen = seen & (j <= own + self.right)
        return seen

    def __repr__(self) -> str:
        return f"Window({self.left}, {self.right}, {self.align!r})"


@dataclass(frozen=True)
class Prefix(Mask):
    """Prefix-LM: the first `length` keys are seen by all, the rest causally.

    `length` is an int, or one for each batch entry.

    >>> print(picture(Prefix(2, "top_left"), 4, 4))
    xx..
    xx..
    xxx.
    xxxx
    """

    length: int | tuple[int, ...]
    align: Align

    def __post_init__(self) -> None:
        super().__post_init__()
        check_align(self.align)
        for n in self.length if isinstance(self.length, tuple) else (self.length,):
            check_int("length", n, 0)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.logical_or(
            np.less(j, _per_batch(self.length, b, "length")), np.less_equal(j, diagonal(self.align, i, lq, lk))
        )

    def __repr__(self) -> str:
        return f"Prefix({self.length}, {self.align!r})"


@dataclass(frozen=True)
class Documents(Mask):
    """Query i sees key j where their segment ids are equal.

    `q_ids` holds one id for each query, `k_ids` for each key (None: the same); nested one level
    deeper, one row for each batch entry.

    >>> print(picture(Documents((0, 0, 1)), 3, 3))
    xx.
    xx.
    ..x
    """

    q_ids: tuple[Any, ...]
    k_ids: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _id_table.__wrapped__(self.q_ids, "q_ids")  # checked anew: a cache takes 1.0 for 1
        if self.k_ids is not None:
            _id_table.__wrapped__(self.k_ids, "k_ids")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        keys = self.q_ids if self.k_ids is None else self.k_ids
        return np.equal(_look_up(self.q_ids, b, i, "q_ids"), _look_up(keys, b, j, "k_ids"))

    def __repr__(self) -> str:
        return f"Documents({self.q_ids})" if self.k_ids is None else f"Documents({self.q_ids}, {self.k_ids})"


@dataclass(frozen=True)
class Padding(Mask):
    """Hides the keys from `lengths[b]` on.  The memory exists; alignment does not change.

    >>> print(picture(Padding((2,)), 2, 4))
    xx..
    xx..
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.lengths, tuple):
            raise ValueError(f"lengths={self.lengths!r} must be a tuple, one length for each batch entry")
        for n in self.lengths:
            check_int("length", n, 0)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.less(j, _per_batch(self.lengths, b, "lengths"))

    def __repr__(self) -> str:
        return f"Padding({self.lengths})"


@dataclass(frozen=True)
class SinkTokens(Mask):
    """The first n keys, to be joined to another mask with `|` (StreamingLLM).

    >>> print(picture(Window(0, 0, "top_left") | SinkTokens(1), 3, 3))
    x..
    xx.
    x.x
    """

    n: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("n", self.n, 0)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.less(j, self.n)

    def __repr__(self) -> str:
        return f"SinkTokens({self.n})"


def mask_from_json(data: Mapping[str, Any] | None) -> Mask | None:
    """The mask that `to_json` described."""
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise ValueError(f"mask={data!r} must be an object whose type says which mask it is")
    rules = (Causal, Window, Prefix, Documents, Padding, SinkTokens)
    others = (BlockSparse, Dense, Chunked, Dilated, GlobalTokens, Tree, Gathered)
    kinds: dict[Any, Any] = {c.__name__: c for c in (And, Or, Not, *rules, *others)}
    kind = kinds.get(data.get("type"))
    if kind is None:
        raise ValueError(f"type={data.get('type')!r} of a mask is not one of {', '.join(kinds)}")
    values = {k: mask_from_json(v) if isinstance(v, Mapping) else v for k, v in data.items() if k != "type"}
    return part_from_json(kind, f"mask of type {kind.__name__}", values)


def _per_batch(value: int | tuple[int, ...], b: Array, name: str) -> Array:
    if isinstance(value, int):
        return np.array(value)
    if b.size and b.max() >= len(value):
        raise ValueError(f"{name}={value} must hold one value for each of B={int(b.max()) + 1} batch entries")
    return np.array(value)[b]


def _look_up(ids: tuple[Any, ...], b: Array, index: Array, name: str) -> Array:
    table = _id_table(ids, name)
    entry = b if ids and isinstance(ids[0], tuple) else np.zeros_like(b)
    needed = tuple(int(x.max(initial=-1)) + 1 for x in (entry, index))
    if needed[0] > table.shape[0] or needed[1] > table.shape[1]:
        raise ValueError(f"{name} of shape {table.shape} is too small for (batch entries, tokens)={needed}")
    return np.asarray(table[entry, index])


@lru_cache(maxsize=64)
def _id_table(ids: tuple[Any, ...], name: str) -> Array:
    """Segment ids as an array (batch entries, tokens); one row for all if `ids` is not nested."""
    rows = ids if ids and isinstance(ids[0], tuple) else (ids,)
    for row in rows:
        if not isinstance(row, tuple) or len(row) != len(rows[0]) or not all(type(x) is int for x in row):
            raise ValueError(f"{name}={ids!r} must be a tuple of ints, or of such tuples, all of one length")
        if not all(-(2**63) <= x < 2**63 for x in row):
            raise ValueError(f"{name}={ids!r} must hold ints of 64 bits")
    return np.array(rows, dtype=np.int64)
