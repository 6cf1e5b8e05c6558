"""Wrong geometry: alignment, windows, lengths, and the patterns of practical variants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import Case
from ..masks import (
    Causal,
    Chunked,
    Dilated,
    Gathered,
    GlobalTokens,
    Mask,
    Tree,
    Visibility,
    Window,
)
from ..streaming import Rules
from .catalogue import mutant, unequal_lengths

__all__ = ["rewritten"]

Array = np.ndarray[Any, Any]


def rewritten(mask: Any, change: Callable[[Any], Mask]) -> Any:
    """The mask with each of its leaves changed; a bare array or None as it is."""
    if isinstance(mask, Visibility):
        return dataclasses.replace(mask, mask=rewritten(mask.mask, change))
    if not isinstance(mask, Mask):
        return mask
    parts = {f.name: getattr(mask, f.name) for f in dataclasses.fields(mask)}  # type: ignore[arg-type]
    if any(isinstance(part, Mask) for part in parts.values()):
        return type(mask)(**{name: rewritten(part, change) for name, part in parts.items()})
    return change(mask)


def has(*words: str) -> Callable[[Case], bool]:
    """Whether all of these are in the mask as it prints."""
    return lambda case: all(word in repr(case.mask) for word in words)


@mutant(
    "mask", "onnx#8054 onnxruntime#29020 pytorch#108108 mlx#2835 flash-attention#517",
    lambda case: "bottom_right" in repr(case.mask) and unequal_lengths(case),
)  # fmt: skip
class causal_top_left(Rules):
    """Alignment at the bottom right is done at the top left: the offset lk - lq is lost."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: dataclasses.replace(m, align="top_left") if hasattr(m, "align") else m)


@mutant("mask", "transformers#39408 transformers#29623 vllm#3385 onnxruntime#25927 zml#763", has("Window("))
class window_off_by_one(Rules):
    """A window is one key too wide: j >= i - w - 1 for j >= i - w."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            if not isinstance(m, Window):
                return m
            if m.left is None:
                return dataclasses.replace(m, right=None if m.right is None else m.right + 1)
            return dataclasses.replace(m, left=m.left + 1)

        return rewritten(mask, change)


@dataclass(frozen=True)
class Unshifted(Mask):
    """The mask as if all of Lq and Lk existed."""

    mask: Mask
    Lq: int
    Lk: int

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return self.mask(b, h, i, j, np.full_like(lq, self.Lq), np.full_like(lk, self.Lk))


def _shifted(case: Case) -> bool:
    return any(lk - lq != case.Lk - case.Lq for lq, lk in zip(*case.lengths, strict=True))


@mutant(
    "mask", "ROCm/rocm-libraries#10999 onnx#8054",
    lambda case: _shifted(case) and ("bottom_right" in repr(case.mask) or "Tree(" in repr(case.mask)),
)  # fmt: skip
class lengths_unshifted(Rules):
    """Alignment is that of the longest sequence, or of the padded array, and not of each."""

    def geometry(self, mask: Any) -> Any:
        if not isinstance(mask, Visibility) or mask.mask is None:
            return mask
        return dataclasses.replace(mask, mask=Unshifted(mask.mask, mask.Lq, mask.Lk))


class LateChunks(Chunked):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return super().__call__(b, h, i + 1, j, lq, lk)


@mutant("pattern", "transformers#37414 transformers#40214", has("Chunked("), "chunk_boundary")
class chunks_begin_early(Rules):
    """A chunk of local attention begins a query early: the last query of each sees the next chunk."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: LateChunks(m.size, m.align) if isinstance(m, Chunked) else m)


@mutant("pattern", "ValkyriaLenneth/Longformer_ZH#5", has("Dilated("))
class dilation_ignored(Rules):
    """The keys of a dilated window are next to each other."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: dataclasses.replace(m, dilation=1) if isinstance(m, Dilated) else m)


class SeenByAll(GlobalTokens):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return super().__call__(b, h, np.full_like(i, -(2**40)), j, lq, lk)


@mutant("pattern", "allenai/longformer#254 allenai/longformer#28", has("GlobalTokens("))
class global_one_way(Rules):
    """All see the global tokens, which see no more than others do."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: SeenByAll(m.tokens, m.align) if isinstance(m, GlobalTokens) else m)


@mutant("pattern", "sglang#20278", has("Tree("))
class tree_as_causal(Rules):
    """The nodes of a token tree are causal: siblings see one another."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: Causal("bottom_right") if isinstance(m, Tree) else m)


class NoneIsLast(Gathered):
    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return super().__call__(b, h, i, j, lq, lk) | super().__call__(b, h, i, np.where(j == lk - 1, -1, j), lq, lk)


@mutant("pattern", "Megatron-LM#3674 flash-attention#2755", has("Gathered(", "-1"), "gathered_none")
class gathered_none_is_last(Rules):
    """-1, which stands for no key, is taken for the index of the last one."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: NoneIsLast(m.indices) if isinstance(m, Gathered) else m)
