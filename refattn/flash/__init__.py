"""The fastest exact attention on a CPU, in Numba: `pip install 'refattn[cpu]'`.

Flash attention (Dao et al. 2022, "FlashAttention", algorithm 1; the backward by algorithm 4) in vector
instructions, float64 and float32.  16-bit inputs are computed in float32 and rounded once; bfloat16 by the
machine's own products where it has them, forward.  Arguments and meaning are those of `refattn.attention`,
without score_mod and dropout.  Memory beyond inputs and outputs
is O(N); any mask is taken, and tiles of it that are hidden cost nothing.  The same bits come out for any
number of threads, which is numba's own setting (`numba.set_num_threads`, NUMBA_NUM_THREADS).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import streaming
from ..dtypes import FORMATS
from ..streaming import Attention
from .gradients import Gradients, attention_grad
from .pairs import finite
from .problem import Problem
from .solve import solve

__all__ = ["Attention", "Gradients", "attention", "attention_grad"]


def attention(
    q: Any, k: Any, v: Any, *,
    mask: Any = None, bias: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Attention:  # fmt: skip
    """softmax(scale * q kᵀ [softcap] [+ bias], over the visible keys [and the sink]) v.

    q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv), all of one dtype.  out has that dtype, lse
    float64 for float64 and else float32.  Inputs that are not finite are left to `refattn.streaming`,
    which keeps what is hidden apart, and is slower.

    >>> q = np.eye(2).reshape(1, 1, 2, 2)
    >>> attention(q, q, q, scale=np.log(3.0)).out[0, 0].round(12)
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """
    problem = Problem(q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    out, lse, _, _ = solve(problem)
    if not (finite(out) and (lse < np.inf).all()) and not problem.finite:
        return streaming.attention(
            q, k, v, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, precision=problem.contract
        )  # fmt: skip
    return Attention(out.astype(FORMATS[problem.kind].dtype, copy=False), lse)
