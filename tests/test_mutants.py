"""Each mutant fails, by the suite's own judge; where it is said to be harmless it is, bit for bit."""

from functools import cache

import numpy as np
import pytest

from refattn.cases import CASES, FLAGS
from refattn.conform import judge
from refattn.implementation import load
from refattn.inputs import make
from refattn.mutants import MUTANTS, TILES
from refattn.precision import Conventions
from refattn.streaming import Streaming
from refattn.truth import truth

HONEST = Streaming(schedule=TILES)
SCORES = 1 << 18  # cases with more are left out here, to be quick


def size(case):
    return case.B * case.H * case.Lq * case.Lk


QUICK = sorted((case for case in CASES if size(case) <= SCORES), key=size)


@cache
def problem(case):
    made = make(case)
    return made, truth(made, HONEST.precision(case), Conventions())


def verdict(implementation, case):
    made, expected = problem(case)
    answer = implementation(case, made.fresh())
    precision = implementation.precision(case)
    return judge(made, answer, precision, Conventions(), outputs=implementation.outputs, expected=expected)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fails_a_case_that_is_for_it_and_the_honest_kernel_passes(name):
    mutant = MUTANTS[name]
    its = [case for case in QUICK if mutant.flag in case.flags and mutant.separates(case)]
    assert its, f"no quick case with flag {mutant.flag}"
    for case in its:
        if verdict(mutant.implementation, case).status == "failed":
            assert verdict(HONEST, case).status == "passed", case.id
            return
    pytest.fail(f"{name} passes {', '.join(case.id for case in its)}")


@pytest.mark.parametrize("name", [n for n, m in MUTANTS.items() if not all(map(m.separates, QUICK))])
def test_what_a_mutant_does_not_touch_stays_the_same(name):
    mutant = MUTANTS[name]
    for case in [case for case in QUICK if not mutant.separates(case)][:: 1 + len(QUICK) // 25]:
        given = problem(case)[0]
        got, honest = mutant.implementation(case, given.fresh()), HONEST(case, given.fresh())
        for output, x in honest.items():
            np.testing.assert_array_equal(got[output].astype(np.float64), x.astype(np.float64), f"{case.id} {output}")


@pytest.mark.parametrize("name", MUTANTS)
def test_rows_of_the_catalogue(name):
    mutant = MUTANTS[name]
    assert mutant.name == name == mutant.implementation.name
    assert mutant.what.endswith(".") and mutant.seen and mutant.flag in FLAGS
    assert load(f"refattn.mutants:{name}") is mutant.implementation
    changed = [rule for rule in vars(mutant.implementation.rules) if not rule.startswith("__")]
    assert len(changed) == 1, f"{name} changes {changed}: one decision each"
