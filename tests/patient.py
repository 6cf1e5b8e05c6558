"""A diagnosis with three times the usual work, for tests of what it says, so that a name comes that is found late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from refattn import diagnose
from refattn.case import Case
from refattn.conform import run

SECONDS = 20.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, SECONDS)


def give(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So many seconds of work to the diagnosis, for what takes more."""
    monkeypatch.setattr(diagnose, "Suspects", partial(diagnose.Suspects, seconds=seconds))


def first_named(kernel: Any, cases: Iterable[Case]) -> str:
    """The first line of the diagnosis that names a bug; some of the cases must fail."""
    report = run(kernel, list(cases))
    assert report.counts()["failed"]
    return next(line for line in report.diagnosis if "bug: " in line)


def named_of_some(kernel: Any, cases: Sequence[Case], most: int) -> str:
    """The same of at most so many of the cases, spread over all."""
    return first_named(kernel, cases[:: -(-len(cases) // most)])
