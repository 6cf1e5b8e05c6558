"""Aggregate statistics: systematic errors of out that are too small for any single element to show.

The bound of an element allows for the worst roundings of that element; a scale that is off by 0.1 % in bfloat16
hides below it in every element, but moves all of them in one direction.  So rows are compared as a whole.

A *filter* is a direction g (rows, Dv) that depends on the problem alone.  Row i gives one number,

    u_i = sum_k g_ik e_ik / s_ik²,    e = got - value,    s² = variance of an honest error (`rows`),

in which roundings of all its weights and outputs are mixed.  Roundings are as likely up as down, and rows are rounded
independently, so the u_i of an honest kernel are independent and symmetric, whatever their size.  Then

    T = |sum_i u_i| / sqrt(sum_i u_i²),    P(T > L) <= 2 exp(-L² / 2)

(Hoeffding 1963, theorem 2, given the |u_i|; Efron 1969, "Student's t-test under symmetry conditions").  The rows
themselves are the variance model: errors that columns share, as those of the weights are, cost nothing.  T <= sqrt(n),
so that fewer than L² rows say nothing.  What may be common to all rows of an honest kernel (a rounded constant,
an exp that is off always to one side, accumulators that truncate, second-order terms) is bounded (`allowance`)
and taken off |sum u| first.

The statistics (`filters`, `keys`):

    scale           g = d out / d log(scale), less what is along out in its row
    size            g = out, less what is along the direction of scale
    toward zero     g = half a unit in the last place, with the sign of out
    up and down     g = half a unit in the last place
    rms             the mean of e² / s² beyond 1, by its spread over rows
    key             for each key j: the direction of its weight, p_j (v_j - out), less those of size and scale

Together they exceed their limits on an honest answer with probability at most 2 RATE a problem, where errors are
symmetric and rows independent (rms: and its rows many enough for Student's t; squares lean to the right, which makes
the upper tail of t lighter).  They are not everywhere: `gates` leaves out whatever is not generic.  Measured by
`tests/benchmarks/suspicions.py`: no alarm in 5432 honest answers to random and awkward problems (2011 of them generic)
nor in 2522 of the suite's cases; the largest T was 3.6 of 6.8.  Noticed in 256 rows of 4096 keys, D = 64:

                                    float32     float16     bfloat16
    scale off by                    1.8e-6      3.2e-5      1.8e-4
    size off by                     1.8e-6      1.0e-4      3.2e-4
    out truncated, or rounded up                yes         yes
    bfloat16 out between splits     fails       fails       yes
    scores stored in bfloat16       fails       fails       yes
    one key dropped of              65536       262144      262144

Cost: weights are had again in float32 for 256 rows of each key head, 2 to 8 % of `truth`, 9 % of `quick_truth` over the
suite; of one head of 256 rows, which is all looked at, 20 % of `quick_truth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..inputs import Problem
from ..precision import Precision
from ..truth import Expected
from .filters import Filters
from .gates import generic
from .keys import Keys
from .rows import groups
from .suspicion import RATE, Found, Suspicion

__all__ = ["RATE", "Suspicion", "suspicions"]

Array = np.ndarray[Any, Any]


def suspicions(
    problem: Problem, got: Mapping[str, Array], expected: Mapping[str, Expected], precision: Precision
) -> tuple[Suspicion, ...]:
    """What is systematically wrong with out, though each element may be within its bound; most telling first.

    One cause moves several statistics: those that explain less than a quarter of what the first explains are left out.
    `got` and `expected` are dense, in float64, as the judge has them.  Nothing is said of problems that are not
    generic, nor of other outputs.
    """
    if "out" not in got or "out" not in expected or not generic(problem, expected["out"], precision):
        return ()
    filters = Filters(expected["out"].dtype, precision)
    found: list[Found] = []
    with np.errstate(all="ignore"):
        for group in groups(problem, got["out"], expected["out"], precision):
            scan = Keys(group)
            for rows in group.chunks():
                filters.add(rows)
                scan.add(rows)
            found += scan.found()
        found += filters.found()
        most = max((f.explained for f in found), default=0.0)
        telling = sorted((f for f in found if f.explained >= most / 4), key=lambda f: -f.explained)
        return (*(f.suspicion for f in telling), *filters.mean_square())
