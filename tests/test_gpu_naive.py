"""k1, attention by its definition: in the executor, against the truth, within the bounds of float32 and float64."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from gpu.kernels import k1_naive
from gpu.target import SIMULATED
from refattn.calling import Local
from refattn.case import Case, Dense, Packed
from refattn.conform import examine
from refattn.judge import judge
from refattn.masks import Causal
from refattn.precision import Conventions, preset
from tests import gpu_plain as plain

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: nothing runs without a device")
NAIVE = plain.implementation_of(plain.naive, "k1")


@settings(max_examples=150)
@given(plain.cases())
def test_drawn_cases(case: Case) -> None:
    verdict = examine(Local(NAIVE), case)
    assert verdict.status == "passed", (verdict.outputs, verdict.reasons)


@pytest.mark.parametrize("sinks", ["normal", None])
@pytest.mark.parametrize("family", plain.HARD)
def test_hard_inputs(family: str, sinks: str | None) -> None:
    verdict = examine(Local(NAIVE), dataclasses.replace(plain.hard_case(family), sinks=sinks))
    assert verdict.status == "passed", (verdict.outputs, verdict.reasons)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_blocks(dtype: str) -> None:
    """More scores than a block has threads, a head size beyond those of k2."""
    sizes = {"B": 2, "H": 2, "Hkv": 1, "Lq": 19, "Lk": 23, "D": 260, "Dv": 9, "dtype": dtype}
    case = Case("blocks", "many blocks", mask=Causal("bottom_right"), family="peaked", **sizes)
    assert examine(Local(NAIVE), case).status == "passed"


@pytest.mark.parametrize("packed", [False, True])
def test_slopes_know_lengths(packed: bool) -> None:
    """ALiBi is -slope |i + lk - lq - j| with the lengths of the batch entry."""
    case, arrays, problem = plain.with_slopes(packed, ("out", "lse"))
    verdict = judge(problem, plain.naive(case, arrays), preset("float32"), Conventions())
    assert verdict.status == "passed", (verdict.outputs, verdict.reasons)


def test_rows_beyond_a_length() -> None:
    """Of dense arrays they are 0 and -inf, also where there is a sink; of packed ones they are left alone."""
    case = Case("rows", "lengths", Lq=4, Lk=3, q_lens=(1,), sinks="normal")
    for storage, out, lse in ((Dense(), 0.0, -np.inf), (Packed(3), np.nan, np.nan)):
        found = plain.naive(*plain.prepared(dataclasses.replace(case, storage=storage)))
        rows = found["out"].reshape(4, -1)[1:], found["lse"].reshape(-1)[1:]
        assert np.array_equal(rows[0], np.full_like(rows[0], out), equal_nan=True)
        assert np.array_equal(rows[1], np.full_like(rows[1], lse), equal_nan=True)


def test_refused() -> None:
    with pytest.raises(ValueError, match="dtype='bfloat16' must be float32 or float64; k3_tensor_core"):
        k1_naive.kernels("bfloat16")
