"""From a value and its radii to the interval that an answer must lie in."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import CACHES, GRADIENTS, MATRICES, Case
from ..nonfinite import Nonfinite
from ..precision import Conventions, Precision
from ..tolerance import interval
from .expected import Expected

__all__ = ["dtype_of", "finish"]

Array = np.ndarray[Any, Any]


def finish(
    name: str, value: Array, rigorous: Array, sharp: Array, case: Case, precision: Precision, conventions: Conventions,
    empty: Array, nonfinite_inputs: Nonfinite | None,
) -> Expected:  # fmt: skip
    """The interval of an output from its value and radii; `empty` (B, H, Lq) are the rows that see nothing."""
    dtype = dtype_of(name, case, precision)
    # the truth's own error: as large as a float64 kernel's, else far below one of lower precision's
    own = rigorous * 2.0**-27
    lo, hi, rigorous_lo, rigorous_hi = (
        end
        for t in (sharp, rigorous)
        for end in interval(
            value, 2 * t if precision.accumulate == "float64" else t + own, dtype, precision.flush_subnormal
        )
    )
    ignored = np.broadcast_to(_ignored(name, case), value.shape)
    if name in GRADIENTS and conventions.empty_rows != "zero" and empty.any():
        ignored = np.ones(value.shape, dtype=bool)
    if name == "lse" and conventions.empty_lse == "any":
        ignored = ignored | empty
    if name == "weights" and conventions.empty_rows != "zero":
        ignored = ignored | empty[..., None]
    nonfinite = np.isnan(value) | np.isinf(rigorous)  # an endless bound: an overflow is honest
    if nonfinite_inputs is not None:
        nonfinite = nonfinite | nonfinite_inputs.of(name)
    return Expected(value, lo, hi, rigorous_lo, rigorous_hi, dtype, ignored, nonfinite)


def dtype_of(name: str, case: Case, precision: Precision) -> str:
    """The dtype in which an output is returned."""
    if name == "dbias" and case.bias is not None:
        return case.bias.dtype
    sums = dict.fromkeys(("dscale", "dsoftcap"), precision.accumulate)
    stored = dict.fromkeys(("out", *MATRICES), case.out_dtype)
    return ({"lse": precision.lse} | sums | stored).get(name, case.dtype)


def _ignored(name: str, case: Case) -> Array:
    """Elements whose memory does not exist."""
    q_gone, k_gone = (
        np.arange(n)[None, None, :, None] >= np.array([n] * case.B if lens is None else lens)[:, None, None, None]
        for n, lens in ((case.Lq, case.q_lens), (case.Lk, case.k_lens))
    )
    if name in ("out", "dq"):
        return q_gone
    if name == "lse":
        return q_gone[..., 0]
    if name in ("dk", "dv", *CACHES):
        return k_gone
    if name in MATRICES:
        return np.asarray(q_gone | k_gone.swapaxes(-1, -2))
    if name == "dbias":
        gone = q_gone | k_gone.swapaxes(-1, -2)
        stretched = tuple(a for a, n in enumerate(case.bias_shape) if n == 1)
        return np.asarray(gone.all(axis=stretched, keepdims=True) & (gone.size > 0))
    return np.zeros((), dtype=bool)
