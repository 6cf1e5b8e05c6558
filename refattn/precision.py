"""What an implementation declares about itself: its precision contract and its conventions.

The contract decides how large the honest error may be (see `refattn.tolerance`); each field is
here because it changes that error by more than the slack of the bound.  Conventions are the few
points in which libraries legitimately differ; which keys a row sees is never one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from .dtypes import FORMATS, format_of

__all__ = ["Conventions", "Precision", "Unsupported", "eager", "preset"]


class Unsupported(Exception):
    """Raised by an implementation (or returned as text by `supports`) for a case it cannot express."""


@dataclass(frozen=True)
class Precision:
    """The arithmetic that an implementation promises to be no worse than.

    All dtypes are names from `refattn.dtypes.FORMATS`.  `source` says where a looser contract than
    the dtype's preset comes from; it is printed in the report.
    """

    inputs: str
    """dtype of q, k, v: they are exact in it."""
    out: str
    """dtype of out and of the gradients; rounded to nearest, once, at the end."""
    accumulate: str = "float32"
    """dtype of the matrix products' accumulators, of the row sums and of the running output."""
    accumulate_rounding: Literal["nearest", "truncate"] = "nearest"
    """truncate: sums of products, row sums by tensor cores among them, are rounded toward zero, not to nearest.

    Then errors have one sign and do not average out: those of n terms are n u of the partial sums
    (`refattn.tolerance.rounding`).  A kernel whose tensor cores add 16 products exactly before they truncate needs
    no declaration: such sums, simulated, are within the bound of "nearest" in every case that was tried
    (tests/honest_variations.py).  Declare it where they add 8 or fewer, or align products to so few bits that
    each is truncated by itself; `source` says what was measured.
    """
    weights: str | None = None
    """dtype the weights are rounded to before P·V (and P, dS in the backward); None: not rounded."""
    lse: str = "float32"
    """dtype of lse."""
    scores: str | None = None
    """dtype the scores are stored in, q·k and again once scaled; None: kept in the accumulator's."""
    scaled_q: str | None = None
    """dtype of a q multiplied by scale beforehand; None: scale is applied to the scores."""
    rotated: str | None = None
    """dtype that q and k are rounded to once rotated; None: they stay in the accumulators'."""
    dequantised: str | None = None
    """dtype that quantised inputs are brought to; None: the accumulators'."""
    exp_ulp: float = 4.0
    """relative error of exp in units of the accumulator's u; 4 covers ex2.approx (2**-22) and NumPy's float32 exp.
    exp(0) is taken to be 1 exactly."""
    tanh_error: float = 2.0**-22
    """relative error of tanh (softcap); 2**-11 covers tanh.approx.f32."""
    weights_normalised: bool = False
    """weights are divided by their sum before they are rounded (the eager way)."""
    sum_rounded_weights: bool = False
    """the row sum adds the rounded weights."""
    weights_from_lse: bool = False
    """the weights are exp(score - lse), so that the error of lse does not cancel."""
    tile: int = 16
    """smallest number of keys between two rescalings."""
    grad_q_block: int = 0
    """> 0: dk and dv are accumulated in the output dtype across blocks of so many queries of a head."""
    grad_k_block: int = 0
    """> 0: dq is accumulated in the output dtype across blocks of so many keys."""
    grad_per_head: bool = False
    """dk and dv of each query head are rounded to the output dtype before the group's are added."""
    flush_subnormal: bool = False
    """subnormal numbers may be flushed to zero: outputs, weights, and products before they are added up."""
    source: str = ""
    """where the fields looser than the preset are documented or measured."""

    def __post_init__(self) -> None:
        for name in ("inputs", "out", "accumulate", "weights", "lse", "scores", "scaled_q", "rotated", "dequantised"):
            value = getattr(self, name)
            if value is not None or name in ("inputs", "out", "accumulate", "lse"):
                object.__setattr__(self, name, format_of(value, name).name)
        if self.accumulate not in ("float64", "float32"):
            raise ValueError(f"accumulate={self.accumulate} has no derived bound; use float32 or float64")
        if self.accumulate_rounding not in ("nearest", "truncate"):
            raise ValueError(f"accumulate_rounding={self.accumulate_rounding} must be nearest or truncate")
        if self.accumulate_rounding == "truncate" and self.accumulate != "float32":
            raise ValueError(f"accumulate_rounding=truncate has no bound for accumulate={self.accumulate}; use float32")
        for name in ("exp_ulp", "tanh_error"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be > 0")
        if not self.tile >= 1:
            raise ValueError(f"tile={self.tile} must be >= 1 key")
        for name in ("grad_q_block", "grad_k_block"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must be >= 0; 0 means one accumulation")

    def looser_than(self, other: Precision) -> dict[str, Any]:
        """The fields in which this contract allows more error than `other` does.

        >>> preset("float16").looser_than(preset("bfloat16"))
        {}
        """
        mine, theirs = self._allowance(), other._allowance()
        return {name: getattr(self, name) for name in mine if mine[name] > theirs[name]}

    def _allowance(self) -> dict[str, float]:
        """Each field as a number that grows with the error it allows."""
        numbers: dict[str, float] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None or f.name in ("inputs", "out", "source"):
                numbers[f.name] = 0.0
            elif f.name == "accumulate_rounding":
                numbers[f.name] = float(value == "truncate")
            elif isinstance(value, str):
                numbers[f.name] = FORMATS[value].u
            elif f.name == "tile":
                numbers[f.name] = 1 / value
            elif f.name in ("grad_q_block", "grad_k_block"):
                numbers[f.name] = 1 / value if value else 0.0
            else:
                numbers[f.name] = float(value)
        return numbers


def preset(dtype: str, out: str | None = None) -> Precision:
    """The usual contract for inputs of `dtype`.

    float64 and float32 compute in themselves.  float16, bfloat16 and float8 accumulate in float32
    and round the weights to the inputs' dtype before P·V (float8: to float16 or bfloat16, whichever
    the output is), as FlashAttention-2 does; q and k that are rotated are rounded to the inputs' 16-bit
    dtype, as tensor cores take them.  Scales of quantised inputs are applied to scores and output, or
    in the accumulators' dtype, so that nothing is rounded to 16 bits (FlashAttention-3's descale).

    >>> preset("bfloat16").weights
    'bfloat16'
    """
    dtype = format_of(dtype).name
    out = format_of(out or dtype, "out").name
    if dtype == "float64":
        return Precision("float64", out, accumulate="float64", lse="float64")
    if dtype == "float32":
        return Precision("float32", out)
    if FORMATS[dtype].bits <= 4 and FORMATS[out].bits <= 4:
        raise ValueError(f"out={out}: the outputs of float8 cases are float16 or bfloat16")
    if FORMATS[dtype].bits <= 4:
        return Precision(dtype, out, weights=out)
    return Precision(dtype, out, weights=dtype, rotated=dtype)


def eager(dtype: str) -> Precision:
    """The textbook way in 16 bits: scores stored in `dtype`, weights normalised, then rounded."""
    return replace(preset(dtype), scores=dtype, weights_normalised=True)


@dataclass(frozen=True)
class Conventions:
    """Where libraries legitimately differ; an implementation is judged by what it declares."""

    masked_nan_k: Literal["hidden", "leaks"] = "hidden"
    """NaN or inf in a key that a row does not see: selected away, or let through."""
    masked_nan_v: Literal["hidden", "leaks"] = "hidden"
    """the same for values; most public libraries let 0·NaN through."""
    empty_rows: Literal["zero", "nan", "mean_all"] = "zero"
    """out of a row that sees no key."""
    empty_lse: Literal["-inf", "+inf", "nan", "any"] = "-inf"
    """lse of a row that sees no key."""
    lse_base: Literal["e", "2"] = "e"
    """the base of the logarithm in lse."""
    lse_sinks: Literal["included", "excluded"] = "included"
    """whether the sinks' logits are in lse, as they are in the denominator."""
    deterministic: bool = True
    """the same call gives the same bits."""
    batch_invariant: bool = False
    """the bits of one batch entry do not depend on the others."""

    def __post_init__(self) -> None:
        for name, allowed in get_type_hints(type(self)).items():
            value, known = getattr(self, name), get_args(allowed) or (True, False)
            if not any(value is k or value == k and type(value) is type(k) for k in known):
                raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, known))}")

    def declared(self) -> dict[str, Any]:
        """The fields that differ from the default."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
