"""Bugs of `tests.fresh_kernel`, written by somebody who has not seen the catalogue: each overrides one method of it.

BUGS holds rows of a name, what is wrong, in plain words, and a function that makes the implementation.  The rows are
in four modules: loads, scores, softmax, backward.  Each fails at least one of the usual cases:
`python -m tests.fresh_bugs [NAME ...]` says which ones are the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from refattn.calling import call
from refattn.case import Case
from refattn.cases import CASES
from refattn.inputs import make
from refattn.judge import Verdict, judge
from refattn.truth import quick_truth
from tests import fresh_bugs_backward, fresh_bugs_scores, fresh_bugs_softmax
from tests.fresh_bugs_loads import ROWS, Row
from tests.fresh_kernel import attention

__all__ = ["BUGS", "failures"]

BUGS: tuple[Row, ...] = tuple(ROWS)
MODULES = (fresh_bugs_scores, fresh_bugs_softmax, fresh_bugs_backward)
"""imported for their rows"""


def failures(row: Row, cases: list[Case]) -> Iterator[Verdict]:
    """The cases that the bug fails, one after the other."""
    implementation = row[2]()
    for case in cases:
        problem, precision = make(case), implementation.precision(case)
        answer, expected = call(implementation, problem), quick_truth(problem, precision)
        verdict = judge(
            problem, answer, precision, implementation.conventions,
            outputs=implementation.outputs, expected=expected,
        )  # fmt: skip
        if verdict.status == "failed":
            yield verdict


def main(names: list[str]) -> None:
    cases = [c for c in CASES if c.chapter not in ("huge", "long") and attention.supports(c) is None]
    for row in BUGS:
        if not names or row[0] in names:
            first = next(failures(row, cases), None)
            print(f"{row[0]:28} {first.case.id if first else 'NOT KILLED'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
