"""The truth of a problem: for each wanted output the value and the interval of each element.

Values come from the oracle, or tile by tile (`solver`) where the scores of all heads would
not fit; intervals from `tolerance`, the truth's own float64 error included.
"""

from __future__ import annotations

from ..inputs import Problem
from ..precision import Conventions, Precision
from .expected import Expected
from .finish import dtype_of
from .quick import narrow_truth
from .solve import Truth
from .view import View

__all__ = ["Expected", "View", "dtype_of", "quick_truth", "truth"]

USUAL = Conventions()


def truth(problem: Problem, precision: Precision, conventions: Conventions = USUAL) -> dict[str, Expected]:
    """What each output that the case wants should be, under a contract and conventions."""
    return Truth(problem, precision, conventions).expected()


def quick_truth(problem: Problem, precision: Precision) -> dict[str, Expected]:
    """`truth`, or for forwards narrower intervals at a fraction of its cost.

    An answer within `narrow` intervals is within those of `truth`; any other, `truth` decides.
    """
    return narrow_truth(problem, precision) or truth(problem, precision)
