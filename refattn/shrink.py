"""The smallest case that still fails in the same way, and a test of it to paste.

    small = shrink(candidate, verdict)            # candidate is a `Worker` or a `Local`
    print(as_test(small, "my_kernel:attention"))

Features are left out first, then sizes are bisected, one at a time, over and over until nothing more can go.  A case
counts if it fails with the same kind of fault: an exception of the same type, a crash, a missed deadline, the same
complaint about an output's form, or the same output out of bounds, not finite if it was not finite before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from typing import Any

from .calling import Local
from .case import CACHES, GRADIENTS, BiasSpec, Case, Dense
from .inputs import FAMILIES, make
from .judge import Verdict, failed_call, judge
from .laws import law_of
from .masks import Documents, Mask, Padding, Prefix, Window
from .truth import quick_truth
from .visibility import And, Not, Or
from .worker import Worker

__all__ = ["as_test", "kind_of", "shrink"]

Change = dict[str, Any]
_SEPARATE = {"dbias": "bias", "dsinks": "sinks", "dsoftcap": "softcap"}


def shrink(candidate: Worker | Local, verdict: Verdict, *, calls: int = 120, seconds: float = 10.0) -> Case:
    """A case of the same kind of fault from which nothing can be taken away, or the smallest in so many calls.

    Deterministic but for the deadline; returns the case of the verdict itself if it is one of a law, if its arrays
    were given, or if it does not fail again.
    """
    case, kind = verdict.case, kind_of(verdict)
    if law_of(case) is not None or case.family not in FAMILIES or kind is None:
        return case
    search = _Search(candidate, kind, calls, time.monotonic() + seconds)
    left = None
    try:
        while left != case:
            left = case
            for step in (_features, _single_sizes, _sizes):
                case = step(case, search.fails)
    except _Spent as spent:
        case = spent.case or case
    case = search.smallest or case
    if case == verdict.case:
        return case
    named = replace(case, id=f"{verdict.case.id}-small", why=f"What is left of {verdict.case.id}.", flags=())
    return named if case.chapter == "basics" else replace(named, chapter="user")


def kind_of(verdict: Verdict) -> str | None:
    """In a few words what went wrong, without numbers; None of a case that did not fail."""
    if verdict.status != "failed":
        return None
    bad = [o for o in verdict.outputs if not o.passed]
    for reason in verdict.reasons:
        if reason.startswith("raised: "):
            return f"raised {_exception(reason)}"
        if reason.startswith(("crashed: ", "timed out: ")):
            return reason.partition(":")[0]
    for reason in verdict.reasons:
        return re.split(r"[\d(=]|; ", reason)[0].strip()
    worst = max(bad, key=lambda o: o.ratio)
    return f"{worst.name} {'not finite' if abs(worst.got) == float('inf') or worst.got != worst.got else 'out of bounds'}"


def _exception(text: str) -> str:
    """The type in the last line of a traceback that is one: Type: message."""
    types = [m.group(1) for line in text.split("\n") if (m := re.match(r"(?:raised: )?([A-Za-z_][\w.]*)(?::|$)", line))]
    types = [name for name in types if name not in ("Traceback", "raised")]
    return types[-1] if types else "an exception"


class _Spent(Exception):
    """No more calls."""
