"""A bug in some outputs alone, whatever loop makes them, is told with these outputs, and not by accident."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from refattn.case import Case
from refattn.conform import run
from refattn.diagnose.alone import alone
from refattn.diagnose.conclusion import _telling
from refattn.diagnose.hypothesis import hypotheses
from refattn.diagnose.match import Match, summed
from refattn.implementation import Function
from refattn.mutants import MUTANTS
from refattn.streaming import Streaming

WANT = frozenset({"out", "lse", "dq", "dk", "dv"})
CASES = [Case(f"both-{n}", "Forward and backward.", B=2, H=2, Lq=n, Lk=n + 4, family="peaked", want=WANT)
         for n in (5, 7, 9)]  # fmt: skip


def in_outputs(mutant: str, names: set[str]) -> Function:
    """The answer of a mutant in outputs of these names, the right one in others."""
    wrong, right = MUTANTS[mutant].implementation, Streaming()

    def kernel(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        y, z = wrong(case, dict(given)), right(case, dict(given))
        return {n: (y if n in names else z)[n] for n in z}

    return Function(kernel, "in some outputs", outputs=WANT)


@pytest.mark.parametrize("name", ["dq", "dk"])
def test_the_output_is_told(name: str) -> None:
    report = run(in_outputs("delta_missing", {name}), CASES)
    assert report.counts()["failed"] == len(CASES)
    assert f"in {name} alone" in report.diagnosis[0] and "delta" in report.diagnosis[0]


def test_it_shows_in_these_outputs_and_in_none_that_the_whole_does_not_change() -> None:
    h = next(h for h in hypotheses() if h.name == "delta_missing")
    part = alone(h, frozenset({"dq", "lse"}))
    assert part.what.endswith("in lse and dq alone") and part.shows == frozenset({"dq"}) and part.whole is h


def test_an_answer_near_0_is_not_told_as_explained() -> None:
    """Of an answer that is nearly 0 another that is nearly 0 leaves little of the error, and much of the answer."""
    near = Match(False, error=1e6, left=2.0, close=False, size=1.0)
    assert near.share > 0.99 and near.told == 0.0
    assert summed([near, Match(True, 1e6, 0.0, size=1e6)]).told > 0.99


def test_few_elements_of_one_case_tell_nothing() -> None:
    class One:
        wrong = 3

        def match(self, h: Any) -> Match:
            return Match(True, 1.0, 0.0)

    trial: Any = One()
    assert not _telling(hypotheses()[0], [trial])
    trial.wrong = 30
    assert _telling(hypotheses()[0], [trial])
