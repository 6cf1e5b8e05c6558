"""Bugs of `tests.unseen` that a draw had missed are named now: the words that the first line of the diagnosis has."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refattn.case import Cache, Case, Paged
from refattn.cases import CASES
from tests.patient import first_named, patient  # noqa: F401
from tests.unseen.bugs import BUGS, MORE
from tests.unseen.kernel import supports
from tests.unseen.lines.bugs import FIRST, FOURTH, SECOND, THIRD, Bug

MOST = 5
"""so many cases of a kind are run"""
KERNELS = {name: make for name, _, make in (*BUGS, *MORE)}
USUAL = [c for c in CASES if c.scores < 2**12 and supports(c) is None]


FOUND: dict[str, tuple[Callable[[Case], bool], str]] = {
    "dbias_assigned": (lambda c: "dbias" in c.want, "dbias: stored, not added, by each pair"),
    "page_size_16": (lambda c: isinstance(c.storage, Paged), "as if 16 tokens of each were in use"),
    "tail_of_page_not_cleared": (lambda c: isinstance(c.storage, (Paged, Cache)), "V is not cleared"),
    "v_with_stride_of_k": (lambda c: c.D != c.Dv and not c.backward, "as if what they hold were the size of a key"),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_named_first(name: str) -> None:
    chosen, words = FOUND[name]
    assert words in first_named(KERNELS[name](), [c for c in USUAL if chosen(c)][:MOST])


@pytest.mark.parametrize("bug", (*FIRST, *SECOND, *THIRD, *FOURTH), ids=lambda bug: bug[0])
def test_a_bug_of_lines_is_one_of_todays_kernel(bug: Bug) -> None:
    """Its lines stand in it once."""
    assert bug[2]().name == "refattn.streaming"
