"""The inner loops of a few queries: keys or columns in lanes, each key and value read once.

Scores S are (rows, keys), sums O (rows, columns).  Arrays are flat; offsets and strides count elements.
k and V may be stored in 16 bits, bfloat16 as uint16 and float16 as int16, and are widened as they are
read.  What lies beyond a row of k or V is never read.  Sums across lanes are trees, whose order is fixed.

    dots      S[i] = sum_d q[d] k[i, d]                      as many keys i as lanes; zeros beyond D in q
    greatest  max of n vectors of S
    weigh     S = exp2((S - shift) c),  l = l keep + sum S   n vectors of S; l keeps its lanes apart
    gather    O[r, :] = O[r, :] keep[r] + sum_j P[r, j] V[j, :]
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .vectors import ACROSS, Vectors, array_data

__all__ = ["HALVES", "dots", "gather_four", "gather_one", "greatest", "weigh"]

HALVES = platform.machine().lower() in ("aarch64", "arm64") or bool(llvm.get_host_cpu_features().get("f16c"))
"""whether this machine widens float16"""
I32, I64 = ir.IntType(32), ir.IntType(64)
Load = Callable[[Any, Any], Any]


def _totals(v: Vectors, sums: list[Any]) -> Any:
    """Lane i of the result is the sum of the lanes of sums[i]: halves are added to halves, and again."""
    size = v.lanes
    while len(sums) > 1:
        half = size // 2
        first = [lane for lane in range(2 * v.lanes) if lane % size < half]
        second = [lane + half for lane in first]
        pairs = zip(sums[::2], sums[1::2], strict=True)
        sums = [v.builder.fadd(v.shuffled(a, b, first), v.shuffled(a, b, second)) for a, b in pairs]
        size = half
    return sums[0]


def _loader(v: Vectors, stored: Any, left: Any = None) -> Load:
    """load(base, offset) of numbers stored as such; only the first `left` are read, the others are 0."""
    b = v.builder
    one = ir.HalfType() if stored == types.int16 else ir.IntType(16) if stored == types.uint16 else v.one
    many = ir.VectorType(one, v.lanes)
    align = stored.bitwidth // 8
    if left is not None:
        own = ir.Constant(ir.VectorType(I64, v.lanes), list(range(v.lanes)))
        shown = b.icmp_signed("<", own, v.spread(left))
        of = ir.FunctionType(many, [many.as_pointer(), I32, shown.type, many])
        name = f"v{v.lanes}{'i' if stored == types.uint16 else 'f'}{stored.bitwidth}"
        masked = cgutils.get_or_insert_function(b.module, of, f"llvm.masked.load.{name}.p0{name}")

    def load(base: Any, offset: Any) -> Any:
        at = b.bitcast(v.at(base, offset), many.as_pointer())
        if left is None:
            x = b.load(at)
            x.align = align
        else:
            x = b.call(masked, [at, ir.Constant(I32, align), shown, ir.Constant(many, None)])
        if stored == types.int16:
            return b.fpext(x, v.many)
        if stored == types.uint16:
            return b.bitcast(b.shl(b.zext(x, v.integers), ir.Constant(v.integers, [16] * v.lanes)), v.many)
        return x

    return load


@intrinsic
def dots(typing: Any, q: Any, q0: Any, k: Any, k0: Any, step: Any, last: Any, D: Any, S: Any, s0: Any) -> Any:
    """S[s0 + i] = q[q0 : q0 + D] · k[k0 + i step : ... + D]; beyond `last` key `last` again."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        q, k, S = (array_data(context, builder, signature.args[i], args[i]) for i in (0, 2, 7))
        _, q0, _, k0, step, last, D, _, s0 = args
        stored = signature.args[2].dtype
        v, mul = Vectors(builder, signature.args[0].dtype), builder.mul
        q, k, size = v.at(q, q0), v.at(k, k0), v.index(v.lanes)
        whole, rest = builder.sdiv(D, size), builder.srem(D, size)
        some = builder.zext(builder.icmp_signed(">", rest, v.index(0)), I64)
        full, part, end = _loader(v, stored), _loader(v, stored, rest), mul(whole, size)
        room = cgutils.alloca_once(builder, v.one, size=v.lanes * v.lanes)

        def key(i: Any, nothing: list[Any]) -> list[Any]:
            line = v.at(k, mul(builder.select(builder.icmp_signed("<", i, last), i, last), step))

            def add(load: Load, place: Any, total: Any) -> list[Any]:
                return [v.fma(v.load(q, place), load(line, place), total)]

            total = v.loop(whole, [v.constant(0.0)], lambda t, x: add(full, mul(t, size), x[0]))
            (total,) = v.loop(some, total, lambda t, x: add(part, end, x[0]))
            v.store(total, room, mul(i, size))
            return nothing

        v.loop(v.lanes, [], key)  # one after the other: memory is read in its order
        v.store(_totals(v, [v.load(room, i * v.lanes) for i in range(v.lanes)]), S, s0)
        return context.get_dummy_value()

    return types.void(q, types.int64, k, *[types.int64] * 4, S, types.int64), code


@intrinsic
def greatest(typing: Any, S: Any, s0: Any, n: Any) -> Any:
    """max of n vectors of S from s0, -inf for none; NaN is passed over."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder, signature.args[0].dtype)
        S = v.at(array_data(context, builder, signature.args[0], args[0]), args[1])

        def vector(t: Any, best: list[Any]) -> list[Any]:
            return [v.larger(v.load(S, builder.mul(t, v.index(v.lanes))), best[0])]

        (best,) = v.loop(args[2], [v.constant(float("-inf"))], vector)
        half = v.lanes // 2
        while half:
            best = v.larger(v.shuffled(best, best, [(lane + half) % v.lanes for lane in range(v.lanes)]), best)
            half //= 2
        return builder.extract_element(best, ir.Constant(I32, 0))

    return S.dtype(S, types.int64, types.int64), code


@intrinsic
def weigh(typing: Any, S: Any, s0: Any, n: Any, c: Any, shift: Any, keep: Any, l: Any, l0: Any) -> Any:  # noqa: E741
    """S = exp2((S - shift) c) in n vectors from s0, l = l keep + their sum in one vector from l0."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder, signature.args[0].dtype)
        S, l = (v.at(array_data(context, builder, signature.args[i], args[i]), args[i + 1]) for i in (0, 6))  # noqa: E741
        c, shift, keep = (v.spread(x) for x in args[3:6])

        def vector(t: Any, total: list[Any]) -> list[Any]:
            place = builder.mul(t, v.index(v.lanes))
            p = v.exp2(builder.fmul(builder.fsub(v.load(S, place), shift), c))
            v.store(p, S, place)
            return [builder.fadd(total[0], p)]

        (total,) = v.loop(args[2], [builder.fmul(v.load(l, 0), keep)], vector)
        v.store(total, l, 0)
        return context.get_dummy_value()

    return types.void(S, types.int64, types.int64, *[S.dtype] * 3, l, types.int64), code


def _gather(rows: int) -> Any:
    """`gather` of so many rows; sums are in registers: of one row those of more columns, as memory likes it."""

    def typed(
        typing: Any, P: Any, p0: Any, ldp: Any, V: Any, v0: Any, step: Any, n: Any, columns: Any,
        O: Any, o0: Any, ldo: Any, keep: Any, keep0: Any,  # noqa: E741
    ) -> Any:  # fmt: skip
        signature = types.void(P, *[types.int64] * 2, V, *[types.int64] * 4, O, *[types.int64] * 2, keep, types.int64)
        return signature, partial(_gather_code, rows)

    return intrinsic(typed)


def _gather_code(rows: int, context: Any, builder: Any, signature: Any, args: Any) -> Any:
    P, V, O, keep = (array_data(context, builder, signature.args[i], args[i]) for i in (0, 3, 8, 11))  # noqa: E741
    _, p0, ldp, _, v0, step, n, columns, _, o0, ldo, _, keep0 = args
    v, stored = Vectors(builder, signature.args[0].dtype), signature.args[3].dtype
    mul, add = builder.mul, builder.add
    weights = [v.at(P, add(p0, mul(v.index(r), ldp))) for r in range(rows)]
    into = [v.at(O, add(o0, mul(v.index(r), ldo))) for r in range(rows)]
    factor = [v.spread(v.load_one(keep, add(keep0, v.index(r)))) for r in range(rows)]

    def block(first: Any, across: int, load: Load) -> list[Any]:
        """The sums of `across` vectors of columns from `first` on, over all keys."""
        values = v.at(V, add(v0, first))
        places = [add(first, v.index(i * v.lanes)) for i in range(across)]
        sums = [builder.fmul(v.load(line, place), x) for line, x in zip(into, factor, strict=True) for place in places]

        def terms(j: Any, sums: list[Any]) -> list[Any]:
            line = v.at(values, mul(j, step))
            right = [load(line, i * v.lanes) for i in range(across)]
            left = [v.spread(v.load_one(weight, j)) for weight in weights]
            return [v.fma(left[x // across], right[x % across], total) for x, total in enumerate(sums)]

        for x, total in enumerate(v.loop(n, sums, terms)):
            v.store(total, into[x // across], places[x % across])
        return []

    done = v.index(0)
    for across in (2 * ACROSS, ACROSS) if rows == 1 else (ACROSS,):
        size = v.index(across * v.lanes)
        groups = builder.sdiv(builder.sub(columns, done), size)

        def whole(t: Any, nothing: list[Any], done: Any = done, across: int = across) -> list[Any]:
            return block(add(done, mul(t, v.index(across * v.lanes))), across, _loader(v, stored))

        v.loop(groups, [], whole)
        done = add(done, mul(groups, size))

    def narrow(t: Any, nothing: list[Any]) -> list[Any]:
        first = add(done, mul(t, v.index(v.lanes)))
        return block(first, 1, _loader(v, stored, builder.sub(columns, first)))

    v.loop(builder.sdiv(add(builder.sub(columns, done), v.index(v.lanes - 1)), v.index(v.lanes)), [], narrow)
    return context.get_dummy_value()


gather_one, gather_four = _gather(1), _gather(4)
