"""Matrix products of a warpgroup (128 threads) on Hopper's tensor cores: C (64 x n) += A (64 x 16) B (16 x n).

The product is asynchronous: it reads shared memory by the async proxy, and registers while the warps go on.
What must be kept, or the result is undefined; the model (`gpu.ptx.wgmma_model`) raises for each:

    bytes written to shared memory     every writer: fence_async_proxy, then a barrier, before a product reads them
    registers (C, and A if held there) pin, then wgmma_fence, after they are written or read, before a product;
                                       products of one shape may follow each other on the same C without
    results                            wgmma_commit, wgmma_wait, pin; before that C is not to be touched, nor A
                                       written, nor the bytes of A and B

C lies in registers as `gpu.ptx.tensor` says for one warp: warp w of the group holds rows 16 w to 16 w + 15, lane l
of it c[4 b + e] for columns 8 b ...; A in registers likewise, a[at : at + 4].  A and B in shared memory are told by
a 64-bit descriptor of a tile with the 128-byte swizzle: rows of 128 bytes (64 numbers), whose eight 16-byte chunks
are permuted: chunk c of row r lies at place c ^ (r % 8).  Eight rows, 1024 bytes at a multiple of 1024, are
the pattern that repeats:

    K-major    rows are rows of A, or columns of B; numbers go along k.  The next 8 rows are `stride` bytes
               on; the next 16 of k in the same 64 are 32 bytes on; `leading` is not used
    MN-major   rows go along k (B only: `transposed_b`), numbers along n.  The next 8 of k are `stride` bytes
               on, the next 64 of n `leading` bytes

Sources: PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions": wgmma.mma_async, wgmma.fence,
wgmma.commit_group, wgmma.wait_group, "Matrix Fragments for wgmma.mma_async.m64nNk16", "Shared Memory Matrix
Layout", "Canonical Layouts", "Matrix Descriptor Format"; "Async proxy", "membar/fence" for the proxy fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import int64

from gpu.target import SIMULATED, device

from .primitive import b32, collective, f32, primitive

if SIMULATED:
    from gpu import simt
    from gpu.simt.errors import fail
    from gpu.simt.state import now

    from . import wgmma_model

__all__ = [
    "descriptor", "fence_async_proxy", "hold", "of_first_lane", "pin", "wgmma_commit", "wgmma_fence", "wgmma_product",
    "wgmma_wait", "wgmma_wait_but_one",
]  # fmt: skip

SWIZZLE_128 = int64(1 << 62)


@device
def descriptor(address, leading, stride):  # type: ignore[no-untyped-def]
    """The descriptor (int64) of a tile with the 128-byte swizzle at a shared address; offsets in bytes.

    To move it by n bytes, add n // 16.
    """
    return SWIZZLE_128 | int64(stride >> 4) << 32 | int64(leading >> 4) << 16 | int64((address & 0x3FFFF) >> 4)


@collective("shfl.sync.idx.b32 $0, $1, 0, 31, -1;", b32, (b32,))
def of_first_lane(x: Any) -> Any:
    """The x of the warp's lane 0: so the compiler knows that it is the same in all, as a descriptor must be."""
    return np.repeat(x[:1], len(x))


@collective(
    "{ .reg .pred p; .reg .b32 m; setp.lt.f32 p, $0, 0f00000000; selp.b32 m, 0, -1, p; bar.warp.sync m; }", None,
    (f32,), memory=True,
)  # fmt: skip
def hold(x: Any) -> None:
    """Holds the warp until it has x, which is not negative.

    ptxas moves wgmma.wait_group up, before arithmetic that does not need its results: then what should be computed
    beside the products would come after them.  A warp barrier whose mask depends on x stays between the two.
    """
    if (x < 0).any():
        raise fail(simt.SimtError, f"hold({x.min()}): x must not be negative", now.members[int(np.argmin(x))])


@primitive("fence.proxy.async.shared::cta;", None, (), memory=True)
def fence_async_proxy() -> None:
    """Makes this thread's writes to shared memory visible to the async proxy (after a barrier, to all products)."""
    simt.proxy_fence()


@collective("wgmma.fence.sync.aligned;", None, (), memory=True, lanes=128)
def wgmma_fence() -> None:
    """Orders accesses to registers that have been pinned before products that follow."""
    wgmma_model.fence()


@collective("wgmma.commit_group.sync.aligned;", None, (), memory=True, lanes=128)
def wgmma_commit() -> None:
    """Makes a group of the products begun since the last one."""
    wgmma_model.commit()


@collective("wgmma.wait_group.sync.aligned 0;", None, (), memory=True, lanes=128)
def wgmma_wait() -> None:
    """Waits until all groups are complete."""
    wgmma_model.wait(0)


@collective("wgmma.wait_group.sync.aligned 1;", None, (), memory=True, lanes=128)
def wgmma_wait_but_one() -> None:
    """Waits until all groups but the last are complete."""
    wgmma_model.wait(1)


def wgmma_product(n: int, dtype: str, a_in_registers: bool = False, transposed_b: bool = False) -> Callable[..., None]:
    """The product of a shape, an intrinsic on the local array `c` of n / 2 float32:

        product(c, a, b, add)        a, b: descriptors
        product(c, a, at, b, add)    a_in_registers: the fragment a[at : at + 4] of a local array of int32

    c = a b, + c if add != 0.  `dtype`: "float16" or "bfloat16"; products are exact and added in float32, in an order
    and with intermediate roundings that are not documented.  `transposed_b`: b is MN-major.
    """
    if n % 8 or not 8 <= n <= 256:
        raise ValueError(f"n={n} must be a multiple of 8 from 8 to 256")
    if dtype not in ("float16", "bfloat16"):
        raise ValueError(f"dtype={dtype!r} must be float16 or bfloat16")
    if SIMULATED:
        return wgmma_model.product(n, dtype, a_in_registers, transposed_b)
    return _product(n, "bf16" if dtype == "bfloat16" else "f16", a_in_registers, transposed_b)


def pin(size: int, dtype: str = "float32") -> Callable[[Any], None]:
    """The intrinsic pin(x) on a local array of `size` float32 or int32: a point that its values pass through.

    No instruction is emitted.  Between wait and pin the results do not exist for the compiler, between pin
    and fence it moves no writes: a wait and a fence name no registers, so nothing else would hold it.
    """
    if dtype not in ("float32", "int32"):
        raise ValueError(f"dtype={dtype!r} must be float32 or int32")
    return wgmma_model.pin if SIMULATED else _pin(size, dtype)


if not SIMULATED:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    _F32, _B32, _B64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)

    def _places(context: Any, builder: Any, kind: Any, array: Any, size: int) -> list[Any]:
        """The addresses of the elements of a local array."""
        data = context.make_array(kind)(context, builder, array).data
        return [builder.gep(data, [ir.Constant(_B64, i)]) for i in range(size)]

    def _through(builder: Any, places: list[Any], number: Any, ptx: str, letter: str, takes: Any, values: Any) -> None:
        """Emits `ptx`, with the elements at `places` as operands $0, ... that it reads and writes; then `takes`."""
        n = len(places)
        constraints = [f"={letter}"] * n + [str(i) for i in range(n)] + [c for _, c in takes] + ["~{memory}"]
        kind = ir.FunctionType(ir.LiteralStructType([number] * n), [number] * n + [t for t, _ in takes])
        code = ir.InlineAsm(kind, ptx, ",".join(constraints), side_effect=True)
        found = builder.call(code, [builder.load(p) for p in places] + values, attrs=("convergent",))
        for i, p in enumerate(places):
            builder.store(builder.extract_value(found, i), p)

    def _pin(size: int, dtype: str) -> Any:
        number, letter = (_F32, "f") if dtype == "float32" else (_B32, "r")

        @intrinsic
        def pinned(typing_context, x):  # type: ignore[no-untyped-def]
            def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                places = _places(context, builder, signature.args[0], values[0], size)
                _through(builder, places, number, "", letter, [], [])
                return context.get_dummy_value()

            return types.none(x), emit

        return pinned

    def _product(n: int, name: str, a_in_registers: bool, transposed_b: bool) -> Any:
        size = n // 2
        first = 2 * size  # the operand after c, which is named twice: as result and as argument
        takes = [(_B32, "r")] * 4 if a_in_registers else [(_B64, "l")]
        a = "{" + ", ".join(f"${first + i}" for i in range(4)) + "}" if a_in_registers else f"${first}"
        b, add = first + len(takes), first + len(takes) + 1
        takes += [(_B64, "l"), (_B32, "r")]
        transpositions = f"{int(transposed_b)}" if a_in_registers else f"0, {int(transposed_b)}"
        ptx = (
            f"{{ .reg .pred p; setp.ne.b32 p, ${add}, 0; wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{name}.{name} "
            f"{{{', '.join(f'${i}' for i in range(size))}}}, {a}, ${b}, p, 1, 1, {transpositions}; }}"
        )

        if a_in_registers:

            @intrinsic
            def product_ra(typing_context, c, a, at, b, add):  # type: ignore[no-untyped-def]
                def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                    kinds = signature.args
                    data = context.make_array(kinds[1])(context, builder, values[1]).data
                    index = context.cast(builder, values[2], kinds[2], types.int64)
                    operands = [
                        builder.load(builder.gep(data, [builder.add(index, ir.Constant(_B64, i))])) for i in range(4)
                    ]
                    operands += [
                        context.cast(builder, values[3], kinds[3], types.int64),
                        context.cast(builder, values[4], kinds[4], types.int32),
                    ]
                    places = _places(context, builder, kinds[0], values[0], size)
                    _through(builder, places, _F32, ptx, "f", takes, operands)
                    return context.get_dummy_value()

                return types.none(c, a, at, b, add), emit

            return product_ra

        @intrinsic
        def product(typing_context, c, a, b, add):  # type: ignore[no-untyped-def]
            def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                kinds = signature.args
                wanted = (types.int64, types.int64, types.int32)
                operands = [
                    context.cast(builder, v, k, t) for v, k, t in zip(values[1:], kinds[1:], wanted, strict=True)
                ]
                places = _places(context, builder, kinds[0], values[0], size)
                _through(builder, places, _F32, ptx, "f", takes, operands)
                return context.get_dummy_value()

            return types.none(c, a, b, add), emit

        return product
