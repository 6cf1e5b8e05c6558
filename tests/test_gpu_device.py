"""Libraries and devices: torch tensors in the executor, and, in processes where kernels compile, what is handed over.

No device is needed: arrays are stand-ins with an address, and the launch is recorded in place of being made.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs numba-cuda: pip install 'refattn[gpu-dev]'")
pytest.importorskip("greenlet", reason="needs greenlet: pip install 'refattn[gpu-dev]'")

import gpu
from gpu.launch.arrays import as_array
from gpu.target import SIMULATED
from tests.test_gpu_launch import BF16, qkv, random

in_executor = pytest.mark.skipif(not SIMULATED, reason="NUMBA_ENABLE_CUDASIM=0: these run in the executor")
ROOT = Path(__file__).parent.parent

STAND_INS = """
import numpy as np
from gpu.launch import checks, device, forward, gradients, plain
from gpu.launch.arrays import Array
from gpu.launch.masks import EVERYTHING

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4}

class Library:
    name = "stand-in"
    def array(self, name, x):
        return x
    def new(self, shape, dtype, device, fill=None):
        return array("new", dtype, *shape)

LIBRARY = Library()

def array(name, dtype, *shape):
    strides = tuple(SIZES[dtype] * int(np.prod(shape[a + 1:])) for a in range(len(shape)))
    return Array(name, dtype, shape, strides, 4096, 0, SIZES[dtype], LIBRARY, None)

def problem(dtype, packed=False, **given):
    scalar = "float64" if dtype == "float64" else "float32"
    q, k = ((40, 4, 64), (600, 2, 64)) if packed else ((2, 4, 20, 64), (2, 2, 300, 64))
    starts = {n: array(n, "int32", 3) if packed else None for n in ("start_q", "start_k")}
    options = dict(bias=array("bias", scalar, 1, 4, 1, 300))
    options |= {n: array(n, scalar, 4) for n in ("sinks", "slopes")}
    options |= {n: array(n, "int32", 2) for n in ("used_q", "used_k")}
    return checks.Problem(array("q", dtype, *q), array("k", dtype, *k), array("v", dtype, *k), dtype, 2, 4, 2, 20, 300,
                          64, 64, packed, EVERYTHING, 0.1, 2.0, known=True, stream=0, **starts, **options)

MACHINE = device.Machine("stand-in", (9, 0), 132, 232448)
calls = []

def record(kernel, signature, grid, threads, shared_bytes, arguments, arrays, device_, stream):
    types = device._types(arguments)
    calls.append(kernel.__name__)
    if signature is not None and types != signature.args:
        raise SystemExit(f"{kernel.__name__}: {types} are not {signature.args}")
    for t in types:
        if hasattr(t, "ndim") and hasattr(t, "layout") and (t.layout != "A" or not t.mutable):
            raise SystemExit(f"{kernel.__name__}: {t} is not of any strides")

for module in (forward, gradients, plain):
    module.launch = record
"""


def compiled(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script run in a process in which kernels compile."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def assert_prints(expected: str, code: str) -> None:
    ran = compiled(code)
    assert ran.returncode == 0, ran.stderr[-2000:] + ran.stdout[-500:]
    assert ran.stdout.strip() == expected


def test_arguments_have_the_types_of_the_signatures() -> None:
    """Else numba would compile a second kernel, whose limit of shared memory was not raised."""
    code = STAND_INS + textwrap.dedent("""
        for name, kernel in forward.KERNELS.items():
            for dtype in (["float32", "float64"] if name in ("tiled", "naive") else ["float16", "bfloat16"]):
                p = problem(dtype, packed=name == "varlen")
                shape = (40, 4, 64) if p.packed else (2, 4, 20, 64)
                kernel.run(p, array("out", dtype, *shape), array("lse", p.scalar, *p.rows), MACHINE)
        for name, kernel in gradients.BACKWARD.items():
            dtype = "float32" if name == "tiled" else "bfloat16"
            p = problem(dtype)
            rows, like = array("lse", "float32", *p.rows), array("out", dtype, *p.like_q)
            gradients_ = [array("d" + x.name, dtype, *x.shape) for x in (p.q, p.k, p.v)]
            taken = checks.Taken(like, like, rows, rows, *gradients_, array("dsinks", "float32", 4))
            kernel.run(p, taken, MACHINE)
        print(*sorted(set(calls)))
    """)
    ran = compiled(code)
    assert ran.returncode == 0, ran.stderr[-2000:] + ran.stdout[-500:]
    known = {"forward", "split", "merge", "score", "normalise", "mix", "delta", "keys_kernel", "queries_kernel"}
    assert known | {"sink_gradients"} <= set(ran.stdout.split())


def test_shared_memory_beyond_48_kib_is_asked_for() -> None:
    assert_prints(
        "('compiled', ('types',)) (8, 50000, 'handle', 3) a kernel needs 300000 bytes of shared memory, and device 3 "
        "has 232448 a block; choose a smaller tile: with gpu.launch.tiles(keys=32)",
        """
        from types import SimpleNamespace as Fake
        from gpu.launch import device
        from numba.cuda.cudadrv import driver

        calls = []
        device._machine = lambda number: device.Machine("stand-in", (9, 0), 132, 232448)
        driver.driver.cuKernelSetAttribute = lambda attribute, value, handle, number: calls.append(
            (int(attribute), value, handle, number))
        library = Fake(get_cufunc=lambda: Fake(handle="handle"))

        class Kernel:
            __name__ = "a kernel"
            overloads = {("types",): Fake(_codelibrary=library)}
            def compile(self, types):
                calls.append(("compiled", types))

        kernel = Kernel()
        device._prepare(kernel, ("types",), 50000, 3)
        device._prepare(kernel, ("types",), 50000, 3)
        try:
            device._prepare(kernel, ("types",), 300000, 3)
        except ValueError as error:
            print(*calls[:2], error)
        """,
    )


def test_without_a_driver_the_error_says_what_to_do() -> None:
    ran = compiled("""
        import numpy as np
        from numba import cuda
        import gpu
        if cuda.is_available():
            print("skip")
        else:
            q = np.zeros((1, 1, 1, 8), np.float16)
            for call in (lambda: gpu.attention(q, q, q), lambda: gpu.attention_grad(q, q, q, q, q, q[..., 0])):
                try:
                    call()
                except RuntimeError as error:
                    print(error)
    """)
    if ran.stdout.strip() == "skip":
        pytest.skip("there is a CUDA driver")
    lines = ran.stdout.strip().splitlines()
    assert len(lines) == 2, ran.stderr[-2000:]
    for line in lines:
        assert line.startswith("no CUDA driver (CUDA driver library cannot be found")
        assert line.endswith("set NUMBA_ENABLE_CUDASIM=1 before numba is imported to run in the executor")


def test_arrays_on_the_host_are_refused_by_a_device() -> None:
    ran = compiled("""
        import numpy as np
        from gpu.launch.arrays import as_array
        arrays = [np.zeros(3)]
        try:
            import torch
            arrays.append(torch.zeros(3))
        except ImportError:
            pass
        for x in arrays:
            try:
                as_array("q", x)
            except TypeError as error:
                print(error)
    """)
    lines = ran.stdout.strip().splitlines()
    assert lines and lines[0].startswith("q is a NumPy array, and kernels run on the device; pass cupy.asarray(q), ")
    assert all("NUMBA_ENABLE_CUDASIM=1" in line for line in lines), ran.stderr[-2000:]


def test_launches_are_configured_in_the_callers_stream_without_warnings() -> None:
    ran = compiled("""
        import warnings
        warnings.simplefilter("error")
        from gpu.kernels import k3_tensor_core as k3
        from gpu.launch import device
        device.cuda.external_stream = lambda address: device.cuda.cudadrv.driver.Stream(
            device.cuda.cudadrv.driver.binding.CUstream(address), external=True)
        kernel = k3.forward(k3.usual("float16", 64, 64))
        for stream in (0, 4096):
            found = device._configured(kernel, (2, 3), 128, stream, 50000, 0)
            print(found.griddim, found.blockdim, found.sharedmem, int(found.stream.handle))
    """)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines() == ["(2, 3, 1) (128, 1, 1) 50000 0", "(2, 3, 1) (128, 1, 1) 50000 4096"]


CUPY = """
import sys
from types import ModuleType, SimpleNamespace as Fake
import numpy as np

cupy = ModuleType("cupy")

class ndarray:
    def __init__(self, dtype, shape, strides, address=8192, device=1):
        self.dtype, self.shape, self.strides = np.dtype(dtype), shape, strides
        self.data, self.device, self.itemsize = Fake(ptr=address), Fake(id=device), self.dtype.itemsize

ndarray.__module__ = "cupy._core.core"
cupy.ndarray = ndarray
cupy.asarray = lambda x: ndarray("int16", (4,), (2,), x.__cuda_array_interface__["data"][0])
sys.modules["cupy"] = cupy
"""


def test_arrays_of_cupy_and_of_the_interface() -> None:
    """With a stand-in for CuPy: address, strides, device, and what goes through CuPy."""
    code = """
        from gpu.launch.arrays import as_array

        class Other:
            __cuda_array_interface__ = {"data": (16384, False), "shape": (4,), "typestr": "<i2", "version": 3}

        found = [as_array("x", ndarray("float16", (2, 3), (12, 4))), as_array("x", Other())]
        shown = [f"{x.dtype} {x.shape} {x.strides} {x.address} {x.device} {x.library.name}" for x in found]
        sys.modules["cupy"] = None
        try:
            as_array("x", Other())
        except TypeError as error:
            shown.append(str(error).split("which is ")[1].split(":")[0])
        print(" | ".join(shown))
    """
    expected = "float16 (2, 3) (12, 4) 8192 1 cupy | int16 (4,) (2,) 16384 1 cupy | taken through CuPy"
    assert_prints(expected, CUPY + textwrap.dedent(code))


def test_what_only_the_device_knows() -> None:
    """Lengths there are not looked at: bounds are taken from the shapes, and a bias is refused."""
    code = """
        from gpu.launch.checks import check

        def array(dtype, *shape, device=1):
            strides = np.zeros(shape, dtype).strides
            return ndarray(dtype, shape, strides, 8192, device)

        q, k = array("float16", 40, 4, 64), array("float16", 60, 2, 64)
        starts = {"cu_seqlens_q": array("int32", 3), "cu_seqlens_k": array("int32", 3)}
        p = check(q, k, k, **starts, seqused_k=array("int32", 2))
        print(p.B, p.Lq, p.Lk, p.known, p.start_q.address, p.used_k.address)
        dense = array("float16", 2, 4, 9, 64)
        for call in (
            lambda: check(q, k, k, **starts, bias=array("float32", 1, 1, 40, 60)),
            lambda: check(q, k, k, **starts, seqused_k=array("int64", 2)),
            lambda: check(dense, array("float16", 2, 4, 9, 64, device=2), dense),
            lambda: check(dense, dense, dense, sinks=array("float32", 4, device=3)),
        ):
            try:
                call()
            except (ValueError, TypeError) as error:
                print(error)
    """
    ran = compiled(CUPY + textwrap.dedent(code))
    assert ran.stdout.splitlines() == [
        "2 40 60 False 8192 8192",
        "bias with lengths that only the device knows could be too small; pass them as NumPy arrays",
        "seqused_k.dtype=int64 must be int32; convert it",
        "k is on device 2 and q on device 1; move k to device 1",
        "sinks is on device 3 and q on device 1; move sinks to device 1",
    ], ran.stderr[-2000:]


class ndarray:  # noqa: N801 - as CuPy calls it
    """A stand-in for a CuPy array."""


ndarray.__module__ = "cupy"


class OnDevice:
    __cuda_array_interface__: dict[str, Any] = {}


@in_executor
def test_arrays_on_a_device_are_refused_by_the_executor() -> None:
    with pytest.raises(TypeError, match="q is a CuPy array, and NUMBA_ENABLE_CUDASIM=1 runs kernels in the executor"):
        as_array("q", ndarray())
    with pytest.raises(TypeError, match="q is a OnDevice; the executor takes arrays of NumPy, and of torch on the CPU"):
        as_array("q", OnDevice())


def test_numba_cuda_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"gpu needs numba-cuda; pip install 'refattn\[gpu\]'"):
        _ = gpu.attention
    with pytest.raises(AttributeError, match="module 'gpu' has no attribute 'atention'"):
        _ = gpu.atention


def test_import_of_gpu_brings_nothing() -> None:
    ran = compiled("import sys, gpu; print('numba' in sys.modules, 'numpy' in sys.modules)")
    assert ran.stdout.split() == ["False", "False"], ran.stderr


@in_executor
class TestTorch:
    """Tensors on the CPU, in the executor: the same answers, as tensors."""

    def test_answers_are_tensors_with_the_same_bits(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from refattn.exchange import from_torch, to_torch

        q, k, v = qkv(H=4, Hkv=2, Lq=20, Lk=30, dtype=BF16)
        sinks, dout = random(4, dtype=BF16), random(1, 4, 20, 8, dtype=BF16)
        tensors = [to_torch(x).requires_grad_() for x in (q, k, v)]
        found = gpu.attention(*tensors, sinks=to_torch(sinks))
        plain = gpu.attention(q, k, v, sinks=sinks)
        assert found.out.dtype is torch.bfloat16 and found.lse.dtype is torch.float32
        np.testing.assert_array_equal(from_torch(found.out), plain.out)
        grads = gpu.attention_grad(to_torch(dout), *tensors, *found, sinks=to_torch(sinks))
        for a, b in zip(grads, gpu.attention_grad(dout, q, k, v, *plain, sinks=sinks), strict=True):
            assert a.dtype is torch.bfloat16
            np.testing.assert_array_equal(from_torch(a), b)

    def test_views_int16_and_lengths(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        from refattn.exchange import to_torch

        q, k, v = (to_torch(x) for x in qkv(B=2, H=4, Hkv=2, Lq=20, Lk=30, dtype=BF16))
        lens = torch.tensor([30, 7], dtype=torch.int32)
        usual = gpu.attention(q, k, v, seqused_k=lens)
        turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
        apart = [torch.stack([x, x], -1).flatten(-2)[..., ::2] for x in (q, k, v)]
        for given in (turned, apart):
            assert torch.equal(gpu.attention(*given, seqused_k=lens).out, usual.out)
        bits = gpu.attention(*(x.view(torch.int16) for x in (q, k, v)), seqused_k=[30, 7]).out
        assert bits.dtype is torch.int16 and torch.equal(bits.view(torch.bfloat16), usual.out)
        with pytest.raises(TypeError, match="seqused_k.dtype=int64 must be int32"):
            gpu.attention(q, k, v, seqused_k=lens.long())

    def test_negated_views(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        pairs = torch.from_numpy(random(1, 2, 5, 8, 2, dtype=np.float32))
        negated = torch.view_as_complex(pairs).conj().imag
        assert negated.is_neg()
        q, k, v = (torch.from_numpy(x) for x in qkv(D=8, dtype=np.float32))
        assert torch.equal(gpu.attention(negated, k, v).out, gpu.attention(-pairs[..., 1], k, v).out)

    def test_refusals(self) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed")
        q = torch.zeros(1, 1, 4, 8, dtype=torch.float16)
        with pytest.raises(TypeError, match="k is an array of numpy and q one of torch; use one library"):
            gpu.attention(q, q.numpy(), q)
        with pytest.raises(TypeError, match="q is a tensor of layout torch.sparse_coo, which must be strided"):
            gpu.attention(q.to_sparse(), q, q)
        with pytest.raises(TypeError, match="q is on meta; it must be on a CUDA device"):
            gpu.attention(q.to("meta"), q, q)
        with pytest.raises(TypeError, match="q.dtype=float8_e5m2 must be one of"):
            gpu.attention(q.to(torch.float8_e5m2), q, q)


def test_bits_of_bfloat16_are_rounded_to_nearest_even() -> None:
    from gpu.launch.arrays import NUMPY

    odd = [0.0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875, 3.4e38, 1e-40]
    x = np.concatenate([random(1000, dtype=np.float32), odd]).astype(np.float32)
    np.testing.assert_array_equal(NUMPY.converted(x, "int16").view(BF16), x.astype(BF16))
    nans = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(NUMPY.converted(nans, "int16").view(BF16).astype(np.float32)).all()
    bits = x.astype(BF16).view(np.int16)
    np.testing.assert_array_equal(NUMPY.converted(bits, "float32"), x.astype(BF16).astype(np.float32))
