"""Hypotheses on where the diagonal of a mask lies, and on masks that are not applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...masks import (
    BlockSparse,
    Causal,
    Chunked,
    Dense,
    Dilated,
    Documents,
    Gathered,
    GlobalTokens,
    Mask,
    Not,
    Padding,
    Prefix,
    SinkTokens,
    Tree,
    Window,
)
from ...mutants import rewritten
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

KINDS_OF_MASK = (
    Causal, Window, Prefix, Chunked, Dilated, GlobalTokens, Documents, Padding, SinkTokens, Tree, Gathered, Dense,
    BlockSparse,
)  # fmt: skip
ALIGNED = (Causal, Window, Prefix, Chunked, Dilated, GlobalTokens)
SIZES = (16, 32, 64, 128)


def _names(*kinds: type[Mask]) -> dict[str, type[Mask]]:
    return {k.__name__: k for k in kinds}


def _has(case: Case, of: type[Mask]) -> bool:
    return f"{of.__name__}(" in repr(case.mask)


@dataclasses.dataclass(frozen=True)
class Asked(Mask):
    """A mask that is asked in another way."""

    mask: Mask
    how: Callable[..., Array]

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return self.how(self.mask, b, h, i, j, lq, lk)


class Leaves(Model):
    """Each mask of a kind is taken for another."""

    of: type[Mask] = Causal

    def change(self, m: Any) -> Mask:
        raise NotImplementedError

    def visible(self) -> Array:
        def own(m: Any) -> Mask:
            return self.change(m) if isinstance(m, self.of) else m

        mask = rewritten(self.case.mask, own)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


@kind(lambda case, how: _has(case, how.of), of=_names(*KINDS_OF_MASK))
class mask_ignored(Leaves):
    """The mask {of} is accepted and not applied."""

    def change(self, m: Any) -> Mask:
        return Window(None, None, "top_left")


ENTRIES: dict[str, Callable[[Array, Array], Array]] = {
    "as many queries as keys": np.equal, "one query": lambda q, k: q == 1, "more queries than keys": np.greater,
    "fewer queries than keys": np.less,
}


@kind(
    lambda case, how: case.mask is not None and bool(how.where(*map(np.array, case.lengths)).any()), where=ENTRIES,
    same=("where", lambda case, how: how.where(*map(np.array, case.lengths)).tobytes()),
)  # fmt: skip
class mask_ignored_in(Model):
    """No mask is applied in entries of {where}."""

    where: Callable[[Array, Array], Array]

    def visible(self) -> Array:
        real = np.asarray(dataclasses.replace(self.case.visibility, mask=None).tile())
        at = type(self).where(*map(np.array, self.case.lengths))[:, None, None, None]
        return np.where(at, real, super().visible())


@kind(lambda case, how: _has(case, how.of), of=_names(*KINDS_OF_MASK))
class mask_hides_all(Leaves):
    """The mask {of} hides everything."""

    def change(self, m: Any) -> Mask:
        return Padding((0,) * self.case.B)


@kind(lambda case, how: _has(case, how.of), of=_names(Documents, Padding, Dense, BlockSparse, Gathered))
class polarity(Leaves):
    """The mask {of} is read the wrong way round: what it shows is hidden."""

    def change(self, m: Any) -> Mask:
        return Not(m)


def _uneven(case: Case) -> bool:
    return any(lq != lk for lq, lk in zip(*case.lengths, strict=True))


def _misaligned(case: Case, how: Any) -> bool:
    return _has(case, how.of) and _uneven(case)


@kind(_misaligned, of=_names(*ALIGNED), to=("top_left", "bottom_right"))
class alignment(Leaves):
    """{of} is always aligned at the {to}."""

    to = "top_left"

    def change(self, m: Any) -> Mask:
        return dataclasses.replace(m, align=self.to)


def _shifted(case: Case) -> bool:
    return any(lk - lq != case.Lk - case.Lq for lq, lk in zip(*case.lengths, strict=True))


@kind(lambda case, how: _has(case, how.of) and _shifted(case), of=_names(*ALIGNED))
class diagonal_of_padded_lengths(Leaves):
    """{of} is aligned by the padded lengths, or the longest, and not by each entry's own."""

    def change(self, m: Any) -> Mask:
        Lq, Lk = self.case.Lq, self.case.Lk
        return Asked(m, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, np.full_like(lq, Lq), np.full_like(lk, Lk)))


@kind(
    lambda case, how: _has(case, how.of) and _shifted(case), of=_names(*ALIGNED),
    by={"the padded Lk, and each entry's own query length": (0, 1),
        "the padded Lq, and each entry's own key length": (1, 0)},
)  # fmt: skip
class diagonal_of_one_padded_length(Leaves):
    """{of} is aligned by {by}."""

    by = (0, 1)

    def change(self, m: Any) -> Mask:
        Lq, Lk = self.case.Lq, self.case.Lk
        q, k = self.by

        def told(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            return m(b, h, i, j, np.full_like(lq, Lq) if q else lq, lk if not k else np.full_like(lk, Lk))

        return Asked(m, told)


@kind(
    lambda case, how: _misaligned(case, how),
    of=_names(*ALIGNED), by={"lk - lq + 1": 1, "lk - lq - 1": -1, "lq - lk": None},
)  # fmt: skip
class diagonal_offset(Leaves):
    """{of}: the offset of the diagonal is {by}, where it is lk - lq."""

    by: int | None = 1

    def change(self, m: Any) -> Mask:
        if getattr(m, "align", "") != "bottom_right":
            return m
        if self.by is None:
            return Asked(m, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lk, lq))
        return Asked(m, lambda m, b, h, i, j, lq, lk: m(b, h, i + self.by, j, lq, lk))


@kind(lambda case, how: _has(case, how.of), of=_names(*ALIGNED), by={"one further": 1, "one less": -1})
class diagonal_off_by_one(Leaves):
    """{of}: the diagonal is off by one: a query sees {by} (j <= i + 1, or j < i)."""

    by = 1

    def change(self, m: Any) -> Mask:
        return Asked(m, lambda m, b, h, i, j, lq, lk: m(b, h, i + self.by, j, lq, lk))
