"""Bugs of what is read, of masks and of loops over tiles, planted in a kernel, are named: what the first line has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refattn.case import Cache, Case, Paged
from refattn.cases import CASES
from tests import planted_forward as planted
from tests.patient import named_of_some, patient  # noqa: F401
from tests.unseen.engine.kernel import Engine, make, supports

MOST = 4
"""so many cases of a kind are run"""
USUAL = [c for c in CASES if c.scores < 2**13 and supports(c) is None and not c.backward]


def _window(case: Case) -> bool:
    return repr(case.mask).startswith("Window(") and case.Lq > 8 and case.Lk > 32


FOUND: dict[type[Engine], tuple[Callable[[Case], bool], str]] = {
    planted.FirstTokenAlone: (lambda c: isinstance(c.storage, Cache) and c.Lq > 1, "are written the first one alone"),
    planted.PagesAround: (lambda c: isinstance(c.storage, Paged) and c.quant is None, "past the last page of all"),
    planted.ColumnOfTile: (
        lambda c: isinstance(c.storage, Paged) and c.mask is None, "columns of the table counted from the first key"),
    planted.FullByRightEdge: (_window, "is not masked within its bounds if"),
    planted.EndsAtHidden: (
        lambda c: "Documents" in repr(c.mask) and c.Lk > 32 and c.Lq > 16, "at the first of which they see nothing"),
    planted.BiasAtTheEnd: (lambda c: c.bias is not None and len(set(c.lengths[1])) > 1, "read at the end of the array"),
    planted.NotForgotten: (lambda c: "~" in repr(c.mask), "is taken as it is"),
    planted.NextChunk: (
        lambda c: "Chunked(" in repr(c.mask) and c.Lk > 8, "the first key of the next chunk is seen too"),
    planted.LoopOfFirstMask: (lambda c: "|" in repr(c.mask), "the first of two masks of which either is enough"),
    planted.FirstPosition: (lambda c: c.rotary is not None and c.Lq > 1, "that of the first new token for all"),
    planted.SecondOfPair: (lambda c: c.rotary is not None, "made of the first as it is turned"),
    planted.ScaleOfToken: (
        lambda c: c.quant is not None and c.quant.kind == "q8_0" and c.Lk > 32, "its place in a tile of 32"),
    planted.LoopByNumber: (_window, "end at the number of keys that they see"),
}  # fmt: skip


@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.__name__)
def test_it_is_named_first(bug: type[Engine]) -> None:
    chosen, words = FOUND[bug]
    assert words in named_of_some(make(bug, bug.__name__), [c for c in USUAL if chosen(c)], MOST)
