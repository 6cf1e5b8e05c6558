"""The bugs that measure the diagnosis: their kernel is honest, and each is a bug."""

from __future__ import annotations

import pytest

from refattn.calling import Local
from refattn.cases import CASES
from refattn.conform import examine
from tests.unseen.bugs import BUGS, MORE
from tests.unseen.kernel import attention, supports

SMALL = [c for c in CASES if c.B * c.H * c.Lq * c.Lk < 2**11 and supports(c) is None]
SOME = {name: make for name, _, make in (*BUGS, *MORE)[5::11]}


def test_rows() -> None:
    names = [name for name, _, _ in (*BUGS, *MORE)]
    assert len(set(names)) == len(names) == 88 and len(BUGS) == 60


@pytest.mark.parametrize("case", SMALL[::23], ids=lambda case: case.id)
def test_the_kernel_is_honest(case: object) -> None:
    assert examine(Local(attention), case).status in ("passed", "acceptable")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SOME)
def test_each_is_a_bug(name: str) -> None:
    kernel = Local(SOME[name]())
    assert any(examine(kernel, case).status == "failed" for case in SMALL)
