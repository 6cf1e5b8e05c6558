"""Rotary position embedding: pairs of coordinates turned by an angle that grows with the position.

Pair i of the token at position m is turned by m theta_i, theta_i = base**(-2i / rotary_dim):

    y1 = x1 cos - x2 sin        y2 = x2 cos + x1 sin

Su et al. 2021, "RoFormer: Enhanced transformer with rotary position embedding", section 3.4.2,
equation 34 (theta: section 3.2.2, equation 15, where i counts from 1).  Which coordinates are a
pair is a convention: 2i with 2i + 1 (the paper, GPT-J), or i with i + rotary_dim / 2 (GPT-NeoX,
Llama); FlashAttention calls the first `interleaved`.  Coordinates from rotary_dim on stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["Rotary", "rotate", "tables", "unrotate"]

Array = np.ndarray[Any, Any]

_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_SPLITTER = 134217729.0  # 2**27 + 1: halves a float64 into two factors of 26 bits


@dataclass(frozen=True)
class Rotary:
    """The first `dim` coordinates of q and k are rotated; `interleaved` and `base` as in `tables` and `rotate`."""

    dim: int
    interleaved: bool
    base: float = 10000.0

    def __post_init__(self) -> None:
        _check_dim("dim", self.dim)
        if not isinstance(self.interleaved, bool):
            raise ValueError(f"interleaved={self.interleaved!r} must be True (pairs 2i, 2i+1) or False (i, i+dim/2)")
        object.__setattr__(self, "base", _checked_base(self.base))


def tables(positions: Any, rotary_dim: int, base: float = 10000.0) -> tuple[Array, Array]:
    """cos and sin of position * base**(-2i / rotary_dim), float64 (*positions.shape, rotary_dim / 2).

    Right to 4 units of 2**-53 at any position up to 2**53: the angle is reduced in twice the
    precision of float64 (the rounded theta_i alone would cost 1e-10 at position 1e6).  `positions`
    are integers, or finite fractions of them (position interpolation), and may be negative.
    """
    _check_dim("rotary_dim", rotary_dim)
    base = _checked_base(base)
    m = np.asarray(positions)
    if m.dtype.kind not in "iuf":
        raise TypeError(f"positions.dtype={m.dtype} must be an integer or float dtype; pass np.arange(length)")
    with np.errstate(invalid="ignore"):
        if not np.all(np.abs(m.astype(np.float64)) <= 2.0**53):
            raise ValueError("positions must be finite and at most 2**53 in size; take off a common offset")
    angle, rest = _angles(m.astype(np.float64), rotary_dim, base)
    cos, sin = np.cos(angle), np.sin(angle)
    return cos - sin * rest, sin + cos * rest


def rotate(x: Any, cos: Any, sin: Any, interleaved: bool) -> Array:
    """`x` (..., L, D) with its first R coordinates rotated; cos, sin (..., L, R/2) broadcast against it.

    In x's own dtype, float32 or float64 (the tables are rounded to it once), one rounding for each
    product and each sum.
    """
    x, cos, sin = _checked(x, cos, sin, interleaved)
    return _turned(x, cos, sin, interleaved)


def unrotate(x: Any, cos: Any, sin: Any, interleaved: bool) -> Array:
    """The transpose of `rotate`, which turns back: the gradient of x from that of rotate(x)."""
    x, cos, sin = _checked(x, cos, sin, interleaved)
    return _turned(x, cos, -sin, interleaved)


def _turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    half = cos.shape[-1]
    first, second = slice(half), slice(half, 2 * half)
    if interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    x1, x2, y = x[..., first], x[..., second], x.copy()
    with np.errstate(invalid="ignore", over="ignore"):  # poison in unused memory
        y[..., first], y[..., second] = x1 * cos - x2 * sin, x2 * cos + x1 * sin
    return y


def _checked(x: Any, cos: Any, sin: Any, interleaved: bool) -> tuple[Array, Array, Array]:
    x, cos, sin = np.asarray(x), np.asarray(cos), np.asarray(sin)
    if x.dtype not in (np.float32, np.float64):
        raise TypeError(f"x.dtype={x.dtype} must be float32 or float64; rotate x.astype('float32') and round after")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.dtype not in (np.float32, np.float64):
            raise TypeError(f"{name}.dtype={table.dtype} must be float32 or float64; use tables(positions, rotary_dim)")
    if not isinstance(interleaved, (bool, np.bool_)):
        raise TypeError(f"interleaved={interleaved!r} must be True (pairs 2i, 2i+1) or False (i, i+R/2)")
    if x.ndim < 2:
        raise ValueError(f"x.shape={x.shape} must be (..., L, D)")
    if cos.shape != sin.shape or cos.ndim < 1:
        raise ValueError(f"cos.shape={cos.shape} and sin.shape={sin.shape} must be one shape (..., L, R/2)")
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(f"cos.shape={cos.shape} rotates R={2 * cos.shape[-1]} coordinates, more than D={x.shape[-1]}")
    try:
        fits = np.broadcast_shapes(cos.shape[:-1], x.shape[:-1]) == x.shape[:-1]
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"cos.shape={cos.shape} must broadcast to (..., L, R/2) of x.shape={x.shape}; add axes of 1")
    return x, cos.astype(x.dtype), sin.astype(x.dtype)


def _check_dim(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0 or value % 2:
        raise ValueError(f"{name}={value!r} must be an even int > 0; pass no rotary to rotate nothing")


def _checked_base(base: Any) -> float:
    if isinstance(base, bool) or not isinstance(base, (int, float)) or not 1 <= base < math.inf:
        raise ValueError(f"base={base!r} must be a finite number >= 1; RoFormer has 10000")
    return float(base)


def _angles(m: Array, rotary_dim: int, base: float) -> tuple[Array, Array]:
    """m theta_i less whole turns, as the sums of two float64: off by some max(1, |m|) 2**-104 at most."""
    turns_high, turns_low = _turns(rotary_dim, base)
    high, error = _product(m[..., None], turns_high)
    turn, rest = _sum(high - np.rint(high), error + m[..., None] * turns_low)
    angle, error = _product(turn, np.float64(2 * math.pi))
    return angle, error + turn * _TWO_PI_REST + rest * (2 * math.pi)


@lru_cache(maxsize=64)
def _turns(rotary_dim: int, base: float) -> tuple[Array, Array]:
    """theta_i / (2 pi) as the sums of two float64, good to 2**-106 of each."""
    with localcontext() as context:
        context.prec = 60
        step = Decimal(-2) / rotary_dim
        exact = [Decimal(base) ** (step * i) / (2 * _PI) for i in range(rotary_dim // 2)]
        high = [float(x) for x in exact]
        low = [float(x - Decimal(h)) for x, h in zip(exact, high, strict=True)]
    return np.array(high), np.array(low)


with localcontext() as _context:
    _context.prec = 60
    _TWO_PI_REST = float(2 * _PI - Decimal(2 * math.pi))  # 2 pi less its float64


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as its rounded value and the error of that (Knuth's two-sum)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b as its rounded value and the error of that (Dekker's product, by Veltkamp's splitting)."""
    p = a * b
    a1 = a * _SPLITTER - (a * _SPLITTER - a)
    b1 = b * _SPLITTER - (b * _SPLITTER - b)
    a2, b2 = a - a1, b - b1
    return p, ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2
