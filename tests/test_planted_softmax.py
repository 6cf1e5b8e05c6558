"""Bugs of the softmax, its sums, splits and sinks, planted in a kernel, are named: what the first line has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refattn.case import Case
from refattn.cases import CASES
from tests import planted_forward as planted
from tests.patient import named_of_some, patient  # noqa: F401
from tests.unseen.engine.bugs import row_sum_not_cleared
from tests.unseen.engine.kernel import Engine, make, supports

MOST = 4
"""so many cases of a kind are run"""
USUAL = [c for c in CASES if c.scores < 2**13 and supports(c) is None and not c.backward]

FOUND: dict[type[Engine], tuple[Callable[[Case], bool], str]] = {
    row_sum_not_cleared: (
        lambda c: c.Lq > 16 and c.mask is None and c.sinks is None, "it goes on from the last row of the tile before"),
    planted.NothingWithoutKeys: (
        lambda c: c.sinks is not None and 0 in c.lengths[1], "The sink is forgotten in entries without keys"),
    planted.SinkInLseAlone: (
        lambda c: c.sinks is not None and c.Lq > 8, "it joins lse alone: the output was divided before"),
    planted.MaximumBeforeScale: (lambda c: c.scale is not None and c.scale < 0, "before a negative scale"),
    planted.KeptInEachTile: (lambda c: bool(c.dropout) and c.Lk > 32, "multiplied by dropout's 1 / (1 - p)"),
    planted.UnusedSplits: (
        lambda c: c.Lq <= 8 and c.mask is None and len(set(c.lengths[1])) > 1 and c.sinks is None,
        "the unused have lse 0"),
    planted.SplitsOfFirst: (
        lambda c: c.Lq <= 8 and c.mask is None and c.lengths[1][:1] < (c.Lk,),
        "of the first"),
    planted.HiddenInOutput: (
        lambda c: c.mask is not None and c.family == "normal" and c.bias is c.softcap is c.dropout is None,
        "hidden keys count in the output alone"),
    planted.RescaledByFirst: (
        lambda c: c.Lq > 8 and c.Lk > 64 and c.mask is None, "only where the maximum of the first of them grew"),
    planted.WidestMaximum: (
        lambda c: c.Lq > 8 and c.family == "large_logits" and c.sinks is c.dropout is None, "that of all of 16 rows"),
    planted.SplitsOfWholeTiles: (lambda c: c.Lq <= 8 and c.Lk > 32 and c.mask is None, "count in both splits"),
}  # fmt: skip


@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.__name__)
def test_it_is_named_first(bug: type[Engine]) -> None:
    chosen, words = FOUND[bug]
    assert words in named_of_some(make(bug, bug.__name__), [c for c in USUAL if chosen(c)], MOST)
