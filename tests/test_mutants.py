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


problem = cache(make)


@cache
def expected(case):
    return truth(problem(case), HONEST.precision(case), Conventions())


@cache
def honest(case):
    return HONEST(case, problem(case).fresh())


def verdict(implementation, case, answer):
    precision = implementation.precision(case)
    return judge(
        problem(case), answer, precision, Conventions(), outputs=implementation.outputs, expected=expected(case)
    )


def near_misses(mutant, number=10):
    """Cases that cannot tell the mutant: those most like the ones that can, and as many from all over."""
    harmless = [case for case in QUICK if not mutant.separates(case) and size(case) <= SCORES >> 4]
    common = frozenset.intersection(*(case.features() for case in QUICK if mutant.separates(case)))
    alike = sorted(harmless, key=lambda case: -len(common & case.features()))[:number]
    return dict.fromkeys((*alike, *harmless[:: 1 + len(harmless) // number]))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fails_a_case_that_is_for_it_and_the_honest_kernel_passes(name):
    mutant = MUTANTS[name]
    its = [case for case in QUICK if mutant.flag in case.flags and mutant.separates(case)]
    assert its, f"no quick case with flag {mutant.flag}"
    for case in its:
        answer = mutant.implementation(case, problem(case).fresh())
        if verdict(mutant.implementation, case, answer).status == "failed":
            assert verdict(HONEST, case, honest(case)).status == "passed", case.id
            return
    pytest.fail(f"{name} passes {', '.join(case.id for case in its)}")


@pytest.mark.parametrize("name", [n for n, m in MUTANTS.items() if not all(map(m.separates, QUICK))])
def test_what_a_mutant_does_not_touch_stays_the_same(name):
    mutant = MUTANTS[name]
    for case in near_misses(mutant):
        got = mutant.implementation(case, problem(case).fresh())
        for output, x in honest(case).items():
            np.testing.assert_array_equal(got[output].astype(np.float64), x.astype(np.float64), f"{case.id} {output}")


@pytest.mark.parametrize("name", MUTANTS)
def test_rows_of_the_catalogue(name):
    mutant = MUTANTS[name]
    assert mutant.name == name == mutant.implementation.name
    assert mutant.what.endswith(".") and mutant.seen and mutant.flag in FLAGS
    assert load(f"refattn.mutants:{name}") is mutant.implementation
    changed = [rule for rule in vars(mutant.implementation.rules) if not rule.startswith("__")]
    assert len(changed) == 1, f"{name} changes {changed}: one decision each"
