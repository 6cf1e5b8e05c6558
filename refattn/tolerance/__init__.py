"""Tolerances that are derived: for each element of each output, how far an honest answer may be.

No atol: every element gets the largest error that an implementation of the declared `Precision`
can make on these very inputs, in two strengths.  The *rigorous* bound holds always.  The *sharp*
one assumes independent roundings and is exceeded by an honest implementation with probability
1e-6 over the whole suite; it decides, and where independence fails (`ties`) it is coherent or
rigorous.  The derivation stands where it is computed: `rounding`, `scores`, `ties`, `forward`,
`backward`, `scalars` (dscale, dsoftcap), `matrices` (scores and weights), `extras` (score_mod, dropout,
inputs known but roughly), and `lite`, a cheap form of the forward's.

Work is by one head, tile by tile: O(N D) memory.
"""

from .backward import Backward, backward
from .extras import NONE, Extras
from .forward import Forward, Tile, forward
from .lite import Lite, forward_lite
from .matrices import matrices
from .rounding import LAMBDA, Units, half_ulp, interval, repetitive
from .scalars import Scalars, Total

__all__ = [
    "LAMBDA", "NONE", "Backward", "Extras", "Forward", "Lite", "Scalars", "Tile", "Total", "Units",
    "backward", "forward", "forward_lite", "half_ulp", "interval", "matrices", "repetitive",
]  # fmt: skip
