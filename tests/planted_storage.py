"""Bugs of packed sequences, pages, caches, splits and dropout planted in the kernel of `tests.unseen.engine`."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn.dtypes import round_to
from refattn.masks import BlockSparse, Causal, Chunked
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


class ChunkTowardsZero(Engine):
    """The number of a query's chunk is rounded to 0."""

    def rule(self, mask, b, i, j):
        if not isinstance(mask, Chunked):
            return super().rule(mask, b, i, j)
        return j // mask.size == np.trunc(self.position(mask.align, b, i) / mask.size)


class RowOverGroup(Engine):
    """The last key of a causal block is found by its last row divided by the size of the group."""

    def key_range(self, mask, b, i0, i1):
        lo, hi = super().key_range(mask, b, i0, i1)
        if not isinstance(mask, Causal):
            return lo, hi
        return lo, min(int(self.k_lens[b]), int(self.position(mask.align, b, (i1 - 1) // self.G)) + 1)


class SinkNotInMaximum(Engine):
    def join_sink(self, m, l, o):
        return m, l + np.exp(self.sink() - np.where(m == -np.inf, 0, m)), o

    def decode(self, b, q, lq, lk):
        return self.prefill(b, q, lq, lk)

    def finish(self, m, l, o):
        return super().finish(np.where(m == -np.inf, 0, m), l, o)


class SinkInFirstSplit(Engine):
    """The first split has the sink; where it sees nothing, the merge has it once more."""

    def decode(self, b, q, lq, lk):
        parts = [self.partial(b, q, lq, j, j1) for j, j1 in self.split(0, lk)]
        sink = np.array(np.broadcast_to(self.sink(), (*q.shape[:2], lq)))
        if parts and (parts[0][1] == -np.inf).all():
            sink += np.log(sink.dtype.type(2))
        parts.append((np.zeros((*sink.shape, self.case.Dv), self.acc), sink))
        return self.merge(np.stack([o for o, _ in parts]), np.stack([lse for _, lse in parts]))


class WholeSplits(Engine):
    """Each of four splits has a fourth of the keys, rounded down, be it 0."""

    def split(self, lo, hi):
        size = (hi - lo) // 4
        return [(lo + n * size, lo + (n + 1) * size) for n in range(4)]


class WholeTiles(Engine):
    """The number of key tiles is rounded down."""

    def key_range(self, mask, b, i0, i1):
        lo, hi = super().key_range(mask, b, i0, i1)
        return lo, hi // self.block_n * self.block_n

    def decode(self, b, q, lq, lk):
        return self.prefill(b, q, lq, lk)


class Renormalised(Engine):
    """Weights that dropout keeps are divided by their sum; the backward has 1 / (1 - p)."""

    def walk(self, b, q, i0, i1, lo, hi):
        self.total = np.zeros((*q.shape[:2], i1 - i0), self.acc)
        m, l, o = super().walk(b, q, i0, i1, lo, hi)
        return m, l, o * (l / np.where(self.total == 0, 1, self.total))[..., None] / (self.kept() or 1)

    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        found = super().update(m, l, o, s, seen, b, i0, i1, j0, j1)
        p = np.where(self.keep_tile(b, i0, i1, j0, j1), self.weights(s, found[0]), 0)
        self.total = self.total * self.rescale(m, found[0]) + p.sum(-1)
        return found

    def decode(self, b, q, lq, lk):
        return self.prefill(b, q, lq, lk)


class HalfBlocksBack(Engine):
    """The backward has blocks of half as many keys."""

    def backward(self, *given):
        true, mask = self.case, self.case.mask
        if isinstance(mask, BlockSparse):
            self.case = replace(true, mask=replace(mask, block_k=max(1, mask.block_k // 2)))
        found = super().backward(*given)
        self.case = true
        return found


class QueriesCast(Engine):
    """Queries are cast to the float8 of the codes, and their scale is 1."""

    def queries(self, b):
        q, quant = super().queries(b), self.case.quant
        return round_to(q, quant.kind).astype(self.acc) if quant and "float8" in quant.kind else q
