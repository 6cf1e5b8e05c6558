"""One item for each case of the suite; its id is the case's, so `-k` selects by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..case import Case
from ..cases import CASES


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_attention(case: Case, attention_conforms: Callable[[Case], None]) -> None:
    attention_conforms(case)
