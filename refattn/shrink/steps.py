"""Smaller cases, each made of one by a single change; what is no case raises ValueError or TypeError."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..case import Case
from ..masks import Dense, Documents, Mask, Padding, Prefix
from ..visibility import And, Not, Or

__all__ = ["cut", "entry", "largest", "less", "simpler_masks"]

_DRAWN = 1 << 10
"""pairs of a mask that may be drawn in full"""


def simpler_masks(mask: Mask | None) -> Iterator[Mask]:
    """Parts of a mask that is made of others, at any depth."""
    if isinstance(mask, (And, Or)):
        yield from (mask.left, mask.right)
        yield from (type(mask)(left, mask.right) for left in simpler_masks(mask.left))
        yield from (type(mask)(mask.left, right) for right in simpler_masks(mask.right))
    elif isinstance(mask, Not):
        yield mask.mask
        yield from (Not(inner) for inner in simpler_masks(mask.mask))


def entry(case: Case, b: int) -> Case:
    """Batch entry b alone."""

    def one(mask: Mask) -> Mask:
        if isinstance(mask, Padding):
            return Padding(mask.lengths[b : b + 1])
        if isinstance(mask, Prefix) and isinstance(mask.length, tuple):
            return replace(mask, length=mask.length[b])
        if isinstance(mask, Documents):
            ids = (x if x is None or not isinstance(x[0], tuple) else x[b] for x in (mask.q_ids, mask.k_ids))
            return Documents(*ids)  # type: ignore[arg-type]
        return mask

    q_lens, k_lens = (None if x is None else (x[b],) for x in (case.q_lens, case.k_lens))
    try:
        return replace(case, B=1, mask=_leaves(case.mask, one), q_lens=q_lens, k_lens=k_lens)
    except ValueError:  # a mask that is drawn for each entry
        return replace(case, B=1, mask=_drawn(case, b), q_lens=q_lens, k_lens=k_lens)


def _drawn(case: Case, b: int) -> Mask:
    """What the mask of one entry shows, drawn in full; of all heads if they are alike."""
    if case.Lq * case.Lk * case.H > _DRAWN:
        raise ValueError(f"mask={case.mask} is too large to be drawn")
    seen = replace(case.visibility, q_lens=None, k_lens=None).tile()[b]
    return Dense.of(seen[0] if (seen == seen[:1]).all() else seen)


def _leaves(mask: Mask | None, change: Callable[[Mask], Mask]) -> Mask | None:
    """The mask with each of its parts that is made of no others changed."""
    if isinstance(mask, (And, Or)):
        return type(mask)(_leaves(mask.left, change), _leaves(mask.right, change))  # type: ignore[arg-type]
    if isinstance(mask, Not):
        return Not(_leaves(mask.mask, change))  # type: ignore[arg-type]
    return None if mask is None else change(mask)


def cut(case: Case, sizes: Mapping[str, int]) -> Case:
    """The case with smaller sizes, and lengths and ids cut alike."""
    Lq, Lk, B = (sizes.get(name, getattr(case, name)) for name in ("Lq", "Lk", "B"))

    def shorter(mask: Mask) -> Mask:
        if isinstance(mask, Padding):
            return Padding(tuple(min(n, Lk) for n in mask.lengths[:B]))
        if isinstance(mask, Documents) and not isinstance(mask.q_ids[0], tuple):
            return Documents(mask.q_ids[:Lq], None if mask.k_ids is None else mask.k_ids[:Lk])
        return mask

    q_lens = None if case.q_lens is None else tuple(min(n, Lq) for n in case.q_lens[:B])
    k_lens = None if case.k_lens is None else tuple(min(n, Lk) for n in case.k_lens[:B])
    mask = _leaves(case.mask, shorter)
    return replace(case, mask=mask, q_lens=q_lens, k_lens=k_lens, **sizes)  # type: ignore[arg-type]


def largest(mask: Mask | None, name: str) -> int:
    """The largest number of that name in the parts of a mask; 0 if there is none."""
    found = [0]

    def look(part: Mask) -> Mask:
        found.append(_number(part, name))
        return part

    _leaves(mask, look)
    return max(found)


def less(case: Case, name: str, step: int) -> Case:
    """The case with the numbers of that name in its mask smaller by `step`, at least 0."""

    def change(part: Mask) -> Mask:
        n = _number(part, name)
        return replace(part, **{name: max(0, n - step)}) if n else part  # type: ignore[type-var]

    return replace(case, mask=_leaves(case.mask, change))


def _number(mask: Mask, name: str) -> int:
    value = getattr(mask, name, 0)
    return value if isinstance(value, int) else 0
