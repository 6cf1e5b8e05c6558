"""LLVM vector instructions by name, for kernels that numba compiles: the layer that knows registers.

A `Vectors` writes into the function that an `@intrinsic` is generating.  One value is one register
of floats or doubles, as wide as the host's: 512, 256 or 128 bits (LLVM splits a width that the
machine has not, so that any width runs anywhere, only slower; REFATTN_FLASH_BITS forces one).
Nothing is reassociated: what is added to what is as written.  Without a unit that fuses, a*b + c is
two roundings.

exp2 is a polynomial on [-1/2, 1/2] and the exponent's bits; relative error at most EXP_ULP roundings
of the format (tests/test_flash_vectors.py), exactly 1 at 0, 0 below the smallest normal.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

__all__ = ["ACROSS", "BITS", "EXP_ULP", "FUSES", "PAIRS", "Vectors", "array_data", "lanes"]

EXP_ULP = 2.0


def _bits() -> int:
    forced = os.environ.get("REFATTN_FLASH_BITS")
    if forced is not None:
        if forced not in ("128", "256", "512"):
            raise ValueError(f"REFATTN_FLASH_BITS={forced} must be 128, 256 or 512; unset it for the machine's own")
        return int(forced)
    has = llvm.get_host_cpu_features()
    return 512 if has.get("avx512f") else 256 if has.get("avx2") else 128


BITS = _bits()
FUSES = platform.machine().lower() in ("aarch64", "arm64") or bool(llvm.get_host_cpu_features().get("fma"))
MANY = BITS == 512 or platform.machine().lower() in ("aarch64", "arm64")  # 32 registers, otherwise 16
PAIRS = BITS == 512 and bool(llvm.get_host_cpu_features().get("avx512bf16"))
"""whether there is an instruction for sums of two products of bfloat16"""
ACROSS = 4 if MANY else 2
"""vectors side by side in a tile: a product holds 4 * ACROSS sums in registers"""


def lanes(dtype: Any) -> int:
    """Numbers in a vector."""
    return BITS // (8 * np.dtype(dtype).itemsize)


@cache
def _coefficients(n: int) -> list[float]:
    """c with 2**f = 1 + f (c_0 + c_1 f + ...) on [-1/2, 1/2]: Newton's interpolation at Chebyshev's nodes."""
    with localcontext() as context:
        context.prec = 50
        nodes = [Decimal(math.cos((i + 0.5) * math.pi / n) / 2) for i in range(n)]
        difference = [(Decimal(2) ** x - 1) / x for x in nodes]
        for k in range(1, n):
            for i in range(n - 1, k - 1, -1):
                difference[i] = (difference[i] - difference[i - 1]) / (nodes[i] - nodes[i - k])
        c: list[Decimal] = []
        for x, d in zip(reversed(nodes), reversed(difference), strict=True):  # c <- d + (f - x) c
            c = [up - x * here for up, here in zip([Decimal(0), *c], [*c, Decimal(0)], strict=True)]
            c[0] += d
        return [float(x) for x in c]


class _BFloat(ir.Type):
    """LLVM's type, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


class Vectors:
    """Instructions on vectors of `kind` (numba's float32 or float64)."""

    def __init__(self, builder: Any, kind: Any) -> None:
        self.builder = builder
        self.bits = kind.bitwidth
        self.mantissa, self.bias = (23, 127) if self.bits == 32 else (52, 1023)
        self.lanes = BITS // self.bits
        self.one = ir.FloatType() if self.bits == 32 else ir.DoubleType()
        self.many = ir.VectorType(self.one, self.lanes)
        self.integers = ir.VectorType(ir.IntType(self.bits), self.lanes)

    # ---- values

    def constant(self, x: float) -> Any:
        x = float(np.float32(x)) if self.bits == 32 else float(x)
        return ir.Constant(self.many, [ir.Constant(self.one, x)] * self.lanes)

    def index(self, i: int) -> Any:
        return ir.Constant(ir.IntType(64), i)

    def spread(self, x: Any) -> Any:
        """A scalar in every lane."""
        nothing = ir.Constant(ir.VectorType(x.type, self.lanes), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        first = self.builder.insert_element(nothing, x, ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(first, nothing, zeros)

    # ---- memory; offsets are in elements

    def at(self, base: Any, offset: Any) -> Any:
        return self.builder.gep(base, [self.index(offset) if isinstance(offset, int) else offset])

    def load(self, base: Any, offset: Any, integers: bool = False) -> Any:
        kind = self.integers if integers else self.many
        found = self.builder.load(self.builder.bitcast(self.at(base, offset), kind.as_pointer()))
        found.align = self.bits // 8
        return found

    def store(self, value: Any, base: Any, offset: Any) -> None:
        done = self.builder.store(value, self.builder.bitcast(self.at(base, offset), value.type.as_pointer()))
        done.align = value.type.element.width // 8 if isinstance(value.type.element, ir.IntType) else self.bits // 8

    def load_one(self, base: Any, offset: Any) -> Any:
        return self.builder.load(self.at(base, offset))

    def turned(self, rows: Sequence[Any]) -> list[Any]:
        """Column j of as many rows as there are lanes: blocks off the diagonal change places, of 1, 2, 4, ... lanes."""
        found, lanes, size = list(rows), range(self.lanes), 1
        while size < self.lanes:
            left = [lane if not lane & size else lane - size + self.lanes for lane in lanes]
            right = [lane + size if not lane & size else lane + self.lanes for lane in lanes]
            for i in lanes:
                if not i & size:
                    a, b = found[i], found[i + size]
                    found[i], found[i + size] = self.shuffled(a, b, left), self.shuffled(a, b, right)
            size *= 2
        return found

    def shuffled(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Lanes of a, counted from 0, and of b, counted on."""
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))

    # ---- arithmetic

    def _call(self, name: str, *operands: Any) -> Any:
        name = f"llvm.{name}.v{self.lanes}f{self.bits}"
        of = ir.FunctionType(self.many, [self.many] * len(operands))
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, of, name), operands)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self._call("fma", a, b, c) if FUSES else self.builder.fadd(self.builder.fmul(a, b), c)

    def fma_pairs(self, a: Any, b: Any, c: Any) -> Any:
        """c + a_1 b_1 + a_0 b_0, where a and b have two bfloat16 in each lane of 32 bits."""
        two = ir.VectorType(_BFloat(), 2 * self.lanes)
        of = ir.FunctionType(self.many, [self.many, two, two])
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        b_ = self.builder
        instruction = cgutils.get_or_insert_function(b_.module, of, name)
        return b_.call(instruction, [c, b_.bitcast(a, two), b_.bitcast(b, two)])

    def to_pairs(self, x: Any, y: Any) -> Any:
        """x and y, rounded to bfloat16 (to nearest, ties to even), in the lower and upper half of each lane."""
        b = self.builder
        two = ir.VectorType(_BFloat(), 2 * self.lanes)
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        instruction = cgutils.get_or_insert_function(b.module, ir.FunctionType(two, [self.many] * 2), name)
        side_by_side = b.bitcast(b.call(instruction, [y, x]), ir.VectorType(ir.IntType(16), 2 * self.lanes))
        lanes = [lane for i in range(self.lanes) for lane in (i, i + self.lanes)]
        return b.bitcast(self.shuffled(side_by_side, side_by_side, lanes), self.integers)

    def to_bfloat16(self, x: Any) -> Any:
        """The 16 bits of each float32 rounded to bfloat16 (to nearest, ties to even), also of subnormals."""
        b = self.builder

        def all_of(n: int) -> Any:
            return ir.Constant(self.integers, [ir.Constant(ir.IntType(32), n)] * self.lanes)

        bits = b.bitcast(x, self.integers)
        odd = b.and_(b.lshr(bits, all_of(16)), all_of(1))
        rounded = b.add(bits, b.add(odd, all_of(0x7FFF)))
        kept = b.select(b.fcmp_unordered("uno", x, x), all_of(0x7FC00000), rounded)
        return b.trunc(b.lshr(kept, all_of(16)), ir.VectorType(ir.IntType(16), self.lanes))

    def larger(self, a: Any, b: Any) -> Any:
        """max(a, b); b where either is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def where_infinite(self, x: Any, instead: Any) -> Any:
        """`instead` where x is -inf, else x."""
        return self.builder.select(self.builder.fcmp_ordered("==", x, self.constant(-np.inf)), instead, x)

    def _reduced(self, t: Any) -> tuple[Any, Any]:
        """2**n as a vector and 2**f - 1 with t = n + f, |f| <= 1/2; t is cut to exponents that exist."""
        b = self.builder
        lowest, highest = self.constant(-self.bias), self.constant(self.bias)
        t = b.select(b.fcmp_ordered("<", t, lowest), lowest, t)
        t = b.select(b.fcmp_ordered(">", t, highest), highest, t)
        n = self._call("rint", t)
        f = b.fsub(t, n)
        series = _coefficients(6 if self.bits == 32 else 11)
        p = self.constant(series[-1])
        for c in series[-2::-1]:
            p = self.fma(p, f, self.constant(c))

        def all_of(x: int) -> Any:
            return ir.Constant(self.integers, [ir.Constant(ir.IntType(self.bits), x)] * self.lanes)

        exponent = b.shl(b.add(b.fptosi(n, self.integers), all_of(self.bias)), all_of(self.mantissa))
        return b.bitcast(exponent, self.many), b.fmul(p, f)

    def exp2_to_zero(self, t: Any) -> Any:
        """2**t for float32 t <= 0; below the smallest normal some number from 0 to there, 0 from -127 on down.

        The sum with 1.5 * 2**23 rounds t to a whole number and holds it in its last bits, which become the exponent's.
        """
        b = self.builder
        lowest, shift = self.constant(-self.bias), self.constant(1.5 * 2**self.mantissa)
        t = b.select(b.fcmp_ordered("<", t, lowest), lowest, t)
        held = b.fadd(t, shift)
        f = b.fsub(t, b.fsub(held, shift))
        series = [1.0, *_coefficients(6)]
        p = self.constant(series[-1])
        for c in series[-2::-1]:
            p = self.fma(p, f, self.constant(c))
        exponent = b.shl(b.bitcast(held, self.integers), ir.Constant(self.integers, [self.mantissa] * self.lanes))
        return b.bitcast(b.add(b.bitcast(p, self.integers), exponent), self.many)

    def exp2(self, t: Any) -> Any:
        """2**t; 0 for t < 1/2 - bias and for -inf, NaN for NaN."""
        power, rest = self._reduced(t)
        return self.fma(power, rest, power)

    def tanh(self, x: Any) -> Any:
        return self.tanh_and_slope(x)[0]

    def tanh_and_slope(self, x: Any) -> tuple[Any, Any]:
        """tanh |x| = -e / (2 + e) with e = exp(-2|x|) - 1; 1 - tanh² = (1 + e) (2 / (2 + e))²: nothing cancels."""
        b = self.builder
        size = self._call("fabs", x)
        power, rest = self._reduced(b.fmul(size, self.constant(-2 / np.log(2))))
        e = self.fma(power, rest, b.fsub(power, self.constant(1.0)))
        below = b.fadd(e, self.constant(2.0))
        half = b.fdiv(self.constant(2.0), below)
        slope = b.fmul(b.fmul(self.fma(power, rest, power), half), half)
        return self._call("copysign", b.fdiv(b.fneg(e), below), x), slope

    # ---- loops

    def loop(self, n: Any, carried: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]) -> list[Any]:
        """for i in range(n): carried = body(i, carried); returns carried."""
        b = self.builder
        before = b.block
        head, inside, after = (b.append_basic_block(name) for name in ("head", "inside", "after"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(ir.IntType(64))
        i.add_incoming(self.index(0), before)
        values = []
        for value in carried:
            values.append(b.phi(value.type))
            values[-1].add_incoming(value, before)
        b.cbranch(b.icmp_signed("<", i, self.index(n) if isinstance(n, int) else n), inside, after)
        b.position_at_end(inside)
        for phi, new in zip(list(values), body(i, list(values)), strict=True):
            phi.add_incoming(new, b.block)
        i.add_incoming(b.add(i, self.index(1)), b.block)
        b.branch(head)
        b.position_at_end(after)
        return values


def array_data(context: Any, builder: Any, kind: types.Array, value: Any) -> Any:
    """The address of an array's first element."""
    return context.make_array(kind)(context, builder, value).data
