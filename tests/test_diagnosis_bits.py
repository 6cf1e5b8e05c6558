"""A loss of bits is named by what the errors go along with, beside errors of the kernel's own; and nothing else is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refattn.case import Case
from refattn.diagnose.bits import Along, along
from refattn.diagnose.effort import Effort
from refattn.diagnose.kinds.roundings import cut
from refattn.diagnose.trial import Trial
from refattn.inputs import make
from refattn.judge import Verdict, judge
from refattn.precision import Conventions, preset

Array = np.ndarray[Any, Any]
Change = Callable[[Case, Array], Array]
CASES = [Case(f"loss-{n}", "Out alone.", B=2, H=2, Lq=n, Lk=n + 5, D=16, Dv=16, dtype="bfloat16",
              want=frozenset({"out"})) for n in (5, 9, 12)]  # fmt: skip


@cache
def nothing(case: Case) -> Verdict:
    zeros = np.zeros((case.B, case.H, case.Lq, case.Dv), ml_dtypes.bfloat16)
    return answered(case, zeros)


def answered(case: Case, out: Array) -> Verdict:
    contract = replace(preset(case.dtype, case.out_dtype), weights=None)
    return judge(make(case), {"out": out}, contract, Conventions(), outputs=frozenset({"out"}))


def told(change: Change, seconds: float = 60.0) -> Along | None:
    """Of answers that are changed, beside errors of its own, drawn at random: up to a quarter of the last place."""
    trials = []
    for case in CASES:
        evidence = nothing(case).evidence
        assert evidence is not None
        e = evidence.expected["out"]
        noise = np.random.default_rng(case.Lq).uniform(-0.25, 0.25, e.value.shape) * 2.0**-8 * np.abs(e.value)
        verdict = answered(case, change(case, e.value + noise))
        if verdict.status == "failed":
            trials.append(Trial(verdict))
    assert trials
    return along(trials, Effort(work=5.0), 5.0 + seconds)


def cut_off(case: Case, x: Array) -> Array:
    return np.asarray(cut(x, "bfloat16").astype(ml_dtypes.bfloat16))


def test_an_output_that_is_cut_is_told_beside_the_kernels_own_errors() -> None:
    found = told(cut_off)
    assert found is not None and "output is cut" in found.hypothesis.what
    assert 0.4 <= found.share < 0.9  # not its exact size


def test_time_is_counted_in_work() -> None:
    """Nothing is named once that is done, however fast the processor was."""
    assert told(cut_off, seconds=1e-9) is None


@pytest.mark.parametrize("change", [
    lambda case, x: x * (1 - 2.0**-7),
    lambda case, x: x * (1 + 2.0**-7),
    lambda case, x: x + np.random.default_rng(1).uniform(-0.02, 0.02, x.shape) * np.abs(x),
    lambda case, x: x + np.abs(x).max() / 64,
    lambda case, x: x[:, :, ::-1],
], ids=["a multiple", "a larger multiple", "chance", "a constant", "rows reversed"])  # fmt: skip
def test_other_errors_are_no_loss_of_bits(change: Change) -> None:
    assert told(lambda case, x: change(case, x).astype(ml_dtypes.bfloat16)) is None
