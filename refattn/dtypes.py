"""Floating-point formats: unit roundoff, range, rounding to nearest, and what an overflow becomes.

A format with p significand bits has unit roundoff u = 2**-p: rounding to nearest changes a
normal number by at most u relatively, and a subnormal one by at most eta/2 absolutely, where
eta is the smallest subnormal.

`round_to` rounds from float64 in one step.  The casts of ml_dtypes go through float32 and so
round twice (1 + 2**-8 + 2**-40 becomes 1 in bfloat16 instead of 1 + 2**-7); a bound that is
exact about rounding cannot use them.

Sources: IEEE 754-2019 section 3; Micikevicius et al. 2022, "FP8 formats for deep learning",
table 1, for the two float8 formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

__all__ = ["FORMATS", "Format", "exact64", "format_of", "round_to"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """One row of the table of formats."""

    name: str
    numpy: Any  # the NumPy (or ml_dtypes) scalar type
    bits: int  # significand bits p, the hidden one included
    emin: int  # exponent of the smallest normal number
    max: float  # largest finite number
    overflow: Literal["inf", "nan"]  # what rounding to nearest gives beyond the range

    @property
    def u(self) -> float:
        """Unit roundoff 2**-p."""
        return 2.0**-self.bits

    @property
    def smallest_normal(self) -> float:
        return 2.0**self.emin

    @property
    def eta(self) -> float:
        """Smallest subnormal, the spacing of numbers near zero."""
        return 2.0 ** (self.emin - self.bits + 1)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.numpy)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("float64", np.float64, 53, -1022, float(np.finfo(np.float64).max), "inf"),
        Format("float32", np.float32, 24, -126, float(np.finfo(np.float32).max), "inf"),
        Format("float16", np.float16, 11, -14, 65504.0, "inf"),
        Format("bfloat16", ml_dtypes.bfloat16, 8, -126, float(ml_dtypes.finfo("bfloat16").max), "inf"),
        Format("float8_e4m3fn", ml_dtypes.float8_e4m3fn, 4, -6, 448.0, "nan"),
        Format("float8_e5m2", ml_dtypes.float8_e5m2, 3, -14, 57344.0, "inf"),
    )
}


_NATIVE = {f.dtype: f for f in FORMATS.values()}


def format_of(dtype: Any, what: str = "dtype") -> Format:
    """The format of a dtype (or of its name); anything else is refused by name."""
    if isinstance(dtype, np.dtype) and dtype in _NATIVE:  # the name of a dtype is slow to have
        return _NATIVE[dtype]
    name = dtype if isinstance(dtype, str) else str(dtype) if dtype is None else np.dtype(dtype).name
    if name not in FORMATS:
        raise TypeError(f"{what}={name} is not a supported dtype; use one of {', '.join(FORMATS)}")
    if not isinstance(dtype, str) and not np.dtype(dtype).isnative:
        raise TypeError(f"{what}={np.dtype(dtype)!r} has the other byte order; pass x.astype({name!r})")
    return FORMATS[name]


def exact64(x: Any, what: str) -> Array:
    """`x` as float64, exactly; refused unless it is an array of a supported dtype."""
    x = np.asanyarray(x)
    format_of(x.dtype, f"{what}.dtype")
    if np.ma.isMaskedArray(x):
        raise TypeError(f"{what} is a masked array, whose mask would be ignored; pass {what}.filled() and a mask=")
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return np.asarray(x, dtype=np.float64)


def round_to(x: Any, name: str) -> Array:
    """Round float64 to the nearest number of the format, ties to even, and return it as float64."""
    f = format_of(name)
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.asarray(x, dtype=np.float64)
        if name == "float64":
            return x
        if name in ("float32", "float16"):
            return np.asarray(x.astype(f.numpy), dtype=np.float64)
        _, e = np.frexp(x)  # |x| in [2**(e-1), 2**e)
        step = np.maximum(e - 1, f.emin) - f.bits + 1
        y = np.ldexp(np.rint(np.ldexp(x, -step)), step)
        y = np.where(np.isfinite(x), y, x)
        if f.overflow == "nan":
            return np.where(np.abs(y) > f.max, np.nan, y)
        return np.where(np.abs(y) > f.max, np.copysign(np.inf, y), y)
