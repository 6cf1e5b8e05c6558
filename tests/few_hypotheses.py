"""A diagnosis that asks one hypothesis, for tests of what is done with a failure: to ask all takes a second each."""

from __future__ import annotations

import pytest

from refattn.diagnose import bits, suspects
from refattn.diagnose.hypothesis import hypotheses


@pytest.fixture(autouse=True)
def few_hypotheses(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_few(monkeypatch)


def ask_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """For some tests of a file."""
    few = [(0.0, h) for h in hypotheses() if h.name == "causal_ignored"]
    assert few
    monkeypatch.setattr(suspects, "by_plausibility", lambda *seen: list(few))
    monkeypatch.setattr(bits, "_losses", tuple)
