"""Hypotheses on rows or keys that the backward leaves out, or counts twice, while the forward is right.

All gradients are linear in dout and dlse of each row, and sums over rows, keys or both.  In which of them a loop of
the backward is wrong is seen from the answer: `refattn.diagnose.alone`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case
from ..edges import shape_of
from ..hypothesis import kind
from ..model import Array
from ..regions import REGIONS
from .partial_sums import Held

__all__: list[str] = []

TIMES = {"left out": 0.0, "counted twice": 2.0}


def _of(case: Case, how: Any) -> bool:
    """Whether the region is there."""
    return case.backward and case.Hkv > 0 and bool(how.of(shape_of(case)).any())


@kind(_of, "dq dk dv dbias dsinks dscale dsoftcap", times=TIMES,
      of={r.words.removeprefix("of the rows "): r.rows for r in REGIONS if r.rows is not None})  # fmt: skip
class rows_in_backward(Held):
    """Rows are {times} in the backward: {of}."""

    of: Any
    times = 0.0

    def backward(self) -> dict[str, Array]:
        factor = np.where(self.of(self.inputs), self.dtype(self.times), self.dtype(1))
        factor = np.broadcast_to(factor, self.seen.shape[:3])
        wide = {"dout": factor[..., None], "dlse": factor}
        self.x = self.x | {n: self.x[n] * by for n, by in wide.items() if n in self.x}
        return super().backward()


@kind(
    _of, "dq dk dv dbias dscale dsoftcap", times=TIMES,
    of={r.words.removeprefix("of the keys "): r.keys for r in REGIONS if r.rows is None and r.keys is not None},
)
class keys_in_backward(Held):
    """Keys are {times} in the backward: {of}."""

    of: Any
    times = 0.0

    def backward(self) -> dict[str, Array]:
        keys = np.broadcast_to(self.of(self.inputs), (self.given.B, self.given.Hkv, self.given.Lk))
        held = keys[:, self.k_heads()][:, :, None] & self.seen
        whole, part = super().backward(), self.of_pairs(held)
        return whole | {n: x + self.dtype(self.times - 1) * part[n] for n, x in whole.items() if n != "dsinks"}
