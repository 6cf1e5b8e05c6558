"""Hypotheses on packed sequences that are taken for one: a boundary between them is not looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case, Packed
from ...layouts import cu_seqlens
from ...visibility import Mask
from ..hypothesis import kind
from ..model import Array
from .alignment import Asked
from .beyond import TABLES, keys_taken

__all__: list[str] = []


def _several(case: Case, how: Any) -> bool:
    """Whether there are so many that some lie after the first boundary, and nothing between them."""
    packed = isinstance(case.storage, Packed) and not case.storage.gap and case.quant is case.rotary is None
    plain = case.bias is case.dropout is case.score_mod is None and not case.backward
    return packed and plain and case.B > 1 + how.after and not any(word in repr(case.mask) for word in TABLES)


@kind(_several, after={"Those after the first of": 1, "All": 0})
class packed_together(keys_taken):
    """{after} packed sequences are taken for one: of cu_seqlens not every boundary is used."""

    after, how = 1, (True, False)

    def starts(self) -> tuple[Array, Array]:
        """Where each begins among those that are taken together, of queries and of keys, and one past the last."""
        q, k = (cu_seqlens(n, 0).astype(int) for n in self.given.lengths)
        first = np.arange(len(q)) >= self.after
        return q - first * q[self.after], k - first * k[self.after]

    def numbers(self) -> Array:
        own, k = np.array(self.given.lengths[1]), self.starts()[1]
        return np.where(np.arange(len(own)) < self.after, own, k[-1])

    def visible(self) -> Array:
        case, n, (q, _) = self.given, self.numbers(), self.starts()
        rows = np.where(np.arange(case.B) < self.after, case.lengths[0], q[-1])
        begins = np.where(np.arange(case.B) < self.after, 0, q[:-1])

        def told(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            return m(b, h, i + begins[b], j, rows[b], n[b])

        mask = None if case.mask is None else Asked(case.mask, told)
        return np.asarray(replace(case.visibility, mask=mask, Lk=self.total(), k_lens=tuple(map(int, n))).tile())

    def behind(self, name: str, x: Array) -> Array:
        memory, j = self.inputs.handed()[name], np.arange(self.total())
        k = cu_seqlens(self.given.lengths[1], 0).astype(int)[:-1]
        first = np.where(np.arange(len(k)) < self.after, k, k[self.after])
        at = np.minimum(first[:, None] + j, max(len(memory) - 1, 0))
        return np.asarray(memory[at], np.float64).swapaxes(1, 2)
