"""wgmma: its model against the PTX ISA, each rule of it once broken, and the kernel that is made of it.

Layouts are written here from the PTX ISA's formulas, not from the code that is tested: fragments of m64nNk16,
canonical layouts with Swizzle<3, 4, 3>.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

from numba import cuda
from numba.cuda import types
from numpy import float32, int32, int64

from gpu import ptx, simt
from gpu.implementation import wgmma
from gpu.kernels import k7_wgmma
from gpu.kernels.spec import Spec
from gpu.launch.choose import tiles
from gpu.target import SIMULATED, kernel
from refattn.case import BiasSpec, Case, Dense, Packed
from refattn.inputs import make
from refattn.judge import judge
from refattn.masks import Causal, Window
from refattn.memory import give

pytestmark = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: models are not in use")

Array = np.ndarray[Any, Any]
KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
A_BYTES, B_ROWS = 8192, 32


def address(x: Array) -> np.int64:
    return np.int64(x.__array_interface__["data"][0])


def swizzled(matrix: Array) -> Array:
    """The bytes of a matrix: panels of 64 columns, in each Swizzle<3, 4, 3> on rows of 128 bytes."""
    rows, columns = matrix.shape
    offset = np.arange(columns) // 64 * rows * 128 + np.arange(rows)[:, None] * 128 + np.arange(columns) % 64 * 2
    offset ^= (offset & 0b111 << 7) >> 3
    found = np.zeros(rows * columns, matrix.dtype)
    found[offset // 2] = matrix
    return found.view(np.uint8)


def fragments_of_d(registers: Array) -> Array:
    """(64, n) from (128, n / 2) registers: "Matrix Fragments for wgmma.mma_async.m64nNk16", accumulator D."""
    n = registers.shape[1] * 2
    found = np.full((64, n), np.nan, np.float32)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(n // 2):
            row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
            found[row, i // 4 * 8 + lane % 4 * 2 + (i & 1)] = registers[thread, i]
    return found


def fragments_of_a(A: Array) -> Array:
    """(128, 4) registers from (64, 16): the same section, A in registers, elements a0 ... a7."""
    found = np.zeros((128, 8), A.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(8):
            row = 16 * warp + lane // 4 + (8 if i in (2, 3, 6, 7) else 0)
            found[thread, i] = A[row, lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)]
    return found.view(np.int32)


@functools.cache
def multiplication(n: int, dtype: str, held: bool, transposed: bool, fault: str = "") -> Any:
    """One warpgroup: c = A B twice, the second time added, from an image of shared memory: A (64 x 64), then B.

    Of k the 16 from 16 on are multiplied.  `fault` is what goes wrong.
    """
    SIZE, leading = n // 2, B_ROWS * 128
    product = ptx.wgmma_product(n, dtype, held, transposed)
    other = ptx.wgmma_product(n // 2, dtype) if fault == "shape" else None
    pin_c, pin_a = ptx.pin(SIZE), ptx.pin(4, "int32")
    a_step, b_step = 2, 128 if transposed else 2
    shift = 16 if fault == "misaligned" else 0
    if fault == "panel":
        leading -= 1024

    @kernel(128)
    def multiply(image, count, registers, out):  # type: ignore[no-untyped-def]
        memory = ptx.shared_memory(cuda.shared.array(0, types.uint8))
        memory = ((memory + int32(1023)) & int32(-1024)) + int32(shift)
        thread = int32(cuda.threadIdx.x)
        for i in range(thread, count, int32(128)):
            ptx.copy_async(memory + i * 16, image + i * 16, int32(16))
        ptx.commit_copies()
        if fault != "copies":
            ptx.wait_copies()
        if fault != "proxy fence":
            ptx.fence_async_proxy()
        if fault != "barrier":
            cuda.syncthreads()
        a = cuda.local.array(4, int32)
        c = cuda.local.array(SIZE, float32)
        for i in range(4):
            a[i] = ptx.load_global_b32(registers + int64(thread * 16 + i * 4))
        for i in range(SIZE):
            c[i] = float32(7)  # what must not be in the result
        if fault == "descriptors differ":
            memory += (thread >> 5) * 1024
        da = ptx.descriptor(memory, int32(0), int32(1024)) + a_step
        db = ptx.descriptor(memory + A_BYTES, int32(leading if transposed else 0), int32(1024)) + b_step
        if fault == "swizzle":
            db = db & ((int64(1) << 62) - int64(1))
        if fault != "pin before":
            pin_c(c)
        pin_a(a)
        if fault != "fence":
            ptx.wgmma_fence()
        if fault == "c after fence":
            c[0] = float32(1)
        if fault == "a after fence":
            a[0] = int32(1)
        for add in range(2):
            if held:
                product(c, a, 0, db, int32(add))
            elif fault != "one warp less" or thread < 96:
                product(c, da, db, int32(add))
        if fault == "shape":
            other(c, da, db, int32(1))
        if fault != "commit":
            ptx.wgmma_commit()
        if fault == "c in flight":
            c[0] = float32(1)
        if fault == "a in flight":
            a[0] = int32(1)
        if fault == "shared in flight":
            cuda.syncthreads()
            ptx.store_shared_b32(memory + A_BYTES + 32 + thread * 4, int32(0))
        if fault == "wait for one less":
            ptx.wgmma_wait_but_one()
        elif fault != "wait":
            ptx.wgmma_wait()
        if fault == "again without fence":
            pin_c(c)
            product(c, da, db, int32(1))
        if fault != "pin after":
            pin_c(c)
        for i in range(SIZE):
            ptx.store_global_f32(out + int64(thread * SIZE * 4 + i * 4), c[i])

    return multiply


def multiplied(
    n: int, dtype: str, held: bool, transposed: bool, fault: str = "", schedule: str | int = "first"
) -> tuple[Array, Array]:
    """(what the kernel has made, what it should be)."""
    rng = np.random.default_rng(n)
    A = rng.integers(-8, 9, (64, 64)).astype(KINDS[dtype])
    B = rng.integers(-8, 9, (64, n)).astype(KINDS[dtype])  # k by n
    padded = np.zeros((B_ROWS, -(-n // 64) * 64), B.dtype)
    padded[:, :n] = B[:B_ROWS]
    image = np.concatenate([swizzled(A), swizzled(padded if transposed else np.ascontiguousarray(B.T))])
    registers, out = fragments_of_a(A[:, 16:32]), np.full((128, n // 2), np.nan, np.float32)
    simt.run(
        multiplication(n, dtype, held, transposed, fault), 1, 128, len(image) + 2048,
        (address(image), np.int32(len(image) // 16), address(registers), address(out)), [image, registers, out],
        schedule=schedule,
    )  # fmt: skip
    return fragments_of_d(out), 2 * (A[:, 16:32].astype(np.float32) @ B[16:32].astype(np.float32))


@pytest.mark.parametrize("held", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("transposed", [False, True], ids=["k-major", "mn-major"])
@pytest.mark.parametrize(("n", "dtype"), [(8, "float16"), (24, "bfloat16"), (128, "float16"), (256, "bfloat16")])
def test_product(n: int, dtype: str, transposed: bool, held: bool) -> None:
    got, want = multiplied(n, dtype, held, transposed, schedule=n)
    assert np.array_equal(got, want)


FAULTS: dict[str, tuple[type[Exception], str]] = {
    "copies": (simt.Race, "in flight"),
    "proxy fence": (simt.Race, "without fence.proxy.async"),
    "barrier": (simt.Race, "since the last syncthreads"),
    "pin before": (simt.Race, "no pin and wgmma.fence"),
    "fence": (simt.Race, "no pin and wgmma.fence"),
    "c after fence": (simt.Race, "the accumulator of wgmma: no pin"),
    "again without fence": (simt.Race, "the accumulator of wgmma: no pin"),
    "commit": (simt.Race, "under way"),
    "wait": (simt.Race, "under way"),
    "wait for one less": (simt.Race, "under way"),
    "pin after": (simt.Race, "is used before"),
    "c in flight": (simt.Race, "an accumulator of wgmma is written before"),
    "shared in flight": (simt.Race, "not waited for still reads"),
    "shape": (simt.Race, "is given to m64n64k16"),
    "descriptors differ": (simt.Divergence, "the descriptor of"),
    "one warp less": (simt.Divergence, "warpgroup"),
    "misaligned": (simt.Misaligned, "multiples of 1024"),
    "swizzle": (simt.SimtError, "128-byte swizzle"),
}


@pytest.mark.parametrize("schedule", ["first", 5])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rule_is_broken(fault: str, schedule: str | int) -> None:
    kind, text = FAULTS[fault]
    with pytest.raises(kind, match=text) as caught:
        multiplied(128, "float16", False, False, fault, schedule)
    assert "test_gpu_wgmma.py:" in str(caught.value), "the place in the kernel is not told"


@pytest.mark.parametrize(("fault", "text"), [("a after fence", "A in registers"), ("a in flight", "A of wgmma")])
def test_a_in_registers_is_written(fault: str, text: str) -> None:
    with pytest.raises(simt.Race, match=text):
        multiplied(64, "bfloat16", True, True, fault)


def test_a_panel_beside_the_right_one_gives_another_product() -> None:
    got, want = multiplied(128, "float16", False, True, "panel")
    assert np.array_equal(got[:, :64], want[:, :64]) and not np.array_equal(got[:, 64:], want[:, 64:])


def test_hold_refuses_what_would_leave_lanes_out() -> None:
    @kernel(32)
    def wait():  # type: ignore[no-untyped-def]
        ptx.hold(float32(-1) if cuda.threadIdx.x == 3 else float32(0))

    with pytest.raises(simt.SimtError, match=r"hold\(-1.0\)(.|\n)*lane 3"):
        simt.run(wait, 1, 32, 0, (), [])


@dataclass(frozen=True)
class Run:
    """A case, and how the kernel is compiled and run."""

    case: dict[str, Any]
    schedule: str | int = "first"
    tile: dict[str, int] | None = None


RUNS = {
    "whole": Run({"dtype": "float16"}),
    "one-tile": Run({"Lq": 3, "Lk": 7}, "last"),
    "no-keys": Run({"Lq": 3, "Lk": 0, "sinks": "normal"}),
    "causal": Run({"mask": Causal("bottom_right"), "sinks": "normal"}, "last"),
    "empty-rows": Run({"mask": Causal("bottom_right"), "Lq": 80, "Lk": 50}, 1),
    "window": Run({"mask": Window(20, 5, "top_left"), "dtype": "float16"}, 2),
    "negative": Run({"scale": -0.2, "Lk": 40}, 3),
    "zero": Run({"scale": 0.0, "Lk": 40, "mask": Window(9, None, "top_left")}, "last"),
    "softcap": Run({"softcap": 2.0, "bias": BiasSpec("HQK"), "Lk": 50}, 4),
    "bias": Run({"bias": BiasSpec("BQK", "bfloat16"), "Lk": 40, "D": 128}, "last"),
    "lengths": Run({"B": 2, "q_lens": (50, 0), "k_lens": (90, 33), "H": 1, "D": 40, "Dv": 128}, 5),
    "packed": Run({"B": 2, "Lq": 30, "Lk": 50, "q_lens": (30, 17), "k_lens": (50, 33), "storage": Packed()}, 6),
    "strided": Run({"storage": Dense("BLHD"), "B": 2, "Lq": 20, "Lk": 40}, "last"),
    "odd-head": Run({"D": 60, "Dv": 42, "Lq": 20, "Lk": 40}),
    "two-warpgroups": Run({"Lq": 140, "Lk": 150, "H": 1, "mask": Causal("bottom_right")}, 7, {"warps": 8, "keys": 48}),
    "wide": Run({"Lq": 20, "Lk": 40, "H": 1, "D": 192, "Dv": 128}, 8, {"keys": 16}),
    "wide-values": Run({"Lq": 20, "Lk": 40, "H": 1, "Dv": 256}, 9, {"keys": 16}),
    "ties": Run({"family": "ties", "Lk": 40}),
}


SIZES = {"B": 1, "H": 2, "Hkv": 1, "Lq": 70, "Lk": 90, "D": 64, "Dv": 64, "dtype": "bfloat16"}


@pytest.mark.parametrize("name", RUNS)
def test_attention(name: str) -> None:
    run = RUNS[name]
    case = Case(name, "the forward by wgmma", **{**SIZES, **run.case})
    problem = make(case)
    with simt.scheduled(run.schedule), tiles(**run.tile or {}):
        answer = wgmma(case, give(case, problem.logical))
    verdict = judge(problem, answer, wgmma.precision(case), wgmma.conventions, outputs=case.want)
    assert verdict.status == "passed", verdict


def test_rows_beyond_a_length_are_written() -> None:
    case = Case("beyond", "rows that do not exist", **{**SIZES, "q_lens": (50,), "sinks": "normal", "Lk": 20})
    answer = wgmma(case, give(case, make(case).logical))
    assert (answer["out"][0, :, 50:] == 0).all() and (answer["lse"][0, :, 50:] == -np.inf).all()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"D": 96, "Dv": 64}, "D=96 must be one of 64, 128, 192, 256"),
        ({"warps": 2}, "warps=2 must be a multiple of 4"),
        ({"row_tiles": 2}, "row_tiles=2 must be 1"),
        ({"keys": 272}, "keys=272 must be <= 256"),
    ],
)
def test_refused(fields: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        k7_wgmma.forward(Spec("float16", **{"D": 64, "Dv": 64, **fields}))


@pytest.mark.parametrize(("n", "dtype"), [(12, "float16"), (264, "float16"), (64, "float32")])
def test_refused_products(n: int, dtype: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        ptx.wgmma_product(n, dtype)


COMPILED = """
import re, subprocess, sys, tempfile
from pathlib import Path
from gpu.kernels import k7_wgmma as k7
from gpu.sass import Missing, capability, compile_kernel
from gpu.sass.toolchain import nvdisasm, ptxas
try:
    ptxas(), nvdisasm()
except Missing as missing:
    sys.exit(f"missing: {missing}")
spec = k7.usual("bfloat16", 64, 64)
code = compile_kernel(k7.forward(spec).py_func, k7.SIGNATURE, capability(k7.ARCH), (spec.threads, 1))
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "k.ptx").write_text(code)
    log = ptxas().run(f"-arch={k7.ARCH}", "-v", Path(folder, "k.ptx"), "-o", Path(folder, "k.cubin"))
    print(log.stderr + log.stdout)
    listing = nvdisasm().run("-c", Path(folder, "k.cubin")).stdout
print(*re.findall(r"HGMMA|MUFU.EX2|WARPGROUP.DEPBAR[^;]*|FENCE.VIEW.ASYNC|BAR.SYNC|F2FP", listing))
"""


def test_compiled_kernel_computes_weights_beside_products() -> None:
    """No spills, no serialised products, and every exponential of a tile between the wait for S and that for O."""
    pytest.importorskip("llvmlite", reason="needs llvmlite")
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, env=environment,
        cwd=Path(__file__).resolve().parent.parent, check=False,
    )  # fmt: skip
    if "missing: " in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    *log, listing = done.stdout.strip().splitlines()
    assert any("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in line for line in log), log
    assert not [line for line in log if "C75" in line], "ptxas serialises products or adds waits of its own"
    before, rest = listing.split("WARPGROUP.DEPBAR.LE gsb0, 0x1")
    beside, after = rest.split("WARPGROUP.DEPBAR.LE gsb0, 0x0")[:2]
    assert beside.count("MUFU.EX2") == 2 + 64 and "MUFU" not in after.split("BAR.SYNC")[0]
    assert before.count("HGMMA") == 4 + 8
