"""Loads and stores by address, in global and in shared memory, and asynchronous copies between them.

A global address is 64 bits, a shared one 32 bits within the block's window.  An access of n bytes must be at a
multiple of n: the hardware faults otherwise, and the executor raises.  Sources: PTX ISA 9.0, "Data Movement and
Conversion Instructions": ld, st, cp.async, cp.async.commit_group, cp.async.wait_group.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.target import SIMULATED

from .primitive import b32, b64, f32, primitive

if SIMULATED:
    from gpu import simt

__all__ = [
    "commit_copies", "copy_async", "copy_async_b64", "load_global_b16", "load_global_b32", "load_global_b32x4",
    "load_global_f32", "load_global_f32x4", "load_shared_b32", "load_shared_b32x4", "load_shared_f32",
    "load_shared_f32x2", "load_shared_f32x4", "shared_memory", "store_global_b16", "store_global_b32",
    "store_global_b32x4", "store_global_f32", "store_global_f32x4", "store_shared_b16", "store_shared_b32",
    "store_shared_f32", "wait_copies", "wait_copies_but_one",
]  # fmt: skip


@primitive("{ .reg .b16 h; ld.global.b16 h, [$1]; cvt.u32.u16 $0, h; }", b32, (b64,), memory=True)
def load_global_b16(address: Any) -> Any:
    """Two bytes, in the lower half of a register whose upper half is 0."""
    return np.int32(simt.load("global", address, 2).view(np.uint16)[0])


@primitive("ld.global.b32 $0, [$1];", b32, (b64,), memory=True)
def load_global_b32(address: Any) -> Any:
    """Four bytes, as an integer."""
    return simt.load("global", address, 4).view(np.int32)[0]


@primitive("ld.global.f32 $0, [$1];", f32, (b64,), memory=True)
def load_global_f32(address: Any) -> Any:
    """Four bytes, as a float32."""
    return simt.load("global", address, 4).view(np.float32)[0]


@primitive("ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", (b32,) * 4, (b64,), memory=True)
def load_global_b32x4(address: Any) -> Any:
    """Sixteen bytes in one transaction."""
    return tuple(simt.load("global", address, 16).view(np.int32))


@primitive("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", (f32,) * 4, (b64,), memory=True)
def load_global_f32x4(address: Any) -> Any:
    """Four float32 in one transaction."""
    return tuple(simt.load("global", address, 16).view(np.float32))


@primitive("{ .reg .b16 l, h; mov.b32 {l, h}, $1; st.global.b16 [$0], l; }", None, (b64, b32), memory=True)
def store_global_b16(address: Any, x: Any) -> None:
    """The lower two bytes of `x`."""
    simt.store("global", address, np.array([int(x) & 0xFFFF], np.uint16).view(np.uint8))


@primitive("st.global.b32 [$0], $1;", None, (b64, b32), memory=True)
def store_global_b32(address: Any, x: Any) -> None:
    """Four bytes, as an integer."""
    simt.store("global", address, np.array([x], np.int32).view(np.uint8))


@primitive("st.global.f32 [$0], $1;", None, (b64, f32), memory=True)
def store_global_f32(address: Any, x: Any) -> None:
    """Four bytes, as a float32."""
    simt.store("global", address, np.array([x], np.float32).view(np.uint8))


@primitive("st.global.v4.b32 [$0], {$1, $2, $3, $4};", None, (b64, b32, b32, b32, b32), memory=True)
def store_global_b32x4(address: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    """Sixteen bytes in one transaction."""
    simt.store("global", address, np.array([x0, x1, x2, x3], np.int32).view(np.uint8))


@primitive("st.global.v4.f32 [$0], {$1, $2, $3, $4};", None, (b64, f32, f32, f32, f32), memory=True)
def store_global_f32x4(address: Any, x0: Any, x1: Any, x2: Any, x3: Any) -> None:
    """Four float32 in one transaction."""
    simt.store("global", address, np.array([x0, x1, x2, x3], np.float32).view(np.uint8))


if SIMULATED:

    def shared_memory(array: Any) -> Any:
        """The shared address of `array = cuda.shared.array(0, dtype)`: the block's dynamic shared memory."""
        return np.int32(simt.shared_base())
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    @intrinsic
    def shared_memory(typing_context: Any, array: Any) -> Any:
        """The shared address of `array = cuda.shared.array(0, dtype)`: the block's dynamic shared memory."""

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            byte = builder.bitcast(data, ir.IntType(8).as_pointer())
            return builder.ptrtoint(builder.addrspacecast(byte, ir.IntType(8).as_pointer(3)), ir.IntType(32))

        return types.int32(array), emit


@primitive("ld.shared.b32 $0, [$1];", b32, (b32,), memory=True)
def load_shared_b32(address: Any) -> Any:
    """Four bytes, as an integer."""
    return simt.load("shared", address, 4).view(np.int32)[0]


@primitive("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", (b32,) * 4, (b32,), memory=True)
def load_shared_b32x4(address: Any) -> Any:
    """Sixteen bytes in one access."""
    return tuple(simt.load("shared", address, 16).view(np.int32))


@primitive("ld.shared.f32 $0, [$1];", f32, (b32,), memory=True)
def load_shared_f32(address: Any) -> Any:
    """Four bytes, as a float32."""
    return simt.load("shared", address, 4).view(np.float32)[0]


@primitive("ld.shared.v2.f32 {$0, $1}, [$2];", (f32,) * 2, (b32,), memory=True)
def load_shared_f32x2(address: Any) -> Any:
    """Two float32 in one access."""
    return tuple(simt.load("shared", address, 8).view(np.float32))


@primitive("ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];", (f32,) * 4, (b32,), memory=True)
def load_shared_f32x4(address: Any) -> Any:
    """Four float32 in one access."""
    return tuple(simt.load("shared", address, 16).view(np.float32))


@primitive("{ .reg .b16 l, h; mov.b32 {l, h}, $1; st.shared.b16 [$0], l; }", None, (b32, b32), memory=True)
def store_shared_b16(address: Any, x: Any) -> None:
    """The lower two bytes of `x`."""
    simt.store("shared", address, np.array([int(x) & 0xFFFF], np.uint16).view(np.uint8))


@primitive("st.shared.b32 [$0], $1;", None, (b32, b32), memory=True)
def store_shared_b32(address: Any, x: Any) -> None:
    """Four bytes, as an integer."""
    simt.store("shared", address, np.array([x], np.int32).view(np.uint8))


@primitive("st.shared.f32 [$0], $1;", None, (b32, f32), memory=True)
def store_shared_f32(address: Any, x: Any) -> None:
    """Four bytes, as a float32."""
    simt.store("shared", address, np.array([x], np.float32).view(np.uint8))


@primitive("cp.async.cg.shared.global [$0], [$1], 16, $2;", None, (b32, b64, b32), memory=True)
def copy_async(shared: Any, address: Any, count: Any) -> None:
    """Begins a copy of 16 bytes, of which the first `count` are read and the others become 0.

    What arrives may be read by this thread once it has waited, by other threads after a barrier as well.
    """
    simt.copy_async(shared, address, count)


@primitive("cp.async.ca.shared.global [$0], [$1], 8, $2;", None, (b32, b64, b32), memory=True)
def copy_async_b64(shared: Any, address: Any, count: Any) -> None:
    """As `copy_async`, 8 bytes."""
    simt.copy_async(shared, address, count, 8)


@primitive("cp.async.commit_group;", None, (), memory=True)
def commit_copies() -> None:
    """Makes a group of the copies begun since the last one."""
    simt.commit_group()


@primitive("cp.async.wait_group 0;", None, (), memory=True)
def wait_copies() -> None:
    """Waits until all groups of this thread have arrived."""
    simt.wait_group(0)


@primitive("cp.async.wait_group 1;", None, (), memory=True)
def wait_copies_but_one() -> None:
    """Waits until all groups of this thread but the last have arrived."""
    simt.wait_group(1)
