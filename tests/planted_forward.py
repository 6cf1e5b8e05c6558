"""Bugs of the forward planted in the kernel of `tests.unseen.engine`, a kind of its own each, to be named."""

# ruff: noqa: E741 - l is the sum of a row, as in the papers

from __future__ import annotations

from dataclasses import replace

import numpy as np

from refattn.masks import Causal, Chunked, Window
from refattn.storage import Paged
from refattn.visibility import Not, Or
from tests.unseen.engine.kernel import Engine


class NothingWithoutKeys(Engine):
    """Entries without keys know no sinks."""

    def sequence(self, b, answer):
        case = self.case
        if not self.k_lens[b]:
            self.case = replace(case, sinks=None)
        super().sequence(b, answer)
        self.case = case


class SinkInLseAlone(Engine):
    def join_sink(self, m, l, o):
        top, total, _ = super().join_sink(m, l, o)
        return top, total, np.where(l[..., None] == 0, 0, o / np.where(l == 0, 1, l)[..., None]) * total[..., None]


class MaximumBeforeScale(Engine):
    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        if self.scale >= 0:
            return super().update(m, l, o, s, seen, b, i0, i1, j0, j1)
        new = np.where(np.isneginf(s), np.inf, s).min(-1, initial=np.inf)
        new = np.where(np.isinf(new), m, np.where(np.isneginf(m), new, np.minimum(m, new)))
        alpha, p = self.rescale(m, new), self.weights(s, new)
        return new, l * alpha + p.sum(-1), o * alpha[..., None] + self.pv(p, self.kv("v", b, j0, j1), seen)


class FirstTokenAlone(Engine):
    """Of the new tokens the first alone is written into the cache."""

    def append(self, b):
        kept = {name: self.given[name][b].copy() for name in ("k_cache", "v_cache")}
        super().append(b)
        for name, old in kept.items():
            self.given[name][b, self.slot(b) + 1 :] = old[self.slot(b) + 1 :]


class PagesAround(Engine):
    """Pages are taken for ones of 16 tokens, in a memory that goes round."""

    def locate(self, b, j):
        size, pages = self.case.storage.page_size, len(self.given["k"])
        table = self.given["block_table"][b]
        flat = (table[np.minimum(j // 16, len(table) - 1)] * 16 + j % 16) % (pages * size)
        return flat // size, flat % size


class ColumnOfTile(Engine):
    """The page is looked up by a key's place in its tile."""

    def tokens(self, name, b, j0, j1):
        if not isinstance(self.case.storage, Paged):
            return super().tokens(name, b, j0, j1)
        j, size = np.arange(j0, j1), self.case.storage.page_size
        return self.given[name][self.given["block_table"][b, (j - j0) // size], j % size].swapaxes(0, 1)


class KeptInEachTile(Engine):
    """The output so far is multiplied by 1 / (1 - p) in each tile."""

    def update(self, *args):
        m, l, o = super().update(*args)
        return m, l, o * self.kept()

    def finish_out(self, out, b):
        return out * self.descale("v", b)[:, None]


class FullByRightEdge(Engine):
    """A tile before the diagonal of its first row is taken for full, though a window may end in it."""

    def window(self, mask, own, j):
        seen = super().window(mask, own, j)
        full = mask.right is not None and own.size and j.size and j.max() <= own.min() + mask.right
        return np.ones_like(seen) if full and self.path == "prefill" else seen


class EndsAtHidden(Engine):
    """The loop ends at the first tile of which no row sees anything."""

    def walk(self, b, q, i0, i1, lo, hi):
        for j0, j1 in self.tiles(lo, hi):
            if not self.seen(b, i0, i1, j0, j1).any():
                hi = j0
                break
        return super().walk(b, q, i0, i1, lo, hi)


class BiasAtTheEnd(Engine):
    """Shorter entries read the last columns of the bias."""

    def bias_tile(self, b, i0, i1, j0, j1):
        more = self.case.Lk - int(self.k_lens[b])
        return super().bias_tile(b, i0, i1, j0 + more, j1 + more)


class UnusedSplits(Engine):
    """As many splits are merged for all as the longest entry has; those unused have lse 0 and output 0."""

    def merge(self, outs, lses):
        more = len(self.split(0, int(max(self.k_lens)))) - len(lses) + (self.case.sinks is not None)
        if self.path == "decode" and more > 0:
            outs, lses = (np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)]) for x in (outs, lses))
        return super().merge(outs, lses)


class SplitsOfFirst(Engine):
    """The size of a split is that of the first entry's keys."""

    def split(self, lo, hi):
        size = max(self.split_least, -(-int(self.k_lens[0]) // self.splits))
        return [(j, min(hi, j + size)) for j in range(lo, min(hi, lo + self.splits * size), size)]


class HiddenInOutput(Engine):
    """Hidden keys are left out of the sum alone."""

    def walk(self, b, q, *at):
        self.rows_of_q = q
        return super().walk(b, q, *at)

    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        new = np.maximum(m, s.max(-1, initial=-np.inf))
        bare = self.scaled(self.qk(self.rows_of_q[:, :, i0:i1], self.kv("k", b, j0, j1)), b)
        alpha, p = self.rescale(m, new), self.weights(bare, new)
        return (new, l * alpha + self.weights(s, new).sum(-1),
                o * alpha[..., None] + self.pv(p, self.kv("v", b, j0, j1), np.ones_like(seen)))  # fmt: skip


class NotForgotten(Engine):
    def rule(self, mask, b, i, j):
        return self.rule(mask.mask, b, i, j) if isinstance(mask, Not) else super().rule(mask, b, i, j)


class NextChunk(Engine):
    """The first key of the next chunk is seen too."""

    def rule(self, mask, b, i, j):
        if not isinstance(mask, Chunked):
            return super().rule(mask, b, i, j)
        first = self.position(mask.align, b, i) // mask.size * mask.size
        return (j >= first) & (j <= first + mask.size)


class RescaledByFirst(Engine):
    """A tile's sums are rescaled where the maximum of its first row grew."""

    def rescale(self, m, new):
        some = (new > m)[..., :1] | np.isneginf(m)
        return np.where(some, super().rescale(m, new), 1)


class LoopOfFirstMask(Engine):
    def key_range(self, mask, b, i0, i1):
        return super().key_range(mask.left if isinstance(mask, Or) else mask, b, i0, i1)


class FirstPosition(Engine):
    """All queries are rotated by the position of the first."""

    def query_positions(self, b):
        return np.full(int(self.q_lens[b]), self.offset(b))


class LoopByNumber(Engine):
    """A block of rows goes over as many keys as it sees, from key 0 on."""

    def key_range(self, mask, b, i0, i1):
        lo, hi = super().key_range(mask, b, i0, i1)
        return (0, max(hi - lo, 0)) if isinstance(mask, (Causal, Window)) else (lo, hi)


class WidestMaximum(Engine):
    """The maximum is that of all rows of a block."""

    def update(self, m, l, o, s, seen, b, i0, i1, j0, j1):
        new = np.maximum(m, s.max((-1, -2), initial=-np.inf)[..., None])
        alpha, p = self.rescale(m, new), self.weights(s, new)
        return new, l * alpha + p.sum(-1), o * alpha[..., None] + self.pv(p, self.kv("v", b, j0, j1), seen)


class SplitsOfWholeTiles(Engine):
    """A split of the decode path begins at a tile of 8: keys before its own count in both."""

    def partial(self, b, q, lq, j0, j1):
        return super().partial(b, q, lq, j0 - j0 % 8, j1)


class SecondOfPair(Engine):
    """The second of a pair is made of the first as it is turned."""

    def rope(self, x, pos, sign=1):
        if self.case.rotary is None:
            return x
        y = super().rope(x, pos, sign)
        first, second = self.pairs(self.case.rotary.dim, x.shape[-1], self.case.rotary.interleaved)
        cos, sin = (self.given[n][pos].astype(self.acc) for n in ("cos", "sin"))
        y[..., second] = x[..., second] * cos + y[..., first] * sin * sign
        return y


class ScaleOfToken(Engine):
    """The scale of a token's codes is that of its place in the tile."""

    def block_scales(self, name, b, j0, j1):
        return super().block_scales(name, b, 0, j1 - j0)
