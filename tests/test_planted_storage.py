"""Bugs of packed sequences, pages, caches and codes, planted, are named: what the first line has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refattn.case import Cache, Case, Packed, Paged
from refattn.cases import CASES
from tests import planted_storage as planted
from tests.patient import named_of_some, patient  # noqa: F401
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
        lambda c: isinstance(c.storage, Paged) and c.storage.page_size < 16, "of the first key of each tile of 16"),
    planted.NewKeysFromZero: (
        lambda c: "rotary" in c.id and isinstance(c.storage, (Cache, Paged, Packed)) and not c.backward,
        "With a cache the position by which its new keys are rotated is counted from 0"),
    planted.AllFromZero: (
        lambda c: "cache-rotary" in c.id or c.id in ("rotary-half-f32", "shared-rotary-f32"),
        "queries are rotated, and the new keys of a cache, is counted from 0"),
    planted.QueriesCast: (
        lambda c: c.quant is not None and "float8" in c.quant.kind, "Queries are cast to the float8 of the codes"),
}  # fmt: skip


@pytest.mark.parametrize("bug", FOUND, ids=lambda bug: bug.__name__)
def test_it_is_named_first(bug: type[Engine]) -> None:
    chosen, words = FOUND[bug]
    assert words in named_of_some(make(bug, bug.__name__), [c for c in USUAL if chosen(c)], MOST)
