"""An attention kernel in NumPy as a GPU author writes it, by somebody who has not seen the catalogue of bugs.

The forward is in `tests.fresh_forward`, the loads in `tests.fresh_loads`; here are the backward and the door.
The backward takes one block of keys at a time, over all rows that see it, and recomputes the weights from lse.
`tests.fresh_bugs` overrides one method or one number of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.case import Case
from refattn.implementation import Function, implementation
from refattn.precision import Conventions, Precision, preset
from tests.fresh_forward import Array, Forward, Space

OUTPUTS = ("out", "lse", "dq", "dk", "dv", "dbias", "dsinks", "k_cache", "v_cache")


class Kernel(Forward):
    """The honest one."""

    def backward(self, a: Space) -> None:
        case, given = a.case, a.given
        a.dq = np.zeros(given["q"].shape, a.acc)
        a.dbias = np.zeros((case.B, case.H, case.Lq, case.Lk) if "bias" in given else 0, a.acc)
        a.dsinks = np.zeros(case.H, a.acc)
        for name in "kv":
            a.made["d" + name] = np.zeros(given[name].shape, given[name].dtype)
        for b in range(case.B):
            for hk in range(case.Hkv):
                tiles = [self.preprocess(a, b, hk, r0) for r0 in range(0, self.row_end(a, b), self.BM)]
                for n in range(-(-int(a.k_lens[b]) // self.BN)):
                    self.backward_block(a, b, hk, n, [t for t in tiles if self.reaches(a, t, n)])
        a.made["dq"] = self.finish_dq(a).astype(given["q"].dtype)
        if "bias" in given:
            a.made["dbias"] = self.reduce_bias(a).astype(given["bias"].dtype)
        if "sinks" in given:
            a.made["dsinks"] = a.dsinks.astype(given["sinks"].dtype)

    def preprocess(self, a: Space, b: int, hk: int, r0: int) -> Space:
        t = self.rows(a, b, hk, r0)
        t.q, t.do = (self.load_rows(a, t, a.given[name]) for name in ("q", "dout"))
        t.lse = self.load_rows(a, t, a.made["lse"])[:, None]
        t.delta = self.delta(a, t)
        sink = self.sink(a, t)
        if sink is not None:
            self.add_dsinks(a, t, -self.exp(sink - self.finite(t.lse)) * t.delta)
        return t

    def delta(self, a: Space, t: Space) -> Array:
        delta = (t.do * self.load_rows(a, t, a.o)).sum(-1, keepdims=True)
        return delta - self.load_rows(a, t, a.given["dlse"])[:, None] if "dlse" in a.given else delta

    def add_dsinks(self, a: Space, t: Space, d: Array) -> None:
        np.add.at(a.dsinks, t.h, np.where(t.ok, d[:, 0], 0))

    def reaches(self, a: Space, t: Space, n: int) -> bool:
        return self.first_block(a, t) <= n < self.last_block(a, t)

    def backward_block(self, a: Space, b: int, hk: int, n: int, tiles: list[Space]) -> None:
        k, v = (self.load_keys(a, name, b, hk, n) for name in "kv")
        dk, dv = np.zeros_like(k), np.zeros_like(v)
        for t in tiles:
            s = self.scores(a, t, k, n)
            p = self.recomputed(a, t, s)
            dp = self.dp(a, t, t.do @ v.T, n)
            ds = np.where(np.isneginf(s), 0, p * (dp - t.delta))
            dv += self.weights(a, t, p, n).T @ t.do
            if "bias" in a.given:
                j = np.arange(n * self.BN, min((n + 1) * self.BN, a.case.Lk))
                a.dbias[b, t.h[t.ok][:, None], t.i[t.ok][:, None], j] = ds[t.ok, : len(j)]
            ds = self.bent(a, t, ds, k).astype(a.narrow).astype(a.acc)
            dk += self.dk(a, t, ds)
            self.add_dq(a, t, ds @ k)
        j = np.arange(n * self.BN, min((n + 1) * self.BN, int(a.k_lens[b])))
        a.made["dk"][self.index(a, b, hk, j)] = (dk * a.scale)[: len(j)]
        a.made["dv"][self.index(a, b, hk, j)] = (dv * a.acc(a.kept))[: len(j)]

    def recomputed(self, a: Space, t: Space, s: Array) -> Array:
        return self.exp(s - self.finite(t.lse))

    def dp(self, a: Space, t: Space, dp: Array, n: int) -> Array:
        return dp * self.keep(a, t, n) * a.acc(a.kept)

    def bent(self, a: Space, t: Space, ds: Array, k: Array) -> Array:
        """Through the softcap: 1 - tanh**2, written so that nothing cancels."""
        if a.softcap is None:
            return ds
        s = self.products(a, t.q, k) * a.scale
        return np.where(ds == 0, 0, ds / np.cosh(s / a.softcap) ** 2).astype(a.acc)

    def dk(self, a: Space, t: Space, ds: Array) -> Array:
        return ds.T @ t.q

    def add_dq(self, a: Space, t: Space, dq: Array) -> None:
        at = tuple(n[t.ok] if isinstance(n, np.ndarray) else n for n in self.where(a, t, a.dq.ndim))
        a.dq[at] += dq[t.ok]

    def finish_dq(self, a: Space) -> Array:
        return a.dq * a.scale

    def reduce_bias(self, a: Space) -> Array:
        return a.dbias.sum(tuple(d for d, n in enumerate(a.given["bias"].shape) if n == 1), keepdims=True)


def supports(case: Case) -> str | None:
    if case.rotary or case.score_mod:
        return "rotary" if case.rotary else "score_mod"
    if case.quant is not None and (case.quant.of != "kv" or case.quant.kind in ("q8_0", "q4_0")):
        return "quantised q" if case.quant.of != "kv" else "blocks of 32 along D"
    return None


def contract(case: Case) -> Precision:
    made = preset(case.dtype, case.out_dtype)
    return replace(made, weights_from_lse=True, source="the backward has only lse") if case.backward else made


def made(kernel: Kernel, name: str) -> Function:
    def attention(case: Case, given: Mapping[str, Any]) -> dict[str, Any]:
        return kernel(case, given)

    says = Conventions(masked_nan_v="leaks")
    return implementation(name, outputs=OUTPUTS, supports=supports, precision=contract, conventions=says)(attention)


attention = made(Kernel(), "fresh")
