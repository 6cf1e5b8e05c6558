"""exp that is off by a function of the fraction of x log2(e) is told from the errors, in the tiles of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from refattn.calling import Local
from refattn.cases import CASES
from refattn.diagnose.effort import Effort
from refattn.diagnose.evidence import bare
from refattn.diagnose.fractions import by_fraction
from refattn.diagnose.trial import Trial
from refattn.examine import examine
from refattn.streaming import Rules, Schedule, Streaming

Array = np.ndarray[Any, Any]
SMALL = [c for c in CASES if c.scores < 2**12 and c.dtype == c.out_dtype == "float32" and c.want == {"out", "lse"}
         and c.dropout is None and c.sinks is None][:40:2]  # fmt: skip


class Cubic(Rules):
    """exp2 of the fraction is a polynomial."""

    def exp(self, x: Array, shift: Array) -> Array:
        with np.errstate(all="ignore"):
            y = (x - shift).astype(np.float64) * np.log2(np.e)
        y = np.where(np.isfinite(y), y, -4000)
        f = y - np.floor(y)
        value = 1 + f * (0.695502 + f * (0.226171 + f * 0.0780245))
        return np.ldexp(value, np.floor(y).astype(int)).astype(self.dtype)


class TooLarge(Rules):
    """exp is a multiple of what it should be."""

    def exp(self, x: Array, shift: Array) -> Array:
        return np.asarray(super().exp(x, shift) * self.dtype.type(1.001))


class AnotherScale(Rules):
    """The scale is off by 0.1 %."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return super().products(q, k, scale * 1.001)


def failures(rules: type[Rules]) -> Sequence[Trial]:
    kernel = Streaming(rules=rules, schedule=Schedule(tile_q=16, tile_k=16, splits=2))
    return [Trial(bare(v)) for c in SMALL if (v := examine(Local(kernel), c)).status == "failed"]


def test_a_polynomial_is_told() -> None:
    trials = failures(Cubic)
    assert len(trials) >= 8
    found = by_fraction(trials, Effort(), 60.0)
    assert found is not None and found.share >= 0.95 and "exp(x) is off by" in found.hypothesis.what


def test_time_is_counted_in_work() -> None:
    assert by_fraction(failures(Cubic), Effort(work=1.0), 1.0) is None


@pytest.mark.parametrize("rules", [TooLarge, AnotherScale])
def test_other_errors_are_none_of_exp(rules: type[Rules]) -> None:
    trials = failures(rules)
    assert trials
    assert by_fraction(trials, Effort(), 60.0) is None
