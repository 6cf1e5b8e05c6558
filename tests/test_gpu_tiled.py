"""k2, forward and backward: against the truth, in the executor under several schedules and in numba's own simulator."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from gpu import simt
from gpu.kernels import k2_gradients, k2_tiled
from gpu.kernels.arguments import NO_LIMIT, Band
from gpu.kernels.plain import SIZES, keys_of, span_of
from gpu.target import SIMULATED
from refattn.calling import Local
from refattn.case import Case, Dense, Packed
from refattn.conform import examine
from refattn.judge import judge
from refattn.masks import Causal, Window
from refattn.precision import Conventions
from tests import gpu_plain as plain

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: nothing runs without a device")
ALL = ("out", "lse", "dq", "dk", "dv")
FORWARD = plain.implementation_of(plain.tiled(plain.small_forward), "k2")
BACKWARD = plain.implementation_of(plain.gradients(plain.small), "k2", (*ALL, "dsinks"))
BAND = Causal("bottom_right") & Window(20, None, "bottom_right")
LARGER = Case(
    "usual", "tiles as they are used, a window, several parts of columns", H=2, Hkv=1, Lq=70, Lk=75, D=10, Dv=66,
    mask=BAND, family="peaked", sinks="normal", softcap=20.0,
)  # fmt: skip


def passes(implementation: plain.Function, case: Case) -> None:
    verdict = examine(Local(implementation), case)
    assert verdict.status == "passed", (verdict.outputs, verdict.reasons)


@settings(max_examples=150)
@given(plain.cases())
def test_drawn_cases(case: Case) -> None:
    passes(FORWARD, case)


@settings(max_examples=50)
@given(plain.cases(ALL, largest=11))
def test_drawn_gradients(case: Case) -> None:
    passes(BACKWARD, case)


@pytest.mark.parametrize("sinks", ["normal", None])
@pytest.mark.parametrize("family", plain.HARD)
def test_hard_inputs(family: str, sinks: str | None) -> None:
    want = (*ALL, "dsinks") if sinks else ALL
    passes(BACKWARD, dataclasses.replace(plain.hard_case(family), sinks=sinks, want=frozenset(want)))


def test_a_sink_may_be_off() -> None:
    """A sink of -inf is none, also where nothing else is seen, and its gradient is 0."""
    case, arrays = plain.prepared(plain.hard_case("peaked", (*ALL, "dsinks")))
    arrays["sinks"][:] = -np.inf
    found = plain.gradients(plain.small)(case, arrays)
    assert not found["dsinks"].any()
    del arrays["sinks"]
    without = plain.gradients(plain.small)(case, arrays)
    assert all(np.array_equal(found[name], without[name]) for name in ALL)
    assert np.isneginf(found["lse"][:, :, :3]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_usual_tile(dtype: str) -> None:
    tiled = plain.tiled(lambda case: k2_tiled.usual(case.dtype, case.D, case.Dv))
    passes(plain.implementation_of(tiled, "k2"), dataclasses.replace(LARGER, dtype=dtype, out_dtype=""))


def test_usual_tile_of_gradients() -> None:
    gradients = plain.gradients(lambda case: k2_gradients.usual(case.dtype, case.D, case.Dv))
    case = dataclasses.replace(LARGER, H=1, Dv=20, want=frozenset({*ALL, "dsinks"}))
    passes(plain.implementation_of(gradients, "k2", (*ALL, "dsinks")), case)


def test_schedules() -> None:
    """The order in which warps run changes no bit: in blocks of two warps, whatever a barrier separates."""
    sizes, want = {"H": 2, "Hkv": 1, "Lq": 35, "Lk": 9, "D": 3, "Dv": 5}, frozenset({*ALL, "dsinks"})
    case, found = Case("order", "two warps", sinks="normal", want=want, **sizes), []
    for schedule in ("first", "last", 5):
        with simt.scheduled(schedule):
            gradients = plain.gradients(lambda case: k2_gradients.Tile(4, 8, 64, 4, 4))
            found.append(gradients(*plain.prepared(case)))
    for name in case.want:
        assert all(np.array_equal(one[name], found[0][name]) for one in found), name


@pytest.mark.parametrize("packed", [False, True])
def test_slopes_know_lengths(packed: bool) -> None:
    """ALiBi is -slope |i + lk - lq - j| with the lengths of the batch entry."""
    case, arrays, problem = plain.with_slopes(packed, ALL)
    answer = plain.gradients(plain.small)(case, arrays)
    verdict = judge(problem, answer, plain.contract(case), Conventions())
    assert verdict.status == "passed", (verdict.outputs, verdict.reasons)


def test_rows_beyond_a_length() -> None:
    """Of dense arrays they are 0 and -inf, also where there is a sink; of packed ones they are left alone."""
    case = Case("rows", "lengths", Lq=4, Lk=5, q_lens=(1,), k_lens=(2,), sinks="normal", want=frozenset(ALL))
    for storage, fill, least in ((Dense(), 0.0, -np.inf), (Packed(4), np.nan, np.nan)):
        found = plain.gradients(plain.small)(*plain.prepared(dataclasses.replace(case, storage=storage)))
        for name, x in found.items():
            first, value = 2 if name in ("dk", "dv") else 1, least if name == "lse" else fill
            rest = x.reshape(-1)[first:] if name == "lse" else x.reshape(-1, case.D)[first:]
            assert np.array_equal(rest, np.full_like(rest, value), equal_nan=True), name


ROWS = st.tuples(st.integers(0, 12), st.integers(1, 5))
LENGTHS = st.tuples(st.integers(0, 12), st.integers(0, 12))
SIDES = st.sampled_from((NO_LIMIT, 0, 1, 4))


@given(ROWS, LENGTHS, SIDES, SIDES, st.booleans())
def test_span_is_what_its_rows_see(
    span: tuple[int, int], lengths: tuple[int, int], left: int, right: int, bottom_right: bool
) -> None:
    """So tiles outside of it need not be read, and none that is needed is left out."""
    (row, rows), (Lq, Lk) = span, map(np.int32, lengths)
    band = Band(*map(np.int32, (left, right, bottom_right)))
    seen = [keys_of(np.int32(i), Lq, Lk, band) for i in range(row, row + rows)]
    seen = [(first, last) for first, last in seen if first <= last]
    begin, end = span_of(np.int32(row), np.int32(rows), Lq, Lk, band)
    if seen:
        assert (begin, end) == (min(first for first, _ in seen), max(last for _, last in seen) + 1)
    else:
        assert end <= begin


def test_tiles_fit() -> None:
    """The shared memory that an H200 has, for two blocks, and that a consumer's device has, for one."""
    for dtype in ("float32", "float64"):
        for D in (*SIZES, 1, 65, 255):
            for most in (99 * 1024, 227 * 1024 // 2):
                assert k2_tiled.shared_bytes(dtype, k2_tiled.usual(dtype, D, D, most)) <= most
                assert k2_gradients.shared_bytes(dtype, k2_gradients.usual(dtype, D, D, most)) <= most


def test_refused() -> None:
    with pytest.raises(ValueError, match="D=257 must be from 0 to 256; k1_naive takes any"):
        k2_tiled.usual("float32", 257, 8)
    with pytest.raises(ValueError, match="Dv=300 must be from 0 to 256"):
        k2_gradients.usual("float32", 8, 300)
    with pytest.raises(ValueError, match="dtype='float16' must be float32 or float64; k3_tensor_core"):
        k2_tiled.forward("float16", k2_tiled.Tile(16, 8, 4, 4))


STOCK = """
import sys, types
sys.modules["gpu.simt"] = types.SimpleNamespace(install=lambda: None)  # gpu.target then leaves numba's simulator alone
from numba import cuda
from refattn.calling import Local
from refattn.case import Case
from refattn.conform import examine
from refattn.masks import Causal
from tests import gpu_plain as plain
k2 = plain.implementation_of(plain.gradients(plain.small), "k2", ("out", "lse", "dq", "dk", "dv", "dsinks"))
for dtype in ("float32", "float64"):
    case = Case(
        "stock", "numba's simulator", B=2, H=2, Hkv=1, Lq=9, Lk=11, D=5, Dv=6, q_lens=(8, 9), k_lens=(10, 3),
        mask=Causal("bottom_right"), softcap=5.0, sinks="normal", bias=plain.ALIBI, family="peaked",
        want=k2.outputs, dtype=dtype,
    )
    verdict = examine(Local(k2), case)
    print(verdict.status, *(o.name for o in verdict.outputs), verdict.reasons)
print("gpu.ptx" in sys.modules, "greenlet" in sys.modules, type(cuda).__name__)
"""


def test_stock_simulator() -> None:
    """k2 uses nothing but what numba-cuda itself has."""
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command, root = [sys.executable, "-c", STOCK], Path(__file__).parent.parent
    run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout.splitlines() == ["passed out lse dq dk dv dsinks ()"] * 2 + ["False False module"], run.stderr
