"""Masks as the kernels have them: a band of keys about a diagonal."""

from __future__ import annotations

from typing import NamedTuple

from gpu.kernels.arguments import NO_LIMIT
from refattn.masks import Causal, Mask, Window
from refattn.visibility import And

__all__ = ["EVERYTHING", "BandOf", "band_of"]


class BandOf(NamedTuple):
    """Row i sees keys d - left ... d + right, where d is i, or i + lk - lq if `bottom_right`."""

    left: int
    right: int
    bottom_right: bool


EVERYTHING = BandOf(NO_LIMIT, NO_LIMIT, False)


def band_of(mask: Mask | None, square: bool = False) -> BandOf | None:
    """The band that a mask is, or None if it is none; `square`: as many queries as keys in each sequence.

    >>> band_of(Causal("top_left") & Window(3, None, "top_left"))
    BandOf(left=3, right=0, bottom_right=False)
    >>> band_of(~Causal("top_left"))
    """
    if mask is None:
        return EVERYTHING
    if isinstance(mask, Causal):
        return BandOf(NO_LIMIT, 0, mask.align == "bottom_right" and not square)
    if isinstance(mask, Window):
        left, right = (NO_LIMIT if n is None else min(n, NO_LIMIT) for n in (mask.left, mask.right))
        endless = left == right == NO_LIMIT
        return EVERYTHING if endless else BandOf(left, right, mask.align == "bottom_right" and not square)
    if isinstance(mask, And):
        one, other = band_of(mask.left, square), band_of(mask.right, square)
        if one is None or other is None:
            return None
        if EVERYTHING in (one, other):
            return other if one == EVERYTHING else one
        if one.bottom_right != other.bottom_right:
            return None
        return BandOf(min(one.left, other.left), min(one.right, other.right), one.bottom_right)
    return None
