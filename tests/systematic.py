"""Kernels with a small systematic error, and honest problems on which the aggregate statistics must say nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from refattn import honest, online, streaming
from refattn.case import Case
from refattn.dtypes import FORMATS, round_to
from refattn.honest import Trial
from refattn.inputs import Problem, make
from refattn.masks import Causal, Mask, Window
from refattn.online import State
from refattn.precision import Precision, eager, preset
from refattn.streaming import Rules, Schedule

Array = np.ndarray[Any, Any]

TILES = Schedule(tile_q=256, tile_k=64, exp="exp2")
SPLITS = replace(TILES, splits=4)
SCHEDULES = (
    TILES,
    Schedule(tile_q=32, tile_k=16, order="reverse", exp="numpy"),
    Schedule(tile_q=64, tile_k=48, order="random", splits=3, seed=1),
)


def toward_zero(x: Array, name: str) -> Array:
    """float64 cut to the format, normal numbers only."""
    _, e = np.frexp(x)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(x, FORMATS[name].bits - e)), e - FORMATS[name].bits))


class Truncated(Rules):
    """out is cut to its format, not rounded."""

    def store(self, x: Array, name: str) -> Array:
        return super().store(toward_zero(np.asarray(x, np.float64), name), name)


class Upward(Rules):
    """out is rounded up."""

    def store(self, x: Array, name: str) -> Array:
        x = np.asarray(x, np.float64)
        _, e = np.frexp(x)
        return super().store(np.ldexp(np.ceil(np.ldexp(x, FORMATS[name].bits - e)), e - FORMATS[name].bits), name)


def scaled(error: float) -> type[Rules]:
    class Scaled(Rules):
        """The scale is off by a little."""

        def products(self, q: Array, k: Array, scale: float) -> Array:
            return super().products(q, k, scale * (1 + error))

    return Scaled


def grown(error: float) -> type[Rules]:
    class Grown(Rules):
        """out is too large by a little."""

        def store(self, x: Array, name: str) -> Array:
            return super().store(np.asarray(x, np.float64) * (1 + error), name)

    return Grown


class TileIn16Bits(Rules):
    """The running output is kept in bfloat16 from tile to tile."""

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        after = super().update(state, t, v, visible, kept)
        return after._replace(o=self.round(after.o, "bfloat16"))


class MergeIn16Bits(Rules):
    """The output of each split is stored in bfloat16 before they are merged."""

    def merge(self, a: State, b: State) -> State:
        return super().merge(self._stored(a), self._stored(b))

    def _stored(self, s: State) -> State:
        return s._replace(o=self.round(s.o / s.l[:, None], "bfloat16") * s.l[:, None])


class ScoresIn16Bits(Rules):
    """Scores are stored in bfloat16."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return self.round(super().products(q, k, scale), "bfloat16")


class TensorCores(Rules):
    """Honest: products are added 16 at a time, and each sum is cut to float32, as tensor cores do."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        return _in_steps(q, k.T, np.zeros((len(q), len(k)), np.float32)) * np.float32(scale)

    def update(
        self, state: State, t: Array, v: Array, visible: Array | None, kept: Array | None = None
    ) -> State:  # fmt: skip
        m = np.maximum(state.m, t.max(-1))
        keep, p = self.exp(state.m, online.shift_of(m)), self.exp(t, online.shift_of(m)[:, None])
        o = _in_steps(self.round(p, self.precision.weights), v, state.o * keep[:, None])
        return State(m, state.l * keep + p.sum(-1), o)


def _in_steps(a: Array, b: Array, total: Array) -> Array:
    for k in range(0, a.shape[1], 16):
        total = toward_zero(total.astype(np.float64) + a[:, k : k + 16].astype(np.float64) @ b[k : k + 16], "float32")
    return total.astype(np.float32)


def normal(dtype: str, Lq: int = 256, Lk: int = 4096, seed: int = 0, D: int = 64, **fields: Any) -> Problem:
    """One head of normal inputs."""
    sizes = {"Lq": Lq, "Lk": Lk, "D": D, "Dv": D, "dtype": dtype, "family": "normal"}
    return make(Case("normal", "statistics", seed=seed, want=frozenset({"out", "lse"}), **(sizes | fields)))


def kernel(
    p: Problem, rules: type[Rules] = Rules, schedule: Schedule = TILES, precision: Precision | None = None,
    without: int | None = None,
) -> Array:  # fmt: skip
    """out of a problem without features; `without` that key."""
    x, contract = p.logical, precision or preset(p.case.dtype, p.case.out_dtype)
    mask = None
    if without is not None:
        mask = np.ones((1, 1, 1, p.case.Lk), dtype=bool)
        mask[..., without] = False
    found = streaming.attention(
        x["q"], x["k"], x["v"], mask=mask, precision=contract, rules=rules, schedule=schedule
    )  # fmt: skip
    return np.asarray(found.out, dtype=np.float64)


def drawn(rng: np.random.Generator) -> Iterator[Trial]:
    """Random trials as `honest` draws them, but of 60 to 260 rows and 64 to 1000 keys, and out alone."""
    dtypes = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
    while True:
        trial = honest.draw(rng, dtypes[rng.choice(5, p=[0.25, 0.3, 0.3, 0.1, 0.05])])
        H = int(rng.choice([1, 2]))
        sizes = {
            "B": int(rng.choice([1, 2])), "H": H, "Hkv": int(rng.choice([1, H])), "Lq": int(rng.integers(60, 260)),
            "Lk": int(rng.choice([64, 130, 300, 500, 1000])), "D": int(rng.choice([16, 32, 64])),
            "Dv": int(rng.choice([4, 16, 32, 64])),
        }  # fmt: skip
        plain = dict.fromkeys(("rotary", "quant", "dropout", "score_mod"))
        try:
            problem = make(replace(trial.problem.case, want=frozenset({"out"}), **sizes, **plain))
        except ValueError:  # beyond the range of the dtype
            continue
        if trial.precision.scaled_q is None:
            schedule = replace(trial.schedule, tile_q=max(trial.schedule.tile_q, 16))
            yield Trial(problem, trial.contract, trial.precision, schedule)


def awkward(rng: np.random.Generator, dtype: str, n: int, N: int, D: int = 32) -> Iterator[tuple[str, Trial]]:
    """Honest trials on inputs in which something repeats, or is far from normal; by name."""
    for name, q, k, v, mask in _inputs(rng, n, N, D):
        arrays = (round_to(x, dtype).astype(FORMATS[dtype].numpy)[None, None] for x in (q, k, v))
        case = Case("awkward", name, Lq=n, Lk=N, D=D, Dv=D, dtype=dtype, mask=mask, want=frozenset({"out"}))
        problem = Problem(case, dict(zip("qkv", arrays, strict=True)))
        for contract in (preset(dtype), eager(dtype)) if FORMATS[dtype].bits <= 11 else (preset(dtype),):
            for schedule in (*SCHEDULES, Schedule(tile_q=n, tile_k=N)):
                yield name, Trial(problem, "eager" if contract.scores else "preset", contract, schedule)


def _inputs(rng: np.random.Generator, n: int, N: int, D: int) -> Iterator[tuple[str, Array, Array, Array, Mask | None]]:
    def g(*shape: int) -> Array:
        return np.asarray(rng.standard_normal(shape))

    def few(least: int, most: int, *shape: int) -> Array:
        return rng.integers(least, most, shape).astype(np.float64)

    q, k, v = g(n, D), g(N, D), g(N, D)
    tokens = rng.integers(0, 50, N)
    queries, words = g(50, D)[tokens[-n:]], g(50, D)[tokens]
    last = Causal("bottom_right")
    yield "integers", few(-2, 3, n, D), few(-2, 3, N, D), few(-3, 4, N, D), None
    narrow = np.r_[np.ones(4), np.zeros(D - 4)]
    yield "integers in four columns", few(-2, 3, n, D) * narrow * 2, few(-2, 3, N, D) * narrow, v, None
    yield "tokens repeated", queries, words, v, last
    yield "tokens and values repeated", queries, words, g(50, D)[tokens], last
    yield "queries repeated", queries, k, v, last
    yield "queries nearly alike", q[:1] + 0.02 * q, k, v, None
    yield "queries rather alike", q[:1] + 0.2 * q, k, v, None
    yield "queries on a line", q[:1] * np.abs(q[:, :1]), k, v, None
    yield "values about 3", q, k, v + 3, None
    yield "flat, values about 3", q * 0.3, k, 0.1 * v + 3, None
    yield "keys about 2", q, k + 2, v, None
    yield "outliers in k", q, np.where(rng.random(k.shape) < 0.01, k * 10, k), v, None
    yield "outliers in v", q, k, np.where(rng.random(v.shape) < 0.003, v * 50, v), None
    yield "values of rank 2", q, k, g(N, 2) @ g(2, D), None
    yield "values are keys", q, k, k.copy(), None
    yield "queries are keys", k[:n], k, v, None
    yield "all positive", np.abs(q), np.abs(k), np.abs(v), None
    yield "values sorted", q, k, np.sort(v, 0), None
    yield "values of keys", q, k, k @ g(D, D) * 0.3, None
    yield "values one hot", q, k, np.eye(D)[rng.integers(0, D, N)], None
    yield "values of 1 and -1", q, k, np.sign(v), None
    yield "wide scores", q * 3, k, v, None
    yield "a short window", q, k, v, Window(40, 0, "bottom_right")
    distance = -np.arange(N)[::-1] / 64
    yield "falling with distance", np.c_[q[:, 1:] * 0.05, np.full(n, 8.0)], np.c_[k[:, 1:] * 0.05, distance], v, None
