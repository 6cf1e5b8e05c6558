"""The smallest case that still fails in the same way, and a test of it to paste.

    small = shrink(candidate, verdict)            # candidate is a `Worker` or a `Local`
    print(as_test(small, "my_kernel:attention"))

Features are left out first, then sizes are bisected, over and over until nothing more can go.  A case counts if it
fails with the same kind of fault (`kind_of`): an exception of the same type, a crash, a missed deadline, the same
complaint about an output's form, or the same output out of bounds, not finite if it was not finite before.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ..calling import Local
from ..case import NAMES, BiasSpec, Case, Dense
from ..inputs import FAMILIES, make
from ..judge import Output, Verdict, failed_call, judge
from ..laws import law_of
from ..truth import quick_truth
from ..worker import Worker
from .paste import as_test
from .steps import cut, entry, largest, less, simpler_masks

__all__ = ["as_test", "kind_of", "shrink"]

_OFF = ("mask", "q_lens", "k_lens", "softcap", "bias", "sinks", "score_mod", "dropout", "rotary", "quant", "scale")
_SIZES = (("Lq", "Lk"), ("Lq",), ("Lk",), ("D", "Dv"), ("D",), ("Dv",), ("B",), ("H", "Hkv"), ("H",))
_INTS = ("left", "right", "length", "size", "window")
"""fields of masks that are numbers of keys"""


def shrink(candidate: Worker | Local, verdict: Verdict, *, calls: int = 120, seconds: float = 10.0) -> Case:
    """A case with the same kind of fault that is as small as so many calls find it.

    Deterministic but for `seconds`, after which no further call is begun.  The case of the verdict itself comes back
    if it is one of a law, if its arrays were given, or if a missed deadline of the worker takes a third of the time.
    """
    case, kind = verdict.case, kind_of(verdict)
    if kind is None or law_of(case) is not None or case.family not in FAMILIES:
        return case
    if kind == "timed out" and isinstance(candidate, Worker) and 3 * candidate.timeout > seconds:
        return case
    search = _Search(candidate, kind, case, calls, time.monotonic() + seconds)
    where = next((o.index for o in verdict.outputs if o.name == kind.split()[0] and o.index), ())
    before = None
    while before != search.smallest and not search.spent:
        before = search.smallest
        for step in (_plainer, _one_of_many, _smaller):
            step(search, where)
    if search.smallest == case:
        return case
    return replace(search.smallest, id=f"{case.id}-small", why=f"What is left of {case.id}.", flags=())


def kind_of(verdict: Verdict) -> str | None:
    """In a few words what went wrong, without numbers; None if nothing did.

    >>> kind_of(Verdict(Case("x", "y"), "failed", reasons=("raised: ValueError: no",)))
    'raised ValueError'
    """
    if verdict.status != "failed":
        return None
    for reason in verdict.reasons:
        what, _, text = reason.partition(": ")
        if what == "raised":
            return f"raised {_exception(text)}"
        if what in ("crashed", "timed out"):
            return what
        return re.split(r"=|\(|;|\d", reason)[0].strip()
    bad = {o.name: o for o in verdict.outputs if not o.passed}
    return _kind_of_output(next(bad[name] for name in NAMES if name in bad))


def _kind_of_output(o: Output) -> str:
    return f"{o.name} {'out of bounds' if math.isfinite(o.got) else 'not finite'}"


def _exception(text: str) -> str:
    """The type of the exception that a traceback, or its last line alone, ends with."""
    types = [found[1] for line in text.split("\n") if (found := re.match(r"([A-Za-z_][\w.]*)(?::|$)", line))]
    return types[-1] if types else "an exception"


@dataclass
class _Search:
    """Asks the candidate, and keeps the smallest case that fails with the right kind of fault."""

    candidate: Worker | Local
    kind: str
    smallest: Case
    calls: int
    end: float
    asked: dict[Case, bool] = field(default_factory=dict)

    @property
    def spent(self) -> bool:
        return len(self.asked) >= self.calls or time.monotonic() > self.end

    def take(self, change: Callable[[Case], Case]) -> bool:
        """Change the smallest case, if that makes one that fails alike; what is no case is left alone."""
        try:
            case = change(self.smallest)
        except (ValueError, TypeError):
            return False
        if case == self.smallest or (case not in self.asked and self.spent):
            return False
        if case not in self.asked:
            self.asked[case] = False
            self.asked[case] = self._fails(case)
        if self.asked[case]:
            self.smallest = case
        return self.asked[case]

    def _fails(self, case: Case) -> bool:
        verdict = _examined(self.candidate, case)
        if verdict is None or verdict.status != "failed":
            return False
        faults = {_kind_of_output(o) for o in verdict.outputs if not o.passed}
        return kind_of(verdict) == self.kind or (not verdict.reasons and self.kind in faults)


def _examined(candidate: Worker | Local, case: Case) -> Verdict | None:
    """The verdict, as `refattn.conform.examine` gives it; None if there is nothing to ask."""
    plan = candidate.plan(case)
    if plan.failure is not None:
        return Verdict(case, "failed", reasons=(failed_call(plan.failure),))
    about, contract = candidate.description, plan.precision
    if contract is None or about.outputs.isdisjoint(case.want):
        return None
    if (contract.inputs, contract.out) != (case.dtype, case.out_dtype):
        return None
    try:
        problem = make(case)
    except ValueError:  # beyond the range of the dtype
        return None
    candidate.start(problem)
    expected = quick_truth(problem, contract)
    return judge(problem, candidate.result(), contract, about.conventions, outputs=about.outputs, expected=expected)


def _plainer(search: _Search, where: tuple[int, ...]) -> None:
    """Leave out outputs and features."""
    name = search.kind.split()[0]
    wants = [name] if name in NAMES else sorted(search.smallest.want, key=NAMES.index)
    for want in wants:
        if len(search.smallest.want) > 1 and search.take(lambda c, w=want: replace(c, want=frozenset({w}))):  # type: ignore[misc]
            break
    bare: dict[str, Any] = dict.fromkeys(_OFF)
    search.take(lambda c: replace(c, **bare, storage=Dense(), dtype="float32", out_dtype=""))
    search.take(lambda c: replace(c, storage=Dense()))
    for feature in _OFF:
        if getattr(search.smallest, feature) is not None:
            search.take(lambda c, f=feature: replace(c, want=c.want - {f"d{f}"}, **{f: None}))  # type: ignore[misc]
    for mask in simpler_masks(search.smallest.mask):
        if search.take(lambda c, m=mask: replace(c, mask=m)):  # type: ignore[misc]
            break
    if search.smallest.bias is not None:
        search.take(lambda c: replace(c, bias=c.bias and BiasSpec(c.bias.dims)))
    if search.smallest.dtype != "float32" or search.smallest.out_dtype != "float32":
        search.take(lambda c: replace(c, dtype="float32", out_dtype=""))
    for family in ("normal", "peaked"):
        if search.smallest.family == family or search.take(lambda c, f=family: replace(c, family=f)):  # type: ignore[misc]
            break
    if search.smallest.chapter != "user":  # that of the basics calls twice
        search.take(lambda c: replace(c, chapter="user"))


def _one_of_many(search: _Search, where: tuple[int, ...]) -> None:
    """One batch entry, that of the worst number or the first; one key head, one head."""
    if search.smallest.B > 1:
        for b in dict.fromkeys((where[0] if len(where) > 2 else 0, 0)):
            if search.take(lambda c, b=b: entry(c, b)):  # type: ignore[misc]
                break
    group = search.smallest.H // search.smallest.Hkv if search.smallest.Hkv else 1
    for H, Hkv in ((1, 1), (2, 1), (group, 1), (2, 2), (4, 2)):
        if H < search.smallest.H and search.take(lambda c, H=H, Hkv=Hkv: replace(c, H=H, Hkv=Hkv)):  # type: ignore[misc]
            break


def _smaller(search: _Search, where: tuple[int, ...]) -> None:
    """Bisect lengths, head sizes and what is left of batch and heads, and the numbers in a mask."""
    for names in _SIZES:
        step = max(getattr(search.smallest, name) for name in names) // 2
        while step and not search.spent:
            if not search.take(lambda c, n=names, s=step: cut(c, {x: max(1, getattr(c, x) - s) for x in n})):  # type: ignore[misc]
                step //= 2
    for name in _INTS:
        step = largest(search.smallest.mask, name)
        while step and not search.spent:
            if not search.take(lambda c, n=name, s=step: less(c, n, s)):  # type: ignore[misc]
                step //= 2


