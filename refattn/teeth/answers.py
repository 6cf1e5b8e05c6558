"""An answer to a case, and all that rules compare it with: the truth, the eager answer, the honest kernel's.

A rule of others *kills* an answer if it rejects it and accepts the honest kernel's: a rule that rejects both is a
false alarm, and tells nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..calling import Answer, call
from ..case import Case
from ..cases import CASES
from ..dtypes import FORMATS, round_to
from ..inputs import Problem, make
from ..judge import ratios
from ..laws import rows
from ..memory import answer_shape, take_answer
from ..mutants import TILES, Kernel
from ..precision import Precision, eager, preset
from ..public_rules import RULES, PublicRule
from ..streaming import Schedule
from ..truth import Expected, truth

__all__ = ["Reference", "ask", "by_id", "eager_contract", "reference"]

Array = np.ndarray[Any, Any]

ONE_TILE = Schedule(tile_q=1 << 20, tile_k=1 << 20)
_BY_ID: dict[str, Case] = {
    case.id: case for case in (*CASES, *rows(), *(case for rule in RULES.values() for case in rule.inputs))
}


def by_id(id: str) -> Case:
    """The case, or the row of a law, of that id."""
    if id not in _BY_ID:
        raise ValueError(f"id={id!r} is no case, row of a law, or input of a rule of others; see `refattn list --full`")
    return _BY_ID[id]


def ask(kernel: Kernel, case: Case) -> Answer:
    """One call, as the suite makes it; inputs that were changed and the like are its findings."""
    return call(kernel, reference(case).problem)


@lru_cache(maxsize=512)
def reference(case: Case) -> Reference:
    return Reference(make(case))


def eager_contract(case: Case) -> Precision:
    """The textbook way in the inputs' precision: 16 bits are rounded at each step, others are their preset."""
    if FORMATS[case.dtype].bits in (8, 11):
        return replace(eager(case.dtype), out=case.out_dtype)
    return preset(case.dtype, case.out_dtype)


@dataclass(frozen=True)
class Reference:
    """What answers to a problem are compared with; everything dense, in float64, and made when it is asked for."""

    problem: Problem

    @property
    def case(self) -> Case:
        return self.problem.case

    @cached_property
    def expected(self) -> dict[str, Expected]:
        return self.under(preset(self.case.dtype, self.case.out_dtype))

    def under(self, contract: Precision) -> dict[str, Expected]:
        return truth(self.problem, contract)

    @cached_property
    def exact(self) -> dict[str, Array]:
        found = {}
        for name, e in self.expected.items():
            found[name] = np.where(e.ignored | (e.nonfinite & ~np.isfinite(e.value)), 0.0, e.value)
        return found

    @cached_property
    def dtypes(self) -> dict[str, str]:
        return {name: e.dtype for name, e in self.expected.items()}

    @cached_property
    def eager(self) -> dict[str, Array]:
        kernel = Kernel(name="eager", schedule=ONE_TILE, contract=eager_contract(self.case))
        return self.dense(call(kernel, self.problem))

    @cached_property
    def honest(self) -> dict[str, Array]:
        return self.dense(call(Kernel(name="honest", schedule=TILES), self.problem))

    def dense(self, answer: Answer) -> dict[str, Array]:
        """The outputs of the right shape and dtype; what is not judged is as in `exact`."""
        found = {}
        for name, e in self.expected.items():
            x = answer.outputs.get(name)
            allowed = {e.dtype} | ({"float64"} if name == "lse" else set())
            if x is None or x.dtype.name not in allowed or x.shape != answer_shape(self.case, name, e.value.shape):
                continue
            got = np.asarray(take_answer(self.case, name, x), dtype=np.float64)
            got = got if x.dtype.name == e.dtype else round_to(got, e.dtype)
            free = e.ignored | (e.nonfinite & ~np.isfinite(got))
            found[name] = np.where(free, self.exact[name], got)
        return found

    def ratio(self, answer: Answer, expected: Mapping[str, Expected] | None = None) -> float:
        """The largest ratio by our bounds; infinite if there is no answer, or one with a fault of another kind."""
        expected = self.expected if expected is None else expected
        got = self.dense(answer)
        if answer.kind != "answer" or answer.findings or set(got) != set(expected):
            return float("inf")
        largest = 0.0
        for name, e in expected.items():
            free = e.ignored | (e.nonfinite & (got[name] == self.exact[name]))
            ratio = np.where(free, 0.0, ratios(got[name], e.value, e.lo, e.hi))
            largest = max(largest, float(ratio.max(initial=0.0)))
        return largest

    def accepted(self, rule: PublicRule, got: Mapping[str, Array]) -> bool:
        return rule.accepts(self.case, got, self.exact, self.eager, self.dtypes)

    @cached_property
    def _alarms(self) -> dict[str, bool]:
        return {}

    def kills(self, rule: PublicRule, answer: Answer) -> bool:
        """Whether the rule rejects the answer, and not the honest kernel's."""
        if answer.kind == "answer" and self.accepted(rule, self.dense(answer)):
            return False
        return not self.alarms(rule)

    def alarms(self, rule: PublicRule) -> bool:
        """Whether the rule rejects the honest kernel's answer."""
        if rule.name not in self._alarms:
            self._alarms[rule.name] = not self.accepted(rule, self.honest)
        return self._alarms[rule.name]
