"""Matrix products of a warp on tensor cores, and the loads that bring their fragments.

Lane l has g = l // 4 and t = l % 4.  Of the product C (16 x 8) += A (16 x 16) B (16 x 8) it holds

    A   a0: row g,     columns 2t, 2t+1      a1: row g + 8, columns 2t, 2t+1
        a2: row g,     columns 2t+8, 2t+9    a3: row g + 8, columns 2t+8, 2t+9
    B   b0: rows 2t, 2t+1, column g          b1: rows 2t+8, 2t+9, column g
    C   c0, c1: row g, columns 2t, 2t+1      c2, c3: row g + 8, columns 2t, 2t+1

with two 16-bit numbers in each register of A and B, the lower index in the lower half.  Sources: PTX ISA 9.0,
"Matrix Fragments for mma.m16n8k16 with floating point type", "ldmatrix".
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gpu.target import SIMULATED

from .primitive import b32, collective, f32

if SIMULATED:
    from gpu import simt

__all__ = ["ldmatrix_x4", "ldmatrix_x4_trans", "mma_bf16", "mma_f16"]

Array = np.ndarray[Any, Any]
_MMA = (
    "mma.sync.aligned.m16n8k16.row.col.f32.{0}.{0}.f32 "
    "{{$0,$1,$2,$3}}, {{$4,$5,$6,$7}}, {{$8,$9}}, {{$10,$11,$12,$13}};"
)


@collective(_MMA.format("bf16"), (f32,) * 4, (b32,) * 6 + (f32,) * 4)
def mma_bf16(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """C + A B of bfloat16 matrices; products exact, added in float32 in an order that is not documented."""
    return _product(ml_dtypes.bfloat16, (a0, a1, a2, a3), (b0, b1), (c0, c1, c2, c3))


@collective(_MMA.format("f16"), (f32,) * 4, (b32,) * 6 + (f32,) * 4)
def mma_f16(a0: Any, a1: Any, a2: Any, a3: Any, b0: Any, b1: Any, c0: Any, c1: Any, c2: Any, c3: Any) -> Any:
    """C + A B of float16 matrices; products exact, added in float32 in an order that is not documented."""
    return _product(np.float16, (a0, a1, a2, a3), (b0, b1), (c0, c1, c2, c3))


@collective("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];", (b32,) * 4, (b32,), memory=True)
def ldmatrix_x4(address: Any) -> Any:
    """Four 8 x 8 matrices; lanes 8i to 8i+7 give the addresses of the rows of matrix i, 16 bytes each.

    Result i of lane l holds row l // 4, columns 2 (l % 4) and the next, of matrix i.
    """
    rows = simt.gather(address, 16)
    return tuple(rows.view(np.int32).reshape(4, 32))


@collective("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];", (b32,) * 4, (b32,), memory=True)
def ldmatrix_x4_trans(address: Any) -> Any:
    """As `ldmatrix_x4`, each matrix transposed: result i of lane l holds column l // 4, rows 2 (l % 4) and the next."""
    rows = simt.gather(address, 16).view(np.uint16).reshape(4, 8, 8)
    return tuple(np.ascontiguousarray(rows.swapaxes(1, 2)).view(np.int32).reshape(4, 32))


def _product(dtype: Any, a: tuple[Array, ...], b: tuple[Array, ...], c: tuple[Array, ...]) -> tuple[Array, ...]:
    halves = np.stack([*a, *b]).view(dtype).astype(np.float32)  # (6, 64): registers, lanes times two halves
    D = halves.take(_A) @ halves.take(_B) + np.stack(c).take(_C)
    return tuple(D.take(_D))


def _places() -> tuple[Array, Array, Array, Array]:
    """Where elements of A and B (register * 64 + lane * 2 + half) and of C (register * 32 + lane) lie, and D's in C."""
    lanes, halves = np.arange(32), np.arange(2)
    g, t2 = lanes // 4, lanes % 4 * 2
    A, B, C = np.empty((16, 16), np.intp), np.empty((16, 8), np.intp), np.empty((16, 8), np.intp)
    for r in range(4):
        for e in halves:
            A[g + (r & 1) * 8, t2 + (r >> 1) * 8 + e] = r * 64 + lanes * 2 + e
        C[g + (r >> 1) * 8, t2 + (r & 1)] = r * 32 + lanes
    for r in range(2):
        for e in halves:
            B[t2 + r * 8 + e, g] = (4 + r) * 64 + lanes * 2 + e
    D = np.stack([(g + (r >> 1) * 8) * 8 + t2 + (r & 1) for r in range(4)])
    return A, B, C, D


_A, _B, _C, _D = _places()
