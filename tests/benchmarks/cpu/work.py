"""What is measured: one attention problem, its inputs, and whether an answer is attention at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from refattn.dtypes import FORMATS

Array = np.ndarray[Any, Any]
FLOPS = {"forward": 1.0, "backward": 2.5, "both": 3.5}
"""products, in those of a forward: it has 2, the backward 5"""
CLOSE = {"float64": 1e-11, "float32": 1e-4, "bfloat16": 5e-2}
"""errors on normal inputs that only something else than attention has"""


@dataclass(frozen=True)
class Work:
    """One problem: H heads of queries and Hkv of keys, Lq x N, D columns; causal is from the top left."""

    direction: Literal["forward", "backward", "both"]
    dtype: str
    causal: bool
    N: int
    D: int
    B: int = 1
    H: int = 8
    Hkv: int = 8
    Lq: int = 0  # 0: N

    @property
    def rows(self) -> int:
        return self.Lq or self.N

    @property
    def flops(self) -> float:
        """4 B H Lq N D for a forward, half of it when causal."""
        return FLOPS[self.direction] * 4 * self.B * self.H * self.rows * self.N * self.D / (2 if self.causal else 1)

    def __str__(self) -> str:
        kind = "decode" if self.Lq == 1 else self.direction
        heads = f"H={self.H}" if self.Hkv == self.H else f"H={self.H}/{self.Hkv}"
        return f"{kind} {self.dtype}{' causal' * self.causal} {heads} N={self.N} D={self.D}"


class Inputs(NamedTuple):
    q: Array
    k: Array
    v: Array
    dout: Array


def cores() -> int:
    """How many this process may use; every implementation gets as many threads."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def inputs(work: Work) -> Inputs:
    """Normal numbers, in the dtype of `work`; the same arrays for the next work of that size."""
    return _drawn((work.B, work.H, work.rows, work.D), (work.B, work.Hkv, work.N, work.D), work.dtype)


@lru_cache(maxsize=1)
def _drawn(queries: tuple[int, ...], keys: tuple[int, ...], dtype: str) -> Inputs:
    rng = np.random.default_rng(0)
    drawn = (rng.standard_normal(shape, np.float32) for shape in (queries, keys, keys, queries))
    return Inputs(*(x.astype(FORMATS[dtype].dtype) for x in drawn))


def agree(work: Work, x: Inputs, answer: Array) -> None:
    """Rows of the last head, first, middle and last, by definition: out, or dq."""
    if answer.shape != x.q.shape:
        raise ValueError(f"the answer has shape {answer.shape} instead of {x.q.shape}")
    k, v = (np.asarray(a[-1, -1], np.float64) for a in (x.k, x.v))
    for i in {0, work.rows // 2, work.rows - 1}:
        q, dout = (np.asarray(a[-1, -1, i], np.float64) for a in (x.q, x.dout))
        seen = i + 1 if work.causal else work.N
        s = k[:seen] @ q / np.sqrt(work.D)
        p = np.exp(s - s.max())
        p /= p.sum()
        wanted = p @ v[:seen]
        if work.direction != "forward":
            wanted = (p * (v[:seen] @ dout - wanted @ dout)) @ k[:seen] / np.sqrt(work.D)
        error = float(np.abs(np.asarray(answer[-1, -1, i], np.float64) - wanted).max())
        if not error <= CLOSE[work.dtype]:
            raise ValueError(f"row {i} is off by {error:.1e}, more than {CLOSE[work.dtype]:.0e}")
