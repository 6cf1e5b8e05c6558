"""The race detector agrees, on drawn programs, with a model that compares all pairs of accesses."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")
pytest.importorskip("hypothesis", reason="no hypothesis; pip install 'refattn[test]'")

from hypothesis import example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from numba import cuda  # noqa: E402
from numpy import float32, float64  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import ptx, simt  # noqa: E402

Z4 = np.zeros(4, np.uint8)
Step = tuple[str, int, int]
"""(kind of access, lane, cell), ("block", 0, 0), or ("warp", warp, 0)"""
LANES = st.sampled_from([0, 1, 32, 33])
ACCESS = st.tuples(st.sampled_from(["load", "store"]), LANES, st.integers(0, 1))
KINDS = ["load", "store", "read", "write", "read wide", "write wide", "rows", "copy"]
ANY_ACCESS = st.tuples(st.sampled_from(KINDS), LANES, st.integers(0, 1))
BARRIER = st.sampled_from([("block", 0, 0), ("warp", 0, 0), ("warp", 1, 0)])
STEPS = st.lists(st.one_of(ACCESS, ACCESS, ACCESS, BARRIER), max_size=8)
STEPS_IN_ORDER = st.lists(st.one_of(ANY_ACCESS, ANY_ACCESS, ANY_ACCESS, BARRIER), max_size=8)


def waits_only(payloads: list[Any]) -> list[Any]:
    return payloads


@cuda.jit
def interpreter(program, width, in_order, address):
    """Executes the steps, each by its lane; `in_order`: one after another, though nothing orders memory."""
    narrow = cuda.shared.array(0, float32)
    wide = cuda.shared.array(0, float64)
    t = cuda.threadIdx.x
    for i in range(t, 128, cuda.blockDim.x):
        simt.store("shared", simt.shared_base() + 4 * i, Z4)
    cuda.syncthreads()
    for what, who, cell in program:
        at = simt.shared_base() + cell * width
        if what == "block":
            cuda.syncthreads()
        elif what == "warp":
            if t // 32 == who:
                cuda.syncwarp()
        elif what == "rows":
            if t // 32 == who // 32:
                ptx.ldmatrix_x4(at)
        elif t == who:
            if what == "load":
                simt.load("shared", at, 4)
            elif what == "store":
                simt.store("shared", at, Z4)
            elif what == "read":
                narrow[cell * width // 4 + 1]
            elif what == "write":
                narrow[cell * width // 4 + 1] = 0
            elif what == "read wide":
                wide[cell * width // 8]
            elif what == "write wide":
                wide[cell * width // 8] = 0
            else:
                simt.copy_async(at, address, 16)
                simt.commit_group()
                simt.wait_group(0)
        if in_order:
            simt.collective(waits_only, None, 128)


BYTES = {"load": (0, 4), "store": (0, 4), "read": (4, 8), "write": (4, 8), "read wide": (0, 8), "write wide": (0, 8)}
WRITES = ("store", "write", "write wide", "copy")


def races(program: list[Step], width: int) -> bool:
    """Compares all pairs of accesses: (first byte, last, writes, lane, interval of the block, of the warp)."""
    accesses: list[tuple[int, int, bool, Any, int, int]] = []
    block, warp = 0, [0, 0]
    for what, who, cell in program:
        if what == "block":
            block += 1
        elif what == "warp":
            warp[who] += 1
        else:
            start, end = (cell * width + b for b in BYTES.get(what, (0, 16)))
            lane = who if what != "rows" else who // 32 * 32 + 0.5  # no lane's own
            accesses.append((start, end, what in WRITES, lane, block, warp[who // 32]))
    return any(
        a[0] < b[1] and b[0] < a[1] and (a[2] or b[2]) and a[3] != b[3] and a[4] == b[4]
        and (a[3] // 32 != b[3] // 32 or a[5] == b[5])
        for a, b in combinations(accesses, 2)
    )  # fmt: skip


def found(program: list[Step], width: int, in_order: bool, schedule: Any) -> bool:
    source = np.zeros(4, np.float32)
    arguments = [program, width, in_order, source.ctypes.data]
    try:
        simt.run(interpreter, 1, 128 if in_order else 64, 512, arguments, [source], schedule)
        return False
    except simt.Race:
        return True


@given(STEPS, st.sampled_from([4, 16]))
def test_drawn_programs(program: list[Step], width: int) -> None:
    expected = races(program, width)
    for schedule in ("first", "last", 0, 1):
        assert found(program, width, False, schedule) == expected, schedule


@settings(max_examples=200)
@given(STEPS_IN_ORDER)
@example([("read", 0, 0), ("read", 32, 0), ("write", 0, 0)])
@example([("read", 0, 0), ("read", 1, 0), ("write", 0, 0)])
@example([("rows", 0, 0), ("rows", 32, 0), ("warp", 0, 0), ("write", 0, 0)])
@example([("load", 0, 0), ("load", 32, 0), ("store", 0, 0)])
@example([("read", 0, 0), ("write", 32, 0)])
def test_drawn_programs_in_order(program: list[Step]) -> None:
    assert found(program, 16, True, "first") == races(program, 16)
