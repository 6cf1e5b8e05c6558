"""What is said of failures that no hypothesis explains: planted errors are told, and nothing that does not hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.cases import CASES
from refattn.diagnose import Suspects
from refattn.diagnose.conditions import common
from refattn.diagnose.effort import Effort
from refattn.diagnose.facts import LOOK, facts
from refattn.diagnose.merging import merged
from refattn.diagnose.trial import Trial
from refattn.inputs import Problem, make
from refattn.judge import Verdict, judge
from refattn.masks import Causal
from refattn.precision import Conventions, preset
from refattn.streaming import Streaming

Answer = dict[str, Any]
Change = Callable[[Case, Answer], Answer]


SMALL = [c for c in CASES if c.dtype == c.out_dtype == "float32" and type(c.storage).__name__ == "Dense"
         and 0 < c.scores < 2**12 and c.D and c.dropout is None and "poison" not in c.family
         and c.quant is None and c.Dv >= 4]  # fmt: skip
FORWARD = [c for c in SMALL if c.want == {"out", "lse"}][::3]
BACKWARD = [Case(f"grad-{n}", "Forward and backward.", B=2, H=2, Lq=n, Lk=n + 3, family="peaked",
                 want=frozenset({"out", "lse", "dq", "dk", "dv"})) for n in range(3, 9)]  # fmt: skip
EMPTY = [Case(f"empty-{n}", "Rows that see nothing.", B=2, H=2, Lq=n + 5, Lk=n, mask=Causal("bottom_right"))
         for n in range(3, 9)]  # fmt: skip


@cache
def solved(case: Case) -> tuple[Problem, Answer]:
    problem = make(case)
    return problem, dict(Streaming()(case, problem.fresh()))


def verdict(case: Case, change: Change) -> Verdict:
    problem, right = solved(case)
    y = change(case, {n: x.copy() for n, x in right.items()})
    answer = {n: np.asarray(x).astype(right[n].dtype) for n, x in y.items()}
    return judge(problem, answer, preset(case.dtype, case.out_dtype), Conventions(), outputs=frozenset(answer))


def told(change: Change, cases: Sequence[Case] = FORWARD) -> str:
    verdicts = [verdict(c, change) for c in cases]
    failed = [Trial(v) for v in verdicts if v.status == "failed"]
    assert failed
    return "\n".join(facts(failed, [v.case for v in verdicts if v.status == "passed"], len(failed), Effort(), 20.0))


def scale_of(case: Case) -> float:
    return case.scale if case.scale is not None else case.D**-0.5


def changed(name: str, how: Callable[[Case, Any], Any], where: Callable[[Case], bool] = lambda c: True) -> Change:
    return lambda case, y: y | {name: how(case, y[name])} if where(case) else y


def some_rows(case: Case, x: Any) -> Any:
    return np.random.default_rng(case.Lq).uniform(1.1, 3.0, x.shape[:3])[..., None]


def set_last_row(case: Case, x: Any) -> Any:
    x[:, :, -1] = np.nan
    return x


def among_many(case: Case) -> bool:
    return case.mask is None and case.H > 2 and case.H == case.Hkv and case.bias is None and case.Lq > 3


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (changed("lse", lambda c, x: x + np.log(2)), [
            "lse is wrong; out is right", "where lse is wrong it is off by log(2)"]),
        (changed("lse", lambda c, x: x * np.log2(np.e)), ["where lse is wrong it is log2(e) times what it should be"]),
        (changed("out", lambda c, x: x * scale_of(c)), ["out is wrong; lse is right", "scale times what it should be"]),
        (changed("out", lambda c, x: -x), ["where out is wrong it is of the wrong sign"]),
        (changed("out", lambda c, x: x * 1.7), ["where out is wrong it is 1.7 times what it should be"]),
        (changed("out", lambda c, x: x * (1.5 + c.Lk / 64)), [
            "a multiple of what it should be, one for all of a case"]),
        (changed("out", lambda c, x: x * some_rows(c, x)), ["in each row a multiple of what it should be",
                                                            "too large in size"]),
        (changed("lse", lambda c, x: x - np.abs(np.sin(np.arange(x.size).reshape(x.shape))) - 0.1),
         ["where lse is wrong it is too small"]),
        (changed("out", lambda c, x: x * 0), ["where out is wrong it is 0"]),
        (changed("out", set_last_row, lambda c: c.q_lens is None),
         ["out is wrong, of its rows, in the last, in all of them and nowhere else", "where out is wrong it is NaN"]),
        (changed("out", lambda c, x: np.roll(x, 1, 1), among_many), ["in most heads what another head should be"]),
        (changed("out", lambda c, x: x + 1, lambda c: c.Lq <= 8), ["it fails in cases with at most 8 queries alone"]),
        (changed("out", lambda c, x: x + 1, lambda c: c.mask is not None), ["it fails in cases with a mask alone"]),
    ],
)  # fmt: skip
def test_what_is_told(change: Change, lines: list[str]) -> None:
    said = told(change)
    for line in lines:
        assert line in said
    assert len(said.splitlines()) <= 5


def _alternately(x: Any, axis: int = -1) -> Any:
    shape = [1] * x.ndim
    shape[axis] = -1
    return (np.arange(x.shape[axis]) % 2 == 0).reshape(shape)


@pytest.mark.parametrize(
    ("change", "absent"),
    [
        (lambda c, x: x + np.where(_alternately(x), 0.3, -0.3), "too"),
        (lambda c, x: np.where(_alternately(x), np.nan, x + 0.3), "it is NaN\n"),
        (lambda c, x: np.where(_alternately(x), 0, x + 0.3), "it is 0"),
        (lambda c, x: np.where(_alternately(x, 2), 2 * x, x + np.where(_alternately(x), 1, 0)), "in each row"),
        (lambda c, x: np.where(_at(x, 1, 0) & _at(x, 2, 0), x + 1, x), "in all of them"),
    ],
    ids=["both directions", "some NaN", "some 0", "some rows", "a row of a head"],
)  # fmt: skip
def test_what_holds_of_a_part_is_not_said(change: Callable[[Case, Any], Any], absent: str) -> None:
    said = told(changed("out", change), [*BACKWARD, *EMPTY]) + "\n"
    assert said.startswith("out is wrong") and absent not in said


def test_rows_that_see_nothing() -> None:
    said = told(changed("lse", lambda c, x: np.where(np.isneginf(x), 0, x)), EMPTY)
    assert "lse is wrong in rows that see nothing, in all of them and nowhere else" in said
    assert "where lse is wrong it is 0" in said


def test_gradients() -> None:
    def wrong_dq(case: Case, y: Answer) -> Answer:
        return y | {"dq": y["dq"] / 2} if "dq" in y else y

    said = told(wrong_dq, BACKWARD + FORWARD)
    assert said.splitlines()[0].startswith("dq is wrong; out, lse, dk and dv are right")
    assert "where dq is wrong it is 1 / 2 times what it should be" in said
    assert "gradients are right" in told(changed("out", lambda c, x: x + 1), BACKWARD)


def test_keys_are_told() -> None:
    def without_last_key(case: Case, y: Answer) -> Answer:
        fewer = replace(case, k_lens=(case.Lk - 1,) * case.B)
        return dict(Streaming()(fewer, solved(case)[0].fresh()))

    plain = [Case(f"plain-{n}", "No mask.", B=2, H=2, Lq=6, Lk=n, D=16, Dv=16) for n in (20, 24, 31)]
    assert "most wrong rows of out are as if keys that should be seen had no weight" in told(without_last_key, plain)


def test_time_is_counted_in_work() -> None:
    """On every machine as many cases are looked at, and one at least."""
    trials = [Trial(verdict(c, changed("lse", lambda c, x: x + 1))) for c in FORWARD[:6]]
    seen = []
    for seconds in (0.0, 2.5 * LOOK, 1.0):
        effort = Effort(work=7.0)
        first = facts(trials, [], len(trials), effort, 7.0 + seconds)[0]
        seen.append(first.removeprefix("lse is wrong; out is right"))
        assert effort.work > 7.0
    some = " (in {} of 6 failing cases that were looked at)"
    assert seen == [some.format(1), some.format(3), ""]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "smaller": lambda x: x - 0.3, "larger": lambda x: x + 0.3, "twice": lambda x: 2 * x, "negated": lambda x: -x,
    "nan": lambda x: x * np.nan, "0": lambda x: 0 * x, "first row": lambda x: np.where(_at(x, 2, 0), x + 0.3, x),
    "last head": lambda x: np.where(_at(x, 1, x.shape[1] - 1), x - 0.3, x), "none": lambda x: x,
}  # fmt: skip
HOLDS: dict[str, Callable[[Any, Any], Any]] = {
    "too small": lambda got, value: got < value,
    "too large": lambda got, value: got > value,
    "too large in size": lambda got, value: np.abs(got) > np.abs(value),
    "too small in size": lambda got, value: np.abs(got) < np.abs(value),
    "of the right sign": lambda got, value: got * value > 0,
    "NaN": lambda got, value: np.isnan(got),
    "0": lambda got, value: got == 0,
    "of the wrong sign": lambda got, value: got * value < 0,
    "2 times what it should be": lambda got, value: np.isclose(got, 2 * value, rtol=1e-3, atol=1e-5),
}  # fmt: skip


def _at(x: Any, axis: int, index: int) -> Any:
    return (np.arange(x.shape[axis]) == index).reshape([-1 if a == axis else 1 for a in range(x.ndim)])


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_said_that_does_not_hold(seed: int) -> None:
    """Two changes, each in some cases, of one output or of both: what is said is counted again."""
    rng = np.random.default_rng(seed)
    kinds = rng.choice(sorted(CHANGES), 2, replace=False)
    share, which = rng.uniform(), {c.id: str(kinds[int(rng.uniform() < 0.85)]) for c in FORWARD}
    names = {c.id: ("out", "lse") if rng.uniform() < share else ("out",) for c in FORWARD}

    def change(case: Case, y: Answer) -> Answer:
        return y | {n: CHANGES[which[case.id]](y[n]) for n in names[case.id]}

    verdicts = [v for c in FORWARD if (v := verdict(c, change)).status == "failed"]
    failed = [v.case for v in verdicts]
    said = facts([Trial(v) for v in verdicts], [c for c in FORWARD if c not in failed], len(verdicts), Effort(), 20.0)
    if not verdicts:
        assert said == []
        return
    assert 1 <= len(said) <= 5
    wrong = [{o.name for o in v.outputs if not o.passed} for v in verdicts]
    for name in ("out", "lse"):
        n = sum(name in row for row in wrong)
        right = said[0].partition("; ")[2].rpartition("; ")[2] or said[0]
        assert (name in right and "right" in right) == (n == 0)
        assert n == len(wrong) or re.search(rf"\b{name} in {n} of ", said[0]) or not n
    for line in said[1:]:
        found = re.match(r"where (\w+) is wrong it is (.*)", line)
        if found is not None:
            check_manner(found[1], found[2], verdicts)
        if line.startswith(("out is wrong", "lse is wrong", "out and lse are wrong")):
            check_place(line, which, verdicts)


def check_manner(name: str, text: str, verdicts: Sequence[Verdict]) -> None:
    """Each that is said holds of all elements that fail in as many cases as are said."""
    for part in text.split(", and "):
        count = re.fullmatch(r"(.*?)(?: in (\d+) of (\d+) cases)?", part)
        assert count is not None
        predicate = HOLDS.get(count[1])
        if predicate is None:
            assert count[1].startswith(("in each row a multiple", "a multiple of", "off by", "further off", "in most",
                                        "1 / 1/2 times", "0.")), part  # fmt: skip
            continue
        rows = []
        for v in verdicts:
            assert v.evidence is not None
            e, got = v.evidence.expected[name], np.asarray(v.evidence.got[name], np.float64)
            bad = ~((e.lo <= got) & (got <= e.hi)) & ~e.ignored
            rows += [bool(predicate(got[bad], e.value[bad]).all())] if bad.any() else []
        of, holding = len(rows), sum(rows)
        assert (holding, of) == ((int(count[2]), int(count[3])) if count[2] else (of, of)), part


def check_place(line: str, which: dict[str, str], verdicts: Sequence[Verdict]) -> None:
    """A place is said only where nearly all changes are of that place."""
    places = {"first row": "the first", "last head": "the last head"}
    some = [which[v.case.id] for v in verdicts]
    usual = max(set(some), key=some.count)
    assert some.count(usual) >= 0.75 * len(some)
    if usual in places:
        assert places[usual] in line or "first" in line or "last" in line
    else:
        assert "rows that see" in line or "rows that do not" in line, (usual, line)


@pytest.mark.parametrize("seed", range(20))
def test_cases_at_random_have_nothing_in_common(seed: int) -> None:
    """Less than one in 20 draws may have; none of these has."""
    rng = np.random.default_rng(seed)
    failing = set(rng.permutation(len(CASES))[: rng.integers(3, 40)].tolist())
    assert common([CASES[i] for i in failing], [c for i, c in enumerate(CASES) if i not in failing]) is None


def test_what_failing_cases_have_in_common() -> None:
    some = [c for c in CASES if c.sinks is not None and c.backward]
    others = [c for c in CASES if c not in set(some)]
    found = common(some, others)
    assert found is not None and not found[1]
    assert set(found[0].split(" and ")) <= {"with sinks", "with dsinks", "with gradients", "with backward"}
    found = common(some[1:], [*others, some[0]])
    assert found is not None and found[1] == {some[0]}
    assert common(some, []) is None


def test_a_run_says_them_where_nothing_is_found() -> None:
    suspects = Suspects(seconds=1.0)
    suspects.search.searched.update(c.id for c in FORWARD)  # hypotheses are no matter here

    def noise(case: Case, y: Answer) -> Answer:
        return y | {"lse": y["lse"] - np.random.default_rng(case.Lk).uniform(0.1, 0.9, y["lse"].shape)}

    for case in FORWARD[:4]:
        suspects.watch(verdict(case, noise))
    found = suspects.findings()
    assert found["lines"][0] == "no bug of the catalogue explains it"
    assert found["lines"][1:] == found["facts"] and found["facts"][0] == "lse is wrong; out is right"


def test_what_several_processes_say() -> None:
    one = {"lines": ["no"], "first": "", "exact": False, "cases": 0, "failing": 3, "notes": {}}
    both = [one | {"facts": ["a", "b in 2 of 3 cases", "c"]}, one | {"facts": ["c", "b in 2 of 3 cases", "a"]}]
    assert merged(both) == ["no bug of the catalogue explains it", "a", "c"]
    assert merged([one, both[0]]) == ["no bug of the catalogue explains it"]


@pytest.mark.parametrize("most", [9, 100])
def test_a_convention_that_cases_that_passed_do_not_have_is_none(most: int) -> None:
    def lost(case: Case, y: Answer) -> Answer:
        empty = np.asarray(np.isneginf(y["lse"]) & (case.Lq < most))
        return {"out": np.where(empty[..., None], np.nan, y["out"]), "lse": np.where(empty, np.nan, y["lse"])}

    suspects = Suspects(seconds=20.0)
    for case in EMPTY:
        suspects.watch(verdict(case, lost))
    first = suspects.lines()[0]
    assert ("undeclared convention: empty_rows='nan'" if most == 100 else "look like this bug: ") in first
    assert most == 100 or "undeclared" not in first
