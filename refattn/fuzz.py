"""Random small cases over all features, shrunk to the smallest that still fails.

Hypothesis draws them by `refattn.strategies.cases` and shrinks what it drew; then the case itself is made
simpler, a field at a time.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .calling import Local
from .case import Case
from .cases import CASES
from .conform import BadContract, examine
from .draw import matches
from .judge import Verdict
from .strategies import DTYPES, WORDS, cases
from .worker import Worker

__all__ = ["Outcome", "cases", "fuzz", "simplified"]

SHRINK = 1.0
"""each of the two ways of shrinking may take this many times the seconds of the search"""
BATCH = 50
"""examples drawn from one seed"""
LENGTHS = (3, 17, 33, 65, 1, 2, 4, 5, 7, 9, 0, 15, 16, 31)
"""few of one row or key, of which many mistakes are no mistakes; the case is made smaller afterwards"""


@dataclass
class Outcome:
    """What the search found: how many cases it ran, how many were refused, and the smallest failure."""

    ran: int = 0
    unsupported: int = 0
    failure: Verdict | None = None


def fuzz(
    candidate: Worker | Local,
    seconds: float,
    seed: int = 0,
    on_verdict: Callable[[Verdict], Any] = lambda verdict: None,
) -> Outcome:
    """Draw cases for `seconds`, or until one fails; then shrink it.

    Raises ImportError without hypothesis, and RuntimeError, with the case, where the suite itself fails.
    """
    import hypothesis
    from hypothesis.errors import Flaky

    outcome = Outcome()
    ours: list[tuple[Case, Exception]] = []
    drawn = cases(**_taken(candidate), lengths=LENGTHS)
    begin = time.monotonic()

    def late() -> bool:
        # what no longer runs counts as passed, so that hypothesis comes to an end
        return time.monotonic() - begin > (seconds * (1 + SHRINK) if outcome.failure or ours else seconds)

    def test(case: Case) -> None:
        if late():
            return
        try:
            verdict = examine(candidate, case)
        except Exception as error:
            ours.append((case, error))
            raise _Failed from None
        outcome.ran += 1
        outcome.unsupported += verdict.status == "unsupported"
        on_verdict(verdict)
        if verdict.status == "failed":
            if outcome.failure is None or _size(case) <= _size(outcome.failure.case):
                outcome.failure = verdict
            raise _Failed

    batch = 0
    while not (outcome.failure or ours or late()):
        settings = hypothesis.settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            verbosity=hypothesis.Verbosity.quiet,
        )
        run = settings(hypothesis.seed(seed * 1_000_003 + batch)(hypothesis.given(drawn)(test)))
        try:
            run()
        except (_Failed, Flaky):
            pass
        batch += 1
    if ours:
        case, error = min(ours, key=lambda one: _size(one[0]))
        if isinstance(error, BadContract):
            raise error
        raise RuntimeError(f"the suite itself failed on {json.dumps(case.to_json())}") from error
    if outcome.failure is not None:
        left = begin + seconds * (1 + 2 * SHRINK) - time.monotonic()
        outcome.failure = simplified(candidate, outcome.failure, left)
    return outcome


def _taken(candidate: Worker | Local) -> dict[str, Any]:
    """What to draw: nothing that the candidate refuses in all cases of the suite that have it."""
    taken: set[str] = set()
    for case in CASES:
        features = case.features()
        if not features <= taken and candidate.plan(case).reason is None:
            taken |= features
    dtypes = [dtype for dtype in DTYPES if f"dtype={dtype}" in taken]
    refused = [word for word in WORDS if not any(matches(feature, (word,)) for feature in taken)]
    return {"dtypes": dtypes, "without": refused} if dtypes else {}


class _Failed(Exception):
    """A case failed; hypothesis looks for a smaller one that raises this too."""


def _size(case: Case) -> int:
    """The length of a case's description: what a person has to read."""
    return len(json.dumps(case.to_json())) + case.Lq * case.Lk + case.D + case.Dv


def simplified(candidate: Worker | Local, failure: Verdict, seconds: float) -> Verdict:
    """The failure of the simplest case that is found within `seconds`: fewer features, smaller sizes, fewer outputs."""
    end, simpler = time.monotonic() + seconds, True
    while simpler:
        simpler = False
        for case in _simpler(failure.case):
            if time.monotonic() > end:
                return failure
            try:
                verdict = examine(candidate, case)
            except ValueError:  # no problem can be made of it
                continue
            if verdict.status == "failed":
                failure, simpler = verdict, True
                break
    return failure


def _simpler(case: Case) -> Iterator[Case]:
    """The case with one field at its default, or smaller, wherever that makes a valid case."""
    changes: list[dict[str, Any]] = [
        {f.name: f.default}
        for f in dataclasses.fields(Case)
        if f.name not in _KEPT and getattr(case, f.name) != f.default
    ]
    for name in ("B", "Lq", "Lk", "D", "Dv", "H", "Hkv"):
        n = getattr(case, name)
        changes += [{name: m} for m in sorted({1, 2, 3, n // 2, n - 1}) if 0 < m < n]
    changes += [{"H": case.Hkv}, {"H": 1, "Hkv": 1}] if case.H > 1 else []
    changes += [{"want": case.want - {name}} for name in sorted(case.want) if len(case.want) > 1]
    for change in changes:
        lens = {n: x[: change.get("B", case.B)] for n in ("q_lens", "k_lens") if (x := getattr(case, n)) is not None}
        try:
            simpler = dataclasses.replace(case, **{"out_dtype": "", **lens, **change})
        except (ValueError, TypeError):
            continue
        if simpler != case:
            yield simpler


_KEPT = ("id", "why", "flags", "chapter", "B", "H", "Hkv", "Lq", "Lk", "D", "Dv", "out_dtype", "want")
