"""One item for each case of the suite; its id is the case's, so `-k` selects by it, and `-m` by its marks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..case import Case
from ..cases import CASES

ITEMS = [
    pytest.param(
        case,
        id=case.id,
        marks=pytest.mark.attention(chapter=case.chapter, dtype=case.dtype, backward=case.backward),
    )
    for case in CASES
]


@pytest.mark.parametrize("case", ITEMS)
def test_attention(case: Case, attention_conforms: Callable[[Case], None]) -> None:
    attention_conforms(case)
