"""Bugs of splits, sinks, dropout and of what bounds tiles, planted in the kernel of `tests.unseen.engine`."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn.masks import BlockSparse, Causal, Chunked
from tests.unseen.engine.kernel import Engine


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


class EndsAsFirst(Engine):
    """The loop over key tiles ends, for all entries, with the tile that holds the last key of the first."""

    def key_range(self, mask, b, i0, i1):
        lo, hi = super().key_range(mask, b, i0, i1)
        return lo, min(hi, -(-int(self.k_lens[0]) // 16) * 16)

    def decode(self, b, q, lq, lk):
        return self.prefill(b, q, lq, lk)
