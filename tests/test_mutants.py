"""Each mutant is caught by what its row says; where it is said to be harmless it is, bit for bit."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from refattn import laws
from refattn.calling import Local, call
from refattn.case import Case
from refattn.cases import CASES, FLAGS, by_id
from refattn.conform import examine, judge
from refattn.implementation import load
from refattn.inputs import make
from refattn.mutants import MUTANTS, Kernel
from refattn.precision import preset
from refattn.streaming import Rules
from refattn.truth import truth
from tests.bare_verdicts import bare_verdicts  # noqa: F401

CAUGHT = [name for name, m in MUTANTS.items() if m.caught]
SCORES = 1 << 18  # cases with more are left out here, to be quick
NEAR = 4
TWO_RULES = {"backward_without_sink", "max_over_hidden_keys"}
"""what is wrong is one thing, seen in one rule and used in another"""
SOURCE = re.compile(r"[\w.-]+(/[\w.-]+)?(#\d+|@[0-9a-f]{8}|:[\w./=-]+)")


def size(case):
    return case.scores


QUICK = sorted((case for case in CASES if size(case) <= SCORES), key=size)
ROWS = {row.id: row for row in laws.rows()}


problem, features = cache(make), cache(Case.features)


@cache
def expected(case):
    return truth(problem(case), preset(case.dtype, case.out_dtype))


@cache
def honest(case, schedule):
    return Kernel(schedule=schedule)(case, problem(case).fresh())


def asked(id):
    return ROWS[id] if id in ROWS else by_id(id)


def verdict(kernel, case):
    """Of a case with its truth kept, for it is asked again of other mutants."""
    if laws.law_of(case):
        return examine(Local(kernel), case)
    answer, contract = call(kernel, problem(case)), kernel.precision(case)
    return judge(problem(case), answer, contract, kernel.conventions, expected=expected(case))


@cache
def passes(case, schedule, conventions):
    return verdict(Kernel(schedule=schedule, conventions=conventions), case).status == "passed"


@pytest.mark.parametrize("name", CAUGHT)
def test_a_mutant_fails_where_its_row_says_and_the_honest_kernel_passes(name):
    mutant = MUTANTS[name]
    kernel = replace(mutant.implementation)
    cases = [asked(id) for id in mutant.caught.split()]
    for case in cases:
        last = verdict(kernel, case)
        assert passes(case, kernel.schedule, kernel.conventions), case.id
    failing = {output.name.partition(" ")[0].rstrip(",") for output in last.outputs if not output.passed}
    assert last.status == "failed"
    assert failing <= mutant.shows, f"{failing - mutant.shows} too"
    assert mutant.separates(case) or (laws.law_of(case) and "law" in mutant.shows)


@pytest.mark.parametrize("name", sorted(set(MUTANTS) - set(CAUGHT)))
def test_what_survives_passes_what_it_could_fail(name):
    mutant = MUTANTS[name]
    for case in [c for c in QUICK if mutant.separates(c) and size(c) < 20_000][:: 1 + len(QUICK) // 30][:20]:
        assert verdict(replace(mutant.implementation), case).status == "passed", case.id


def near_misses(mutant):
    """Cases that cannot tell the mutant: those most like the ones that can, and as many from all over."""
    harmless = [case for case in QUICK if not mutant.separates(case) and size(case) <= SCORES >> 5]
    common = frozenset.intersection(*(features(case) for case in QUICK if mutant.separates(case)), ALL)
    alike = sorted(harmless, key=lambda case: -len(common & features(case)))[:NEAR]
    return dict.fromkeys((*alike, *harmless[:: 1 + len(harmless) // NEAR]))


ALL = frozenset().union(*map(features, CASES))


@pytest.mark.parametrize("name", [n for n, m in MUTANTS.items() if not all(map(m.separates, QUICK))])
def test_what_a_mutant_does_not_touch_stays_the_same(name):
    mutant = MUTANTS[name]
    kernel = replace(mutant.implementation)
    for case in near_misses(mutant):
        got = kernel(case, problem(case).fresh())
        for output, x in honest(case, kernel.schedule).items():
            np.testing.assert_array_equal(got[output].astype(np.float64), x.astype(np.float64), f"{case.id} {output}")


@pytest.mark.parametrize("name", MUTANTS)
def test_rows_of_the_catalogue(name):
    mutant = MUTANTS[name]
    assert mutant.name == name == mutant.implementation.name
    assert load(f"refattn.mutants:{name}") is mutant.implementation
    assert mutant.what.endswith(".") and 12 <= len(mutant.what) <= 140
    assert all(SOURCE.fullmatch(source) for source in mutant.seen), mutant.seen
    assert not mutant.flag or mutant.flag in FLAGS
    assert bool(mutant.caught) != bool(mutant.survives)
    rules = mutant.implementation.rules
    wrong = [rule for rule in vars(rules) if callable(getattr(rules, rule)) and not rule.startswith("__")]
    if rules is Rules:
        assert issubclass(type(mutant.implementation), Kernel) and type(mutant.implementation) is not Kernel
    else:
        assert len(wrong) == 1 + (name in TWO_RULES), f"{name} changes {wrong}: one decision each"
        assert type(mutant.implementation) is Kernel


def test_the_catalogue_has_all_families():
    assert len(MUTANTS) >= 246
    counts = {family: 0 for family in sorted({m.family for m in MUTANTS.values()})}
    for mutant in MUTANTS.values():
        counts[mutant.family] += 1
    assert set(counts) == {
        "backward", "bias", "cache", "calls", "cheat", "dropout", "empty", "heads", "layout", "mask", "matrices",
        "merge", "online", "packed", "paged", "pattern", "precision", "quant", "rotary", "scale", "score_mod",
        "shared", "strided", "tails", "width",
    }  # fmt: skip
    assert sum(not m.seen for m in MUTANTS.values()) <= len(MUTANTS) / 20, "seen in public, or a kind"
    assert sum(m.semantic for m in MUTANTS.values()) >= 150
    assert {m.name for m in MUTANTS.values() if m.family in ("calls", "cheat") and m.semantic} == set()
    assert sorted(set(MUTANTS) - set(CAUGHT)) == ["reads_reference", "unused_gradients_unwritten"]


def test_flags_have_mutants():
    """The kinds of bugs that the cases are for, of which hardly any is without a mutant."""
    without = set(FLAGS) - {m.flag for m in MUTANTS.values()}
    assert len(without) <= 20, without


def test_a_copy_remembers_nothing():
    kernel = replace(MUTANTS["drifts"].implementation)
    case = by_id("full-tiny-f32")
    one, two = (kernel(case, problem(case).fresh())["out"] for _ in range(2))
    assert not np.array_equal(one, two) and kernel.left and not replace(kernel).left
    np.testing.assert_array_equal(replace(kernel)(case, problem(case).fresh())["out"], one)


def test_other_arithmetic():
    """A mutant under another contract is the same mutant: in float64 its error is that of the bug alone."""
    case = by_id("causal-br-1x2-f32")
    wrong = MUTANTS["causal_top_left"].implementation
    exact = replace(wrong, contract=replace(preset("float64"), inputs="float32", out="float32"))
    a, b = (kernel(case, problem(case).fresh())["out"] for kernel in (wrong, exact))
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_no_such_mutant():
    with pytest.raises(ValueError, match="has no nothing"):
        load("refattn.mutants:nothing")
