"""The door to the suite: `refattn check gpu.implementation:attention`.

`attention` takes the kernel that `gpu.attention` would choose; `naive`, `tiled`, `tensor_core`, `decode`, `varlen` and
`wgmma` force one.  Without a CUDA driver the kernels run in the executor, warp by warp on the CPU, which the report
says; there, cases of more than GPU_EXECUTOR_LIMIT multiplications are refused.

A mask that is a band (Causal, Window, both joined) and padding are realised by the kernels, with lengths; any
other mask as a bias of 0 and -inf, added to the case's.  What `gpu.attention` has not is refused.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata, util
from typing import Any, Literal

import numpy as np

from refattn.case import MATRICES, Case, Dense, Packed, Shared, Strided
from refattn.dtypes import FORMATS
from refattn.masks import Mask, Padding
from refattn.precision import Conventions, Precision, Unsupported, preset
from refattn.visibility import And

__all__ = ["FORCED", "GPUAttention", "attention", "decode", "naive", "tensor_core", "tiled", "varlen", "wgmma"]

Array = np.ndarray[Any, Any]

LIMIT = 2e7
"""Multiplications of a case, as `GPUAttention.work` counts them, that the executor is given: some seconds."""
FROM_LSE = "gpu.kernels.weights: the backward makes the weights again as exp(score - lse), as FlashAttention-2 does"


def _has_driver() -> bool:
    """Whether there is a CUDA driver with a device, asked of the driver itself: numba must not be imported yet."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except (OSError, AttributeError):
        return False


if "numba" not in sys.modules and "NUMBA_ENABLE_CUDASIM" not in os.environ and not _has_driver():
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"


@dataclass(frozen=True)
class GPUAttention:
    """`gpu.attention` and `gpu.attention_grad`, by the kernel of that name; None: the one that is chosen."""

    kernel: str | None = None
    arrays: Literal["numpy", "torch"] = "numpy"
    conventions: Conventions = Conventions(masked_nan_k="leaks", masked_nan_v="leaks")
    outputs: frozenset[str] = frozenset({"out", "lse", "dq", "dk", "dv", "dsinks"})

    @property
    def name(self) -> str:
        return "gpu" + (f" ({self.kernel})" if self.kernel else "")

    @property
    def version(self) -> str:
        from gpu.target import SIMULATED

        where = f"executor, schedule {_schedule()}" if SIMULATED else _device_name()
        return f"numba-cuda {metadata.version('numba-cuda')}, {where}"

    def supports(self, case: Case) -> str | None:
        from gpu.target import SIMULATED

        reason = _refused(case)
        if reason is None and SIMULATED:
            limit = float(os.environ.get("GPU_EXECUTOR_LIMIT", LIMIT))
            work = self.work(case)
            if work > limit:
                reason = f"too large for the executor: {work:.1g} multiplications, the limit is {limit:.1g}"
        if reason is None and not SIMULATED and util.find_spec("cupy") is None:
            reason = "CuPy is not installed"
        return reason

    @staticmethod
    def work(case: Case) -> float:
        """Multiplications: padded to 16 rows and columns on tensor cores; eight times as many on 32 and 64 bits."""
        plain = case.dtype in ("float32", "float64")

        def padded(n: int) -> int:
            return n if plain else -(-n // 16) * 16

        size = case.B * case.H * padded(case.Lq) * padded(case.Lk) * (padded(case.D) + padded(case.Dv))
        return size * (8 if plain else 1) * (4.5 if case.backward else 1)  # 7 products follow the forward's 2

    def precision(self, case: Case) -> Precision:
        contract = preset(case.dtype, case.out_dtype)
        return replace(contract, weights_from_lse=True, source=FROM_LSE) if case.backward else contract

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import gpu
        from gpu.launch import Refused
        from gpu.target import SIMULATED

        hands = _Executor() if SIMULATED else _Device()
        names = ("q", "k", "v", "dout", "dlse")
        x = {name: hands.taken(given[name]) for name in names if name in given}
        if isinstance(case.storage, Shared):
            x["v"] = x["k"][..., : case.Dv]
        options = _options(case, given)
        options = {name: hands.taken(o) if isinstance(o, np.ndarray) else o for name, o in options.items()}
        try:
            out, lse = gpu.attention(x["q"], x["k"], x["v"], kernel=self.kernel, **options)
            found = {"out": out, "lse": lse}
            if case.backward:
                inputs = (x["dout"], x["q"], x["k"], x["v"], out, lse)
                found |= gpu.attention_grad(*inputs, dlse=x.get("dlse"), **options)._asdict()
        except Refused as refusal:
            raise Unsupported(str(refusal)) from None
        return {name: hands.given(found[name], given["q"].dtype) for name in case.want if found.get(name) is not None}


def _schedule() -> str:
    from gpu.simt.schedules import default_schedule

    return str(default_schedule())


def _device_name() -> str:
    from gpu.launch.device import machine

    return machine(0).name


def _refused(case: Case) -> str | None:
    if case.dtype.startswith("float8"):
        return case.dtype
    for feature in ("score_mod", "dropout", "rotary", "quant"):
        if getattr(case, feature) is not None:
            return feature
    if not isinstance(case.storage, (Dense, Strided, Shared, Packed)):
        return type(case.storage).__name__
    if case.out_dtype != case.dtype:
        return f"out_dtype={case.out_dtype}"
    if not case.want.isdisjoint(MATRICES):
        return "matrices of scores"
    if case.want.isdisjoint(attention.outputs):
        return f"returns no {' '.join(sorted(case.want))}"
    if case.bias is not None and _bias_dtype(case) is None:
        return f"bias of {case.bias.dtype}"
    return None


def _bias_dtype(case: Case) -> str | None:
    """The dtype in which a kernel takes the case's bias exactly, or None."""
    if case.bias is None or case.bias.dtype in (case.dtype, "float32"):
        return "float32" if case.bias is None else case.bias.dtype
    return "float32" if FORMATS[case.bias.dtype].bits <= FORMATS["float32"].bits else None


def _options(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of `gpu.attention` for a case, arrays on the host."""
    from gpu.launch.masks import EVERYTHING, band_of

    options: dict[str, Any] = {"scale": case.scale, "softcap": case.softcap}
    if "sinks" in given:
        options["sinks"] = given["sinks"]
    for name in ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"):
        if name in given:
            options[name] = given[name]
    packed = isinstance(case.storage, Packed)
    if not packed:
        for name, lens in (("seqused_q", case.q_lens), ("seqused_k", case.k_lens)):
            if lens is not None:
                options[name] = np.array(lens, np.int32)
    q_lens, k_lens = case.lengths
    rest, padding = _without_padding(case.mask)
    band = band_of(rest, square=q_lens == k_lens)
    if band is not None and padding is not None and not band.bottom_right and not packed:
        options["seqused_k"] = np.array([min(n, m) for n, m in zip(k_lens, padding, strict=True)], np.int32)
        padding = None
    bias = given.get("bias")
    if bias is not None:
        bias = bias.astype(_bias_dtype(case)) if _bias_dtype(case) != bias.dtype.name else bias
    if band is None or padding is not None:
        seen = case.visibility.tile()
        zero = np.zeros((1, 1, 1, 1), np.float32) if bias is None else bias
        bias = np.where(seen, zero, np.array(-math.inf, zero.dtype))
    elif band != EVERYTHING:
        options["mask"] = rest
    if bias is not None:
        options["bias"] = bias
    return options


def _without_padding(mask: Mask | None) -> tuple[Mask | None, tuple[int, ...] | None]:
    """A mask joined with & of Padding and the rest: the rest, and how many keys are left of each batch entry."""
    if isinstance(mask, Padding):
        return None, mask.lengths
    if not isinstance(mask, And):
        return mask, None
    (left, one), (right, other) = _without_padding(mask.left), _without_padding(mask.right)
    rest = left if right is None else right if left is None else left & right
    both = one if other is None else other if one is None else tuple(map(min, one, other))
    return rest, both


class _Executor:
    """Arrays stay where they are."""

    def taken(self, x: Array) -> Any:
        return x

    def given(self, x: Any, dtype: Any) -> Array:
        return np.asarray(x)


class _Device:
    """Arrays are copied to the device, with their strides, and back; bfloat16 as int16."""

    def taken(self, x: Array) -> Any:
        import cupy

        bits = x.view(np.int16) if x.dtype.name == "bfloat16" else x
        low, high = np.lib.array_utils.byte_bounds(bits)
        try:
            memory = cupy.cuda.alloc(max(high - low, 1))
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise Unsupported(f"too large for the device: {error}") from None
        start = bits.__array_interface__["data"][0] - low
        copy = cupy.ndarray(bits.shape, bits.dtype, memory + start, bits.strides)
        copy[...] = cupy.asarray(np.ascontiguousarray(bits))
        return copy

    def given(self, x: Any, dtype: Any) -> Array:
        import cupy

        host = cupy.asnumpy(x)
        return host.view(dtype) if host.dtype == np.int16 else host


attention = GPUAttention()
naive = GPUAttention("naive")
tiled = GPUAttention("tiled")
tensor_core = GPUAttention("tensor_core")
decode = GPUAttention("decode")
varlen = GPUAttention("varlen")
wgmma = GPUAttention("wgmma")
FORCED = {str(x.kernel): x for x in (naive, tiled, tensor_core, decode, varlen, wgmma)}
"""By name, those that force a kernel."""
