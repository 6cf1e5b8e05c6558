"""2. Before and after the backward of k2: what each row of queries knows, and the gradients of the sinks.

    delta_i = out_i · dout_i - dlse_i                          (B, H, Lq)
    dsinks_h = - sum_(b, i) exp(sink_h - lse_i) delta_i        (H,)

Sums have a fixed order.  A sink of -inf has gradient 0.  How they are launched: see k2_gradients.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import types
from numpy import int32, int64

from gpu.target import kernel

from .arguments import SHAPE, Specialisation
from .plain import GIVEN, extent_of, real_of

__all__ = ["THREADS", "delta_of", "sinks_of", "specialisations"]

THREADS = 128


@functools.cache
def delta_of(dtype: str) -> Any:
    """The kernel `delta`: one thread a row."""
    real = real_of(dtype).cast

    @kernel(THREADS)
    def delta(out, dout, dlse, start_q, used_q, delta, shape, given):  # type: ignore[no-untyped-def]
        n = int64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        head = n // shape.Lq
        i = n - head * shape.Lq
        b, h = head // shape.H, head % shape.H
        if b < shape.B:
            entry, first, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
            if i < Lq:
                total = real(0)
                for c in range(shape.Dv):
                    x = out[entry, h, first + i, c]
                    if x != 0:  # a row that sees nothing has outputs 0, and its dout may be NaN
                        total += x * dout[entry, h, first + i, c]
                if given.dlse != 0:
                    total -= dlse[entry, h, first + i]
                delta[entry, h, first + i] = total

    return delta


@functools.cache
def sinks_of(dtype: str) -> Any:
    """The kernel `sinks`: one block a head, whose threads add their sums up in a tree."""
    real, scalar = real_of(dtype).cast, real_of(dtype).numba
    hidden = real(-np.inf)

    @kernel(THREADS)
    def sinks(sinks, lse, delta, dsinks, start_q, used_q, shape, given):  # type: ignore[no-untyped-def]
        part = cuda.shared.array(THREADS, scalar)
        h, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x)
        sink, total = real(sinks[h]), real(0)
        for b in range(shape.B):
            entry, first, Lq = extent_of(b, shape.Lq, start_q, given.start_q, used_q, given.used_q)
            if sink > hidden:
                for i in range(thread, Lq, THREADS):
                    total -= real(math.exp(sink - lse[entry, h, first + i])) * delta[entry, h, first + i]
        part[thread] = total
        half = THREADS // 2
        while half > 0:
            cuda.syncthreads()
            if thread < half:
                part[thread] += part[thread + half]
            half //= 2
        if thread == 0:
            dsinks[h] = part[0]

    return sinks


def specialisations() -> list[Specialisation]:
    """What the SASS gate compiles; arrays of any strides are read element by element."""
    found = []
    for dtype in ("float32", "float64"):
        scalar = real_of(dtype).numba
        four, three, one = (types.Array(scalar, n, "A") for n in (4, 3, 1))
        ints = types.Array(types.int32, 1, "A")
        for function, signature in (
            (delta_of, types.void(four, four, three, ints, ints, three, SHAPE, GIVEN)),
            (sinks_of, types.void(one, three, three, one, ints, ints, SHAPE, GIVEN)),
        ):
            compiled = function(dtype).py_func
            name = f"{compiled.__name__} {dtype} element"
            found.append(Specialisation(name, compiled, signature, THREADS, 0, ("sm_90",), 0))
    return found
