"""The forward of the kernel of `tests.fresh_kernel`: scores of a tile, online softmax, split keys, merge, epilogue.

A block of rows goes over its keys from right to left, BN at a time; few rows are split along the keys and merged.
Exponentials are in base 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from refattn.case import Case, Packed
from refattn.dtypes import FORMATS
from tests.fresh_loads import Array, Loads, Space

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453


class Forward(Loads):
    """Attention without gradients."""

    def __call__(self, case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            a = self.arguments(case, given)
            self.forward(a)
            if case.backward:
                self.backward(a)
        return {name: x for name, x in a.made.items() if name in case.want}

    # one tile of scores

    def diagonal(self, a: Space, b: int, i: Array) -> Array:
        return i + (a.k_lens[b] - a.q_lens[b]) if a.align == "bottom_right" else i

    def first_block(self, a: Space, t: Space) -> int:
        if a.left is None:
            return 0
        return int(max(0, self.diagonal(a, t.b, t.i[0]) - a.left)) // self.BN

    def last_block(self, a: Space, t: Space) -> int:
        """One past the last."""
        end = int(a.k_lens[t.b])
        if a.right is not None:
            end = max(0, min(end, int(self.diagonal(a, t.b, t.i[-1])) + a.right + 1))
        return -(-end // self.BN)

    def in_band(self, a: Space, t: Space, j: Array) -> Array:
        own = self.diagonal(a, t.b, t.i[:, None])
        seen = np.ones((self.BM, self.BN), bool)
        if a.left is not None:
            seen &= j >= own - a.left
        if a.right is not None:
            seen &= j <= own + a.right
        return seen

    def in_custom(self, a: Space, t: Space, j: Array) -> Array:
        return a.custom[t.b, t.h[:, None], t.i[:, None], np.minimum(j, a.case.Lk - 1)]

    def in_length(self, a: Space, t: Space, j: Array) -> Array:
        return t.ok[:, None] & (j < a.k_lens[t.b])

    def seen(self, a: Space, t: Space, n: int) -> Array:
        j = np.arange(n * self.BN, (n + 1) * self.BN)
        seen = self.in_length(a, t, j) & self.in_band(a, t, j)
        return seen if a.custom is None else seen & self.in_custom(a, t, j)

    def distance(self, a: Space, t: Space, j: Array) -> Array:
        return abs(t.i[:, None] + a.case.Lk - a.case.Lq - j)

    def bias(self, a: Space, t: Space, n: int) -> Array:
        x = a.given["bias"]
        j = np.arange(n * self.BN, (n + 1) * self.BN)
        if a.alibi is not None:
            return (-a.alibi[t.h[:, None]] * self.distance(a, t, j)).astype(x.dtype).astype(a.acc)
        at = (t.b, t.h[:, None], t.i[:, None], np.minimum(j, a.case.Lk - 1))
        return x[tuple(np.minimum(place, size - 1) for place, size in zip(at, x.shape, strict=True))].astype(a.acc)

    def products(self, a: Space, q: Array, k: Array) -> Array:
        return q @ k.T

    def capped(self, a: Space, s: Array) -> Array:
        return s if a.softcap is None else a.softcap * np.tanh(s / a.softcap)

    def scores(self, a: Space, t: Space, k: Array, n: int) -> Array:
        s = self.capped(a, self.products(a, t.q, k) * a.scale)
        seen = self.seen(a, t, n)
        if "bias" in a.given:
            bias = self.bias(a, t, n)
            s, seen = s + bias, seen & ~np.isneginf(bias)
        return np.where(seen, s, self.hidden(a)).astype(a.acc)

    def hidden(self, a: Space) -> float:
        return -np.inf

    def keep(self, a: Space, t: Space, n: int) -> Any:
        if "keep" not in a.given:
            return 1
        j = np.arange(n * self.BN, (n + 1) * self.BN)
        return a.given["keep"][t.b, t.h[:, None], t.i[:, None], np.minimum(j, a.case.Lk - 1)]

    # forward

    def blocks(self, a: Space, t: Space) -> list[int]:
        return list(range(self.first_block(a, t), self.last_block(a, t)))[::-1]

    def split(self, a: Space, t: Space) -> list[list[int]]:
        blocks = self.blocks(a, t)
        if a.q_lens[t.b] * a.G > self.BM or len(blocks) < 2:
            return [blocks]
        each = -(-len(blocks) // self.SPLITS)
        return [blocks[s * each : (s + 1) * each] for s in range(self.SPLITS)]

    def forward(self, a: Space) -> None:
        case, shape = a.case, a.given["q"].shape[:-1]
        a.made["out"] = np.full((*shape, case.Dv), np.nan, FORMATS[case.out_dtype].numpy)
        a.made["lse"] = np.full(shape[::-1] if isinstance(a.storage, Packed) else shape, np.nan, a.acc)
        a.o = np.zeros((*shape, case.Dv), a.acc)
        for b in range(case.B):
            for hk in range(case.Hkv):
                for r0 in range(0, self.row_end(a, b), self.BM):
                    t = self.rows(a, b, hk, r0)
                    t.q = self.load_rows(a, t, a.given["q"])
                    self.epilogue(a, t, [self.attend(a, t, blocks) for blocks in self.split(a, t)])

    def row_end(self, a: Space, b: int) -> int:
        return int(a.q_lens[b]) * a.G

    def attend(self, a: Space, t: Space, blocks: list[int]) -> Space:
        z = Space(m=np.full((self.BM, 1), -np.inf, a.acc), l=np.zeros((self.BM, 1), a.acc))
        z.o = np.zeros((self.BM, a.case.Dv), a.acc)
        for n in blocks:
            k, v = (self.load_keys(a, name, t.b, t.hk, n) for name in "kv")
            self.step(a, t, z, self.scores(a, t, k, n), v, n)
        return z

    def exp(self, x: Array) -> Array:
        return np.exp2(x * x.dtype.type(LOG2E))

    def finite(self, m: Array) -> Array:
        return np.where(np.isneginf(m), 0, m).astype(m.dtype)

    def step(self, a: Space, t: Space, z: Space, s: Array, v: Array, n: int) -> None:
        m = np.maximum(z.m, s.max(-1, keepdims=True))
        p, shrink = self.exp(s - self.finite(m)), self.exp(z.m - self.finite(m))
        z.l = z.l * shrink + p.sum(-1, keepdims=True)
        z.o = self.add_values(a, z.o * shrink, self.weights(a, t, p, n), v)
        z.m = m

    def weights(self, a: Space, t: Space, p: Array, n: int) -> Array:
        return (p * self.keep(a, t, n)).astype(a.narrow).astype(a.acc)

    def add_values(self, a: Space, o: Array, p: Array, v: Array) -> Array:
        return o + p @ v

    def sink(self, a: Space, t: Space) -> Array | None:
        return a.given["sinks"][t.h][:, None].astype(a.acc) if "sinks" in a.given else None

    def merge(self, a: Space, t: Space, parts: list[Space]) -> Space:
        sink = self.sink(a, t)
        m = np.max([z.m for z in parts] + ([] if sink is None else [sink]), axis=0)
        w = [self.exp(z.m - self.finite(m)) for z in parts]
        total = sum(z.l * x for z, x in zip(parts, w, strict=True))
        if sink is not None:
            total = total + self.exp(sink - self.finite(m))
        return Space(m=m, l=total, o=sum(z.o * x for z, x in zip(parts, w, strict=True)))

    def epilogue(self, a: Space, t: Space, parts: list[Space]) -> None:
        z = self.merge(a, t, parts)
        o = self.normalised(a, z)
        self.store_rows(a, t, a.o, o)
        self.store_rows(a, t, a.made["out"], o.astype(a.made["out"].dtype))
        self.store_rows(a, t, a.made["lse"], self.lse(z)[:, 0])

    def normalised(self, a: Space, z: Space) -> Array:
        return np.where(z.l == 0, 0, z.o / z.l * a.acc(a.kept)).astype(a.acc)

    def lse(self, z: Space) -> Array:
        return self.finite(z.m) + np.log2(z.l) * z.l.dtype.type(LN2)

    def backward(self, a: Space) -> None:
        raise NotImplementedError
