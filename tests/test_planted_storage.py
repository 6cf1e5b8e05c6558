"""Bugs of packed sequences, pages, caches, splits and dropout, planted, are named: what the first line has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refattn.case import BiasSpec, Cache, Case, Packed, Paged
from refattn.cases import CASES
from refattn.masks import Causal, Window
from refattn.rotary import Rotary
from tests import planted_storage as planted
from tests.patient import first_named, named_of_some, patient  # noqa: F401
from tests.unseen.engine.kernel import Engine, make, supports

MOST = 4
"""so many cases of a kind are run"""
USUAL = [c for c in CASES if c.scores < 2**13 and supports(c) is None]


def _packed(case: Case) -> bool:
    return isinstance(case.storage, Packed) and case.B > 1


FOUND: dict[type[Engine], tuple[Callable[[Case], bool], str]] = {
    planted.LseAtKeys: (
        lambda c: _packed(c) and not c.backward and c.sinks is None, "lse is written where its sequence's keys begin"),
    planted.LseOfLongerHeads: (
        lambda c: c.backward and c.dropout is c.sinks is None and not _packed(c) and c.Lq < c.Lk,
        "The backward reads lse as if a head had as many rows as keys"),
    planted.FirstSequenceAlone: (
        lambda c: _packed(c) and not c.backward, "written for the first sequence alone; of others 0 stays"),
    planted.OneBoundary: (
        lambda c: _packed(c) and c.mask is c.bias is c.quant is c.rotary is c.dropout is None and not c.backward,
        "Those after the first of packed sequences are taken for one"),
    planted.PageOfSixteen: (
        lambda c: isinstance(c.storage, Paged) and c.storage.page_size < 16, "that of the first key of each tile of 16"),
    planted.NewKeysFromZero: (
        lambda c: isinstance(c.storage, Cache) and c.rotary is not None,
        "With a cache the position by which its new keys are rotated is counted from 0"),
    planted.AllFromZero: (
        lambda c: c.rotary is not None and c.Lq > 1 and not c.backward,
        "queries are rotated, and the new keys of a cache, is counted from 0"),
    planted.ChunkTowardsZero: (
        lambda c: repr(c.mask).startswith("Chunked(") and c.Lq > c.Lk, "by a division that rounds to 0"),
    planted.RowOverGroup: (
        lambda c: isinstance(c.mask, Causal) and c.H > c.Hkv and c.Lq > 8 and not c.backward,
        "divided by the size of its group"),
    planted.WholeSplits: (
        lambda c: c.Lq <= 8 and c.mask is None and not c.backward, "// 4 or 0 keys, or so many of 4: those past them"),
    planted.WholeTiles: (
        lambda c: c.mask is None or isinstance(c.mask, Causal) and not c.backward,
        "is rounded down: a partial one is lost, without a mask too"),
    planted.Renormalised: (
        lambda c: bool(c.dropout) and c.sinks is None, "is brought to the sum before it, not divided by 1 - p"),
    planted.HalfBlocksBack: (
        lambda c: c.backward and repr(c.mask).startswith("BlockSparse("), "of keys half as large, in the backward"),
    planted.QueriesCast: (
        lambda c: c.quant is not None and "float8" in c.quant.kind, "Queries are cast to the float8 of the codes"),
}  # fmt: skip


@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.__name__)
def test_it_is_named_first(bug: type[Engine]) -> None:
    chosen, words = FOUND[bug]
    assert words in named_of_some(make(bug, bug.__name__), [c for c in USUAL if chosen(c)], MOST)
