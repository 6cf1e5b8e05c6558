"""What bias and softcap add to a tile of the backward: tanh and its slope, dbias, dsoftcap."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from .compiled import inlined
from .products import ACROSS
from .vectors import Vectors, array_data

__all__ = ["capped", "slopes", "to_bias"]


@intrinsic
def capped(typing: Any, S: Any, slope: Any, share: Any, n: Any, scale: Any, softcap: Any) -> Any:
    """slope = 1 - tanh² z, share = tanh z - z slope, S = softcap tanh z in n rows, with z = S scale / softcap."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        S, slope, share = (array_data(context, builder, signature.args[i], args[i]) for i in range(3))
        v = Vectors(builder, signature.args[0].dtype)
        scale, softcap = v.spread(args[4]), v.spread(args[5])

        def vector(j: Any, nothing: list[Any]) -> list[Any]:
            place = builder.mul(j, v.index(v.lanes))
            z = builder.fdiv(builder.fmul(v.load(S, place), scale), softcap)
            t, steep = v.tanh_and_slope(z)
            apart = builder.fsub(t, builder.fmul(z, steep))
            flat = builder.fcmp_ordered("==", steep, v.constant(0.0))  # where z may be infinite
            v.store(steep, slope, place)
            v.store(builder.select(flat, t, apart), share, place)
            v.store(builder.fmul(t, softcap), S, place)
            return nothing

        v.loop(builder.mul(args[3], v.index(ACROSS)), [], vector)
        return context.get_dummy_value()

    return types.void(S, slope, share, types.int64, S.dtype, S.dtype), code


@inlined
def slopes(dT, slope, share, n, wide, rows, sums):  # type: ignore[no-untyped-def]
    """sums += dT share, lane by lane, and dT *= slope."""
    for j in range(n):
        for i in range(rows):
            at = j * wide + i
            sums[i] += dT[at] * share[at]
            dT[at] *= slope[at]


@inlined
def to_bias(dT, n, wide, rows, dbias, at, step, along):  # type: ignore[no-untyped-def]
    """dbias[at + i step + j along] += dT[j, i]."""
    if along:
        for i in range(rows):
            for j in range(n):
                dbias[at + i * step + j * along] += dT[j * wide + i]
    else:
        for j in range(n):
            for i in range(rows):
                dbias[at + i * step] += dT[j * wide + i]
