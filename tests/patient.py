"""A diagnosis whose time does not run out on a busy machine, for tests of what it says."""

from __future__ import annotations

from functools import partial

import pytest

from refattn import diagnose


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "Suspects", partial(diagnose.Suspects, seconds=60.0))
