"""Tiled attention (FlashAttention) is standard attention: exactly without rounding, within its bound with it.

Exact: with base 2 in place of e and integer scores all is rational.  The tiled kernel of
`refattn.streaming` runs with 2^x in float64 on integers so small that nothing is rounded before the
last division, with every tile size, order of tiles and number of splits, causal masks or none: each
output is the rational truth, from the definition by fractions, rounded once.  Bits, no tolerance.

Bounded: in float32 the standard form (one tile) and tiled ones stay within the derived interval of
`refattn.truth` on hard inputs (false-alarm rate 5e-15 for each of 5e5 elements).

Which is more accurate.  Rounding z costs a variance of ulp(z)² / 12.  A sum of n terms, one after the
other, rounds its partial sums: those of o walk at random, so that their squares add up to n²/2 squared
terms; those of l grow evenly, to n³/3.  Tiles of b keys start sums anew, b long and N/b across: the cost
of sums falls by b/N + 1/b for o, (b/N)² + 1/b for l, best near b = sqrt(N).  What scores and exponentials
cost stays, and rescaling adds some ln(N/b) changes of the maximum.  `predict` adds up the variance of
every rounding in the kernel, in float64, by tile size, and so predicts the ratio of rms errors: about
a third at tiles of 16 to 64, N = 1024.  It is short sums that win, and not tiles: with pairwise sums
(log2 N deep) the standard form is the more accurate one, as predicted too.  BLAS sums in an order of its
own, between the two; tiles of 64 and more win a little (OpenBLAS, N = 1024, D = Dv = 64, measured once:
0.77, 0.75, 0.91 at tiles of 16, 64, 256).

Decision: for each tile size the squared error of a row over its prediction has mean 1 and a variance
of at most 2 (that of one normal error); an e-process decides whether the mean is within 15 %
(--quick: 30 %) of 1, at any time, with a false-alarm rate of 1e-9 for all together; 6e3 (1.4e3) rows
do, at most thrice that are taken, for power above 0.99 against a mean 15 % (30 %) off.  The ratio of rms
errors must be within sqrt((1 + margin) / (1 - margin)) of the predicted one, more than 10 standard errors.

Source: Dao et al. 2022, "FlashAttention", section 3.1, algorithm 1 and theorem 1; Higham, "Accuracy and
Stability of Numerical Algorithms", 2nd ed., section 4.2, and Higham and Mary 2019 for summation.
Time: 40 s; --quick 4 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from refattn import inputs, streaming
from refattn.case import Case
from refattn.judge import ratios
from refattn.masks import Causal, Visibility
from refattn.montecarlo import ALPHA, Decision, Finding, Mean, Run, Variance, exact, main, within
from refattn.mutants import MUTANTS
from refattn.precision import preset
from refattn.streaming import Rules, Schedule, Streaming
from refattn.truth import truth

Array = np.ndarray[Any, Any]

WORLDS = {
    "missing_rescale": "o is not rescaled when the maximum grows",
    "bf16_accumulator": "o is kept in bfloat16 between tiles",
}
STATISTICS = 8  # e-processes; more than there are
D, Dv = 16, 4


def rules(run: Run, *changes: type[Rules]) -> type[Rules]:
    """The kernel's rules in the run's world, with changes that are no fault: other arithmetic."""
    world = MUTANTS[run.world].implementation.rules if run.world in MUTANTS else Rules
    return type("Kernel", (*changes, world), {})


class Base2(Rules):
    """2^(x - shift), exactly, for integers and -inf."""

    def exp(self, x: Array, shift: Array) -> Array:
        y = x - shift
        finite = np.isfinite(y)
        return np.where(finite, np.ldexp(1.0, np.where(finite, y, 0).astype(int)), 0.0)


class Sequential(Rules):
    """Sums one term after the other, in each tile from 0: what BLAS does in an order of its own."""

    def products(self, q: Array, k: Array, scale: float) -> Array:
        s = np.zeros((len(q), len(k)), self.dtype)
        for a, b in zip(q.T, k.T, strict=True):
            s += a[:, None] * b
        return s * self.dtype.type(scale)

    def weigh(self, p: Array, v: Array, visible: Array | None, kept: Array | None = None) -> tuple[Array, Array]:
        total, o = np.zeros(len(p), self.dtype), np.zeros((len(p), v.shape[1]), self.dtype)
        for j, weight in enumerate(p.T):
            total += weight
            o += weight[:, None] * v[j]
        return total, o


class Pairwise(Sequential):
    """The weights' sums as a binary tree; a power of 2 of keys."""

    def weigh(self, p: Array, v: Array, visible: Array | None, kept: Array | None = None) -> tuple[Array, Array]:
        o = p[:, :, None] * v
        while p.shape[1] > 1:
            p, o = p[:, ::2] + p[:, 1::2], o[:, ::2] + o[:, 1::2]
        return p[:, 0], o[:, 0]


# exactly


def rational(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """softmax in base 2 of q kᵀ, times v, as fractions, each rounded once to float64."""
    s = (q @ k.T).astype(int)
    out = np.zeros((len(q), v.shape[1]))
    for i, keys in enumerate(map(np.flatnonzero, seen)):
        weights = [Fraction(2) ** int(s[i, j]) for j in keys]
        for e in range(v.shape[1]):
            o = sum((w * int(v[j, e]) for w, j in zip(weights, keys, strict=True)), Fraction(0))
            out[i, e] = float(o / sum(weights)) if weights else 0.0
    return out


def exactly(run: Run) -> Iterator[Finding]:
    Lq, Lk = 7, 12
    rng = run.rng("exactly")
    standard = tiled = calls = 0
    exact64 = replace(preset("float64"), tile=1)
    problems = run.budget(20, 3)
    for _ in run.batches(problems, 1):
        q, k = (rng.integers(-2, 3, (n, 4)).astype(float) for n in (Lq, Lk))  # |s| <= 16: 32 + 8 bits
        v = rng.integers(-9, 10, (Lk, 3)).astype(float)
        for mask in (None, Causal("bottom_right"), Causal("top_left")):
            seen = Visibility(mask, 1, 1, Lq, Lk).tile(b=0, h=0)
            true = rational(q, k, v, seen)
            for tile, order, splits in product(range(1, Lk + 1), ("forward", "reverse", "random"), (1, 2, 3)):
                schedule = Schedule(4, tile, order, splits, seed=int(rng.integers(1000)))  # type: ignore[arg-type]
                arguments = (x[None, None] for x in (q, k, v))
                got = streaming.attention(
                    *arguments, mask=mask, scale=1.0, precision=exact64, schedule=schedule, rules=rules(run, Base2)
                )
                wrong = int((got.out[0, 0] != true).sum())
                standard, tiled = (standard + wrong, tiled) if tile == Lk else (standard, tiled + wrong)
                calls += 1
    yield exact(f"base 2: outputs not the rational truth, standard, of {calls // Lk * true.size}", standard, 0)
    yield exact(f"base 2: outputs not the rational truth, tiled, of {calls * (Lk - 1) // Lk * true.size}", tiled, 0)


# within the bound


def bounded(run: Run) -> Iterator[Finding]:
    families = ("normal", "peaked", "rising", "cancelling_v") if run.quick else sorted(
        set(inputs.FAMILIES) - {"poisoned", "poisoned_pairs"}
    )  # fmt: skip
    schedules = [Schedule(64, 192), Schedule(64, 16), Schedule(64, 64, "reverse"), Schedule(64, 32, "random", 3)]
    largest, elements = np.zeros(len(schedules)), 0
    for family, mask in product(families, (None, Causal("bottom_right"))):
        run.tick(f"bound, {family}")
        seed = int(run.rng(f"bounded {family}").integers(1 << 31))
        sizes = {"H": 2, "Hkv": 2, "Lq": 70, "Lk": 192, "D": 32, "Dv": 24}
        case = Case("flash", "", family=family, seed=seed, mask=mask, **sizes)  # type: ignore[arg-type]
        problem = inputs.make(case)
        expected = truth(problem, preset("float32"))
        for i, schedule in enumerate(schedules):
            answer = Streaming(rules=rules(run), schedule=schedule)(case, problem.fresh())
            for name, e in expected.items():
                ratio = ratios(answer[name].astype(float), e.value, e.lo, e.hi)
                largest[i] = np.maximum(largest[i], ratio.max())
                elements += ratio.size
    what = f"float32, {len(families)} families: largest error in bounds,"
    for name, x in (("standard", largest[0]), ("tiled", largest[1:].max())):
        yield within(f"{what} {name}", float(x), 0.0, 1.0, samples=elements // len(schedules))


# how much


def variance(z: Array) -> Array:
    """ulp(z)² / 12, of float32: the variance of rounding z; 0 for 0."""
    power = (z.astype(np.float32).view(np.int32) & 0x7F800000).view(np.float32).astype(np.float64)
    return power * power * (2.0**-46 / 12)


def added(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b, and the variance of rounding it: bits that both terms lack are never lost.

    With n bits below the last, all values equally likely, it is ulp² / 12 (1 + 2 / 4^n), and 0 for n <= 0.
    """
    z = a + b
    places = exponent(z) - np.minimum(exponent(a), exponent(b))
    lost = np.where((places > 0) & (a != 0) & (b != 0), 1 + 2 * 0.25 ** np.maximum(places, 1), 0.0)
    return z, variance(z) * lost


def exponent(z: Array) -> Array:
    return (z.astype(np.float32).view(np.int32) >> 23) & 0xFF


def scores(q: Array, k: Array) -> tuple[Array, Array]:
    """Exact scores, and the variance of sequential float32 ones; scale = D**-0.5 a power of 2."""
    s, V = np.zeros((2, len(q), len(k)))
    for a, b in zip(q.T, k.T, strict=True):
        term = a[:, None] * b
        s, V_sum = added(s, term)
        V += variance(term) + V_sum
    return s * q.shape[1] ** -0.5, V / q.shape[1]


def summed(x: Array, pairwise: bool) -> tuple[Array, Array]:
    """Sum along axis 1, and the variance of its roundings."""
    if not pairwise:
        partial = x.cumsum(1)
        return partial[:, -1], added(partial[:, :-1], x[:, 1:])[1].sum(1)
    V = np.zeros_like(x[:, 0])
    while x.shape[1] > 1:
        x, V_sum = added(x[:, ::2], x[:, 1::2])
        V = V + V_sum.sum(1)
    return x[:, 0], V


def predict(s: Array, V_s: Array, v: Array, tile: int, pairwise: bool = False) -> tuple[Array, Array]:
    """Exact out, and the variance of the tiled kernel's float32 out: every rounding once, at its place.

    Roundings of sums stay with l and o; those of weights and of factors exp(m_old - m) change l and o
    alike: a relative error e of the keys J moves out by e sum_J p_j (v_j - out).
    """
    rows, keys = s.shape
    m, total, V_total = np.full(rows, -np.inf), np.zeros(rows), np.zeros(rows)
    o, V_o = np.zeros((2, rows, v.shape[1]))
    V_weight = np.zeros_like(s)
    factors = []
    for j in range(0, keys, tile):
        part = slice(j, j + tile)
        new = np.maximum(m, s[:, part].max(1))
        keep = np.exp(m - new)
        raised = (new > m) & (j > 0)
        w = np.exp(s[:, part] - new[:, None])
        V_shift = added(s[:, part], -new[:, None])[1]
        V_weight[:, part] = V_s[:, part] + V_shift + (w < 1) * variance(w) / w**2
        products = w[:, :, None] * v[part]
        sums, V_sums = summed(w, pairwise)
        more, V_more = summed(products, pairwise)
        total, o = total * keep, o * keep[:, None]
        V_total = V_total * keep**2 + raised * variance(total) + V_sums
        V_o = V_o * keep[:, None] ** 2 + raised[:, None] * variance(o) + V_more + variance(products).sum(1)
        if j:
            V_factor = raised * (variance(keep) / keep**2 + added(m, -new)[1])
            factors.append((new, total, o, V_factor))
        (total, V_sum), (o, V_add) = added(total, sums), added(o, more)
        V_total, V_o, m = V_total + V_sum, V_o + V_add, new
    out = o / total[:, None]
    V = (V_o + out**2 * V_total[:, None]) / total[:, None] ** 2 + variance(out)
    A = (np.exp(s - m[:, None]) / total[:, None]) ** 2 * V_weight
    V += A @ (v * v) - 2 * out * (A @ v) + out**2 * A.sum(1, keepdims=True)
    for at, before, o_before, V_factor in factors:
        share = np.exp(at - m) / total
        V += V_factor[:, None] * (share[:, None] * (o_before - out * before[:, None])) ** 2
    return out, V


def measured(run: Run, q: Array, k: Array, v: Array, tile: int, kind: type[Rules] | None) -> Array:
    """The float32 kernel's out."""
    precision, schedule = replace(preset("float32"), tile=1), Schedule(len(q), tile)
    given = (x[None, None].astype(np.float32) for x in (q, k, v))
    kernel = rules(run) if kind is None else rules(run, kind)
    return streaming.attention(*given, precision=precision, schedule=schedule, rules=kernel).out[0, 0].astype(float)


def draw(rng: np.random.Generator, rows: int, keys: int) -> tuple[Array, Array, Array]:
    """q, k, v of N(0, 1), float32 numbers in float64."""
    sizes = ((rows, D), (keys, D), (keys, Dv))
    q, k, v = (rng.standard_normal(size, dtype=np.float32).astype(np.float64) for size in sizes)
    return q, k, v


def compared(run: Run) -> Iterator[Finding]:
    N, most = 512 if run.quick else 1024, run.budget(18_000, 4000)
    margin = 0.3 if run.quick else 0.15
    kinds = [(False, tile) for tile in (N, 16, 64, 256)] + [(True, N), (True, 16)]
    if not run.quick:
        kinds.append((False, 1))
    tests = {kind: Mean(1.0, margin, Variance(2.0), ALPHA / STATISTICS) for kind in kinds}
    squares = {kind: np.zeros(2) for kind in kinds}  # measured, predicted
    rng = run.rng("compared")
    for rows in run.batches(most, 200):
        q, k, v = draw(rng, rows, N)
        s, V_s = scores(q, k)
        for pairwise, tile in kinds:
            true, V = predict(s, V_s, v, tile, pairwise)
            error = measured(run, q, k, v, tile, Pairwise if pairwise else Sequential) - true
            tests[pairwise, tile].update((error**2).sum(1) / V.sum(1))
            squares[pairwise, tile] += (error**2).sum(), V.sum()
        if all(test.decision is not Decision.UNDECIDED for test in tests.values()):
            break
    for (pairwise, tile), test in tests.items():
        name = f"{'pairwise' if pairwise else 'sequential'} sums, {f'tile {tile}' if tile < N else 'standard'}"
        rows = test.moments.count
        yield Finding(f"{name}: square error over prediction", test.moments.mean, 1.0, test.decision, rows)
    known = all(test.decision is not Decision.UNDECIDED for test in tests.values())
    for finding in _ratios(squares, N, math.sqrt((1 + margin) / (1 - margin)), rows):
        yield finding if known else replace(finding, decision=Decision.UNDECIDED)


def _ratios(squares: dict[tuple[bool, int], Array], N: int, slack: float, rows: int) -> Iterator[Finding]:
    """What tiles make of the rms error, from (measured, predicted) sums of squares by (pairwise, tile)."""
    ratio = {(pairwise, tile): np.sqrt(both / squares[pairwise, N]) for (pairwise, tile), both in squares.items()}
    for (pairwise, tile), (got, predicted) in ratio.items():
        if tile < N:
            name = f"{'pairwise' if pairwise else 'sequential'} sums, tile {tile}: rms error over the standard form's"
            yield within(name, float(got), float(predicted / slack), float(predicted * slack), samples=rows)
    yield within("sequential sums: tiles of 64 are more accurate, ratio", float(ratio[False, 64][0]), 0.0, 1.0)
    yield within("pairwise sums: tiles of 16 are less accurate, ratio", float(ratio[True, 16][0]), 1.0, math.inf)


def prove(run: Run) -> Iterator[Finding]:
    yield from exactly(run)
    yield from bounded(run)
    yield from compared(run)


def picture(figure: Any, run: Run) -> None:
    """The ratio of rms errors against the size of the tiles: predicted lines, measured dots."""
    axes = figure.subplots()
    N, batches = 1024, 3
    tiles = [2**i for i in range(11)]
    kinds = {"sequential sums": (Sequential, "C0"), "pairwise sums": (Pairwise, "C3"), "BLAS": (None, "C2")}
    squares = {name: np.zeros((2, len(tiles))) for name in kinds}
    rng = run.rng("picture")
    for _ in range(batches):
        q, k, v = draw(rng, 200, N)
        s, V_s = scores(q, k)
        for (name, (kind, _)), (i, tile) in product(kinds.items(), enumerate(tiles)):
            true, V = predict(s, V_s, v, tile, kind is Pairwise)
            squares[name][:, i] += ((measured(run, q, k, v, tile, kind) - true) ** 2).sum(), V.sum()
    for name, (kind, color) in kinds.items():
        got, predicted = np.sqrt(squares[name] / squares[name][:, -1:])
        if kind is not None:
            axes.plot(tiles, predicted, color=color, label=f"{name}, predicted")
        axes.plot(tiles, got, "o" if kind else "s--", color=color, label=f"{name}, measured", linewidth=1)
    axes.axhline(1, color="k", linewidth=0.8)
    axes.text(1, 1.03, "the standard form", fontsize=9)
    axes.set(xscale="log", yscale="log", xlabel="keys in a tile", ylabel="rms error / the standard form's")
    axes.set_xticks(tiles, [str(t) for t in tiles])
    axes.set_yticks([0.25, 0.5, 1, 2, 4, 8], ["1/4", "1/2", "1", "2", "4", "8"])
    axes.minorticks_off()
    axes.set_title("Tiles cut long sums short: float32, N = 1024 keys, D = 16")
    axes.legend()


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
