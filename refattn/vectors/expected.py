"""What each output of a problem should be, reproducible byte for byte: a value and an interval of each element.

Value: the exact result, by ball arithmetic (`balls`), rounded once to float64.  A ball that does not tell
which float64 that is, is refused.

Interval: [RN(value - t), RN(value + t)] as in `refattn.truth`, t the radius that decides.  It is made in
float64 by NumPy and BLAS, so its last bits depend on the machine; it is therefore rounded up to 6
significant bits, which last bits alter for one t in 2**29 at most:

- t is made three times, with the scale as it is and 4 units in the last place off either way, which moves
  all scores by more than the arithmetic of any machine does; all three must round up to the same number;
- and so must t (1 + 2**-36) and t (1 - 2**-36).

Where they do not, the case is refused.  What t is made of beyond sums of positive terms is which scores of a
row agree, and that is known exactly: q·k of dyadic numbers is exact in any order (`dyadic`).  From there on all is
subtraction and rounding by IEEE 754, the same everywhere.  t also covers the rounding of value, and of value -+ t, to
float64; where it is 0 the value is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..dtypes import round_to
from ..inputs import Problem
from ..precision import Conventions, Precision
from ..truth import Expected
from ..truth.finish import finish
from ..truth.solve import Truth
from .balls import nearest, scale_of, solve
from .dyadic import Refused

__all__ = ["LEFT_OUT", "expected_of", "up"]

Array = np.ndarray[Any, Any]

BITS = 6
ODD = 1.0071234567
"""many a t is a small multiple of a smallest number, which would be a boundary of its own"""
USUAL = Conventions()

RIGOROUS = frozenset("""
    dilated-x-paged-e5m2 documents-x-negative-bf16 documents-x-tall-f64 drawn-x-dv-wide-e5m2 gathered-x-dv-wide-f32
    gathered-x-packed-f16 generic-bf16 generic-e4m3 generic-e5m2 generic-f16 global-x-dscale-bf16 normal-e4m3
    padding-x-far-f64 peaked-e5m2 prefix-x-dropout-bf16 prefix-x-negative-e4m3 shared-gqa-sinks-f64
    tree-x-packed-e5m2
""".split())
"""Cases in which last bits decide which scores agree: they have the bound that holds always, which does not ask."""

LEFT_OUT = frozenset({"blocks-x-square-f64", "documents-x-softcap-f64", "global-x-layout-f64"})
"""Cases of which no bound can be written: gradients that are 0, of terms that cancel, in float64."""


def expected_of(problem: Problem, precision: Precision, rigorous: bool = False) -> dict[str, Expected]:
    """value, lo, hi and the rest, by name, under a contract; raises `Refused`.

    `rigorous`: by the bound that holds always, as the cases of RIGOROUS have it anyway.
    """
    case = problem.case
    truths = [Truth(shaken, precision, USUAL) for shaken in _shaken(problem)]
    usual = truths[0]
    bounds = [t.bounds() for t in truths]
    rough = bounds[0][0]
    exact = solve(problem)
    own = 2.0**-53 if precision.accumulate == "float64" else 2.0**-52  # of which `finish` takes twice in float64
    kind = 0 if rigorous or case.id in RIGOROUS else 1
    found = {}
    for name in sorted(case.want):
        what = f"{case.id}: {name}"
        radii = [radii[name][kind] for _, radii in bounds]
        bad = np.isnan(rough[name])
        if usual.nonfinite is not None:
            bad = bad | usual.nonfinite.of(name) & ~np.isfinite(rough[name])
        least = np.where(bad, np.inf, np.where(np.isfinite(radii[0]), radii[0], 0.0))
        value = np.where(bad, np.nan, nearest(exact[name], least, what))
        t = _agreed(radii, own * np.where(np.isfinite(value), np.abs(value), 0.0), bad, what)
        e = finish(name, value, t, t, case, precision, USUAL, usual.empty, usual.nonfinite)
        _check(rough[name], e, what)
        found[name] = e
    return found


def _shaken(problem: Problem) -> Iterator[Problem]:
    scale = scale_of(problem.case)
    for shift in (0.0, 2.0**-50, -(2.0**-50)):
        yield replace(problem, case=replace(problem.case, scale=scale * (1 + shift)))


def _agreed(radii: list[Array], own: Array, bad: Array, what: str) -> Array:
    """The three radii as one number of few bits; with the `own` error of the value, where they are not 0."""
    rounded = []
    for t in radii:
        t = np.where(bad | ~np.isfinite(t), np.inf, np.where(t > 0, t * (1 + 2.0**-30) + own, 0.0))
        rounded += [up(t * (1 + shift)) for shift in (0.0, 2.0**-36, -(2.0**-36))]
    differs = np.logical_or.reduce([r != rounded[0] for r in rounded])
    if differs.any():
        at = tuple(int(n) for n in np.argwhere(differs)[0])
        raise Refused(f"{what}{list(at)} has a tolerance that last bits could turn; put it in RIGOROUS")
    return rounded[0]


def up(t: Array) -> Array:
    """The least number of 6 significant bits, times ODD, that is not below t but for its rounding."""
    mantissa, exponent = np.frexp(t / ODD)
    return np.ldexp(np.ceil(np.ldexp(mantissa, BITS)), exponent - BITS) * ODD


def _check(rough: Array, e: Expected, what: str) -> None:
    """The truth of `refattn.truth`, derived otherwise, lies in the interval."""
    y = round_to(rough, e.dtype)
    with np.errstate(invalid="ignore"):
        good = (e.lo <= y) & (y <= e.hi) | e.nonfinite & ~np.isfinite(y) | e.ignored
    if not good.all():
        at = tuple(int(n) for n in np.argwhere(~good)[0])
        raise ArithmeticError(f"{what}{list(at)}: {y[at]} of refattn.truth is not in [{e.lo[at]}, {e.hi[at]}]")


