"""Random small cases over all features, by hypothesis, shrunk to the smallest that still fails.

`cases()` is the strategy; it refuses nothing afterwards, every draw is a valid case.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .calling import Local
from .case import BiasSpec, Case, Dense
from .conform import BadContract, examine
from .dtypes import FORMATS
from .inputs import BIAS, FAMILIES, SINKS
from .judge import Verdict
from .masks import (
    BlockSparse,
    Causal,
    Chunked,
    Dilated,
    Documents,
    Gathered,
    GlobalTokens,
    Mask,
    Padding,
    Prefix,
    SinkTokens,
    Tree,
    Window,
)
from .masks import Dense as Drawn
from .worker import Worker

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy

__all__ = ["Outcome", "cases", "fuzz"]

SHRINK = 2.0
"""shrinking may take this many times the seconds of the search"""
BATCH = 50
"""examples drawn from one seed"""

LENGTHS = (1, 2, 3, 4, 5, 7, 9, 0, 15, 16, 17, 31, 33, 65)
DIMS = ("K", "HK", "QK", "HQK", "BK", "BHQK", "BQ", "H")
NARROW = ("uniform", "peaked", "one_hot_v", "ties", "sparse_q")
"""families within the range of every dtype at any shape"""
MASKS = (
    "causal", "window", "prefix", "padding", "sink_tokens", "documents", "blocks", "drawn", "chunks", "dilated",
    "global_tokens", "tree", "gathered",
)  # fmt: skip
JOINS = ("not", "and", "or")


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
        run = settings(hypothesis.seed(seed * 1_000_003 + batch)(hypothesis.given(cases())(test)))
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
    return outcome


class _Failed(Exception):
    """A case failed; hypothesis looks for a smaller one that raises this too."""


def _size(case: Case) -> int:
    """The length of a case's description: what a person has to read."""
    return len(json.dumps(case.to_json())) + case.Lq * case.Lk + case.D + case.Dv


def cases() -> SearchStrategy[Case]:
    """Cases of a few dozen elements; the simplest is one float32 query and key."""
    from hypothesis import strategies as st

    return st.builds(_Draw, st.data()).map(_Draw.case)


class _Draw:
    """Draws one case; the first of each list is what a failure shrinks to."""

    def __init__(self, data: DataObject) -> None:
        from hypothesis import strategies

        self.data, self.st = data, strategies

    def within(self, low: int, high: int) -> int:
        return self.data.draw(self.st.integers(low, high))

    def one(self, *values: Any) -> Any:
        return self.data.draw(self.st.sampled_from(values))

    def case(self) -> Case:
        B, Hkv, group = self.within(1, 3), self.within(1, 2), self.within(1, 3)
        Lq, Lk = self.one(*LENGTHS), self.one(*LENGTHS)
        D, Dv = self.within(1, 17), self.within(1, 17)
        dtype = self.one("float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
        bias = BiasSpec(self.one(*DIMS), self.one("float32", "bfloat16"), self.one(*BIAS)) if self.one(0, 1) else None
        sinks = self.one(None, *SINKS)
        want = {"out"} | set(self.one((), ("lse",)))
        if FORMATS[dtype].bits > 4 and self.one(0, 1):
            want |= {"dq", "dk", "dv"} | ({"dbias"} if bias else set()) | ({"dsinks"} if sinks else set())
        return Case(
            "fuzz",
            "drawn at random",
            B=B, H=Hkv * group, Hkv=Hkv, Lq=Lq, Lk=Lk, D=D, Dv=Dv,
            dtype=dtype,
            family=self.one("normal", *(FAMILIES if FORMATS[dtype].max > 1e9 else NARROW)),
            seed=self.within(0, 99),
            want=frozenset(want),
            mask=self.mask(B, Lq, Lk, 3) if self.one(0, 1) else None,
            q_lens=self.lengths(B, Lq) if self.one(0, 0, 1) else None,
            k_lens=self.lengths(B, Lk) if self.one(0, 0, 1) else None,
            scale=self.one(None, None, 1.0, 0.5, -0.25, 0.0),
            softcap=self.one(None, None, 30.0, 5.0, 1.0),
            bias=bias,
            sinks=sinks,
            storage=Dense(self.one("BHLD", "BHLD", "BLHD", "LBHD")),
        )  # fmt: skip

    def lengths(self, B: int, longest: int) -> tuple[int, ...]:
        return tuple(self.within(0, longest) for _ in range(B))

    def mask(self, B: int, Lq: int, Lk: int, leaves: int) -> Mask:
        """A mask of at most so many parts."""
        align = self.one("top_left", "bottom_right")
        kind = self.one(*(MASKS + JOINS if leaves > 1 else MASKS))
        if kind in JOINS:
            left = self.mask(B, Lq, Lk, leaves // 2)
            if kind == "not":
                return ~left
            right = self.mask(B, Lq, Lk, leaves - leaves // 2)
            return left & right if kind == "and" else left | right
        if kind == "window":
            left_keys, right_keys = (self.one(None, *range(20)) for _ in range(2))
            return Window(left_keys, right_keys, align)
        if kind == "prefix":
            return Prefix(self.within(0, Lk), align)
        if kind == "padding":
            return Padding(self.lengths(B, Lk))
        if kind == "sink_tokens":
            return SinkTokens(self.within(0, 4))
        if kind == "documents" and Lq and Lk:
            return Documents(self.ids(Lq), self.ids(Lk))
        if kind == "blocks":
            return BlockSparse(self.drawing(-(-Lq // 16) or 1, -(-Lk // 16) or 1), 16, 16)
        if kind == "drawn" and 0 < Lq * Lk <= 64:
            return Drawn(self.drawing(Lq, Lk))
        if kind == "chunks":
            return Chunked(self.within(1, 20), align)
        if kind == "dilated":
            return Dilated(self.within(0, 5), self.within(1, 4), align)
        if kind == "global_tokens":
            return GlobalTokens(tuple(self.within(0, Lk) for _ in range(self.within(0, 3))), align)
        if kind == "tree":
            return Tree(tuple(self.within(-1, node - 1) for node in range(self.within(0, min(Lk, 9)))))
        if kind == "gathered" and Lq and Lk:
            first, step = self.within(-Lk, Lk - 1), self.within(-2, 2) or 1
            rows = ([first + i + step * c for c in range(min(Lk, 5))] for i in range(Lq))
            return Gathered(tuple(tuple(j if 0 <= j < Lk else -1 for j in row) for row in rows))
        return Causal(align)

    def ids(self, n: int) -> tuple[int, ...]:
        """Up to three documents, in order."""
        first, second = self.within(0, n), self.within(0, n)
        return tuple((i >= first) + (i >= second) for i in range(n))

    def drawing(self, rows: int, columns: int) -> tuple[str, ...]:
        bits = self.within(0, 2 ** (rows * columns) - 1)
        text = "".join("x" if bits >> i & 1 else "." for i in range(rows * columns))
        return tuple(text[i * columns : (i + 1) * columns] for i in range(rows))
