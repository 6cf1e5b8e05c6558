"""Wrong patterns: chunks, dilated windows, global tokens, trees, gathered keys, drawn masks, and masks joined."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..case import Case
from ..masks import (
    BlockSparse,
    Causal,
    Chunked,
    Dense,
    Dilated,
    Documents,
    Gathered,
    GlobalTokens,
    Mask,
    Tree,
    Visibility,
)
from ..streaming import Rules
from ..visibility import And, Not, Or
from .catalogue import mutant
from .masks import Seen, everything, has, rewritten, told

__all__: list[str] = []

Array = np.ndarray[Any, Any]


class LateChunks(Chunked):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return super().__call__(b, h, i + 1, j, lq, lk)


@mutant(
    "pattern", "transformers#37414 transformers#40214", has("Chunked("), "chunk_boundary", caught="chunks-x-lse-bf16",
)  # fmt: skip
class chunks_begin_early(Rules):
    """A chunk of local attention begins a query early: the last query of each sees the next chunk."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: LateChunks(m.size, m.align) if isinstance(m, Chunked) else m)


@mutant("pattern", "elb3k/vtn#1 ValkyriaLenneth/Longformer_ZH#5", has("Dilated("), caught="dilated-x-decode-f64")
class dilation_ignored(Rules):
    """The keys of a dilated window are next to each other."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: dataclasses.replace(m, dilation=1) if isinstance(m, Dilated) else m)


class SeenByAll(GlobalTokens):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return super().__call__(b, h, np.full_like(i, -(2**40)), j, lq, lk)


@mutant("pattern", "allenai/longformer#254 allenai/longformer#28", has("GlobalTokens("), caught="scores-global-f16")
class global_one_way(Rules):
    """All see the global tokens, which see no more than others do."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: SeenByAll(m.tokens, m.align) if isinstance(m, GlobalTokens) else m)


@mutant("pattern", "sglang#20278", has("Tree("), caught="tree-x-decode-e4m3")
class tree_as_causal(Rules):
    """The nodes of a token tree are causal: siblings see one another."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: Causal("bottom_right") if isinstance(m, Tree) else m)


class NoneIsLast(Gathered):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return super().__call__(b, h, i, j, lq, lk) | super().__call__(b, h, i, np.where(j == lk - 1, -1, j), lq, lk)


@mutant(
    "pattern", "Megatron-LM#3674 flash-attention#2755", has("Gathered(", "-1"), "gathered_none",
    caught="gathered-x-decode-bf16",
)  # fmt: skip
class gathered_none_is_last(Rules):
    """-1, which stands for no key, is taken for the index of the last one."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: NoneIsLast(m.indices) if isinstance(m, Gathered) else m)


class OfLargestTree(Tree):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        nested = self.parents and isinstance(self.parents[0], tuple)
        most = max(map(len, self.parents)) if nested else len(self.parents)
        own = np.array([len(tree) for tree in self.parents])[b] if nested else most
        return super().__call__(b, h, i, j, lq, lk) & ((j < lk - most) | (j >= lk - own))


def _uneven_trees(case: Case) -> bool:
    return "Tree(((" in repr(case.mask)


@mutant("pattern", "trymirai/lalamo#207", _uneven_trees, "tree_prefix", caught="tree-ragged-bf16")
class tree_prefix_short(Rules):
    """The keys before a tree are counted from the largest tree of the batch: smaller ones lose some."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: OfLargestTree(m.parents) if isinstance(m, Tree) else m)


# documents and drawn masks


@mutant("pattern", "xformers#1185", has("Documents("), "documents_lost", caught="documents-x-decode-f32")
class documents_ignored(Rules):
    """All tokens are of one document."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: everything(m) if isinstance(m, Documents) else m)


def _drawn(case: Case) -> bool:
    return "Dense(" in repr(case.mask) or "BlockSparse(" in repr(case.mask)


@mutant(
    "mask", "rasbt/LLMs-from-scratch#1061 x-transformers#160 pytorch#170400 pytorch#120668 tinygrad#8674", _drawn,
    "polarity", caught="drawn-f32",
)  # fmt: skip
class mask_inverted(Rules):
    """A boolean mask is read the wrong way round: True hides."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: Not(m) if isinstance(m, (Dense, BlockSparse)) else m)


@mutant("mask", "flashinfer#3176", _drawn, "mask_transposed", caught="drawn-f32")
class mask_transposed(Rules):
    """A boolean mask is read with rows and columns exchanged."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            drawn = isinstance(m, (Dense, BlockSparse))
            return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, j, i, lk, lq)) if drawn else m

        return rewritten(mask, change)


@mutant(
    "mask", "onnx:rank-3-mask-test", lambda case: _drawn(case) and case.H > 1, "mask_broadcast",
    caught="gqa-mask-per-head-f32",
)  # fmt: skip
class mask_of_head_0(Rules):
    """A boolean mask of each head: that of the first is used for all."""

    def geometry(self, mask: Any) -> Any:
        return told(mask, lambda m, b, h, i, j, lq, lk: m(b, h * 0, i, j, lq, lk))


@mutant(
    "mask", "flash-attention#772", lambda case: case.mask is not None and case.B > 1, "batch_dropped",
    caught="drawn-per-batch-f16",
)  # fmt: skip
class mask_of_entry_0(Rules):
    """The mask of the first batch entry is used for all, with each entry's own lengths."""

    def geometry(self, mask: Any) -> Any:
        return told(mask, lambda m, b, h, i, j, lq, lk: m(b * 0, h, i, j, lq, lk))


def _blocks_differ(m: Mask) -> bool:
    return isinstance(m, BlockSparse) and m.block_q != m.block_k


@mutant("pattern", "pytorch#165838", has("BlockSparse("), "block_mask_scaled", caught="blocks-f32")
class block_sizes_exchanged(Rules):
    """The blocks of a block mask are as high as they should be wide."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: BlockSparse(m.rows, m.block_k, m.block_q) if _blocks_differ(m) else m)


# masks joined


def _joined(mask: Any, kind: type[Mask]) -> Any:
    """The mask with the first part alone of each pair that is joined in this way."""
    if isinstance(mask, Visibility):
        return dataclasses.replace(mask, mask=_joined(mask.mask, kind))
    if isinstance(mask, Not):
        return Not(_joined(mask.mask, kind))
    if isinstance(mask, (And, Or)):
        first = _joined(mask.left, kind)
        return first if isinstance(mask, kind) else type(mask)(first, _joined(mask.right, kind))
    return mask


@mutant("mask", "jax#32300", has(" | "), "mask_union", caught="longformer-f32")
class union_of_one(Rules):
    """Of two masks joined by or, only the first is applied."""

    def geometry(self, mask: Any) -> Any:
        return _joined(mask, Or)


@mutant("mask", "xformers#1185 jax#32300", has(" & "), "documents_lost", caught="rotary-documents-f32")
class intersection_of_one(Rules):
    """Of two masks joined by and, only the first is applied."""

    def geometry(self, mask: Any) -> Any:
        return _joined(mask, And)
