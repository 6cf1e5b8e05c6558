"""A diagnosis that asks one hypothesis, for tests of what is done with a failure: to ask all takes a second each."""

from __future__ import annotations

import pytest

from refattn.diagnose import bits, search
from refattn.diagnose.hypothesis import hypotheses


@pytest.fixture(autouse=True)
def few_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_few(monkeypatch)


def ask_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """For some tests of a file."""
    few = tuple(h for h in hypotheses() if h.name == "causal_ignored")
    assert few
    monkeypatch.setattr(search, "by_plausibility", lambda *seen: [(0.0, few)])
    monkeypatch.setattr(bits, "_losses", tuple)
