"""Blocks of one launch that touch the same global memory, one of them writing: found under every schedule."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest

pytest.importorskip("greenlet", reason="no greenlet; pip install 'refattn[gpu-dev]'")
pytest.importorskip("hypothesis", reason="no hypothesis; pip install 'refattn[test]'")
pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from numba import cuda  # noqa: E402

from gpu.target import SIMULATED  # noqa: E402

if not SIMULATED:
    pytest.skip("the executor needs NUMBA_ENABLE_CUDASIM=1", allow_module_level=True)

from gpu import simt  # noqa: E402
from tests.gpu_hazards import SCHEDULES, found, run  # noqa: E402

Z4 = np.zeros(4, np.uint8)


@cuda.jit
def blocks_write_the_same(out, address, cured):
    out[cuda.blockIdx.x if cured else 0] = 1


@cuda.jit
def block_reads_what_another_writes(out, address, cured):
    b = cuda.blockIdx.x
    out[b] = out[b] if cured else out[1 - b]


@cuda.jit
def block_stores_where_another_loads(out, address, cured):
    b = cuda.blockIdx.x
    simt.load("global", address + 64 * b, 16)
    simt.store("global", address + (64 * b if cured else 64 * (1 - b) + 12), Z4)


@cuda.jit
def block_copies_what_another_stores(out, address, cured):
    b = cuda.blockIdx.x
    if b == 0:
        simt.copy_async(simt.shared_base(), address, 16)
    else:
        simt.store("global", address + (16 if cured else 8), Z4)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "kernel",
    [
        blocks_write_the_same, block_reads_what_another_writes, block_stores_where_another_loads,
        block_copies_what_another_stores,
    ],
    ids=lambda kernel: kernel.__name__,
)  # fmt: skip
def test_hazard_across_blocks(kernel: Any, schedule: Any) -> None:
    found(kernel, "across blocks", schedule, grid=2, block=1)


@cuda.jit
def readers_of_one_input(out, address, cured):
    i = cuda.grid(1)
    out[512 + i] = out[0] + out[1 + i % 2] + simt.load("global", address + 16, 16).view(np.float32)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_readers_are_no_hazard(schedule: Any) -> None:
    run(readers_of_one_input, 1, schedule, grid=2)


# ---- drawn programs: four rows of 16 bytes, near or far from each other

Access = tuple[int, str, int, int]
"""(block, kind, row, first byte in the row)"""
KINDS = {"load": 16, "store": 16, "load 4": 4, "store 4": 4, "load 2": 2, "store 2": 2, "copy": 6}
KINDS |= {"read": 8, "write": 8}
"""Bytes of an access; `read` and `write` are of elements of an array of float64."""


def access(block: int, kind: str, row: int, place: int) -> Access:
    return block, kind, row, 0 if kind == "copy" else place * KINDS[kind] % 16


ACCESSES = st.builds(access, st.integers(0, 2), st.sampled_from(sorted(KINDS)), st.integers(0, 1), st.integers(0, 7))


@cuda.jit
def interpreter(program, wide, address, step):
    for block, kind, row, first in program:
        if block == cuda.blockIdx.x:
            at = address + row * step + first
            if kind.startswith("load"):
                simt.load("global", at, KINDS[kind])
            elif kind.startswith("store"):
                simt.store("global", at, np.zeros(KINDS[kind], np.uint8))
            elif kind == "copy":
                simt.copy_async(simt.shared_base(), at, 6)
                simt.commit_group()
                simt.wait_group(0)
            elif kind == "read":
                wide[row, first // 8]
            else:
                wide[row, first // 8] = 0


def races(program: list[Access]) -> bool:
    """Compares all pairs of accesses."""
    return any(
        a[0] != b[0] and a[2] == b[2] and (a[1][0] in "sw" or b[1][0] in "sw")
        and a[3] < b[3] + KINDS[b[1]] and b[3] < a[3] + KINDS[a[1]]
        for a, b in combinations(program, 2)
    )  # fmt: skip


@settings(max_examples=300)
@given(st.lists(ACCESSES, max_size=6), st.sampled_from([16, 32, 4096]), st.booleans())
def test_drawn_programs(program: list[Access], step: int, with_array: bool) -> None:
    every = np.zeros((4, step), np.uint8)
    rows = every[:, :16]
    if not with_array:
        program = [a for a in program if a[1] not in ("read", "write")]
    arguments = [program, rows.view(np.float64) if with_array else None, every.ctypes.data, step]
    for schedule in ("first", "last"):
        try:
            simt.run(interpreter, 3, 1, 512, arguments, [rows], schedule)
            found_one = False
        except simt.Race:
            found_one = True
        assert found_one == races(program), schedule
