"""Bugs of packed sequences, pages, caches and codes, planted in the kernel of `tests.unseen.engine`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn.dtypes import round_to
from refattn.storage import Packed
from tests.unseen.engine.kernel import Engine


class LseAtKeys(Engine):
    """lse of a packed sequence is written where its keys begin."""

    def put(self, target, name, b, x, n):
        if name != "lse" or not isinstance(self.case.storage, Packed):
            return super().put(target, name, b, x, n)
        start = int(self.given["cu_seqlens_k"][b])
        target[:, start : start + n] = x[:, : max(0, target.shape[1] - start)]


class LseOfLongerHeads(Engine):
    """The backward reads lse as if a head had as many rows as keys."""

    def run(self):
        self.all = Engine(replace(self.case, want=frozenset({"lse"})), self.given).run()["lse"]
        return super().run()

    def backward(self, b, q, out, lse, lq, lk):
        case = self.case
        at = (b * case.H + np.arange(case.H))[:, None] * case.Lk + np.arange(lq)
        lse = self.grouped(self.all.ravel()[np.minimum(at, self.all.size - 1)])
        return super().backward(b, q, out, lse, lq, lk)


class FirstSequenceAlone(Engine):
    """The output of the first of packed sequences alone is written."""

    def put(self, target, name, b, x, n):
        if name != "out" or b == 0 or not isinstance(self.case.storage, Packed):
            super().put(target, name, b, x, n)


class OneBoundary(Engine):
    """What comes after the first of packed sequences is taken for one."""

    def lengths(self):
        q, k = super().lengths()
        if not isinstance(self.case.storage, Packed):
            return q, k
        ends = [self.given[name][[0, 1, -1, *([-1] * (len(q) - 2))]] for name in ("cu_seqlens_q", "cu_seqlens_k")]
        return np.diff(ends[0]), np.diff(ends[1])

    def put(self, target, name, b, x, n):
        if n or not isinstance(self.case.storage, Packed):
            super().put(target, name, b, x, n)


class PageOfSixteen(Engine):
    """The table is looked up once in 16 keys."""

    def locate(self, b, j):
        size = self.case.storage.page_size
        return self.given["block_table"][b, j // 16 * 16 // size], j % size


class NewKeysFromZero(Engine):
    """New keys of a cache are rotated as if there were none before them."""

    def append(self, b):
        past = self.given["cache_lens"]
        self.given["cache_lens"], self.at = 0 * past, int(past[b])
        super().append(b)
        self.given["cache_lens"] = past

    def slot(self, b):
        return self.at


class AllFromZero(NewKeysFromZero):
    """Queries too."""

    def query_positions(self, b):
        return np.arange(int(self.q_lens[b]))


class QueriesCast(Engine):
    """Queries are cast to the float8 of the codes, and their scale is 1."""

    def queries(self, b):
        q, quant = super().queries(b), self.case.quant
        return round_to(q, quant.kind).astype(self.acc) if quant and "float8" in quant.kind else q
