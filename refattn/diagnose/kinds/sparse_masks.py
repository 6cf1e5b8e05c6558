"""Hypotheses on sparse masks: blocks, dilated windows, global tokens, trees, gathered keys, and keys of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...masks import BlockSparse, Chunked, Dilated, GlobalTokens, Mask, Prefix, SinkTokens, Tree
from ...masks import Gathered as GatheredKeys
from ...mutants import rewritten
from ...visibility import diagonal
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import Asked, _has

__all__: list[str] = []

Ask = Callable[..., Array]
"""(mask, b, h, i, j, lq, lk) -> which pairs are seen"""


def _moved(rows: int, keys: int) -> Ask:
    return lambda m, b, h, i, j, lq, lk: m(b, h, np.maximum(i + rows, 0), np.maximum(j + keys, 0), lq, lk)


def _turned(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    """Blocks of keys and rows exchanged."""
    return np.asarray(m(b, h, j // m.block_k * m.block_q, i // m.block_q * m.block_k, lq, lk))


def _sized(m: Any, sides: str, by: float) -> Any:
    return dataclasses.replace(m, **{f"block_{n}": max(1, int(getattr(m, f"block_{n}") * by)) for n in sides})


def _keys_global(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    """Asked at a query that is none of them."""
    far = i + 10 * (lk + lq) + 10_000
    return np.asarray(m(b, h, far, j, lq, lk))


def _queries_global(m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    return np.asarray(m(b, h, i, j + 10_000_000, lq, lk))


def _step(m: Any, h: Array) -> Any:
    return np.array(m.dilation, np.int64)[h] if isinstance(m.dilation, tuple) else m.dilation


def _distance(m: Any, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    return np.abs(j - diagonal(m.align, i, lq, lk))


def _from_tree(m: Any, lk: Array) -> Array:
    """Where the tree begins, for each entry."""
    sizes = [len(p) for p in m.parents] if m.parents and isinstance(m.parents[0], tuple) else [len(m.parents)]
    return np.asarray(lk - np.resize(sizes, lk.shape))


def _planted(
    m: Any, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array, rows: Array, keys: Array
) -> Array:  # fmt: skip
    """With node 0 at these places, of queries among the keys and of keys; tokens before or beyond it are causal."""
    start, own = _from_tree(m, lk), diagonal("bottom_right", i, lq, lk)
    size = lk - start
    u, v = own - rows, j - keys
    nodes = m(b, h, u + start - lk + lq, v + start, lq, lk)
    among = (u >= 0) & (u < size)
    return np.asarray(np.where(among, (v < 0) | (nodes & (v < size)), j <= own))


def _near(m: Any, b: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    """Whether a key is a query's parent, itself, or no node."""
    trees = m.parents if m.parents and isinstance(m.parents[0], tuple) else (m.parents,)
    n = max((len(p) for p in trees), default=0)
    parents = np.array([(*p, *(-1 for _ in range(n - len(p)))) for p in trees], int).reshape(len(trees), n)
    start, own = _from_tree(m, lk), diagonal("bottom_right", i, lq, lk)
    u = np.clip(own - start, 0, max(n - 1, 0))
    parent = parents[np.minimum(b, len(trees) - 1), u] if n else 0 * u - 1
    return np.asarray((j < start) | (own < start) | (j == own) | (j == parent + start))


SPARSE: dict[str, tuple[type[Mask], Ask]] = {
    "blocks: rows and columns are exchanged": (BlockSparse, _turned),
    "blocks: those of head 0 for all": (BlockSparse, lambda m, b, h, i, j, lq, lk: m(b, h * 0, i, j, lq, lk)),
    "blocks: the column of the one before": (
        BlockSparse, lambda m, b, h, i, j, lq, lk: m(b, h, i, np.maximum(j - m.block_k, 0), lq, lk)),
    "blocks: the row of the one before": (
        BlockSparse, lambda m, b, h, i, j, lq, lk: m(b, h, np.maximum(i - m.block_q, 0), j, lq, lk)),
    "blocks: keys by the size of blocks of queries": (
        BlockSparse, lambda m, b, h, i, j, lq, lk: m(b, h, i, j // m.block_q * m.block_k, lq, lk)),
    "blocks: queries by the size of blocks of keys": (
        BlockSparse, lambda m, b, h, i, j, lq, lk: m(b, h, i // m.block_k * m.block_q, j, lq, lk)),
    **{f"blocks: {words} {how} as large": (
        BlockSparse, lambda m, b, h, i, j, lq, lk, sides=sides, by=by: _sized(m, sides, by)(b, h, i, j, lq, lk))
       for words, sides in (("they are", "qk"), ("of queries", "q"), ("of keys", "k"))
       for how, by in (("half", 0.5), ("twice", 2))},
    "a dilated window has no gaps": (
        Dilated, lambda m, b, h, i, j, lq, lk: _distance(m, i, j, lq, lk) <= m.window * _step(m, h)),
    "a dilated window is as wide as one without gaps": (
        Dilated, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & (_distance(m, i, j, lq, lk) <= m.window)),
    "a dilated window looks to the left alone": (
        Dilated, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & (j <= diagonal(m.align, i, lq, lk))),
    "a dilated window has the dilation of head 0": (
        Dilated, lambda m, b, h, i, j, lq, lk: m(b, h * 0, i, j, lq, lk)),
    "a dilated window has gaps one longer": (
        Dilated, lambda m, b, h, i, j, lq, lk: (_distance(m, i, j, lq, lk) % (_step(m, h) + 1) == 0)
        & (_distance(m, i, j, lq, lk) // (_step(m, h) + 1) <= m.window)),
    "a dilated window counts from key 0, not from the query": (
        Dilated, lambda m, b, h, i, j, lq, lk: (j % _step(m, h) == 0)
        & (_distance(m, i, j, lq, lk) <= m.window * _step(m, h))),
    "global tokens: all see them, and they see what others see": (GlobalTokens, _keys_global),
    "global tokens: they see all, and others do not see them": (GlobalTokens, _queries_global),
    "global tokens: the key after each": (GlobalTokens, _moved(0, -1)),
    "global tokens: the query after each": (GlobalTokens, _moved(-1, 0)),
    "global tokens: those of entry 0 for all": (
        GlobalTokens, lambda m, b, h, i, j, lq, lk: m(b * 0, h, i, j, lq, lk)),
    "global tokens: queries are told by i, not by their position": (
        GlobalTokens, lambda m, b, h, i, j, lq, lk: dataclasses.replace(m, align="top_left")(b, h, i, j, lq, lk)),
    "a tree is taken for a chain: it is causal": (
        Tree, lambda m, b, h, i, j, lq, lk: j <= diagonal("bottom_right", i, lq, lk)),
    "a tree: its nodes do not see the keys before it": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & (j >= _from_tree(m, lk))),
    "a tree: its nodes see all of it": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) | (
            (j >= _from_tree(m, lk)) & (diagonal("bottom_right", i, lq, lk) >= _from_tree(m, lk)))),
    "a tree: a node does not see itself": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & (j != diagonal("bottom_right", i, lq, lk))),
    "a tree: a node sees itself and the keys before it alone": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & (
            (j < _from_tree(m, lk)) | (j == diagonal("bottom_right", i, lq, lk)))),
    "a tree: ancestors are read the other way round": (
        Tree, lambda m, b, h, i, j, lq, lk: np.where(
            (j >= _from_tree(m, lk)) & (diagonal("bottom_right", i, lq, lk) >= _from_tree(m, lk)),
            m(b, h, j - lk + lq, i + lk - lq, lq, lk), m(b, h, i, j, lq, lk))),
    "a tree: it begins at the first query": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(m, b, h, i, j, lq, lk, lk - lq, lk - lq)),
    "a tree: it begins at the first query, which sees no keys but nodes": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(m, b, h, i, j, lq, lk, lk - lq, lk - lq) & (
            (j >= lk - lq) | (i >= lk - _from_tree(m, lk)))),
    "a tree: it begins at the first key": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(m, b, h, i, j, lq, lk, 0 * lk, 0 * lk)),
    "a tree: queries are told by i, and not where they are among the keys": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i - lk + lq, j, lq, lk)),
    "a tree: its nodes are the first queries, and its keys the last": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(m, b, h, i, j, lq, lk, lk - lq, _from_tree(m, lk))),
    "a tree: its nodes are the last queries, and its keys those of the first ones": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(m, b, h, i, j, lq, lk, _from_tree(m, lk), lk - lq)),
    "a tree: it begins a token too early": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(
            m, b, h, i, j, lq, lk, _from_tree(m, lk) - 1, _from_tree(m, lk) - 1)),
    "a tree: it begins a token too late": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(
            m, b, h, i, j, lq, lk, _from_tree(m, lk) + 1, _from_tree(m, lk) + 1)),
    "a tree: the nodes begin a token too early, their keys where they do": (
        Tree, lambda m, b, h, i, j, lq, lk: _planted(m, b, h, i, j, lq, lk, _from_tree(m, lk) - 1, _from_tree(m, lk))),
    "a tree: tokens before it see all that is before it": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) | (
            (j < _from_tree(m, lk)) & (diagonal("bottom_right", i, lq, lk) < _from_tree(m, lk)))),
    "a tree: tokens before it see nothing": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & (
            diagonal("bottom_right", i, lq, lk) >= _from_tree(m, lk))),
    "a tree: a node sees its parent alone, besides itself and the keys before": (
        Tree, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & _near(m, b, i, j, lq, lk)),
    "a tree: that of entry 0 for all": (Tree, lambda m, b, h, i, j, lq, lk: m(b * 0, h, i, j, lq, lk)),
    "gathered keys: the indices of head 0 for all": (
        GatheredKeys, lambda m, b, h, i, j, lq, lk: m(b, h * 0, i, j, lq, lk)),
    "gathered keys: the indices of entry 0 for all": (
        GatheredKeys, lambda m, b, h, i, j, lq, lk: m(b * 0, h, i, j, lq, lk)),
    "gathered keys: the indices of row 0 for all": (
        GatheredKeys, lambda m, b, h, i, j, lq, lk: m(b, h, i * 0, j, lq, lk)),
    "gathered keys: the indices of the row before": (GatheredKeys, _moved(-1, 0)),
    "gathered keys: those after the ones that the indices say": (GatheredKeys, _moved(0, -1)),
    "gathered keys: -1 is key 0": (
        GatheredKeys, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) | (m(b, h, i, 0 * j - 1, lq, lk) & (j == 0))),
    "gathered keys: -1 is the last key": (
        GatheredKeys, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) | (
            m(b, h, i, 0 * j - 1, lq, lk) & (j == lk - 1))),
    "sink tokens: told by the place of the query": (
        SinkTokens, lambda m, b, h, i, j, lq, lk: i + 0 * j < m.n),
    "sink tokens: seen where the window begins before them alone": (
        SinkTokens, lambda m, b, h, i, j, lq, lk: (j < m.n) & (i < m.n)),
    "a prefix: its queries alone see all of it": (
        Prefix, lambda m, b, h, i, j, lq, lk: (
            m(b, h, i, j, lq, lk) & (diagonal(m.align, i, lq, lk) < _length(m, b)))
        | (j <= diagonal(m.align, i, lq, lk))),
    "a prefix: its queries see nothing but it, others what comes before them": (
        Prefix, lambda m, b, h, i, j, lq, lk: np.where(
            diagonal(m.align, i, lq, lk) < _length(m, b), j < _length(m, b), j <= diagonal(m.align, i, lq, lk))),
    "chunks: half as long": (
        Chunked, lambda m, b, h, i, j, lq, lk: dataclasses.replace(m, size=max(1, m.size // 2))(b, h, i, j, lq, lk)),
    "chunks: twice as long": (
        Chunked, lambda m, b, h, i, j, lq, lk: dataclasses.replace(m, size=2 * m.size)(b, h, i, j, lq, lk)),
    "chunks: that before the query's own is seen too": (
        Chunked, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) | m(b, h, i, j + m.size, lq, lk)),
}  # fmt: skip


def _length(m: Any, b: Array) -> Any:
    return np.array(m.length)[b] if isinstance(m.length, tuple) else m.length


@kind(lambda case, how: _has(case, how.of[0]), of=SPARSE)
class sparse_mask(Model):
    """Of a mask, {of}."""

    of: tuple[type[Mask], Ask] = (Mask, lambda m, *at: m(*at))

    def visible(self) -> Array:
        def other(m: Any) -> Mask:
            return Asked(m, self.of[1]) if isinstance(m, self.of[0]) else m

        mask = rewritten(self.case.mask, other)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())
