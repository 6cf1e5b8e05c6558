"""1. What attention is: one thread for each score, one for each row, one for each output; float32 and float64.

    s[b, h, i, j] = scale · q[b, h, i] · k[b, h // group, j]      modified as `plain.score_of` says, -inf if hidden
    lse[b, h, i]  = log(sum_j exp(s[b, h, i, j]) [+ exp(sink[h])])
    out[b, h, i]  = sum_j exp(s[b, h, i, j] - lse[b, h, i]) · v[b, h // group, j]

Three kernels, launched one after the other, on a workspace `weights` (B, H, Lq, Lk) in memory: the whole matrix,
which the tiled kernels never hold.  Arrays: see `plain`.  A row without a key or a sink has out 0 and lse -inf; of
dense arrays the rows beyond a length do too, of packed ones they are not written.  A hidden pair takes no part, even
if it is NaN.

For a launch: `kernels(dtype)` is (score, normalise, mix), to be launched in this order, each with the grid
`grid(threads that it needs)`, or not at all if that is 0, blocks of THREADS, no dynamic shared memory.  T is the
dtype; shape, band and given are NamedTuples of int32:

    score      B·H·Lq·Lk threads   (q, k, bias, slopes, start_q, start_k, used_q, used_k, weights, shape, band, given,
                                   scale: T, softcap: T)
    normalise  B·H·Lq threads      (weights, sinks, start_q, used_q, lse, shape, given)
    mix        B·H·Lq·Dv threads   (weights, v, start_q, start_k, used_q, used_k, out, shape, given)

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda
from numba.cuda import types
from numpy import int64

from gpu.target import device, kernel

from .arguments import BAND, SHAPE, Specialisation
from .plain import GIVEN, extent_of, keys_of, real_of, score_of

__all__ = ["THREADS", "Kernels", "grid", "kernels", "specialisations"]

THREADS = 256


class Kernels(NamedTuple):
    """In the order in which they are launched."""

    score: Any
    normalise: Any
    mix: Any


def grid(threads: int) -> int:
    """Blocks for so many threads."""
    return -(-threads // THREADS)


@device
def number_of(x, y, z):  # type: ignore[no-untyped-def]
    """The four indices of this thread among (..., x, y, z) threads; 64 bits, for there may be more than 2**31."""
    n = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
    i = n // z
    h = i // y
    b = h // x
    return b, h - b * x, i - h * y, n - i * z


@functools.cache
def kernels(dtype: str) -> Kernels:
    """The kernels for float32 or float64."""
    real, score_of_product = real_of(dtype).cast, score_of(dtype)
    hidden = real(-np.inf)

    @kernel(THREADS)
    def score(  # type: ignore[no-untyped-def]
        q, k, bias, slopes, start_q, start_k, used_q, used_k, weights, shape, band, given, scale, softcap
    ):
        b, h, i, j = number_of(shape.H, shape.Lq, shape.Lk)
        if b < shape.B:
            in_q, first_q, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
            in_k, first_k, Lk = extent_of(b, shape.Lk, start_k, given.start_k, used_k, given.used_k)
            first, last = keys_of(i, Lq, Lk, band)
            x = hidden
            if first <= j and j <= last:
                x = real(0)
                for d in range(shape.D):
                    x += q[in_q, h, first_q + i, d] * k[in_k, h // shape.group, first_k + j, d]
                x = score_of_product(x, b, h, i, j, Lq, Lk, scale, softcap, bias, slopes, given)
            weights[b, h, i, j] = x

    @kernel(THREADS)
    def normalise(weights, sinks, start_q, used_q, lse, shape, given):  # type: ignore[no-untyped-def]
        b, h, i, _ = number_of(shape.H, shape.Lq, 1)
        if b < shape.B:
            at, first, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
            sink = hidden
            if given.sinks != 0:
                sink = real(sinks[h])
            top = sink
            for j in range(shape.Lk):
                top = max(top, weights[b, h, i, j])
            total = real(0)
            if sink > hidden:
                total = real(math.exp(sink - top))
            for j in range(shape.Lk):
                x = weights[b, h, i, j]
                if x != hidden:  # what is hidden stays -inf
                    weights[b, h, i, j] = real(math.exp(x - top))
                    total += weights[b, h, i, j]
            for j in range(shape.Lk):
                if weights[b, h, i, j] != hidden:
                    weights[b, h, i, j] /= total
            if i < Lq or given.start_q == 0:
                lse[at, h, first + i] = hidden
                if i < Lq and total != 0:
                    lse[at, h, first + i] = top + real(math.log(total))

    @kernel(THREADS)
    def mix(  # type: ignore[no-untyped-def]
        weights, v, start_q, start_k, used_q, used_k, out, shape, given
    ):
        b, h, i, c = number_of(shape.H, shape.Lq, shape.Dv)
        if b < shape.B:
            in_q, first_q, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
            in_k, first_k, Lk = extent_of(b, shape.Lk, start_k, given.start_k, used_k, given.used_k)
            total = real(0)
            for j in range(Lk):
                if weights[b, h, i, j] != hidden:
                    total += weights[b, h, i, j] * v[in_k, h // shape.group, first_k + j, c]
            if i < Lq or given.start_q == 0:
                out[in_q, h, first_q + i, c] = total

    return Kernels(score, normalise, mix)


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles; arrays of any strides are read element by element."""
    found = []
    for dtype in ("float32", "float64"):
        scalar = real_of(dtype).numba
        four, three, one = (types.Array(scalar, n, "A") for n in (4, 3, 1))
        lengths = (types.Array(types.int32, 1, "A"),) * 4
        for function, signature in zip(
            kernels(dtype),
            (
                types.void(four, four, four, one, *lengths, four, SHAPE, BAND, GIVEN, scalar, scalar),
                types.void(four, one, *lengths[:2], three, SHAPE, GIVEN),
                types.void(four, four, *lengths, four, SHAPE, GIVEN),
            ),
            strict=True,
        ):
            compiled = function.py_func
            name = f"{compiled.__name__} {dtype} element"
            found.append(Specialisation(name, compiled, signature, THREADS, 0, ("sm_90",), 0))
    return found
