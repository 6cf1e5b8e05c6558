"""The online softmax state (m, l, o) is a commutative monoid, so keys may be cut and ordered at will.

Setting: a set of keys with scores s_j and values v_j has the state m = max s_j, l = sum exp(s_j - m),
o = sum exp(s_j - m) v_j, and disjoint sets merge by m = max(m1, m2), l = l1 exp(m1 - m) + l2 exp(m2 - m),
o likewise; identity (-inf, 0, 0).

Derivation: phi(m, l, o) = (m, l e^m, o e^m) is one-to-one on states and carries merge to (max, +, +), a
commutative monoid.  Nothing here needs e: in base 2 with integer scores all is rational, and the laws,
and every tree over every order against the definition, are checked exactly, by fractions and by
`refattn.online.merge` itself, on dyadic numbers that float64 holds without rounding.

Rounding: with unit roundoff u and exp within eps, a key below c_j merges that raised its maximum and
a_j that added to it keeps exp(s_j - m) up to a factor exp(+-E_j),

    E_j = c_j (lambda(eps) + lambda(u)) + a_j lambda(u) + u (m - s_j),   lambda(x) = -log(1 - x),

for a subtraction rounds by u |m1 - m| and these telescope.  So |error of l| <= sum_j p_j expm1(E_j), of
o with p_j |v_j|, whatever the tree: checked on random trees in float32 and bfloat16.  Commutativity
and the identity hold bit for bit, associativity does not.

The rescaling itself, merging with a part that brings a maximum and no sum, is exact where the maximum
stays (exp(0) = 1); a small rise costs the roundings of exp near 1 (u²/12) and of the product (u²/3
E x^-2 = u² / (8 ln 2) for a significand x of Benford's law).  So its error grows with the number C of
maximum changes, as sqrt(0.2637 C) u when they vary (slope 1/2), as C when they are equal (the same
rounding each time: slope 1), and with N not at all.  Keys in random order have H_N - 1 changes, about
ln N.  The additions' own error, which every sum of N terms has, is apart.

Decision: counts are exact, bounds hold always.  With e the rescaling error after C changes, e² / (0.2637
C u²) has mean 1 and a variance of at most 2.3; an e-process decides whether the mean is within 5 %
(--quick: 20 %) of 1, at any time, with a false-alarm rate of 1e-9 for all statistics together; 5e4 (4e3)
samples do, at most thrice that are taken, for power above 0.99 against a mean 5 % (20 %) off.  The number
of changes likewise, within 0.03 (0.1).  The slope within 6.5 standard errors (1e-10).

Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", section 3;
Dao et al. 2022, "FlashAttention", section 3.1.
Time: 6 s; --quick 2 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from refattn import online
from refattn.dtypes import FORMATS, round_to
from refattn.montecarlo import ALPHA, Decision, Finding, Mean, Run, Variance, exact, main, within
from refattn.online import State

Array = np.ndarray[Any, Any]
Exp = Callable[[Array, Array], Array]
Rational = tuple[int | None, Fraction, Fraction]
T = TypeVar("T")

WORLDS = {
    "forgets": "merge does not rescale o when the maximum grows",
    "one_sided": "merge rescales the o of its second argument alone",
    "unguarded": "merge without a guard: exp(-inf - -inf) where both sides are empty",
}
STATISTICS = 8  # Means; more than there are
EMPTY: Rational = (None, Fraction(0), Fraction(0))
U = FORMATS["float32"].u
EXP = {"float32": 4 * U, "bfloat16": FORMATS["bfloat16"].u + 8 * U}
"""relative error of NumPy's exp: in float32 as `refattn.precision` has it, in bfloat16 that one rounded"""
PER_CHANGE = 1 / 12 + 1 / (8 * math.log(2))
"""variance of the relative error of one small rescaling, in u²"""
STEP = 2.0**-9 + 15 * 2.0**-20
BIAS = (math.log(float(np.float32(math.exp(-STEP)))) + STEP) / U
"""a step whose multiples are exact and whose exp rounds badly, and its error in u"""


def merge(run: Run, a: State, b: State, exp: Exp = online.shifted_exp) -> State:
    """The kernel under test, in the run's world."""
    if run.world == "unguarded":
        m = np.maximum(a.m, b.m)
        x, y = exp(a.m, m), exp(b.m, m)
        return State(m, a.l * x + b.l * y, a.o * x[..., None] + b.o * y[..., None])
    merged = online.merge(a, b, exp)
    if run.world == "one_sided":
        return merged._replace(o=a.o + b.o * exp(b.m, merged.m)[..., None])
    return merged._replace(o=a.o + b.o) if run.world == "forgets" else merged


def join(run: Run, a: Rational, b: Rational) -> Rational:
    """Merge in rational numbers, base 2."""
    (m1, l1, o1), (m2, l2, o2) = a, b
    if m1 is None or m2 is None:
        return b if m1 is None else a
    m = max(m1, m2)
    x, y = Fraction(2) ** (m1 - m), Fraction(2) ** (m2 - m)
    if run.world in ("forgets", "one_sided"):
        return m, l1 * x + l2 * y, o1 + (o2 if run.world == "forgets" else o2 * y)
    return m, l1 * x + l2 * y, o1 * x + o2 * y


def definition(keys: Sequence[Rational]) -> Rational:
    """The state of single keys, from its formula."""
    seen = [(m, v) for m, _, v in keys if m is not None]
    if not seen:
        return EMPTY
    top = max(m for m, _ in seen)
    weights = [Fraction(2) ** (m - top) for m, _ in seen]
    o = sum((w * v for w, (_, v) in zip(weights, seen, strict=True)), Fraction(0))
    return top, sum(weights, Fraction(0)), o


def tree(parts: Sequence[T], rng: np.random.Generator, merged: Callable[[T, T], T]) -> T:
    """All parts merged, two at a time, drawn at random: any order, any tree."""
    left = list(parts)
    while len(left) > 1:
        a = left.pop(int(rng.integers(len(left))))
        i = int(rng.integers(len(left)))
        left[i] = merged(a, left[i])
    return left[0]


def key(rng: np.random.Generator, reach: int, denominator: int) -> Rational:
    """A single key, or nothing (a hidden one) now and then."""
    if rng.random() < 0.15:
        return EMPTY
    return int(rng.integers(-reach, reach + 1)), Fraction(1), Fraction(int(rng.integers(-99, 100)), denominator)


def phi(a: Rational) -> Array:
    """(l 2^m, o 2^m), which add."""
    return np.array(a[1:]) * Fraction(2) ** (a[0] or 0)


def rational(run: Run) -> Iterator[Finding]:
    n = run.budget(5000, 600)
    rng = run.rng("rational")
    wrong = dict.fromkeys(("do not commute", "do not associate", "have no identity", "phi does not carry to sums"), 0)
    for _ in range(n):
        a, b, c = (key(rng, 300, 97) for _ in range(3))
        ab = join(run, a, b)
        wrong["do not commute"] += ab != join(run, b, a)
        wrong["do not associate"] += join(run, ab, c) != join(run, a, join(run, b, c))
        wrong["have no identity"] += not join(run, a, EMPTY) == a == join(run, EMPTY, a)
        wrong["phi does not carry to sums"] += bool((phi(ab) != phi(a) + phi(b)).any())
    for law, count in wrong.items():
        yield exact(f"rational states that {law}, of {n} triples", count, 0)
    differ = dyadics = 0
    for _ in range(n):
        keys = [key(rng, 300, 97) for _ in range(int(rng.integers(1, 10)))]
        differ += tree(keys, rng, lambda a, b: join(run, a, b)) != definition(keys)
        keys = [key(rng, 8, 1) for _ in range(int(rng.integers(1, 10)))]
        found = tree([dyadic(x) for x in keys], rng, lambda a, b: merge(run, a, b, power))
        dyadics += int(different(found, dyadic(definition(keys))).any())
    yield exact(f"rational trees that differ from the definition, of {n}", differ, 0)
    yield exact(f"trees of refattn.online.merge on dyadics that differ, of {n}", dyadics, 0)


def power(x: Array, shift: Array) -> Array:
    """2^(x - shift), exactly, for integers and -inf."""
    with np.errstate(invalid="ignore"):
        y = x - shift
    finite = np.isfinite(y)
    return np.where(finite, np.ldexp(1.0, np.where(finite, y, 0).astype(int)), np.where(np.isnan(y), np.nan, 0.0))


def dyadic(a: Rational) -> State:
    """The state in float64, which holds dyadic numbers of this size exactly."""
    m, total, o = a
    return State(np.array([-np.inf if m is None else m]), np.array([float(total)]), np.array([[float(o)]]))


def different(a: State, b: State) -> Array:
    """Rows whose bits differ (a NaN always does)."""
    return (a.m != b.m) | (a.l != b.l) | (a.o != b.o).any(-1)


class Leaves:
    """Keys of many rows at once, as states, and what a tree did to each: for the bound."""

    def __init__(self, rng: np.random.Generator, rows: int, keys: int, dtype: str) -> None:
        s, v = rng.standard_normal((2, rows, keys))
        seen = rng.random((rows, keys)) > 0.1
        s = np.where(seen, np.clip(rng.choice([0.5, 3.0, 12.0], (rows, 1)) * s, -40, 40), -np.inf)
        self.s, self.v = round_to(s, dtype), np.where(seen, round_to(v, dtype), 0.0)
        m, total, o = (x.astype(FORMATS[dtype].dtype) for x in (self.s, seen, self.v))
        self.parts = [(State(m[:, j], total[:, j], o[:, j, None]), [j]) for j in range(keys)]
        self.raised, self.added = np.zeros((2, rows, keys))

    def merge(self, run: Run, a: tuple[State, list[int]], b: tuple[State, list[int]]) -> tuple[State, list[int]]:
        for (x, keys), (y, _) in ((a, b), (b, a)):
            mx, my = x.m.astype(float), y.m.astype(float)
            self.raised[:, keys] += (my > mx)[:, None]
            self.added[:, keys] += (np.isfinite(my) & np.isfinite(mx))[:, None]
        return merge(run, a[0], b[0]), a[1] + b[1]

    def truth(self, u: float, eps: float) -> tuple[Array, Array, Array, Array]:
        """l and o, and their bounds."""
        seen = np.isfinite(self.s)
        away = np.where(seen, self.s.max(1, keepdims=True) - np.where(seen, self.s, 0.0), 0.0)
        p = np.where(seen, np.exp(-away), 0.0)
        E = self.raised * -(math.log1p(-eps) + math.log1p(-u)) - self.added * math.log1p(-u) + u * away
        e = np.expm1(E)
        return p.sum(1), (p * self.v).sum(1), (p * e).sum(1), (p * e * np.abs(self.v)).sum(1)


def trees(run: Run, dtype: str) -> Iterator[Finding]:
    rng = run.rng(f"trees {dtype}")
    rows, keys = 300, 32
    n = max(1, run.budget(18_000, 3600) // rows)
    worst = 0.0
    for _ in run.batches(n, 1):
        leaves = Leaves(rng, rows, keys, dtype)
        state, _ = tree(leaves.parts, rng, lambda a, b: leaves.merge(run, a, b))  # noqa: B023
        total, o, e_total, e_o = leaves.truth(FORMATS[dtype].u, EXP[dtype])
        for got, true, allowed in ((state.l, total, e_total), (state.o[:, 0], o, e_o)):
            error = np.abs(got.astype(float) - true)
            ratio = np.where(error == 0, 0.0, error / np.where(allowed > 0, allowed, 1e-300))
            worst = float(np.maximum(worst, ratio.max()))
    yield within(f"{dtype}: largest error of l, o in bounds", worst, 0.0, 1.0, samples=n * rows)
    (a, _), (b, _), (c, _) = Leaves(rng, 20_000, 3, dtype).parts
    nothing = online.empty(a.l.shape, 1, a.l.dtype)
    ab, bc = merge(run, a, b), merge(run, b, c)
    pairs = {
        "do not commute": (ab, merge(run, b, a)),
        "have no right identity": (merge(run, bc, nothing), bc),
        "have no left identity": (merge(run, nothing, bc), bc),
    }
    for law, (x, y) in pairs.items():
        yield exact(f"{dtype}: states that {law}, bit for bit", int(different(x, y).sum()), 0)
    share = float(different(merge(run, ab, c), merge(run, a, bc)).mean())
    yield within(f"{dtype}: share of triples that associate only nearly", share, 1e-4, 1.0)


def nearest_exp(x: Array, shift: Array) -> Array:
    """exp(x - shift) in float64, rounded to float32."""
    return np.exp((x - shift).astype(np.float64)).astype(np.float32)


def rescaled(run: Run, rng: np.random.Generator, rows: int, steps: Iterable[Any]) -> Array:
    """Relative error, in u, of o after its maximum has risen by each of the steps; float32."""
    o = np.exp2(rng.random((rows, 1))).astype(np.float32)
    state = State(np.zeros(rows, np.float32), np.ones(rows, np.float32), o)
    nothing = np.zeros(rows, np.float32)
    for step in steps:
        state = merge(run, state, State(state.m + step, nothing, nothing[:, None]), nearest_exp)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.log(state.o[:, 0].astype(float) / o[:, 0]) + state.m.astype(float)
    return error / U


def rises(rng: np.random.Generator, rows: int, changes: int, others: int = 0) -> Iterator[Any]:
    """Rises of 2^-8 to 2^-7 (below sqrt(2 u), exp(-x) = 1 - x + x²/2 would be rounded to one side).

    After each come so many parts whose maximum is lower.
    """
    for _ in range(changes):
        yield (1 + rng.random(rows, dtype=np.float32)) * np.float32(2.0**-8)
        yield from repeat(np.float32(-0.5), others)


def rescaling(run: Run) -> Iterator[Finding]:
    most = run.budget(150_000, 12_000)
    margin = 0.2 if run.quick else 0.05
    counts, rms = [4, 16, 64, 256, 1024], []
    rows = min(most, 2000)
    for changes in counts:
        rng = run.rng(f"rescaling {changes}")
        test = Mean(1.0, margin, Variance(2.3), ALPHA / STATISTICS)
        for n in run.batches(most, rows):
            error = rescaled(run, rng, n, rises(rng, n, changes))
            test.update(np.nan_to_num(error**2 / (changes * PER_CHANGE), nan=1e30, posinf=1e30))
            if test.decision is not Decision.UNDECIDED:
                break
        rms.append(math.sqrt(test.moments.mean))
        what = f"mean square error over {PER_CHANGE:.4f} C u², C={changes}"
        yield Finding(what, test.moments.mean, 1.0, test.decision, test.moments.count)
    x = np.log(counts)
    x -= x.mean()
    slope = 0.5 + float((x * np.log(rms)).sum() / (x * x).sum())
    # log rms of n errors has variance (kurtosis + 2) / 4n <= 2.3 / 4n; the samples may have stopped at `rows`
    half = 6.5 * math.sqrt(2.3 / (4 * rows) / float((x * x).sum()))
    yield within("slope of log rms error against log C, varied steps", slope, 0.5 - half, 0.5 + half)
    test = Mean(1.0, 0.02, Variance(1.2 * (PER_CHANGE - 1 / 12) / (1024 * BIAS**2)), ALPHA / STATISTICS)
    test.update(rescaled(run, run.rng("equal"), rows, repeat(np.float32(STEP), 1024)) / (1024 * BIAS))
    yield Finding(f"error over {BIAS:.3f} C u, C=1024 equal steps", test.moments.mean, 1.0, test.decision, rows)


def numbers(run: Run) -> Iterator[Finding]:
    """That N does not matter, and how many changes N keys in random order make."""
    alone, *more = (
        rescaled(run, run.rng("start"), 200, rises(run.rng("numbers"), 200, 16, others)) for others in (0, 15, 255)
    )
    for N, error in zip((256, 4096), more, strict=True):
        yield exact(f"rows whose error changes with N={N} parts, C=16", int((error != alone).sum()), 0)
    N = 256
    harmonic = sum(1 / j for j in range(1, N + 1))
    spread = harmonic - sum(1 / j**2 for j in range(1, N + 1))
    test = Mean(harmonic - 1, 0.1 if run.quick else 0.03, Variance(spread), ALPHA / STATISTICS)
    rng = run.rng("records")
    for n in run.batches(run.budget(1_200_000, 100_000), 4000):
        scores, one, count = rng.random((N, n)), np.ones(n), np.zeros(n)
        state = State(scores[0], one, one[:, None])
        for s in scores[1:]:
            state, before = merge(run, state, State(s, one, one[:, None])), state
            count += state.m > before.m
        test.update(count)
        if test.decision is not Decision.UNDECIDED:
            break
    moments = test.moments
    yield Finding("maximum changes, 256 keys in random order", moments.mean, harmonic - 1, test.decision, moments.count)


def prove(run: Run) -> Iterator[Finding]:
    yield from rational(run)
    for dtype in ("float32", "bfloat16"):
        yield from trees(run, dtype)
    yield from rescaling(run)
    yield from numbers(run)


def picture(figure: Any, run: Run) -> None:
    """The rescaling error against the number of changes, and against the number of parts."""
    left, right = figure.subplots(1, 2, sharey=True)
    rows, C, N = 400, np.array([1, 4, 16, 64, 256, 1024]), [16, 64, 256, 1024, 4096]
    rng, dense = run.rng("picture"), np.geomspace(1, 1024, 50)

    def rms(steps: Iterable[Any]) -> float:
        return float(np.sqrt(np.mean(rescaled(run, run.rng("picture start"), rows, steps) ** 2)))

    left.loglog(dense, 2 * dense, "k:", label="bound, 2 C u")
    left.loglog(C, [rms(repeat(np.float32(STEP), n)) for n in C], "o", color="C1", label="equal steps")
    derived = np.hypot(BIAS * dense, np.sqrt((PER_CHANGE - 1 / 12) * dense))
    left.loglog(dense, derived, color="C1", label="  derived, slope 1")
    left.loglog(C, [rms(rises(rng, rows, n)) for n in C], "o", color="C0", label="varied steps")
    left.loglog(dense, np.sqrt(PER_CHANGE * dense), color="C0", label="  derived, slope 1/2")
    left.set(xlabel="changes of the maximum, C", ylabel="rms relative error of o, u")
    left.set_title("The rescaling error grows with C")

    scores = [rng.random((n, rows), dtype=np.float32) * np.float32(2) for n in N]
    shuffled = [np.diff(np.maximum.accumulate(s), axis=0) for s in scores]
    ascending = [rms(rises(rng, rows, n)) for n in N]
    right.loglog(N, ascending, "o-", color="C0", label="keys in ascending order, C = N")
    flat = [rms(rises(run.rng("flat"), rows, 16, n // 16 - 1)) for n in N]
    right.loglog(N, flat, "s-", color="C2", label="C = 16 for every N")
    right.loglog(N, [rms(steps) for steps in shuffled], "^-", color="C3", label="keys in random order, C ~ ln N")
    right.set(xlabel="number of parts, N", title="and not with N")
    for axes in (left, right):
        axes.legend(loc="upper left")


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
