"""Hypotheses on what hidden pairs count for in tiles that are visited: a number for -inf, or softcap's end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .bounds import KEYS, ROWS, SAME, Bounds, hides

__all__: list[str] = []

Logit = Callable[[Any], Any]


def _bias(x: Any) -> Any:
    return np.where(np.isneginf(x.x["bias"]), -np.inf, x.x["bias"]) if "bias" in x.x else 0.0


VALUES: dict[str, tuple[Logit, str]] = {
    "-softcap, with the bias": (lambda x: _bias(x) - x.given.softcap, "softcap"),
    "-softcap": (lambda x: -x.given.softcap, "softcap"),
    "-1e4": (lambda x: -1e4, ""), "-1e9": (lambda x: -1e9, ""), "-1e30": (lambda x: -1e30, ""),
    "0": (lambda x: 0.0, ""), "0, with the bias": (_bias, "bias"),
}
ENDS = {"the last key that one sees": False, "the end of its last tile": True}


def _applies(case: Case, how: Any) -> bool:
    needed = how.value[1]
    return (case.mask is not None or case.k_lens is not None) and (not needed or getattr(case, needed) is not None)


def _same(case: Case, how: Any) -> Any:
    return SAME[1](case, how) if hides(case) else None


@kind(_applies, same=("rows", _same), value=VALUES, rows=ROWS, keys=KEYS, whole=ENDS)
class hidden_logit_in_visited(Bounds):
    """Hidden logits are {value}, not -inf, in tiles of {rows} rows and {keys} keys that are gone over, to {whole}."""

    value = VALUES["-1e9"]
    whole = False

    def hide(self, t: Array) -> Array:
        case, seen = self.case, self.seen
        real = np.asarray(replace(case.visibility, mask=None).tile())
        visited, j = real, np.arange(t.shape[-1])
        if hides(case):
            first, last = self.ends(np.asarray(case.visibility.tile()))
            low = self.down(self.of_tile(first, lambda x: x.min(-1)))
            high = self.of_tile(last, lambda x: x.max(-1))
            visited = real & (j >= low[..., None]) & (j < (self.up(high) if self.whole else high)[..., None])
        self.leak = visited & ~seen
        self.seen = visited | seen
        return np.where(seen, t, np.where(self.leak, self.value[0](self), -np.inf))

    def low(self, x: Array, what: str = "weights") -> Array:
        """Nothing goes back through what is a constant."""
        return super().low(np.where(self.leak, 0, x) if what == "ds" else x, what)
