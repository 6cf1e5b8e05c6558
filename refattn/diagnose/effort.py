"""How much was done: a clock that runs alike on every machine, so that the same failures are given the same name.

Work is counted in seconds of a usual machine, by what was asked and how large the case is; the processor's own time
counts only where it is far longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Effort"]

ASKED, SOLVED, SCORE = 2e-5, 2.5e-4, 1e-7
"""seconds to ask whether a hypothesis is about a case, to solve one, and for each score of it"""
FAR = 2.0
"""The processor's time counts if it is so many times longer."""


@dataclass
class Effort:
    """The work that was done so far, in seconds."""

    work: float = 0.0
    before: float = 0.0
    begun: float | None = None

    def solved(self, scores: int) -> None:
        """A hypothesis was solved of a case of so many scores."""
        self.work += SOLVED + SCORE * scores

    def asked(self) -> None:
        """A hypothesis was asked whether it is about a case."""
        self.work += ASKED

    @contextmanager
    def counting(self) -> Iterator[None]:
        """The processor's time is counted meanwhile."""
        self.begun = time.thread_time()
        yield
        self.before, self.begun = self.processor, None

    @property
    def processor(self) -> float:
        return self.before + (0.0 if self.begun is None else time.thread_time() - self.begun)

    @property
    def seconds(self) -> float:
        return max(self.work, self.processor / FAR)
