"""The primitives: their NumPy models against the PTX ISA's text, and what the assembler makes of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from numba import cuda

from gpu import ptx, simt
from gpu.target import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: models are not in use")
LANES = np.arange(32)
GROUP, THREAD = LANES // 4, LANES % 4  # "groupID" and "threadID_in_group" of the PTX ISA


def address(array: Any) -> np.int64:
    return np.int64(array.__array_interface__["data"][0])


def fragment_a(A: Any) -> Any:
    """(32, 4) registers: m16n8k16, matrix A, elements a0 ... a7 by the formulas of the PTX ISA."""
    elements = []
    for i in range(8):
        row = GROUP if i < 2 or 4 <= i < 6 else GROUP + 8
        column = THREAD * 2 + (i & 1) + (8 if i >= 4 else 0)
        elements.append(A[row, column])
    return np.stack(elements, 1).view(np.int32)


def fragment_b(B: Any) -> Any:
    """(32, 2) registers: matrix B, elements b0 ... b3."""
    elements = [B[THREAD * 2 + (i & 1) + (8 if i >= 2 else 0), GROUP] for i in range(4)]
    return np.stack(elements, 1).view(np.int32)


def fragment_c(C: Any) -> Any:
    """(32, 4) registers: matrix C, elements c0 ... c3."""
    return np.stack([C[GROUP + (8 if i >= 2 else 0), THREAD * 2 + (i & 1)] for i in range(4)], 1)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_mma(dtype: str) -> None:
    rng = np.random.default_rng(0)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    A, B = (rng.integers(-8, 9, shape).astype(kind) for shape in ((16, 16), (16, 8)))
    C = rng.integers(-8, 9, (16, 8)).astype(np.float32)
    a, b, c, d = fragment_a(A), fragment_b(B), fragment_c(C), np.zeros((32, 4), np.float32)
    mma = ptx.mma_bf16 if dtype == "bfloat16" else ptx.mma_f16

    @cuda.jit
    def one(a, b, c, d):  # type: ignore[no-untyped-def]
        i = cuda.threadIdx.x
        x = mma(a[i, 0], a[i, 1], a[i, 2], a[i, 3], b[i, 0], b[i, 1], c[i, 0], c[i, 1], c[i, 2], c[i, 3])
        for e in range(4):
            d[i, e] = x[e]

    one[1, 32](a, b, c, d)
    assert np.array_equal(d, fragment_c(C + A.astype(np.float32) @ B.astype(np.float32)))


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(transposed: bool) -> None:
    """Matrix i is at the rows whose addresses lanes 8 i ... 8 i + 7 give; rows may lie anywhere, 16 bytes aligned."""
    matrices = np.random.default_rng(1).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    found = np.zeros((32, 4), np.int32)
    load = ptx.ldmatrix_x4_trans if transposed else ptx.ldmatrix_x4

    @cuda.jit
    def one(source, found):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, np.uint8))
        i = cuda.threadIdx.x
        own = memory + np.int32((i * 5 % 32) * 32)
        ptx.copy_async(own, source + np.int64(i * 16), np.int32(16))
        ptx.commit_copies()
        ptx.wait_copies()
        cuda.syncthreads()
        x = load(own)
        for e in range(4):
            found[i, e] = x[e]

    simt.run(one, (1,), (32,), 1024, (address(matrices), found), [matrices, found])
    for i in range(4):
        m = matrices[i].T if transposed else matrices[i]
        expected = np.stack([m[GROUP, THREAD * 2], m[GROUP, THREAD * 2 + 1]], 1).view(np.int32)[:, 0]
        assert np.array_equal(found[:, i], expected)


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_pack_and_unpack(low: float, high: float) -> None:
    with np.errstate(over="ignore"):
        for pack, unpack, kind in (
            (ptx.pack_bf16, (ptx.unpack_low_bf16, ptx.unpack_high_bf16), ml_dtypes.bfloat16),
            (ptx.pack_f16, (ptx.unpack_low_f16, ptx.unpack_high_f16), np.float16),
        ):
            pair = pack(np.float32(low), np.float32(high))
            assert [u(pair) for u in unpack] == [np.float32(np.float32(x).astype(kind)) for x in (low, high)]


@given(st.floats(-126, 127, width=32))
def test_ex2_and_lg2(x: float) -> None:
    exact = 2.0**x
    assert abs(float(ptx.ex2(np.float32(x))) - exact) <= 2.0**-22 * exact
    assert abs(float(ptx.lg2(np.float32(exact))) - np.log2(float(np.float32(exact)))) <= 2.0**-22 * max(1, abs(x))


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_edges_of_ex2() -> None:
    infinite = np.float32(np.inf)
    assert ptx.ex2(-infinite) == 0 and ptx.ex2(infinite) == infinite and np.isnan(ptx.ex2(np.float32(np.nan)))
    assert ptx.ex2(np.float32(-126.5)) == 0 and ptx.lg2(np.float32(0)) == -infinite


@given(st.integers(0, 31))
def test_shuffle(mask: int) -> None:
    found = np.zeros(32, np.float32)

    @cuda.jit
    def one(found):  # type: ignore[no-untyped-def]
        i = cuda.threadIdx.x
        found[i] = ptx.shuffle_xor(np.float32(i), np.int32(mask))

    one[1, 32](found)
    assert np.array_equal(found, LANES ^ mask)


def test_copy_fills_with_zeros() -> None:
    source, found = np.arange(1, 9, dtype=np.int16), np.zeros((3, 8), np.int16)

    @cuda.jit
    def one(source, to):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, np.uint8)) + np.int32(cuda.threadIdx.x * 16)
        ptx.copy_async(memory, source, np.int32(cuda.threadIdx.x * 8))
        ptx.commit_copies()
        ptx.wait_copies()
        x = ptx.load_shared_b32x4(memory)
        ptx.store_global_b32x4(to + np.int64(cuda.threadIdx.x * 16), x[0], x[1], x[2], x[3])

    simt.run(one, (1,), (3,), 48, (address(source), address(found)), [source, found])
    assert found.tolist() == [[0] * 8, [1, 2, 3, 4, 0, 0, 0, 0], list(range(1, 9))]


def test_declarations_are_whole() -> None:
    """Each primitive is tested, and has a docstring that says more than its name."""
    assert set(ptx.__all__) == {*INSTRUCTIONS, *FOLDED, *HOPPER}
    for name in ptx.__all__:
        assert len((getattr(ptx, name).__doc__ or "").split()) >= 3, name


INSTRUCTIONS = {
    "mma_bf16": "HMMA.16816.F32.BF16",
    "mma_f16": "HMMA.16816.F32",
    "ldmatrix_x4": "LDSM.16.M88.4",
    "ldmatrix_x4_trans": "LDSM.16.MT88.4",
    "copy_async": "LDGSTS.E.BYPASS.128",
    "commit_copies": "LDGDEPBAR",
    "wait_copies": "DEPBAR.LE SB0, 0x0",
    "wait_copies_but_one": "DEPBAR.LE SB0, 0x1",
    "ex2": "MUFU.EX2",
    "lg2": "MUFU.LG2",
    "pack_bf16": "F2FP.BF16",
    "pack_f16": "F2FP.PACK_AB",
    "load_global_b16": "LDG.E.U16",
    "load_global_b32": "LDG.E ",
    "load_global_f32": "LDG.E ",
    "load_global_b32x4": "LDG.E.128",
    "load_global_f32x4": "LDG.E.128",
    "store_global_b16": "STG.E.U16",
    "store_global_b32": "STG.E ",
    "store_global_f32": "STG.E ",
    "store_global_b32x4": "STG.E.128",
    "store_global_f32x4": "STG.E.128",
    "load_shared_f32x2": "LDS.64",
    "load_shared_f32x4": "LDS.128",
    "copy_async_b64": "LDGSTS.E.64",
    "load_shared_b32": "LDS ",
    "load_shared_f32": "LDS ",
    "load_shared_b32x4": "LDS.128",
    "store_shared_b16": "STS.U16",
    "store_shared_b32": "STS ",
    "store_shared_f32": "STS ",
}
"""What each primitive is in SASS."""
FOLDED = {
    "bits_of", "block_x", "divide", "float_of", "of_first_lane", "shared_memory", "shuffle_xor", "unpack_high_bf16",
    "unpack_high_f16", "unpack_low_bf16", "unpack_low_f16",
}  # fmt: skip
"""Moves, code of several instructions, and shuffles, which are nothing where all lanes have the same."""
HOPPER = {
    "descriptor", "fence_async_proxy", "hold", "pin", "wgmma_commit", "wgmma_fence", "wgmma_product", "wgmma_wait",
    "wgmma_wait_but_one",
}  # fmt: skip
"""Those of test_gpu_wgmma.py."""

COMPILE = """
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from numba.cuda import types as t
from gpu import ptx
from gpu.sass.compilation import compile_kernel
from gpu.sass.toolchain import nvdisasm, ptxas

kinds = {"b32": t.int32, "b64": t.int64, "f32": t.float32}
for name in sys.argv[1:]:
    primitive = getattr(ptx, name)
    def with_tuple(arguments, out):
        x = primitive(*arguments)
        for e in range(4):
            out[e] = x[e]
    def with_scalar(arguments, out):
        out[0] = primitive(*arguments)
    def with_nothing(arguments, out):
        primitive(*arguments)
    kind = primitive.returns
    kernel = with_nothing if kind is None else with_scalar if isinstance(kind, str) else with_tuple
    element = kinds[kind if isinstance(kind, str) else kind[0] if kind else "b32"]
    arguments = t.BaseTuple.from_types([kinds[k] for k in primitive.takes])
    code = compile_kernel(kernel, t.void(arguments, t.Array(element, 1, "C")), (8, 0))
    with TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(code)
        ptxas().run("-arch=sm_80", source, "-o", cubin)
        print("@", name, nvdisasm().run("-c", cubin).stdout, sep="\\n")
"""


def test_instructions() -> None:
    """Each primitive compiles without a driver and becomes the instruction that it stands for."""
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", COMPILE, *INSTRUCTIONS],
        capture_output=True, text=True, env=environment, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    if "Missing" in ran.stderr:
        pytest.skip(ran.stderr.strip().splitlines()[-1])
    assert ran.returncode == 0, ran.stderr
    listings = dict(part.split("\n", 1) for part in ran.stdout.split("@\n")[1:])
    assert {n for n in INSTRUCTIONS if INSTRUCTIONS[n] not in listings[n]} == set()
