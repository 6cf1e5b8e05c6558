"""Hypotheses of functions and constants that are not what they are called: exp, tanh, log2(e), ln 2, the scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...dtypes import FORMATS, round_to
from ..hypothesis import always, kind
from ..model import LOG2E, Array, Model, safe
from .loops import PLAIN, Loop, State, Tiled, loops
from .maxima import Base
from .roundings import TO, _applies, lowered

__all__: list[str] = []

@kind(
    always, rounding=True,
    c={"1.4453125, bfloat16's": 1.4453125, "1.4423828125, float16's": 1.4423828125, "1.44": 1.44, "1.442": 1.442,
       "1.4427": 1.4427, "1.443": 1.443, "1.4": 1.4, "1.5": 1.5, "1.4375": 1.4375, "1.442695": 1.442695,
       "float32's value": float(np.float32(LOG2E)), "1.44269504": 1.44269504},
)  # fmt: skip
class log2e_rounded(Base):
    """exp is exp2 with {c} for log2(e)."""

    c = LOG2E

    def ratio(self) -> float:
        return self.c / LOG2E


@kind(
    always, rounding=True,
    c={"0.1 % too large": 1.001, "0.1 % too small": 0.999, "1 % too large": 1.01, "1 % too small": 0.99},
)  # fmt: skip
class scale_off(Model):
    """The scale is {c}."""

    c = 1.0

    def factor(self) -> float:
        return super().factor() * self.c


@kind(_applies, rounding=True, to=TO, what={"scale": 1.0, "scale times log2(e)": LOG2E})
class scale_rounded(Model):
    """The {what} is rounded to {to}."""

    to, what = "", 1.0

    def factor(self) -> float:
        return float(lowered(np.array([super().factor() * self.what]), self.to, self.given)[0]) / self.what


@kind(
    always, "lse", rounding=True,
    c={"0.6931": 0.6931, "0.693": 0.693, "0.69": 0.69, "0.69140625, bfloat16's": 0.69140625,
        "0.693359375, float16's": 0.693359375},
)  # fmt: skip
class ln2_rounded(Model):
    """lse is brought from base 2 to base e with {c} for ln 2."""

    c = 1.0

    def log(self, m: Array, z: Array) -> Array:
        return super().log(m, z) * (self.c * LOG2E)


EXPS: dict[str, Callable[[Array], Array]] = {
    "1 + x, from below": lambda x: np.maximum(1 + x, 0),
    "(1 + x / 1024)**1024": lambda x: np.where(x < -1024, 0, np.maximum(1 + x / 1024, 0) ** 1024),
    "(1 + x / 256)**256": lambda x: np.where(x < -256, 0, np.maximum(1 + x / 256, 0) ** 256),
    "exp2 by a polynomial of degree 1": lambda x: _poly(x, (1.0, 1.0)),
    "exp2 by a polynomial of degree 2": lambda x: _poly(x, (1.0, 0.6565, 0.3435)),
    "exp2 by a polynomial of degree 3": lambda x: _poly(x, (1.0, 0.695, 0.2275, 0.0775)),
    "exp2 by a polynomial of degree 3, good to 9e-5": lambda x: _poly(x, (1.0, 0.6951461, 0.2275644, 0.0771191)),
    "0 below -10": lambda x: np.where(x < -10, 0, np.exp(x)),
    "0 below -20": lambda x: np.where(x < -20, 0, np.exp(x)),
    "that of -10 below": lambda x: np.exp(np.maximum(x, -10)) * (x > -np.inf),
    "that of -20 below": lambda x: np.exp(np.maximum(x, -20)) * (x > -np.inf),
    "of an argument rounded to bfloat16": lambda x: np.exp(round_to(x, "bfloat16").astype(x.dtype)),
    "of an argument rounded to float16": lambda x: np.exp(round_to(x, "float16").astype(x.dtype)),
}


IN: dict[str, Any] = {"float32": np.float32, "float16": np.float16}


def _narrower(case: Case, how: Any) -> bool:
    wide = "float64" if "float64" in (case.dtype, case.out_dtype) else "float32"
    there = case.softcap is not None or getattr(how, "of", "") != "t"
    return there and np.dtype(how.to).itemsize < np.dtype(wide).itemsize


@kind(_narrower, rounding=True, to=IN, loop=loops(Loop(4096), *PLAIN[1:]),
      of={"weights": False, "weights and of rescaling": True})  # fmt: skip
class exp_in(Tiled):
    """From tile to tile of {loop}, exp of {of} is taken in {to}: argument and result have its bits, and its range."""

    to: Any = np.float32
    of = False

    def exp(self, x: Array) -> Array:
        return np.asarray(np.exp(x.astype(self.to)).astype(x.dtype))

    def next(self, state: State, m: Array, shrink: Array, total: Array, product: Array) -> State:
        shrink = self.exp(state[0] - safe(m)) if self.of else shrink
        return super().next(state, m, shrink, total, product)


@kind(_narrower, rounding=True, to=IN, of={"tanh": "t", "The logarithm": "l", "The division": "d"})
class function_in(Model):
    """{of} is taken in {to}: argument and result have its bits, and its range."""

    to: Any = np.float32
    of = "l"

    def cap(self, s: Array, softcap: float) -> Array:
        if self.of != "t":
            return super().cap(s, softcap)
        return np.asarray(softcap * np.tanh((s / softcap).astype(self.to)).astype(s.dtype))

    def log(self, m: Array, z: Array) -> Array:
        if self.of != "l":
            return super().log(m, z)
        return np.where(z == 0, -np.inf, safe(m) + np.log(z.astype(self.to)).astype(z.dtype))

    def divided(self, o: Array, z: Array) -> Array:
        if self.of != "d":
            return super().divided(o, z)
        return np.where(z == 0, 0, o.astype(self.to) / np.where(z == 0, 1, z).astype(self.to)).astype(o.dtype)


def _poly(x: Array, coefficients: tuple[float, ...]) -> Array:
    y = x * LOG2E
    whole = np.floor(np.where(np.isfinite(y), y, 0))
    f = np.where(np.isfinite(y), y, 0) - whole
    value = np.zeros_like(f)
    for c in reversed(coefficients):
        value = value * f + c
    return np.where(np.isfinite(y), np.ldexp(value, np.clip(whole, -2000, 2000).astype(int)), 0)


@kind(always, rounding=True, how=EXPS)
class exponential(Model):
    """exp(x) is {how}."""

    how: Callable[[Array], Array]

    def attend(self, t: Array) -> State:
        m = t.max(-1, initial=-np.inf)
        p = self.how(t - safe(m)[..., None])
        return m, p.sum(-1), self.weighed(p)


@kind(always, rounding=True, how={words: how for words, how in EXPS.items() if "polynomial" in words},
      loop=loops(*PLAIN[1:]))  # fmt: skip
class exponential_of_loop(Tiled):
    """From tile to tile of {loop}, exp(x) of weights, relative to the maximum so far, is {how}."""

    how: Callable[[Array], Array]

    def exp(self, x: Array) -> Array:
        return self.how(x)


@kind(always, rounding=True)
class subnormals_flushed(Model):
    """Subnormal outputs are flushed to zero."""

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        least = FORMATS[self.given.out_dtype].smallest_normal
        return {n: np.where(np.abs(x) < least, 0, x) for n, x in y.items()}


@kind(
    lambda case: case.softcap is not None, rounding=True,
    how={
        "too small by 2^-11": lambda x: np.tanh(x) * (1 - 2.0**-11), "too large by 2^-11":
            lambda x: np.tanh(x) * (1 + 2.0**-11),
        "rounded to float16": lambda x: round_to(np.tanh(x), "float16").astype(x.dtype),
        "rounded to bfloat16": lambda x: round_to(np.tanh(x), "bfloat16").astype(x.dtype),
        "x - x³ / 3": lambda x: x - x**3 / 3, "x / (1 + |x|)": lambda x: x / (1 + np.abs(x)),
        "2 / (1 + exp(-x)) - 1: a sigmoid of half the slope": lambda x: 2 / (1 + np.exp(-x)) - 1,
    },
)  # fmt: skip
class hyperbolic_tangent(Model):
    """tanh(x) of softcap is {how}."""

    how: Callable[[Array], Array]

    def cap(self, s: Array, softcap: float) -> Array:
        return softcap * self.how(s / softcap)


BY_EXP = {
    "(e - 1) / (e + 1), e = exp(2 x)": lambda x: 2 * x, "(1 - e) / (1 + e), e = exp(-2 x)": lambda x: -2 * x,
    "(exp(x) - exp(-x)) / (exp(x) + exp(-x))": np.abs,
}  # fmt: skip


@kind(lambda case: case.softcap is not None, how=BY_EXP, to=IN)
class tanh_overflows(Model):
    """tanh(x) of softcap is {how}, which is infinite in the range of {to}: NaN where x is large."""

    how: Callable[[Array], Array]
    to: Any = np.float32

    def cap(self, s: Array, softcap: float) -> Array:
        over = self.how(s / softcap) > np.log(float(np.finfo(self.to).max))
        return np.where(over, np.nan, super().cap(s, softcap))
