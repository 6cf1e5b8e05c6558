"""Wrong geometry: alignment, windows, lengths, and what a predicate is told."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import Case
from ..masks import Causal, Mask, Padding, Visibility, Window
from ..streaming import Rules
from .catalogue import TILES, mutant, unequal_lengths

__all__ = ["Seen", "everything", "has", "rewritten", "told"]

Array = np.ndarray[Any, Any]
Told = Callable[[Mask, Array, Array, Array, Array, Array, Array], Array]
"""(mask, b, h, i, j, lq, lk) -> what is seen"""


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


@dataclass(frozen=True)
class Seen(Mask):
    """A mask that is asked in another way."""

    mask: Mask
    how: Told

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return self.how(self.mask, b, h, i, j, lq, lk)


def told(mask: Any, how: Told) -> Any:
    """The whole mask, asked as `how` says; no mask or a bare array as it is."""
    if not isinstance(mask, Visibility) or mask.mask is None:
        return mask
    return dataclasses.replace(mask, mask=Seen(mask.mask, how))


def everything(mask: Mask) -> Mask:
    """Hides nothing."""
    return Window(None, None, "top_left")


def has(*words: str) -> Callable[[Case], bool]:
    """Whether all of these are in the mask as it prints."""
    return lambda case: all(word in repr(case.mask) for word in words)


def _aligned(align: str) -> Callable[[Any], Any]:
    return lambda m: dataclasses.replace(m, align=align) if hasattr(m, "align") else m


# the diagonal


@mutant(
    "mask", "onnx#8054 onnxruntime#29020 pytorch#108108 mlx#2835 flash-attention#517",
    lambda case: "bottom_right" in repr(case.mask) and unequal_lengths(case), caught="causal-br-1x2-f32",
)  # fmt: skip
class causal_top_left(Rules):
    """Alignment at the bottom right is done at the top left: the offset lk - lq is lost."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, _aligned("top_left"))


@mutant(
    "mask", "pytorch#108108 pytorch#103082 onnxruntime#29020",
    lambda case: "top_left" in repr(case.mask) and unequal_lengths(case), caught="grad-causal-tl-f64",
)  # fmt: skip
class causal_bottom_right(Rules):
    """Alignment at the top left is done at the bottom right: an offset lk - lq is added."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, _aligned("bottom_right"))


@mutant("mask", "openvino#37653 xformers#103 jax#23349", has("Causal("), caught="weights-causal-f16")
class causal_ignored(Rules):
    """A causal mask hides nothing."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: everything(m) if isinstance(m, Causal) else m)


@mutant("mask", "onnxruntime#25927", has("Causal("), caught="causal-tiny-f32")
class causal_off_by_one(Rules):
    """A causal mask hides the diagonal, the current token, too: j < i for j <= i."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, i - 1, j, lq, lk)) if isinstance(m, Causal) else m

        return rewritten(mask, change)


@mutant("mask", "pytorch#195910", has("Causal("), "causal_ignored", caught="causal-tiny-f32")
class causal_of_four_rows(Rules):
    """A causal mask is made once for four queries, as the last of them sees it: three see keys to come."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, i | 3, j, lq, lk)) if isinstance(m, Causal) else m

        return rewritten(mask, change)


@mutant(
    "mask", "flash-attention#1778", lambda case: "Causal('bottom_right')" in repr(case.mask) and case.Lq > 1,
    "negative_block_bound", caught="lse-alone-empty-e4m3",
)  # fmt: skip
class keys_of_first_row(Rules):
    """The number of key tiles of a causal tile of queries is taken from its first row, not from its last."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            return Seen(m, _up_to_first_row) if m == Causal("bottom_right") else m

        return rewritten(mask, change)


def _up_to_first_row(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
    first = i // TILES.tile_q * TILES.tile_q + lk - lq
    return m(b, h, i, j, lq, lk) & (j < -(-(first + 1) // TILES.tile_k) * TILES.tile_k)


# windows


@mutant(
    "mask", "transformers#39408 transformers#29623 vllm#3385 onnxruntime#25927 zml#763", has("Window("),
    caught="window-1-0-f32",
)  # fmt: skip
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


@mutant(
    "mask", "transformers#39408 vllm#3385 onnxruntime#25927 zml#763", has("Window("), "window_off_by_one",
    caught="window-1-0-f32",
)  # fmt: skip
class window_too_narrow(Rules):
    """A window is one key too narrow: j > i - w for j >= i - w."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            if not isinstance(m, Window):
                return m
            if m.left is not None:
                return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & m(b, h, i, j - 1, lq, lk))
            return Seen(m, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, lk) & m(b, h, i, j + 1, lq, lk))

        return rewritten(mask, change)


@mutant(
    "mask", "unsloth#8253", lambda case: bool(re.search(r"Window\((0, |\w+, 0)", repr(case.mask))), "window_zero",
    caught="window-0-0-f32",
)  # fmt: skip
class window_zero_unset(Rules):
    """A side of 0 of a window is taken for a side without limit."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            return Window(m.left or None, m.right or None, m.align) if isinstance(m, Window) else m

        return rewritten(mask, change)


@mutant(
    "mask", "jax#32300", lambda case: repr(case.mask).startswith("Window("), "window_alone", caught="window-1-0-f32",
)  # fmt: skip
class window_needs_another(Rules):
    """A window is ignored unless there is another mask too."""

    def geometry(self, mask: Any) -> Any:
        alone = isinstance(mask, Visibility) and isinstance(mask.mask, Window)
        return dataclasses.replace(mask, mask=None) if alone else mask


@mutant("mask", "transformers#40163", has("Window("), "window_off_by_one", caught="window-1-0-f32")
class window_both_sides(Rules):
    """A window reaches as far to the right as to the left."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            both = isinstance(m, Window) and m.left is not None
            return dataclasses.replace(m, right=m.left) if both else m  # type: ignore[type-var, attr-defined]

        return rewritten(mask, change)


@mutant(
    "mask", "ROCm/flash-attention#158",
    lambda case: case.Lq == 1 and has("Window(", "bottom_right")(case) and unequal_lengths(case), "window_decode",
    caught="window-decode-f32",
)  # fmt: skip
class window_decode_from_0(Rules):
    """The window of a single query is aligned as if the query were the first token."""

    def geometry(self, mask: Any) -> Any:
        def change(m: Mask) -> Mask:
            return _aligned("top_left")(m) if isinstance(m, Window) else m

        return rewritten(mask, change) if isinstance(mask, Visibility) and mask.Lq == 1 else mask


# lengths


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
    caught="k-lens-window-br-f32",
)  # fmt: skip
class lengths_unshifted(Rules):
    """Alignment is that of the longest sequence, or of the padded array, and not of each."""

    def geometry(self, mask: Any) -> Any:
        if not isinstance(mask, Visibility) or mask.mask is None:
            return mask
        return dataclasses.replace(mask, mask=Unshifted(mask.mask, mask.Lq, mask.Lk))


@mutant(
    "mask", "jax#23349", lambda case: (case.q_lens, case.k_lens) != (None, None), "lengths_ignored",
    caught="scores-k-lens-f32",
)  # fmt: skip
class all_keys_exist(Rules):
    """Key and query lengths are accepted and not applied."""

    def geometry(self, mask: Any) -> Any:
        return dataclasses.replace(mask, q_lens=None, k_lens=None) if isinstance(mask, Visibility) else mask


@mutant("mask", "jax#23349 xformers#103", has("Padding("), "lengths_ignored", caught="padding-x-decode-bf16")
class padding_ignored(Rules):
    """Padding keys are attended to."""

    def geometry(self, mask: Any) -> Any:
        return rewritten(mask, lambda m: everything(m) if isinstance(m, Padding) else m)


@mutant(
    "mask", "jax#24491 triton#2626", lambda case: case.mask is not None and unequal_lengths(case), "one_length",
    caught="dilated-x-tall-f16",
)  # fmt: skip
class one_length_for_both(Rules):
    """The mask is that of as many queries as there are keys."""

    def geometry(self, mask: Any) -> Any:
        return told(mask, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lk, lk))
