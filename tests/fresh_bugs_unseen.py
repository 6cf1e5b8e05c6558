"""Bugs of the fresh kernel that no usual case shows, each with a case that does: gaps of the suite.

UNSEEN holds rows as in `tests.fresh_bugs`, CASES by their names what shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refattn.case import Case
from refattn.masks import Causal
from tests.fresh_bugs_loads import Row, bug
from tests.fresh_kernel import Kernel
from tests.fresh_loads import Space

UNSEEN: list[Row] = []

CASES = {
    "causal_void_for_one_query": Case("one-query-top-left", "It sees key 0 alone.", Lk=5, mask=Causal("top_left")),
    "split_of_batch_zero": Case("first-entry-short", "The lengths differ by far.", B=2, Lk=300, k_lens=(7, 300)),
}


@bug("A single query is taken to see all keys under a causal mask, whatever its alignment.", UNSEEN)
class causal_void_for_one_query(Kernel):
    def arguments(self, case: Case, given: Mapping[str, Any]) -> Space:
        a = super().arguments(case, given)
        a.right = None if case.Lq == 1 and a.left is None else a.right
        return a


@bug("The number of blocks to be split is that of batch entry 0 for all entries.", UNSEEN)
class split_of_batch_zero(Kernel):
    def split(self, a: Space, t: Space) -> list[list[int]]:
        blocks = self.blocks(a, t)
        if a.q_lens[t.b] * a.G > self.BM or len(blocks) < 2:
            return [blocks]
        each = -(-int(a.k_lens[0]) // self.BN // self.SPLITS)
        return [blocks[s * each : (s + 1) * each] for s in range(self.SPLITS)]
