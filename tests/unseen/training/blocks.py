"""What of a mask is geometry, which blocks of keys or queries it leaves, and the mask of a tile."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from refattn.masks import Causal, Documents, Padding, Prefix, SinkTokens, Window
from refattn.visibility import And, Or

INF = float("inf")


@dataclass
class Band:
    """What of a mask is geometry: j < keys, j <= i + cap, and (i + lo <= j <= i + hi or j < first), same segment."""

    keys: int
    lo: int | None = None
    hi: int | None = None
    cap: int | None = None
    first: int = 0
    q_ids: np.ndarray | None = None
    k_ids: np.ndarray | None = None


def least(*xs):
    return min((x for x in xs if x is not None), default=None)


def most(*xs):
    return max((x for x in xs if x is not None), default=None)


def cdiv(a, b):
    return -(-a // b)


class Blocks:
    """Which blocks there are, which of them are visited, and what of a block is seen."""

    def blocks(self, case):
        """(queries, keys) of a program of the forward, of dkdv and of dq."""
        f = 1 if case.Lq * case.Lk <= 2**13 else 8
        return {"fwd": (8 * f, 16 * f), "dkdv": (8 * f, 16 * f), "dq": (16 * f, 8 * f)}

    def offset(self, align, lq, lk):
        return lk - lq if align == "bottom_right" else 0

    def band(self, mask, b, lq, lk):
        """The geometry of a mask, None where it has to be read from memory."""
        g = Band(lk)
        if mask is None:
            return g
        off = self.offset(getattr(mask, "align", "top_left"), lq, lk)
        if isinstance(mask, Causal):
            return replace(g, hi=off)
        if isinstance(mask, Window):
            return self.window(g, mask.left, mask.right, off)
        if isinstance(mask, Prefix):
            n = mask.length if isinstance(mask.length, int) else mask.length[b]
            return replace(g, hi=off, first=n)
        if isinstance(mask, Padding):
            return replace(g, keys=min(lk, mask.lengths[b]))
        if isinstance(mask, SinkTokens):
            return replace(g, keys=min(lk, mask.n))
        if isinstance(mask, Documents):
            q_ids, k_ids = (
                np.array(x[b] if isinstance(x[0], tuple) else x) if x else np.zeros(0, int)
                for x in (mask.q_ids, mask.q_ids if mask.k_ids is None else mask.k_ids)
            )
            return replace(g, q_ids=q_ids, k_ids=k_ids)
        if isinstance(mask, (And, Or)):
            one, two = (self.band(m, b, lq, lk) for m in (mask.left, mask.right))
            if one is None or two is None:
                return None
            if isinstance(mask, Or):
                return self.either(mask, one, two)
            return self.both(one, two)
        return None

    def window(self, g, left, right, off):
        return replace(g, lo=None if left is None else off - left, hi=None if right is None else off + right)

    def either(self, mask, one, two):
        """A window, and the first tokens."""
        sides = (mask.left, one), (mask.right, two)
        windows = [g for m, g in sides if isinstance(m, (Window, Causal))]
        tokens = [m.n for m, g in sides if isinstance(m, SinkTokens)]
        return replace(windows[0], first=tokens[0]) if windows and tokens else None

    def both(self, one, two):
        if two.first:
            one, two = two, one
        if two.first or (one.q_ids is not None and two.q_ids is not None):
            return None
        keys = min(one.keys, two.keys)
        ids = (one.q_ids, one.k_ids) if one.q_ids is not None else (two.q_ids, two.k_ids)
        if one.first:
            return (
                None
                if two.lo is not None
                else replace(one, keys=keys, cap=least(one.cap, two.hi), q_ids=ids[0], k_ids=ids[1])
            )
        return Band(keys, most(one.lo, two.lo), least(one.hi, two.hi), None, 0, *ids)

    def key_blocks(self, g, m0, m1, bn):
        """Which blocks of keys the queries m0 <= i < m1 need, from the last to the first."""
        begin = 0 if g.lo is None else max(0, m0 + g.lo)
        end = least(g.keys, None if g.hi is None else m1 + g.hi)
        found = set(range(begin // bn, cdiv(end, bn))) | set(range(cdiv(min(g.first, g.keys), bn)))
        return [n * bn for n in sorted(found, reverse=True) if g.cap is None or n * bn < m1 + g.cap]

    def query_blocks(self, g, n0, n1, lq, bm):
        """Which blocks of queries the keys n0 <= j < n1 need."""
        if n0 >= g.keys:
            return []
        begin = 0 if g.hi is None else max(0, n0 - g.hi)
        end = least(lq, None if g.lo is None else n1 - g.lo)
        if n0 < g.first:
            begin, end = 0 if g.cap is None else max(0, n0 - g.cap), lq
        return [m * bm for m in range(begin // bm, cdiv(end, bm))]

    def inside(self, x, m0, m1, n0, n1):
        """Whether no pair of the tile is hidden, so that it needs no mask."""
        g = x.g
        return (
            x.mask is None
            and g.q_ids is None
            and n1 <= g.keys
            and (g.hi is None or n1 - 1 <= m0 + g.hi)
            and (g.lo is None or n0 >= m1 - 1 + g.lo)
            and (g.cap is None or n1 - 1 <= m0 + g.cap)
        )

    def visible(self, p, x, i, j):
        """The mask of a tile, booleans that broadcast to (Hkv, G, queries, keys)."""
        g, i, j = x.g, i[:, None], j[None, :]
        seen = np.ones((i.size, j.size), bool)
        if g.lo is not None:
            seen &= j >= i + g.lo
        if g.hi is not None:
            seen &= j <= i + g.hi
        seen |= j < g.first
        if g.cap is not None:
            seen &= j <= i + g.cap
        if g.q_ids is not None:
            seen &= self.segment(g.q_ids, i) == self.segment(g.k_ids, j)
        seen = seen & (j < g.keys)
        if x.mask is not None:
            seen = seen & self.tile(x.mask, i[0, 0], i.size, j[0, 0], j.size)
        return seen

    def segment(self, ids, at):
        return ids[np.minimum(at, len(ids) - 1)]

    def tile(self, x, m0, bm, n0, bn):
        """A tile of a matrix whose sizes may be 1; beyond its end 0."""
        part = x[
            :,
            :,
            slice(None) if x.shape[2] == 1 else slice(m0, m0 + bm),
            slice(None) if x.shape[3] == 1 else slice(n0, n0 + bn),
        ]
        want = tuple(1 if n == 1 else size for n, size in zip(x.shape[2:], (bm, bn), strict=True))
        if part.shape[2:] == want:
            return part
        out = np.zeros((*part.shape[:2], *want), part.dtype)
        out[:, :, : part.shape[2], : part.shape[3]] = part
        return out
