"""What is wrong for some pairs of a query and a key, deduced from answers: planted rules are found in these words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.cases import CASES
from refattn.diagnose.deduced import deduced
from refattn.diagnose.dense import Inputs
from refattn.diagnose.effects import LEFT_OUT, TWICE, WITHOUT_BIAS
from refattn.diagnose.effort import Effort
from refattn.diagnose.hypothesis import in_backward
from refattn.diagnose.mixed import mixed
from refattn.diagnose.model import Model
from refattn.diagnose.trial import Trial
from refattn.inputs import Problem, make
from refattn.judge import judge
from refattn.precision import Conventions, preset

PLAIN = [c for c in CASES if repr(c.storage) == "Dense(layout='BHLD')" and c.H and c.D and 0 < c.scores < 2**12
         and c.Dv >= 8 and c.quant is None and not c.rotary and c.dtype == c.out_dtype == "float32"]  # fmt: skip
CAPPED = [c for c in PLAIN if c.softcap is not None and not c.backward]
BIASED = [c for c in PLAIN if c.bias is not None and not c.backward]
BACKWARD = [c for c in PLAIN if c.backward and "out" not in c.want][::2]
Pairs = Callable[[Inputs], Any]


class uncapped(Model):
    def cap(self, s: Any, softcap: float) -> Any:
        return s


def rows_before_the_tile_of_the_key(x: Inputs) -> Any:
    c = x.case
    return np.broadcast_to(np.arange(c.Lq)[:, None] < np.arange(c.Lk) // 16 * 16, x.visible.shape)


def keys_from_16(x: Inputs) -> Any:
    return np.broadcast_to(np.arange(x.case.Lk) >= 16, x.visible.shape)


def last_keys(x: Inputs) -> Any:
    n = np.array(x.case.lengths[1])[:, None, None, None]
    return np.broadcast_to(np.arange(x.case.Lk) >= n // 16 * 16, x.visible.shape)


PLANTED: dict[str, tuple[type[Model], Pairs, list[Case], frozenset[str]]] = {
    "Softcap: it is not applied: for keys from 16 on": (uncapped, keys_from_16, CAPPED, frozenset()),
    "The bias is not applied, nor what it hides: for keys from 16 on":
        (WITHOUT_BIAS.made, keys_from_16, BIASED, frozenset()),
    "Rows before the key, rounded down to 16 are left out, in the backward alone, in dk and dv alone":
        (LEFT_OUT.made, rows_before_the_tile_of_the_key, BACKWARD, frozenset({"dk", "dv"})),
    "Keys from the number of keys, rounded down to 16 on count twice, in the backward alone, in dq alone":
        (TWICE.made, last_keys, BACKWARD, frozenset({"dq"})),
}  # fmt: skip


@cache
def problem_of(case: Case) -> Problem:
    return make(case)


def failures(wrong: type[Model], pairs: Pairs, cases: list[Case], of: frozenset[str]) -> list[Trial]:
    """Of a kernel that has it in the forward, or in some outputs of the backward alone."""
    model, found = mixed([(wrong, pairs)]), []
    for case in cases:
        inputs = Inputs(problem_of(case))
        y = Model(inputs).solve(case.want) if of else model(inputs).solve(case.want)
        y |= {n: x for n, x in in_backward(model, inputs, None, case.want).items() if n in of}
        answer = {n: x.astype(np.float32) for n, x in y.items()}
        verdict = judge(problem_of(case), answer, preset(case.dtype), Conventions(), outputs=frozenset(case.want))
        found += [Trial(verdict)] if verdict.status == "failed" else []
    return found


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_rule_is_found(words: str) -> None:
    trials = failures(*PLANTED[words])
    assert len(trials) >= 3
    rules = deduced(trials, (), Effort(), 4)
    explained = {h.what: sum(t.match(h).nearly for t in trials) for h in rules}
    assert explained.get(words, 0) >= 0.7 * len(trials), explained


def test_of_gradients_that_are_a_multiple_nothing_is_deduced() -> None:
    class larger(Model):
        def k_factor(self) -> float:
            return 1.3 * super().k_factor()

    trials = failures(larger, lambda x: np.ones(x.visible.shape, bool), BACKWARD, frozenset({"dk"}))
    rules = deduced(trials, (), Effort(), 4)
    assert trials and not any("are left out" in h.what or "count twice" in h.what for h in rules)
