"""How the kernel of `tests.fresh_kernel` reads its arguments, and addresses its tiles in memory.

A block has BM rows of (query, head) pairs, packed so that the heads of a group share the keys they load.  Whatever a
tile has too much is loaded as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from refattn.case import Cache, Case, Packed, Paged
from refattn.dtypes import FORMATS
from refattn.masks import Causal, Mask, Window
from refattn.visibility import And

Array = np.ndarray[Any, Any]
Space = SimpleNamespace
SCALED = 64
"""tokens that share the scale of a block"""


def band(mask: Mask | None) -> tuple[int | None, int | None, str] | None:
    """The mask as (left, right, alignment) if it can be had by comparing indices, or None."""
    if mask is None:
        return None, None, "top_left"
    if isinstance(mask, Causal):
        return None, 0, mask.align
    if isinstance(mask, Window):
        return mask.left, mask.right, mask.align
    if isinstance(mask, And):
        x, y = band(mask.left), band(mask.right)
        if x is not None and y is not None and x[2] == y[2]:
            return _least(x[0], y[0]), _least(x[1], y[1]), x[2]
    return None


def _least(x: int | None, y: int | None) -> int | None:
    return min((n for n in (x, y) if n is not None), default=None)


class Loads:
    """Arguments, addresses and tiles."""

    BM, BN, SPLITS = 64, 32, 4

    def arguments(self, case: Case, given: Mapping[str, Any]) -> Space:
        a = Space(case=case, given=given, storage=case.storage, made={})
        a.acc = np.float64 if case.dtype == "float64" else np.float32
        narrow = case.out_dtype if FORMATS[case.dtype].bits <= 4 else case.dtype
        a.narrow = a.acc if FORMATS[narrow].bits > 11 else FORMATS[narrow].numpy
        a.G = case.H // max(case.Hkv, 1)
        a.q_lens, a.k_lens = self.lengths(a)
        a.band = band(case.mask)
        a.custom = case.visibility.tile() if a.band is None else None
        a.left, a.right, a.align = a.band or (None, None, "top_left")
        a.scale = a.acc(self.scale(case))
        a.softcap = None if case.softcap is None else a.acc(case.softcap)
        a.kept = 1.0 if case.dropout is None else 0.0 if case.dropout == 1 else 1 / (1 - case.dropout)
        a.alibi = self.alibi(case)
        if isinstance(case.storage, Cache):
            self.append(a)
        return a

    def lengths(self, a: Space) -> tuple[Array, Array]:
        """How many queries and keys each batch entry has, as its storage says."""
        q_lens, k_lens = (np.array(n, np.int64) for n in a.case.lengths)
        if isinstance(a.storage, Packed):
            q_lens, k_lens = (a.given.get("seqused_" + n, np.diff(a.given["cu_seqlens_" + n])) for n in "qk")
        if isinstance(a.storage, Paged):
            k_lens = a.given["seqused_k"]
        if isinstance(a.storage, Cache):
            k_lens = a.given["cache_lens"] + a.case.Lq
        return q_lens, k_lens

    def scale(self, case: Case) -> float:
        return max(case.D, 1) ** -0.5 if case.scale is None else case.scale

    def slopes(self, H: int) -> Array:
        """As the authors of ALiBi have them: of the power of two below, then every other of the next."""
        n = 2 ** int(np.log2(max(H, 1)))
        first, second = (2.0 ** (-8 * np.arange(1, m + 1) / m) for m in (n, 2 * n))
        return np.concatenate([first, second[::2]])[:H]

    def alibi(self, case: Case) -> Array | None:
        made = case.bias is not None and case.bias.family == "alibi" and set("HQK") <= set(case.bias.dims)
        return self.slopes(case.H) if made else None

    def append(self, a: Space) -> None:
        for name in "kv":
            cache = a.made[name + "_cache"] = a.given[name + "_cache"]
            for b, at in enumerate(self.slots(a)):
                cache[b, at : at + a.case.Lq] = a.given[name][b].swapaxes(0, 1)

    def slots(self, a: Space) -> Array:
        return a.given["cache_lens"]

    # loads and stores

    def rows(self, a: Space, b: int, hk: int, r0: int) -> Space:
        """A block of rows: row r is query r // G of head r % G of the group."""
        r = r0 + np.arange(self.BM)
        ok = r < a.q_lens[b] * a.G
        r = np.minimum(r, a.q_lens[b] * a.G - 1)
        return Space(b=b, hk=hk, r0=r0, ok=ok, i=self.query(a, r, r0), h=self.head(a, hk, r, r0))

    def query(self, a: Space, r: Array, r0: int) -> Array:
        return r // a.G

    def head(self, a: Space, hk: int, r: Array, r0: int) -> Array:
        return hk * a.G + r % a.G

    def tokens(self, a: Space, t: Space) -> Array:
        return a.given["cu_seqlens_q"][t.b] + t.i

    def where(self, a: Space, t: Space, ndim: int) -> tuple[Any, ...]:
        """The index of the rows in an array of queries, or in one of their lse."""
        if not isinstance(a.storage, Packed):
            return t.b, t.h, t.i
        return (self.tokens(a, t), t.h) if ndim == 3 else (t.h, self.tokens(a, t))

    def load_rows(self, a: Space, t: Space, x: Array) -> Array:
        y = x[self.where(a, t, x.ndim)].astype(a.acc)
        return np.where(t.ok.reshape(-1, *[1] * (y.ndim - 1)), y, 0)

    def store_rows(self, a: Space, t: Space, x: Array, y: Array) -> None:
        x[tuple(n[t.ok] if isinstance(n, np.ndarray) else n for n in self.where(a, t, x.ndim))] = y[t.ok]

    def index(self, a: Space, b: int, hk: int, j: Array) -> tuple[Any, ...]:
        """The index of keys in k, v, dk or dv."""
        if isinstance(a.storage, Packed):
            return a.given["cu_seqlens_k"][b] + j, hk
        if isinstance(a.storage, Paged):
            size = a.given["k"].shape[1]
            return self.page(a, b, j, size), j % size, hk
        return (b, j, hk) if isinstance(a.storage, Cache) else (b, hk, j)

    def page(self, a: Space, b: int, j: Array, size: int) -> Array:
        return a.given["block_table"][b, j // size]

    def load_keys(self, a: Space, name: str, b: int, hk: int, n: int) -> Array:
        j = np.arange(n * self.BN, (n + 1) * self.BN)
        j = j[j < a.k_lens[b]]
        x = self.source(a, name)
        y = np.full((self.BN, x.shape[-1]), self.tail(name), a.acc)
        y[: len(j)] = x[self.index(a, b, self.kv_head(a, name, hk), j)].astype(a.acc)
        if name + "_scale" in a.given:
            y[: len(j)] *= self.descale(a, name, b, hk, j)
        return y

    def tail(self, name: str) -> float:
        return 0.0

    def kv_head(self, a: Space, name: str, hk: int) -> int:
        return hk

    def source(self, a: Space, name: str) -> Array:
        return a.made[name + "_cache"] if isinstance(a.storage, Cache) else a.given[name]

    def descale(self, a: Space, name: str, b: int, hk: int, j: Array) -> Array:
        x = a.given[name + "_scale"]
        return x[min(b, x.shape[0] - 1), min(hk, x.shape[1] - 1), np.minimum(j // SCALED, x.shape[2] - 1)]
