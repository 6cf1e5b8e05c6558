"""Hypotheses on roundings that the contract has, and that are done in another way than to the nearest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...dtypes import FORMATS
from ..hypothesis import kind
from ..model import Array
from .loops import LOOPS, Loop, Tiled, loops
from .roundings import SIXTEEN, cut

__all__: list[str] = []


def _up(x: Array, name: str) -> Array:
    """x rounded away from zero to a format."""
    low = cut(x, name).astype(np.float64)
    high = np.nextafter(low.astype(FORMATS[name].dtype), np.copysign(FORMATS[name].dtype.type(np.inf), x).astype(
        FORMATS[name].dtype)).astype(np.float64)  # fmt: skip
    return np.where(low == x, low, high).astype(x.dtype)


HOW: dict[str, Callable[[Array, str], Array]] = {"cut off, toward zero": cut, "rounded up, away from zero": _up}
OF = {"weights are": ("weights",), "weights and ds are": ("weights", "ds"), "ds is": ("ds",),
      "the output, as delta has it, is": ("out",), "weights, ds and outputs are": ("weights", "ds", "out")}  # fmt: skip


def _narrow(case: Case, how: Any) -> bool:
    forward = "weights" in how.of
    return {case.dtype, case.out_dtype} & set(SIXTEEN) != set() and (forward or case.backward)


class Narrowed(Tiled):
    of: tuple[str, ...] = ("weights",)
    how: Callable[[Array, str], Array]

    def low(self, x: Array, what: str = "weights") -> Array:
        if what not in self.of or self.contract is None:
            return super().low(x, what)
        name = getattr(self.contract, "weights" if what == "ds" else what)
        if name is None or FORMATS[name].bits >= FORMATS[self.contract_accumulate].bits:
            return x
        return np.asarray(type(self).how(x, name), self.dtype)

    def written(self, out: Array) -> Array:
        return self.low(out, "out") if "out" in self.of and len(self.of) > 1 else out


@kind(_narrow, rounding=True, of={w: s for w, s in OF.items() if "weights" in s}, how=HOW,
      loop=loops(Loop(4096)) | LOOPS)  # fmt: skip
class narrowed(Narrowed):
    """From tile to tile of {loop}, {of} {how}, where the contract rounds to the nearest."""


@kind(_narrow, rounding=True, of={w: s for w, s in OF.items() if "weights" not in s}, how=HOW)
class narrowed_in_backward(Narrowed):
    """In the backward {of} {how}, where the contract rounds to the nearest."""

    tile = 4096
