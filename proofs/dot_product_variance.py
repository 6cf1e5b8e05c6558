"""If q, k ~ N(0, 1) independently, q·k has variance d_k, and q·k / sqrt(d_k) variance 1.

Setting: q and k in R^d with independent coordinates.  q_t k_t has mean 0 and variance
E q_t² E k_t² = 1, and different coordinates are uncorrelated, so that variances add: Var(q·k) = d.
The exact law is the symmetric variance-gamma law with density

    f(x) = |x|^((d-1)/2) K_((d-1)/2)(|x|) / (sqrt(pi) 2^((d-1)/2) Gamma(d/2)),

characteristic function (1 + w²)^(-d/2), cumulants kappa_2m = d (2m-1)!, excess kurtosis 6/d.

What is needed: zero means, unit variances, uncorrelated coordinates on one side; normality is not
(uniform, Rademacher, Student t5, centred exponential keep Var = d).  What breaks it, by formula:
a mean mu in both (with unit variances about it), Var = d (1 + 2 mu²); coordinates correlated by rho on
both sides, d + d (d-1) rho²; q = k, 2 d.

Decision: (q·k)² / d has mean 1 and variance 2 + 6/d; an e-process of Catoni's kind decides whether
the mean is within 1 % (--quick: 5 %) of 1, at any time, with a false-alarm rate of 1e-9 for all
statistics together; it needs some 5e5 (--quick: 2e4) products for each unit of that variance, and stops undecided
at 3e6 (1.2e5), which leaves a power above 0.99 against a variance 1 % (5 %) off.
The law by Kolmogorov-Smirnov and Anderson-Darling with the density above,
at the same rate; at small d the normal law is refuted by the same test.  An interval for the variance
that takes the kurtosis of the normal law for granted covers less than it says: shown.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, footnote 4.
Time: 35 s; --quick 3 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.montecarlo import ALPHA, Decision, Finding, Mean, Moments, Run, Variance, main, within

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, int, int], tuple[Array, Array]]

WORLDS = {
    "wide": "coordinates with variance 1.01 (--quick: 1.05) on one side",
    "correlated": "coordinates correlated by 0.1 on both sides",
    "normal": "a normal score of variance d in place of q·k",
}
SIZES = (1, 2, 8, 64, 128, 512)
STATISTICS = 32  # more than there are: each gets ALPHA / STATISTICS


def normal(rng: np.random.Generator, n: int, d: int) -> tuple[Array, Array]:
    return rng.standard_normal((n, d), dtype=np.float32), rng.standard_normal((n, d), dtype=np.float32)


def dots(run: Run, rng: np.random.Generator, n: int, d: int, draw: Draw = normal) -> Array:
    """n dot products, drawn in the run's world."""
    if run.world == "normal":
        return rng.standard_normal(n) * math.sqrt(d)
    q, k = draw(rng, n, d)
    if run.world == "wide":
        k = k * math.sqrt(1.05 if run.quick else 1.01)
    if run.world == "correlated":
        q, k = (math.sqrt(0.9) * x + math.sqrt(0.1) * rng.standard_normal((n, 1)) for x in (q, k))
    return np.einsum("nd,nd->n", q, k, dtype=np.float64)


def variance(run: Run, name: str, d: int, scale: float, expected: float, fourth: float, draw: Draw = normal) -> Finding:
    """Whether E (scale q·k)² is `expected`, `fourth` being a bound of the variance of its square over expected."""
    margin = 0.05 if run.quick else 0.01
    test = Mean(1.0, margin, Variance(fourth), ALPHA / STATISTICS)
    rng = run.rng(name)
    for n in run.batches(run.budget(int(3_000_000 * fourth), int(120_000 * fourth)), max(2000, 2_000_000 // d)):
        test.update((scale * dots(run, rng, n, d, draw)) ** 2 / expected)
        if test.decision is not Decision.UNDECIDED:
            break
    return Finding(name, test.moments.mean * expected, expected, test.decision, test.moments.count)


def inputs() -> dict[str, tuple[Draw, float]]:
    """Coordinates of unit variance that are not normal, and their fourth moment."""

    def both(one: Callable[[np.random.Generator, tuple[int, int]], Array]) -> Draw:
        return lambda rng, n, d: (one(rng, (n, d)), one(rng, (n, d)))

    return {
        "uniform": (both(lambda rng, s: rng.uniform(-math.sqrt(3), math.sqrt(3), s)), 9 / 5),
        "Rademacher": (both(lambda rng, s: rng.integers(0, 2, s) * 2.0 - 1), 1),
        "Student t5": (both(lambda rng, s: rng.standard_t(5, s) * math.sqrt(3 / 5)), 9),
        "exponential - 1": (both(lambda rng, s: rng.exponential(size=s) - 1), 9),
    }


def square_variance(d: int, fourth: float) -> float:
    """Var((q·k)²) / d² for coordinates of fourth moment `fourth`: 2 + (fourth² - 3) / d."""
    return 2 + (fourth**2 - 3) / d


def law(d: int) -> Any:
    """The variance-gamma law as a scipy distribution function, by quadrature of its density."""
    from scipy import integrate, special

    nu = (d - 1) / 2
    constant = -0.5 * math.log(math.pi) - nu * math.log(2) - special.gammaln(d / 2)
    x = np.linspace(0, 12 * math.sqrt(d) + 12, 200_001)[1:]
    density = np.exp(constant + nu * np.log(x) + np.log(special.kve(nu, x)) - x)
    # the head of [0, x0]: K_0(x) = log(2 / x) - Euler's constant near 0
    start = x[0] * density[0] if d > 1 else x[0] * (1 + math.log(2 / x[0]) - np.euler_gamma) / math.pi
    mass = start + integrate.cumulative_simpson(density, x=x, initial=0)

    def cdf(y: Array) -> Array:
        half = np.interp(np.abs(y), np.concatenate([[0], x]), np.concatenate([[0], mass]))
        return np.clip(0.5 + np.sign(y) * half, 1e-16, 1 - 1e-16)

    return cdf


def anderson_darling(u: Array) -> float:
    """A² of values that should be uniform (Anderson and Darling 1954)."""
    u = np.sort(u)
    i = np.arange(1, len(u) + 1)
    return float(-len(u) - ((2 * i - 1) * (np.log(u) + np.log1p(-u[::-1]))).mean())


def laws(run: Run) -> Iterator[Finding]:
    from scipy import stats

    n = run.budget(400_000, 40_000)
    # P(A² > z) falls as sqrt(3 / (pi z)) exp(-z): the largest term of its law has weight 1/2
    limit = math.log(2 * STATISTICS / ALPHA)
    for d in (1, 2, 8, 64):
        x = dots(run, run.rng(f"law {d}"), n, d)
        u = law(d)(x)
        p = float(stats.kstest(u, "uniform").pvalue)
        yield within(f"Kolmogorov-Smirnov p, d={d}", p, ALPHA / STATISTICS, 1.0, samples=n)
        yield within(f"Anderson-Darling A², d={d}", anderson_darling(u), 0.0, limit, samples=n)
        if d <= 2:
            p = float(stats.kstest(x / math.sqrt(d), "norm").pvalue)
            told = within(f"normal law refuted, p, d={d}", p, 0.0, ALPHA, samples=n)
            few = n < 10_000  # too few for the test to see it
            yield replace(told, decision=Decision.UNDECIDED) if few and told.decision is Decision.REFUTED else told
    for d in (2, 8, 64):
        yield from cumulants(d)


def cumulants(d: int) -> Iterator[Finding]:
    """Variance d and fourth cumulant 6 d of the density, by quadrature."""
    x = np.linspace(-60 * math.sqrt(d), 60 * math.sqrt(d), 400_001)
    mass = law(d)(x)
    middle = (x[1:] + x[:-1]) / 2
    m2, m4 = (float(((middle**power) * np.diff(mass)).sum()) for power in (2, 4))
    yield within(f"variance of the density, d={d}", m2, d * (1 - 1e-4), d * (1 + 1e-4))
    yield within(f"its fourth cumulant, d={d}", m4 - 3 * m2 * m2, 6 * d * (1 - 1e-2), 6 * d * (1 + 1e-2))


def coverage(run: Run) -> Iterator[Finding]:
    """How often 95 % intervals for the variance cover it, at d = 2 and 2000 products each."""
    trials, n, d = run.budget(4000, 1000), 2000, 2
    rng = run.rng("coverage")
    naive = aware = 0
    for _ in range(trials):
        m = Moments()
        m.update(dots(run, rng, n, d))
        lo, hi = m.variance_interval(1.96)
        half = 1.96 * m.variance * math.sqrt(2 / n)
        aware += lo <= d <= hi
        naive += abs(m.variance - d) <= half
    # sqrt(2 + 6/d) against sqrt(2) at d = 2: P(|Z| < 1.96 sqrt(2/5)) = 0.785
    z = 6.5 / math.sqrt(trials)
    low, high = 0.785 - z * 0.41, 0.785 + z * 0.41
    yield within("coverage of the chi-square interval said to be 95 %", naive / trials, low, high)
    yield within("coverage of the kurtosis-aware one", aware / trials, 0.945 - z * 0.23, 1.0)


def broken(run: Run) -> Iterator[Finding]:
    """What breaks the claim, and by how much: formulas against samples."""
    d, n = 64, run.budget(400_000, 40_000)
    rng = run.rng("broken")
    q, k = normal(rng, n, d)
    shared = math.sqrt(0.1) * rng.standard_normal((2, n, 1))
    cases = {
        "mean 0.1": (q + 0.1, k + 0.1, d * (1 + 2 * 0.1**2)),
        "correlation 0.1": (math.sqrt(0.9) * q + shared[0], math.sqrt(0.9) * k + shared[1], d + d * (d - 1) * 0.01),
        "q = k": (q, q, 2 * d),
    }
    for name, (a, b, expected) in cases.items():
        m = Moments()
        m.update(np.einsum("nd,nd->n", a, b, dtype=np.float64))
        error = expected * math.sqrt((m.excess_kurtosis + 2) / n)
        yield within(f"Var with {name}, d=64", m.variance, expected - 7 * error, expected + 7 * error, samples=n)


def prove(run: Run) -> Iterator[Finding]:
    for d in SIZES:
        yield variance(run, f"Var(q·k), d={d}", d, 1.0, d, square_variance(d, 3))
    yield variance(run, "Var(q·k / sqrt(d)), d=64", 64, 1 / 8, 1.0, square_variance(64, 3))
    for name, (draw, fourth) in inputs().items():
        yield variance(run, f"Var(q·k), d=16, {name}", 16, 1.0, 16, square_variance(16, fourth), draw)
    yield from laws(run)
    yield from coverage(run)
    yield from broken(run)


def picture(figure: Any, run: Run) -> None:
    """Densities of q·k / sqrt(d) on a logarithmic scale: variance-gamma against samples and the normal law."""
    axes = figure.add_subplot()
    x = np.linspace(-6, 6, 121)
    middle = (x[1:] + x[:-1]) / 2
    for i, d in enumerate((1, 2, 8, 64)):
        score = dots(run, run.rng(f"picture {d}"), 400_000, d) / math.sqrt(d)
        seen = np.histogram(score, x)[0] / (len(score) * np.diff(x))
        exact = np.diff(law(d)(x * math.sqrt(d))) / np.diff(x)
        axes.plot(middle, exact, color=f"C{i}", label=f"d = {d}")
        axes.plot(middle[seen > 0], seen[seen > 0], ".", color=f"C{i}", markersize=4)
    axes.plot(middle, np.exp(-(middle**2) / 2) / math.sqrt(2 * math.pi), "k--", label="normal")
    axes.set(yscale="log", ylim=(1e-6, 2), xlabel="q·k / sqrt(d)", ylabel="density")
    axes.set_title("q·k is variance-gamma, not normal (dots: samples, lines: exact law)")
    axes.legend()


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
