"""Arithmetic of one lane, shuffles, and the packing of two 16-bit numbers into a register.

Sources: PTX ISA 9.0, sections "Floating Point Instructions" (ex2, lg2, rcp, fma), "Data Movement and Conversion
Instructions" (cvt, prmt, shfl.sync).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numba import cuda

from .primitive import b32, collective, f32, primitive

__all__ = [
    "bits_of", "block_x", "divide", "ex2", "float_of", "lg2", "pack_bf16", "pack_f16", "shuffle_xor",
    "unpack_high_bf16",
    "unpack_high_f16", "unpack_low_bf16", "unpack_low_f16",
]  # fmt: skip


@primitive("ex2.approx.ftz.f32 $0, $1;", f32, (f32,))
def ex2(x: Any) -> Any:
    """2**x; relative error at most 2**-22; subnormal results are flushed to 0; 2**-inf = 0."""
    y = np.exp2(np.float32(x))
    return np.float32(0) if abs(y) < np.float32(2.0**-126) else y


@primitive("lg2.approx.ftz.f32 $0, $1;", f32, (f32,))
def lg2(x: Any) -> Any:
    """log2(x); absolute error 2**-22 on (1/2, 2), relative error 2**-22 elsewhere; log2(0) = -inf."""
    return np.log2(np.float32(x))


@primitive("mov.u32 $0, %ctaid.x;", b32, (), memory=True)
def block_x() -> Any:
    """`cuda.blockIdx.x`, read anew at each call: what is made of it need not stay in registers in between."""
    return np.int32(cuda.blockIdx.x)


@primitive("mov.b32 $0, $1;", f32, (b32,))
def float_of(bits: Any) -> Any:
    """The float whose bits these are."""
    return np.int32(bits).view(np.float32)


@primitive("mov.b32 $0, $1;", b32, (f32,))
def bits_of(x: Any) -> Any:
    """The bits of a float."""
    return np.float32(x).view(np.int32)


@primitive("cvt.rn.bf16x2.f32 $0, $2, $1;", b32, (f32, f32))
def pack_bf16(low: Any, high: Any) -> Any:
    """Two floats rounded to bfloat16, to nearest even, `low` in the lower half: the element of lower address."""
    return np.array([low, high], np.float32).astype(ml_dtypes.bfloat16).view(np.int32)[0]


@primitive("cvt.rn.f16x2.f32 $0, $2, $1;", b32, (f32, f32))
def pack_f16(low: Any, high: Any) -> Any:
    """Two floats rounded to float16, to nearest even, `low` in the lower half; beyond 65504 they become infinite."""
    with np.errstate(over="ignore"):
        return np.array([low, high], np.float32).astype(np.float16).view(np.int32)[0]


@primitive("shl.b32 $0, $1, 16;", f32, (b32,))
def unpack_low_bf16(pair: Any) -> Any:
    """The lower of two bfloat16, as a float: exact."""
    return np.uint32((int(pair) & 0xFFFF) << 16).view(np.float32)


@primitive("and.b32 $0, $1, 0xffff0000;", f32, (b32,))
def unpack_high_bf16(pair: Any) -> Any:
    """The upper of two bfloat16, as a float: exact."""
    return np.uint32(int(pair) & 0xFFFF0000).view(np.float32)


@primitive("{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, l; }", f32, (b32,))
def unpack_low_f16(pair: Any) -> Any:
    """The lower of two float16, as a float: exact."""
    return np.float32(np.uint16(int(pair) & 0xFFFF).view(np.float16))


@primitive("{ .reg .b16 l, h; mov.b32 {l, h}, $1; cvt.f32.f16 $0, h; }", f32, (b32,))
def unpack_high_f16(pair: Any) -> Any:
    """The upper of two float16, as a float: exact."""
    return np.float32(np.uint16(int(pair) >> 16 & 0xFFFF).view(np.float16))


@collective("shfl.sync.bfly.b32 $0, $1, $2, 31, -1;", f32, (f32, b32))
def shuffle_xor(x: Any, mask: Any) -> Any:
    """The x of the lane whose number differs from one's own by the bits of `mask`."""
    return x[np.arange(len(x)) ^ mask]


@primitive("div.u32 $0, $1, $2;", b32, (b32, b32))
def divide(a: Any, b: Any) -> Any:
    """a // b of numbers from 0 to 2**31 - 1, b > 0: in 32 bits, where Numba's // of variables is a call in 64."""
    return np.int32(int(a) // int(b))
