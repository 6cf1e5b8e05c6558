"""The inner loops: matrix products of a tile, its softmax, and the weights of the backward, in registers.

Tiles have queries (or the columns of an output) side by side in lanes: WIDE = ACROSS vectors.  Row
maxima and sums are therefore lane by lane, nothing is added across lanes, and the order of each sum
is that of its keys.  Arrays are flat; offsets and strides count elements; M is a multiple of ROWS.

    product          C[m, :]  = sum_t A[m, t] B[t, :]          A[m, t] = A[a0 + m row + t step]
    product_added    C[m, :] += sum_t A[m, t] B[t, :]          B[t, :] = B[b0 + t ldb ...]
    product_rescaled C[m, :]  = C[m, :] factor[:] + sum_t ...  C[m, :] = C[c0 + m ldc ...]
    scores           product, and largest[:] = max(largest[:], C[m, :])

Where A and B hold integers of 32 bits these are pairs of bfloat16, and t counts pairs.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vectors import ACROSS, Vectors, array_data

__all__ = [
    "ROWS", "cap", "keep", "product", "product_added", "product_added_one", "product_rescaled",
    "scores", "softmax", "take", "weights",
]  # fmt: skip

ROWS = 4
"""rows of a product that are summed at once: M is a multiple"""



def _product(start: str, largest: bool = False, across: int = ACROSS) -> Any:
    """The product of this module's docstring that begins with `start`; the last argument is factor or largest."""

    def typed(
        typing: Any, A: Any, a0: Any, row: Any, step: Any, M: Any, T: Any,
        B: Any, b0: Any, ldb: Any, C: Any, c0: Any, ldc: Any, more: Any,
    ) -> Any:  # fmt: skip
        signature = types.void(A, *[types.int64] * 5, B, *[types.int64] * 2, C, *[types.int64] * 2, more)
        return signature, partial(_product_code, start, largest, across)

    return intrinsic(typed)


def _product_code(start: str, track: bool, across: int, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    a, b, c, more = (array_data(context, builder, signature.args[i], args[i]) for i in (0, 6, 9, 12))
    _, a0, row, step, M, T, _, b0, ldb, _, c0, ldc, _ = args
    v = Vectors(builder, signature.args[9].dtype)
    pairs = signature.args[0].dtype != signature.args[9].dtype
    fma = v.fma_pairs if pairs else v.fma
    mul, add = builder.mul, builder.add
    places = [v.index(n * v.lanes) for n in range(across)]
    b = v.at(b, b0)
    factor = [v.load(more, n) for n in places] if start == "rescaled" else []

    def rows(g: Any, largest: list[Any]) -> list[Any]:
        first = mul(g, v.index(ROWS))
        left = [v.at(a, add(a0, mul(add(first, v.index(m)), row))) for m in range(ROWS)]
        into = [v.at(c, add(c0, mul(add(first, v.index(m)), ldc))) for m in range(ROWS)]
        if start == "zero":
            sums = [v.constant(0.0)] * (ROWS * across)
        else:
            sums = [v.load(line, n) for line in into for n in places]
        if factor:
            sums = [builder.fmul(x, factor[i % across]) for i, x in enumerate(sums)]

        def terms(t: Any, sums: list[Any]) -> list[Any]:
            line, along = v.at(b, mul(t, ldb)), mul(t, step)
            right = [v.load(line, n, pairs) for n in places]
            for m in range(ROWS):
                x = v.spread(v.load_one(left[m], along))
                for n in range(across):
                    sums[m * across + n] = fma(x, right[n], sums[m * across + n])
            return sums

        for i, x in enumerate(v.loop(T, sums, terms)):
            v.store(x, into[i // across], places[i % across])
            if largest:
                largest[i % across] = v.larger(x, largest[i % across])
        return largest

    found = v.loop(builder.sdiv(M, v.index(ROWS)), [v.load(more, n) for n in places] if track else [], rows)
    for x, n in zip(found, places, strict=False):
        v.store(x, more, n)
    return context.get_dummy_value()


product = _product("zero")
product_added = _product("added")
product_added_one = _product("added", across=1)
"""of one vector's width"""
product_rescaled = _product("rescaled")
scores = _product("zero", largest=True)


@intrinsic
def softmax(
    typing: Any, S: Any, n: Any, c: Any, largest: Any, m: Any, l: Any, factor: Any, P: Any  # noqa: E741
) -> Any:  # fmt: skip
    """P = exp2((S - largest) c), factor = exp2((m - largest) c), l = l factor + sum of P, m = largest.

    `largest` is already the maximum of m and of the n rows of S.  Where it is -inf nothing was seen, and
    all stays 0.  P is S; or, of 32-bit integers, it has rows 2j and 2j + 1 as pairs of bfloat16, with a row of 0 after
    an odd last.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arrays = (0, 3, 4, 5, 6, 7)
        S, largest, m, l, factor, P = (array_data(context, builder, signature.args[i], args[i]) for i in arrays)  # noqa: E741
        v = Vectors(builder, signature.args[0].dtype)
        pairs = signature.args[7].dtype != signature.args[0].dtype
        wide = ACROSS * v.lanes
        places = [v.index(i * v.lanes) for i in range(ACROSS)]
        c = v.spread(args[2])
        new = [v.load(largest, i) for i in places]
        shift = [v.where_infinite(x, v.constant(0.0)) for x in new]
        sums = []
        for i, x, y in zip(places, new, shift, strict=True):
            rescale = v.exp2(builder.fmul(builder.fsub(v.load(m, i), y), c))
            v.store(rescale, factor, i)
            v.store(x, m, i)
            sums.append(builder.fmul(v.load(l, i), rescale))

        def row(j: Any, sums: list[Any]) -> list[Any]:
            line = v.at(S, builder.mul(j, v.index(wide)))
            for i, place in enumerate(places):
                p = v.exp2(builder.fmul(builder.fsub(v.load(line, place), shift[i]), c))
                v.store(p, line, place)
                sums[i] = builder.fadd(sums[i], p)
            return sums

        def two_rows(j: Any, sums: list[Any], both: bool = True) -> list[Any]:
            lines = [v.at(S, builder.mul(j, v.index(2 * wide)))]
            lines += [v.at(lines[0], wide)] * both
            for i, place in enumerate(places):
                p = [v.exp2_to_zero(builder.fmul(builder.fsub(v.load(line, place), shift[i]), c)) for line in lines]
                for x in p:
                    sums[i] = builder.fadd(sums[i], x)
                v.store(v.to_pairs(*p, *[v.constant(0.0)] * (not both)), v.at(P, builder.mul(j, v.index(wide))), place)
            return sums

        if pairs:
            whole = builder.sdiv(args[1], v.index(2))
            sums = v.loop(whole, sums, two_rows)
            lone = builder.srem(args[1], v.index(2))
            sums = v.loop(lone, sums, lambda _, sums: two_rows(whole, sums, both=False))
        else:
            sums = v.loop(args[1], sums, row)
        for i, x in zip(places, sums, strict=True):
            v.store(x, l, i)
        return context.get_dummy_value()

    return types.void(S, types.int64, S.dtype, largest, m, l, factor, P), code


@intrinsic
def keep(typing: Any, S: Any, n: Any, start: Any, stop: Any, largest: Any) -> Any:
    """S = -inf but in the rows start <= j < stop of each lane, which S's dtype holds; largest = max(largest, S)."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        S, start, stop, largest = (array_data(context, builder, signature.args[i], args[i]) for i in (0, 2, 3, 4))
        v = Vectors(builder, signature.args[0].dtype)
        wide = v.index(ACROSS * v.lanes)
        places = [v.index(i * v.lanes) for i in range(ACROSS)]
        ends = [(v.load(start, i), v.load(stop, i)) for i in places]

        def row(j: Any, largest: list[Any]) -> list[Any]:
            line = v.at(S, builder.mul(j, wide))
            here = v.spread(builder.sitofp(j, v.one))
            for i, place in enumerate(places):
                first, last = ends[i]
                inside = builder.and_(builder.fcmp_ordered(">=", here, first), builder.fcmp_ordered("<", here, last))
                x = builder.select(inside, v.load(line, place), v.constant(-np.inf))
                v.store(x, line, place)
                largest[i] = v.larger(x, largest[i])
            return largest

        for i, x in zip(places, v.loop(args[1], [v.load(largest, i) for i in places], row), strict=True):
            v.store(x, largest, i)
        return context.get_dummy_value()

    return types.void(S, types.int64, start, stop, largest), code


@intrinsic
def cap(typing: Any, S: Any, n: Any, scale: Any, softcap: Any) -> Any:
    """S = softcap tanh(S scale / softcap) in n rows."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        S = array_data(context, builder, signature.args[0], args[0])
        v = Vectors(builder, signature.args[0].dtype)
        scale, softcap = v.spread(args[2]), v.spread(args[3])

        def vector(j: Any, nothing: list[Any]) -> list[Any]:
            place = builder.mul(j, v.index(v.lanes))
            t = v.tanh(builder.fdiv(builder.fmul(v.load(S, place), scale), softcap))
            v.store(builder.fmul(t, softcap), S, place)
            return nothing

        v.loop(builder.mul(args[1], v.index(ACROSS)), [], vector)
        return context.get_dummy_value()

    return types.void(S, types.int64, S.dtype, S.dtype), code


@intrinsic
def weights(typing: Any, S: Any, dP: Any, n: Any, c: Any, m: Any, inverse: Any, delta: Any) -> Any:
    """S = P = exp2((S - m) c) inverse and dP = P (dP - delta) in n rows, both 0 where S is -inf, whatever the rest.

    m, inverse and delta are of each lane.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        S, dP, m, inverse, delta = (array_data(context, builder, signature.args[i], args[i]) for i in (0, 1, 4, 5, 6))
        v = Vectors(builder, signature.args[0].dtype)
        wide = v.index(ACROSS * v.lanes)
        places = [v.index(i * v.lanes) for i in range(ACROSS)]
        c = v.spread(args[3])
        shifts, inverses, deltas = ([v.load(x, i) for i in places] for x in (m, inverse, delta))

        def row(j: Any, nothing: list[Any]) -> list[Any]:
            above = builder.mul(j, wide)
            s, dp = v.at(S, above), v.at(dP, above)
            for i, place in enumerate(places):
                x, zero = v.load(s, place), v.constant(0.0)
                hidden = builder.fcmp_ordered("==", x, v.constant(-math.inf))
                p = builder.fmul(v.exp2(builder.fmul(builder.fsub(x, shifts[i]), c)), inverses[i])
                ds = builder.fmul(p, builder.fsub(v.load(dp, place), deltas[i]))
                v.store(builder.select(hidden, zero, p), s, place)
                v.store(builder.select(hidden, zero, ds), dp, place)
            return nothing

        v.loop(args[2], [], row)
        return context.get_dummy_value()

    return types.void(S, dP, types.int64, S.dtype, m, inverse, delta), code


@intrinsic
def take(typing: Any, counter: Any) -> Any:
    """The counter's number, which is raised by one for the next who takes it, whatever thread that is."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = array_data(context, builder, signature.args[0], args[0])
        return builder.atomic_rmw("add", at, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), code
