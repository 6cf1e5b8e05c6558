"""What the scores of a row are counted in, and what its state comes to when all keys have gone by."""

from __future__ import annotations

import math

import numpy as np

from .compiled import inlined

__all__ = ["settled", "units_of"]

LOG2E = 1 / math.log(2)


@inlined
def units_of(scale, softcap, bias):  # type: ignore[no-untyped-def]
    """(plain, unit, sign, c): a score is S unit, and its exponential 2**(S c); if plain, S is sign q·k.

    Plain is where no softcap and no bias needs the score itself: then equal products stay equal scores.  Not at
    scale 0, as 0 times -inf is no 0.
    """
    one = bias.dtype.type(1)
    plain = softcap == 0 and bias.size == 0 and scale != 0
    unit = abs(scale) if plain else one
    sign = -one if plain and scale < 0 else one
    return plain, unit, sign, unit * bias.dtype.type(LOG2E)


@inlined
def settled(m, total, unit, lost, sinks, h):  # type: ignore[no-untyped-def]
    """(lse, shift, factor) of a row once its sink has joined, with p = exp2((S - shift) c) factor.

    m is the largest S, total the sum of the exponentials; `lost` says that the row sees keys whose scores are -inf by
    an overflow alone, so that a sum of 0 is no number.
    """
    zero, own, x = sinks.dtype.type(0), sinks.dtype.type(1), m * unit
    if total == 0 and lost:
        total = sinks.dtype.type(np.nan)
    if sinks.size and sinks[h] != -np.inf:
        top = max(x, sinks[h])
        own = np.exp(x - top)
        total, x = total * own + np.exp(sinks[h] - top), top
    return x + np.log(total), zero if m == -np.inf else m, zero if total == 0 else own / total
