"""Rules on which keys count, deduced from answers: planted ones are found in these words, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.cases import CASES
from refattn.diagnose import Suspects
from refattn.diagnose.deduced import deduced
from refattn.diagnose.dense import Inputs
from refattn.diagnose.effort import Effort
from refattn.diagnose.model import Model
from refattn.diagnose.trial import Trial
from refattn.inputs import Problem, make
from refattn.judge import Verdict, judge
from refattn.precision import Conventions, preset
from tests.bare_verdicts import bare_verdicts  # noqa: F401

SMALL = [c for c in CASES if repr(c.storage) == "Dense(layout='BHLD')" and c.want == {"out", "lse"} and c.H and c.D
         and 0 < c.scores < 2**12 and c.Dv >= 8 and c.quant is None and not c.rotary
         and c.dtype == c.out_dtype == "float32"][::4]  # fmt: skip
Change = Callable[[Any, Any, Any, Any, Any], Any]


@cache
def problem_of(case: Case) -> Problem:
    return make(case)


def verdict(case: Case, wrong: type[Model]) -> Verdict:
    y = wrong(Inputs(problem_of(case))).solve(case.want)
    answer = {n: x.astype(np.float32) for n, x in y.items()}
    return judge(problem_of(case), answer, preset(case.dtype), Conventions(), outputs=frozenset(case.want))


def seeing(change: Change) -> type[Model]:
    """One that sees what `change` makes of what is visible, of keys j, rows i, and the number of keys n."""

    class seen(Model):
        def visible(self) -> Any:
            v, c = super().visible(), self.given
            i, j = np.arange(c.Lq)[:, None], np.arange(c.Lk)
            return change(c, v, j, i, np.array(c.lengths[1])[:, None, None, None])

    return seen


def last(v: Any) -> Any:
    return np.where(v.any(-1), v.shape[-1] - v[..., ::-1].argmax(-1), 0)[..., None]


PLANTED: dict[str, Change] = {
    "Keys from the number of keys, rounded down to 16 on are left out": lambda c, v, j, i, n: v & (j < n // 16 * 16),
    "Keys before 8 are left out": lambda c, v, j, i, n: v & (j >= 8),
    "16 keys from 16 on are left out, of the rows those past the first 4":
        lambda c, v, j, i, n: v & ~((j >= 16) & (j < 32) & (i >= 4)),
    "Keys before 12 are left out, of the rows every other": lambda c, v, j, i, n: v & ~((j < 12) & (i % 2 == 1)),
    "Keys from the end of what the row sees - 2 on are left out, in the last key head":
        lambda c, v, j, i, n: v & ~((j >= last(v) - 2) & (np.arange(c.H)[:, None, None] // c.group == c.Hkv - 1)),
    "Keys from 3 parts of keys / 4, rounded up on are left out": lambda c, v, j, i, n: v & (j < -(-n // 4) * 3),
    "Hidden keys before the end of what the row sees + 3 are seen":
        lambda c, v, j, i, n: v | ((j < n) & (j < last(v) + 3) & v.any(-1, keepdims=True)),
}  # fmt: skip


@pytest.mark.parametrize("words", PLANTED)
def test_a_planted_rule_is_found(words: str) -> None:
    verdicts = [verdict(c, seeing(PLANTED[words])) for c in SMALL]
    trials = [Trial(v) for v in verdicts if v.status == "failed"]
    rules = deduced(trials, (), Effort(), 20)
    assert words in [h.what for h in rules if sum(t.match(h).nearly for t in trials) >= 0.8 * len(trials)]


class hot(Model):
    def factor(self) -> float:
        return 1.2 * super().factor()


class noisy(Model):
    def told(self, y: Any) -> Any:
        return y | {"out": y["out"] + 0.1 * np.random.default_rng(0).standard_normal(y["out"].shape)}


class reversed_heads(Model):
    def heads(self) -> Any:
        return super().heads()[::-1]


@pytest.mark.parametrize("wrong", [hot, noisy, reversed_heads])
def test_of_other_bugs_nothing_is_deduced(wrong: type[Model]) -> None:
    trials = [Trial(v) for c in SMALL[::2] if (v := verdict(c, wrong)).status == "failed"]
    rules = deduced(trials, (), Effort(), 20)
    assert not any(2 * sum(t.match(h).nearly for t in trials) >= len(trials) for h in rules)


def test_a_run_says_it_as_likely_and_never_as_exact() -> None:
    suspects = Suspects(seconds=20.0)
    suspects.search.searched.update(c.id for c in SMALL)  # as if no hypothesis explained it
    for case in SMALL:
        suspects.watch(verdict(case, seeing(lambda c, v, j, i, n: v & ~((j < 12) & (i % 2 == 1)))))
    n = suspects.failing
    words = "Keys before 12 are left out, of the rows every other"
    assert suspects.lines()[0] == f"{n} of {n} failing cases look like this bug: {words} (deduced)"
