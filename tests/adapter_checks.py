"""What the tests of all adapters ask: a verdict on a case, also when the adapter is told a wrong one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refattn.adapters.adapter import Adapter
from refattn.case import Case
from refattn.inputs import make
from refattn.judge import Verdict, judge
from refattn.masks import Causal

GRAD = frozenset({"dq", "dk", "dv"})
SMALL: dict[str, Any] = {"B": 2, "H": 4, "Hkv": 4, "Lq": 5, "Lk": 9, "D": 16, "Dv": 16, "family": "peaked"}
TOP, BOTTOM = Causal("top_left"), Causal("bottom_right")


def words(x: Any) -> str:
    """`x` as the id of a test, the same in every process: a set has no order of its own."""
    if isinstance(x, dict):
        return "-".join(f"{name}={words(value)}" for name, value in x.items()) or "plain"
    return " ".join(sorted(x)) if isinstance(x, frozenset | set) else str(getattr(x, "name", x))


def small(**fields: Any) -> Case:
    return Case("small", "A case of this test.", **SMALL | fields)


def verdict(adapter: Adapter, case: Case, **told: Any) -> Verdict:
    """Of `case`, if the adapter takes it for one with the fields `told`."""
    problem = make(case)
    answer = adapter(replace(case, **told), problem.fresh())
    return judge(problem, answer, adapter.precision(case), adapter.conventions, outputs=adapter.returned(case))


def judged(adapter: Adapter, case: Case, **told: Any) -> str:
    """Its status; the adapter does not refuse it."""
    reason = adapter.supports(case)
    if reason is not None:
        raise ValueError(f"{adapter.name} refuses {case.id}: {reason}")
    return verdict(adapter, case, **told).status
