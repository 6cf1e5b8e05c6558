"""Hypotheses on addresses of too few bits: far rows are read as 0, or near ones in their place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...case import Case, Strided
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

WITHIN = {"of all": (1, 1, 1), "within a head": (0, 0, 1), "of the head": (1, 1, 0), "of the entry": (1, 0, 0)}
"""of which of entry, head and row the address is taken; the others are added to it in full"""


def _far(case: Case, how: Any) -> bool:
    if not isinstance(case.storage, Strided):
        return False
    there = {"bias": case.bias is not None, "dout": case.backward}
    return all(there.get(n, True) for n in how.of)


@kind(
    _far, of={"keys and values are": ("k", "v"), "keys are": ("k",), "values are": ("v",), "queries are": ("q",),
              "all are": ("q", "k", "v"), "the bias is": ("bias",), "dout is": ("dout",)},
    unit={"elements": 1, "bytes": 0}, bits=(31, 32), within=WITHIN,
    how={"as 0": "0", "as near ones, modulo that": "modulo", "as near ones or before the first, as 0": "signed"},
)  # fmt: skip
class offset_overflows(Model):
    """Rows of which the offset {within} is 2**{bits} {unit} or more: of {of} read {how}."""

    of: tuple[str, ...] = ("k", "v")
    unit, bits, within, how = 1, 31, (1, 1, 1), "0"

    def arrays(self) -> dict[str, Array]:
        x, handed = super().arrays(), self.inputs.handed()
        return x | {n: self.taken(handed[n], x[n]) for n in self.of if n in x}

    def taken(self, memory: Array, x: Array) -> Array:
        """x as it is read, (B, heads, rows, size), of an array as it lies in memory."""
        steps = [s // memory.itemsize if self.unit else s for s in memory.strides[:3]]
        row = [n for n, size in zip(steps, memory.shape[:3], strict=True) if size > 1 and n > 0]
        if not row:
            return x
        parts = [i * s for i, s in zip(np.ogrid[tuple(map(slice, memory.shape[:3]))], steps, strict=True)]
        counted = sum(p * on for p, on in zip(parts, self.within, strict=True))
        rest = sum(p * (1 - on) for p, on in zip(parts, self.within, strict=True))
        at = np.broadcast_to(counted, memory.shape[:3])
        if self.how == "0":
            return np.where((at >= 2**self.bits)[..., None], 0, x)
        at = at % 2**self.bits
        if self.how == "signed":
            at = np.where(at >= 2 ** (self.bits - 1), at - 2**self.bits, at)
        at = np.broadcast_to(at + rest, memory.shape[:3])
        index, left = np.zeros(at.shape, np.int64), at
        for size, step in zip(memory.shape[:3], steps, strict=True):
            here = np.minimum(left // step, size - 1) if step > 0 and size > 1 else 0 * left
            index, left = index * size + np.maximum(here, 0), left - here * step
        found = x.reshape(-1, x.shape[3])[index]
        return np.where(((at < 0) | (left != 0))[..., None], 0, found)
