"""How published tests compare an answer with a reference: each rule is one function, written from its description.

All take the name of an output, what a kernel returned, the reference in float64, what the textbook way in the
inputs' precision returns ("eager"), and the output's dtype, and say whether the rule lets it pass.  All arrays are
float64 of one shape.  NaN, infinities and empty arrays are treated as the published code treats them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import round_to

__all__ = ["assert_close", "cosine", "fudge", "nmse", "one_percent", "twice_eager"]

Array = np.ndarray[Any, Any]

DEFAULTS = {"float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
"""rtol and atol by dtype; those of other dtypes are 0"""
FUDGE = {"out": 4.0, "dq": 160.0, "dk": 25.0, "dv": 8.0, "dbias": 45.0}
MOST_NMSE = 5e-4
LEAST_COSINE = 0.99


def assert_close(name: str, got: Array, exact: Array, eager: Array, dtype: str) -> bool:
    """|got - ref| <= atol + rtol |ref| everywhere, with the tolerances of the dtype; infinities must be equal."""
    rtol, atol = DEFAULTS.get(dtype, (0.0, 0.0))
    return _all_close(got, round_to(exact, dtype), rtol, atol)


def one_percent(name: str, got: Array, exact: Array, eager: Array, dtype: str) -> bool:
    """|got - eager| <= 0.01 + 0.01 |eager| everywhere: the reference is the textbook way in the same dtype."""
    return _all_close(got, eager, 1e-2, 1e-2)


def twice_eager(name: str, got: Array, exact: Array, eager: Array, dtype: str) -> bool:
    """max |got - ref| <= 2 max |eager - ref| + 1e-5, of gradients 3 times; caches: k within 0.001, v equal."""
    ref = round_to(exact, dtype)
    if name == "k_cache":
        return _all_close(got, ref, 1e-3, 1e-3)
    if name == "v_cache":
        return bool(np.array_equal(got, ref))
    return _largest(got - ref) <= (2 if name == "out" else 3) * _largest(eager - ref) + 1e-5


def nmse(name: str, got: Array, exact: Array, eager: Array, dtype: str) -> bool:
    """sum (got - ref)² / sum got² is not above 5e-4; NaN, and infinities that are not equal, fail first."""
    ref = round_to(exact, dtype)
    if np.isnan(got).any() or np.isnan(ref).any():
        return False
    infinite = np.isinf(got) | np.isinf(ref)
    if not np.array_equal(got[infinite], ref[infinite]):
        return False
    x, y = got[~infinite], ref[~infinite]
    with np.errstate(invalid="ignore", divide="ignore"):
        error = ((x - y) ** 2).sum() / (x**2).sum()
    return not error > MOST_NMSE  # of two zeros: NaN, which passes


def cosine(name: str, got: Array, exact: Array, eager: Array, dtype: str) -> bool:
    """got·ref / (|got| |ref|) > 0.99, of all elements as one vector; a vector of zeros has cosine 0."""
    ref = round_to(exact, dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        lengths = max(float(np.sqrt((got**2).sum())), 1e-8) * max(float(np.sqrt((ref**2).sum())), 1e-8)
        return bool((got * ref).sum() / lengths > LEAST_COSINE)


def fudge(name: str, got: Array, exact: Array, eager: Array, dtype: str) -> bool:
    """max |exact - got| <= max(1e-5, F max |exact - eager|), F = 4 for out, 160, 25, 8, 45 for dq, dk, dv, dbias."""
    error, reference = _largest(exact - got), _largest(exact - eager)
    if np.isnan(error):
        return bool(np.isnan(reference))
    return not error > max(1e-5, FUDGE[name] * reference)


def _all_close(got: Array, ref: Array, rtol: float, atol: float) -> bool:
    with np.errstate(invalid="ignore"):
        near = np.isfinite(got) & np.isfinite(ref) & (np.abs(got - ref) <= atol + rtol * np.abs(ref))
    return bool((near | (got == ref)).all())


def _largest(x: Array) -> float:
    """The largest size, NaN if there is one."""
    return float(np.abs(x).max(initial=0.0))
