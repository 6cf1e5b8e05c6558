"""A reward is for kernels that are right: what cheats are worth, each as it was tried."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from refattn.case import Case
from refattn.cases import by_id
from refattn.masks import Causal
from refattn.reward import Reward, drawn, reward
from tests import cheats

_OUT = frozenset({"out"})
CASES = (
    Case("plain", "", B=1, H=4, Hkv=2, Lq=9, Lk=14, D=16, Dv=16, dtype="float32", family="peaked", want=_OUT),
    Case("causal", "", B=2, H=3, Hkv=3, Lq=7, Lk=11, D=8, Dv=8, dtype="bfloat16", family="normal", want=_OUT,
         mask=Causal("bottom_right")),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    monkeypatch.chdir(request.config.rootpath)
    yield


def worth(name: str, timeout: float = 20.0, few: bool = False) -> Reward:
    return reward(f"tests.cheats:{name}", CASES[:1] if few else CASES, shapes=2 - few, seed=3, timeout=timeout)


def test_an_honest_kernel_is_worth_1() -> None:
    found = worth("honest")
    assert found.score == 1 and found.seed == 3 and len(found.verdicts) == 8


@pytest.mark.parametrize("name", cheats.CHEATS)
def test_a_cheat_is_worth_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "forks" and not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    # each problem of these needs a new process
    waits = name in ("sleeps", "forks", "begins_a_message")
    ends = waits or name in ("exits_early", "sends_a_spell", "sends_a_plan")
    monkeypatch.setattr("refattn.worker.TRANSFER_SECONDS", 1.0)
    found = worth(name, timeout=0.5 if waits else 20.0, few=ends)
    assert found.score == 0, [v.reasons for v in found.verdicts]


def test_the_judge_is_as_before() -> None:
    """After all that they did to it."""
    assert worth("honest").score == 1 and worth("patches_numpy").score == 0


def test_what_is_asked_cannot_be_known() -> None:
    one, other, again = (drawn(CASES, 2, seed) for seed in (1, 2, 1))
    assert one == again and one != other
    assert {c.id for c in one} == {f"problem-{i}" for i in range(8)} and len({c.seed for c in one}) == 8
    shapes = [(c.H, c.Lq, c.Lk) for c in one]
    assert all(shapes.count(shape) % 2 == 0 for shape in shapes) and len(set(shapes)) > len(CASES)


def test_what_a_candidate_prints_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert worth("prints_a_score", few=True).score == 0
    assert capfd.readouterr() == ("", "")


def test_both_inputs_of_a_shape_count() -> None:
    """Each of these fails on the second inputs of a shape alone."""
    for name in ("caches_by_shape", "caches_by_address"):
        assert sorted(v.status for v in worth(name).verdicts) == ["failed"] * 4 + ["passed"] * 4, name


def test_each_call_draws_anew() -> None:
    first, second = (reward("tests.cheats:honest", CASES[:1], shapes=1) for _ in range(2))
    assert first.seed != second.seed and first.verdicts[0].case != second.verdicts[0].case


def test_what_has_its_own_size_keeps_it() -> None:
    case = by_id("cache-f32")
    assert {(c.Lq, c.Lk) for c in drawn([case], 2, 0)} == {(case.Lq, case.Lk)}


def test_nothing_to_ask_is_refused() -> None:
    with pytest.raises(ValueError, match="0 cases in shapes=2 are nothing to ask"):
        reward("tests.cheats:honest", [])
