"""Masks of the practical variants: chunks, dilated windows, global tokens, token trees, gathered keys.

Where a query has to be set against keys it stands at its position, `diagonal(align, i, lq, lk)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .visibility import Align, Mask, check_align, check_int, diagonal

__all__ = ["Chunked", "Dilated", "Gathered", "GlobalTokens", "Tree"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Chunked(Mask):
    """Query and key stand in the same chunk: position // size is equal.  To be joined to `Causal` with `&`.

    Llama 4's attention_chunk_size, and attention_chunk of FlashAttention-3 (hopper/mask.h), which puts
    row i at i + lk - lq: "bottom_right".  A query that stands before key 0 sees nothing.

    >>> from refattn.visibility import picture
    >>> print(picture(Chunked(2, "top_left"), 4, 4))
    xx..
    xx..
    ..xx
    ..xx
    >>> print(picture(Chunked(2, "bottom_right"), 2, 3))
    xx.
    ..x
    """

    size: int
    align: Align

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("size", self.size, 1)
        check_align(self.align)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.equal(j // self.size, diagonal(self.align, i, lq, lk) // self.size)

    def __repr__(self) -> str:
        return f"Chunked({self.size}, {self.align!r})"


@dataclass(frozen=True)
class Dilated(Mask):
    """`window` keys on each side of the query's own, every `dilation`-th: a dilated sliding window.

    Longformer (Beltagy et al. 2020, section 3.1), counted as in its code: `window` is one side (w/2 of
    the paper), and 1 is no dilation.  `dilation` is an int, or one for each head.

    >>> from refattn.visibility import picture
    >>> print(picture(Dilated(1, 2, "top_left"), 4, 5))
    x.x..
    .x.x.
    x.x.x
    .x.x.
    """

    window: int
    dilation: int | tuple[int, ...]
    align: Align

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("window", self.window, 0)
        for n in self.dilation if isinstance(self.dilation, tuple) else (self.dilation,):
            check_int("dilation", n, 1, "; 1 is a window without gaps")
        check_align(self.align)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        step: Any = self.dilation
        if isinstance(step, tuple):
            _check_entries("dilation", step, len(step), "head", h)
            step = np.array(step, dtype=np.int64)[h]
        distance = np.abs(j - diagonal(self.align, i, lq, lk))
        return np.logical_and(np.equal(distance % step, 0), np.less_equal(distance // step, self.window))

    def __repr__(self) -> str:
        return f"Dilated({self.window}, {self.dilation}, {self.align!r})"


@dataclass(frozen=True)
class GlobalTokens(Mask):
    """All see the keys at these positions, and queries at these positions see all.  To be joined with `|`.

    The global attention of Longformer (Beltagy et al. 2020, section 3.1), which goes both ways.
    `tokens` holds positions, or nested one level deeper a tuple of them for each batch entry.

    >>> from refattn.visibility import picture
    >>> print(picture(Dilated(0, 1, "top_left") | GlobalTokens((1,), "top_left"), 4, 4))
    xx..
    xxxx
    .xx.
    .x.x
    """

    tokens: tuple[Any, ...]
    align: Align

    def __post_init__(self) -> None:
        super().__post_init__()
        for row in _rows(self.tokens, "tokens"):
            for n in row:
                check_int("token", n, 0)
        check_align(self.align)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        table = _table(self.tokens, "tokens")
        rows = table[_entry(self.tokens, len(table), b, "tokens")]
        own = diagonal(self.align, i, lq, lk)
        return np.logical_or(_any_equal(rows, j), _any_equal(rows, own))

    def __repr__(self) -> str:
        return f"GlobalTokens({self.tokens}, {self.align!r})"


@dataclass(frozen=True)
class Tree(Mask):
    """Tree attention of speculative decoding: the last n tokens are the nodes of a tree, drafted after the rest.

    Node u sees all keys before the tree, its ancestors and itself; `parents[u]` is an earlier node, or
    -1.  Nested one level deeper: a tree for each batch entry, of any size.  Queries and keys end
    together; queries before the tree are causal, so that a chain is `Causal("bottom_right")`.
    SpecInfer (Miao et al. 2023, tree attention), Medusa (Cai et al. 2024, tree attention).

    >>> from refattn.visibility import picture
    >>> print(picture(Tree((-1, 0, 0, 1)), 4, 6))
    xxx...
    xxxx..
    xxx.x.
    xxxx.x
    """

    parents: tuple[Any, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for row in _rows(self.parents, "parents"):
            for node, parent in enumerate(row):
                if not -1 <= parent < node:
                    raise ValueError(f"parents[{node}]={parent} must be a node before {node}; pass -1 for none")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        sizes, ancestors = _ancestors(self.parents)
        entry = _entry(self.parents, len(sizes), b, "parents")
        position = diagonal("bottom_right", i, lq, lk)
        causal = np.less_equal(j, position)
        last = ancestors.shape[-1] - 1
        if last < 0:
            return causal
        start = lk - sizes[entry]
        u, v = position - start, j - start
        seen = ancestors[entry, np.clip(u, 0, last), np.clip(v, 0, last)]
        return np.where((u >= 0) & (v >= 0), seen, causal)

    def __repr__(self) -> str:
        return f"Tree({self.parents})"


@dataclass(frozen=True)
class Gathered(Mask):
    """Each query's keys by their indices, a tuple for each row, nested by head, then by batch, as in `Dense`.

    Sparse attention over given indices: DeepSeek's (FlashMLA, `indices`), gather_kv_indices of
    flash_attn.cute.  -1 is no key, nor is an index from lk on.  The order says nothing.  Kernels that
    gather count an index given twice as two keys, which no mask can say: refused.  Rows beyond the
    table see nothing; a single head or batch entry serves all.

    >>> from refattn.visibility import picture
    >>> print(picture(Gathered(((3, 0), (-1, 2), (-1, -1))), 3, 4))
    x..x
    ..x.
    ....
    """

    indices: tuple[Any, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _indices.__wrapped__(self.indices)  # checked anew: a cache takes 1.0 for 1

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        table = _indices(self.indices)
        B, H, rows, _ = table.shape
        for name, n, index in (("batch", B, b), ("head", H, h)):
            if n != 1:
                _check_entries("indices", self.indices, n, name, index)
        inside = np.less(i, rows)
        if rows == 0:
            return np.logical_and(inside, np.less(j, 0))
        b, h = (b if B > 1 else np.intp(0)), (h if H > 1 else np.intp(0))
        return np.logical_and(inside, _any_equal(table[b, h, np.minimum(i, rows - 1)], j))

    def __repr__(self) -> str:
        return f"Gathered({self.indices})"


_NOTHING = np.iinfo(np.int64).min
"""fills rows up; no position"""


def _any_equal(rows: Array, x: Array) -> Array:
    """Whether x is one of the entries along the last axis, which is taken in turn: no array holds all pairs."""
    seen = np.zeros(np.broadcast_shapes(rows.shape[:-1], np.shape(x)), dtype=bool)
    for n in range(rows.shape[-1]):
        seen |= np.equal(rows[..., n], x)
    return seen


def _rows(value: Any, name: str) -> tuple[tuple[int, ...], ...]:
    """A row of ints for all batch entries, or one for each."""
    rows: Any = value if isinstance(value, tuple) and value and isinstance(value[0], tuple) else (value,)
    if not all(isinstance(row, tuple) and all(type(x) is int for x in row) for row in rows):
        raise ValueError(f"{name}={value!r} must be a tuple of ints, or one such tuple for each batch entry")
    return tuple(rows)


@lru_cache(maxsize=64)
def _table(value: tuple[Any, ...], name: str) -> Array:
    """The rows (batch entries, longest), filled up."""
    rows = _rows(value, name)
    table = np.full((len(rows), max(map(len, rows))), _NOTHING)
    for one, row in zip(table, rows, strict=True):
        one[: len(row)] = row
    return table


@lru_cache(maxsize=64)
def _ancestors(parents: tuple[Any, ...]) -> tuple[Array, Array]:
    """The number of nodes of each tree, and whether node v is u or an ancestor of it: (trees, u, v)."""
    trees = _rows(parents, "parents")
    sizes = np.array([len(tree) for tree in trees], dtype=np.int64)
    most = int(sizes.max())
    ancestors = np.zeros((len(trees), most, most), dtype=bool)
    for one, tree in zip(ancestors, trees, strict=True):
        for u, parent in enumerate(tree):
            if parent >= 0:
                one[u] = one[parent]
            one[u, u] = True
    return sizes, ancestors


def _entry(value: tuple[Any, ...], n: int, b: Array, name: str) -> Array:
    """Which of the n rows each batch entry has: the first if there is one for all."""
    if not (value and isinstance(value[0], tuple)):
        return np.zeros_like(b)
    _check_entries(name, value, n, "batch", b)
    return b


def _check_entries(name: str, value: Any, n: int, what: str, index: Array) -> None:
    if index.size and index.max() >= n:
        raise ValueError(f"{name}={value} is for {n} {what} entries and has none for {what} {int(index.max())}")


@lru_cache(maxsize=64)
def _indices(indices: tuple[Any, ...]) -> Array:
    """Indices (B, H, rows, keys)."""
    try:
        table = np.array(indices, dtype=object)
        if table.size and {type(x) for x in table.flat} != {int}:
            raise TypeError
        table = table.astype(np.int64)
    except (TypeError, ValueError):
        raise ValueError(
            f"indices={indices!r} must be rows of ints, all of one length; fill short ones up with -1"
        ) from None
    if indices == ():
        table = table.reshape(0, 0)
    if not 2 <= table.ndim <= 4:
        raise ValueError(f"indices={indices!r} must have rows of ints, [heads, [batch]] levels, not {table.ndim - 1}")
    if table.size and table.min() < -1:
        raise ValueError(f"index={int(table.min())} must be a key; pass -1 for none")
    ordered = np.sort(table, axis=-1)
    twice = ordered[..., 1:][(ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)]
    if twice.size:
        raise ValueError(f"index={int(twice[0])} must be given once in a row; fill the row up with -1")
    return table.reshape((1,) * (4 - table.ndim) + table.shape)
