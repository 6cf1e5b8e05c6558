"""A diagnosis with more than the usual work, for tests of what it says, so that a name comes that is found late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from refattn import diagnose
from refattn.case import Case
from refattn.conform import run

SECONDS = 6.0
LATE = {"LoopOfFirstMask": 60.0, "FullByRightEdge": 15.0}
"""tests, by what stands in their brackets, in which the name takes more"""


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = LATE.get(request.node.name.partition("[")[2].rstrip("]"), SECONDS)
    monkeypatch.setattr(diagnose, "Suspects", partial(diagnose.Suspects, seconds=seconds))


def first_named(kernel: Any, cases: Iterable[Case]) -> str:
    """The first line of the diagnosis that names a bug; some of the cases must fail."""
    report = run(kernel, list(cases))
    assert report.counts()["failed"]
    return next(line for line in report.diagnosis if "bug: " in line)


def named_of_some(kernel: Any, cases: Sequence[Case], most: int) -> str:
    """The same of at most so many of the cases, spread over all."""
    return first_named(kernel, cases[:: -(-len(cases) // most)])
