"""The SASS gate: each row of the table holds, and the gate refuses by name what it is there to refuse.

Kernels are compiled here, so it needs a process of its own: NUMBA_ENABLE_CUDASIM=0 pytest tests/test_gpu_sass.py.
By default one row of each kernel and architecture is compiled, which one goes round as the kernels change;
GPU_SASS=all takes all rows, as `python -m gpu.sass --check` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("numba_cuda", reason="no numba-cuda; pip install 'refattn[gpu-dev]'")

from numba import cuda  # noqa: E402
from numba.cuda import types  # noqa: E402
from numpy import float32, int32  # noqa: E402

from gpu import ptx, sass  # noqa: E402
from gpu.sass import table, toolchain  # noqa: E402
from gpu.sass.gate import broken_rules, differences  # noqa: E402
from gpu.target import SIMULATED  # noqa: E402

pytestmark = pytest.mark.skipif(
    SIMULATED, reason="kernels are simulated in this process; NUMBA_ENABLE_CUDASIM=0 pytest tests/test_gpu_sass.py"
)

FLOATS, INTS, BYTES = types.float32[::1], types.int32[::1], types.uint8[::1]


@pytest.fixture(scope="module", autouse=True)
def tools() -> None:
    try:
        toolchain.ptxas(), toolchain.nvdisasm()
    except sass.Missing as missing:
        pytest.skip(str(missing))


def chosen() -> list[table.Entry]:
    if SIMULATED:
        return []
    every = table.entries()
    return every if os.environ.get("GPU_SASS") == "all" else table.quick(every, table.rotation())


@pytest.mark.parametrize("entry", chosen(), ids=lambda entry: entry.key.replace(" ", "-"))
def test_row(entry: table.Entry) -> None:
    made_with, rows = table.load()
    outcome = table.examine(entry)
    assert outcome.broken == []
    if made_with != table.versions():
        pytest.skip(f"rules hold; the table was made with {made_with}, here is {table.versions()}")
    assert entry.key in rows, "python -m gpu.sass --write"
    assert differences(outcome.row, rows[entry.key]) == []


def test_table_has_the_rows_that_the_kernels_declare() -> None:
    assert sorted(table.load()[1]) == sorted(entry.key for entry in table.entries())


def report(kernel: Callable[..., None], *arguments: Any, threads: int = 128, arch: str = "sm_90") -> sass.Report:
    text = sass.compile_kernel(kernel, types.void(*arguments), sass.capability(arch), (threads, 1))
    return sass.assemble(text, arch)


def only(faults: list[str], start: str) -> str:
    """The one fault, and that it is of this name."""
    assert len(faults) == 1, faults
    assert faults[0].startswith(start), faults
    return faults[0]


def copying(x: Any, y: Any) -> None:
    """What the gate lets pass: 16 bytes at a time."""
    i = cuda.threadIdx.x * 16
    a = ptx.load_global_b32x4(x + i)
    ptx.store_global_b32x4(y + i, a[0], a[1], a[2], a[3])


def test_vectorised_copy_passes() -> None:
    found = report(copying, types.int64, types.int64)
    assert found.global_access == {"LDG.128": 1, "STG.128": 1}
    assert broken_rules(found, threads=128) == []


def crowded(x: Any) -> None:
    """128 values at a time in the 64 registers that 1024 threads leave to each."""
    own = x + cuda.threadIdx.x * 16
    a = cuda.local.array(128, int32)
    for i in range(32):
        b = ptx.load_global_b32x4(own + i * 16384)
        a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3] = b[0], b[1], b[2], b[3]
    cuda.syncthreads()
    for i in range(32):
        j = 124 - 4 * i
        ptx.store_global_b32x4(own + i * 16384, a[j], a[j + 1], a[j + 2], a[j + 3])


def test_spill_is_refused() -> None:
    found = report(crowded, types.int64, threads=1024)
    assert found.spill_stores > 0 and found.spill_loads > 0 and found.registers <= 64
    faults = broken_rules(found, threads=1024)
    assert any(fault.startswith(f"spill_stores={found.spill_stores}, ") for fault in faults), faults
    assert broken_rules(report(crowded, types.int64, threads=128), threads=128) == []


def indexed(x: Any, n: Any) -> None:
    """A local array whose index is known only when it runs."""
    own = x + cuda.threadIdx.x * 16
    a = cuda.local.array(32, int32)
    for i in range(32):
        a[i] = int32(0)
    for i in range(n):
        b = ptx.load_global_b32x4(own + i * 2048)
        a[b[0] & 31] += b[1]
        a[b[2] & 31] += b[3]
    for i in range(8):
        ptx.store_global_b32x4(own + i * 2048, a[4 * i], a[4 * i + 1], a[4 * i + 2], a[4 * i + 3])


def test_local_memory_is_refused() -> None:
    faults = broken_rules(report(indexed, types.int64, types.int32), threads=128)
    assert [fault.partition("=")[0].partition(" is")[0] for fault in faults] == ["stack", "local memory"], faults


def bytewise(x: Any, y: Any) -> None:
    i = cuda.threadIdx.x * 4
    for e in range(4):
        y[i + e] = x[i + e]


def test_bytes_one_by_one_are_refused() -> None:
    found = report(bytewise, BYTES, BYTES)
    assert found.global_access == {"LDG.U8": 4, "STG.U8": 4}
    faults = broken_rules(found, threads=128)
    assert faults[0].startswith("global memory is accessed byte by byte"), faults
    assert faults[1].startswith("no load of 16 bytes"), faults


def elementwise(x: Any, y: Any) -> None:
    i = cuda.threadIdx.x
    y[i] = x[i]


def test_narrow_loads_are_refused_unless_meant() -> None:
    found = report(elementwise, FLOATS, FLOATS)
    only(broken_rules(found, threads=128), "no load of 16 bytes")
    assert broken_rules(found, threads=128, narrow=True) == []


def products(number: int) -> Callable[..., None]:
    def multiplying(x: Any) -> None:
        own = x + cuda.threadIdx.x * 16
        a = ptx.load_global_b32x4(own)
        c0, c1, c2, c3 = float32(0), float32(0), float32(0), float32(0)
        for _ in range(number):
            c0, c1, c2, c3 = ptx.mma_bf16(a[0], a[1], a[2], a[3], a[0], a[1], c0, c1, c2, c3)
        ptx.store_global_f32(own, c0 + c1 + c2 + c3)

    return multiplying


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_missing_product_is_refused(arch: str) -> None:
    whole, less = (report(products(number), types.int64, arch=arch) for number in (3, 2))
    assert whole.counts["HMMA"] == 3 and broken_rules(whole, threads=32, tensor=3) == []
    only(broken_rules(less, threads=32, tensor=3), "tensor=2 matrix products (HMMA and HGMMA) must be 3")


def test_compiling_leaves_numba_as_it_was() -> None:
    from numba.cuda import dispatcher

    asked = dispatcher.get_current_device
    with pytest.raises(Exception, match="nowhere"):
        sass.compile_kernel(lambda x: nowhere(x), types.void(types.int64), (9, 0))  # type: ignore[name-defined]  # noqa: F821
    assert dispatcher.get_current_device is asked


def test_simulator_is_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    with pytest.raises(sass.Missing, match="NUMBA_ENABLE_CUDASIM is set"):
        sass.compile_kernel(copying, types.void(types.int64, types.int64), (9, 0))


def test_faulty_ptx_is_named() -> None:
    with pytest.raises(ValueError, match="ptxas failed: .*Missing .version directive"):
        sass.assemble("this is not PTX", "sm_90")
