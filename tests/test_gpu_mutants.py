"""The bugs planted in the GPU kernels: each is caught by the check named beside it, and without one nothing is.

All rows are run, each on the problem that it names alone; `python -m gpu.mutation` does the same from a shell.
"""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from gpu.target import SIMULATED

if not SIMULATED:
    pytest.skip("NUMBA_ENABLE_CUDASIM=0: these run in the executor", allow_module_level=True)

import gpu.implementation
from gpu import mutation, simt
from gpu.mutants import MUTANTS, PROBLEMS, Mutant
from gpu.mutation import caught, planted

NOTHING = Mutant("nothing", "softmax", "groups", "bound", "        new = m[r]\n", "        new = m[r]  # as before\n")
LOST = Mutant("lost", "softmax", "groups", "bound", "a text that is not there", "")
RACE = Mutant("race", "softmax", "groups", "Race", "", "")
WRONG = Mutant("wrong", "softmax", "groups", "bound", "        new = m[r]\n", "        new = m[r] + 1\n        k = r\n")


def test_texts_occur_once() -> None:
    lost = [reason for reason in (m.lost() for m in MUTANTS) if reason]
    assert not lost, "follow the kernels with gpu/mutants:\n" + "\n".join(lost)


def test_rows() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 90
    assert len({(m.file, m.old, m.new) for m in MUTANTS}) == len(MUTANTS)
    for m in MUTANTS:
        assert m.problem in PROBLEMS, m
        for check in m.caught.split(" or "):
            assert check == "bound" or issubclass(getattr(simt, check), simt.SimtError), m
        assert m.old != m.new, m


def test_every_kernel_has_mutants() -> None:
    files = {m.file for m in MUTANTS}
    every = {path.stem for path in mutation.KERNELS.glob("*.py")}
    assert every - files == {"__init__", "arguments", "spec", "k4_backward"}, "these only declare"
    assert {m.problem for m in MUTANTS} == set(PROBLEMS), "a problem that kills nothing is not needed"
    assert {PROBLEMS[m.problem].kernel for m in MUTANTS} == set(gpu.implementation.FORCED)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_without_a_mutation(problem: str) -> None:
    assert caught(None, problem) == ""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_caught(mutant: Mutant) -> None:
    check = caught(mutant, mutant.problem)
    assert mutant.allows(check), f"{mutant.problem} found {check or 'nothing'}, must be {mutant.caught}"


def test_what_is_not_a_bug_is_not_caught() -> None:
    assert caught(NOTHING, NOTHING.problem) == ""
    assert not NOTHING.allows("")


def test_an_error_must_show_in_every_schedule() -> None:
    assert RACE.allows("Race")
    assert not RACE.allows("Race or nothing")
    assert not RACE.allows("bound")
    assert RACE._replace(caught="Race or UninitialisedRead").allows("UninitialisedRead")


def test_a_lost_text_is_told() -> None:
    with pytest.raises(ValueError, match="lost: 'a text that is not there' occurs 0 times in softmax.py, must be once"):
        caught(LOST, LOST.problem)


def test_modules_are_as_before() -> None:
    """Other tests go on with the modules that they have imported."""
    import gpu.kernels.softmax
    import gpu.launch

    before = {name: module for name, module in sys.modules.items() if name.startswith("gpu")}
    with planted(WRONG):
        import gpu.kernels.softmax as changed

        assert changed is not before["gpu.kernels.softmax"]
    assert {name: module for name, module in sys.modules.items() if name.startswith("gpu")} == before
    for name in ("kernels", "launch", "implementation"):
        assert getattr(gpu, name) is before[f"gpu.{name}"]
    assert gpu.kernels.softmax is before["gpu.kernels.softmax"]
