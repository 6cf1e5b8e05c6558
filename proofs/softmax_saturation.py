"""Unscaled dot products freeze softmax once d_k > 2 ln N; scaled ones never do.

Setting: logits z = sigma g with g ~ N(0, 1)^N, weights p = softmax(z), Jacobian J = diag(p) - p pᵀ.
J is positive semidefinite, tr J = 1 - sum p², |J|_F² = sum p² - 2 sum p³ + (sum p²)² <= 1/4, and what
softmax passes back is ds = J dp, at most tr J |dp|: a row with tr J near 0 is dead.
A row of q·k with q, k ~ N(0, 1)^d is such a row given q, with sigma = |q|, about sqrt(d), and with
sigma = |q| / sqrt(d), about 1, if it is scaled.

Exact for any N by 1/Z^n = int t^(n-1) exp(-t Z) dt / (n-1)!, with A_k = t^k E exp(k sigma g - t e^(sigma g)):
    E sum p² = N int A_2 A_0^(N-1) dt/t,     E sum p³ = N int A_3 A_0^(N-1) dt/t / 2,
    E (sum p²)² = [N int A_4 A_0^(N-1) dt/t + N (N-1) int A_2² A_0^(N-2) dt/t] / 6,
    E H = int (e^-t - A_0^N) dt/t - sigma² (1 - E sum p²)     (Stein: E sum p z = sigma² E tr J),
and the largest weight by the same identity given the largest logit.  The integrands are analytic, so
that the trapezoidal rule in g and ln t is off by about 1e-13.

As N grows this is the random energy model, which freezes at sigma_c = sqrt(2 ln N).  Below, H / ln N ->
1 - (sigma / sigma_c)²; above, the weights tend to the Poisson-Dirichlet law of m = sigma_c / sigma:
E tr J -> m, E |J|_F² -> m (1-m) / 3, H -> O(1), P(tr J < e) -> (sin(pi m) / (pi m)) (e / 2)^m for small e.
The approach is slow, of the order 1 / ln N (with b_N, N P(g > b_N) = 1, in place of sigma_c).

What the "near-zero gradients" of unscaled scores are, at N = 1024 and sigma = sqrt(d): at d = 64 mean
tr J falls from 0.997 to 0.40, the entropy from 6.43 to 0.90 nats, and 6.9 % of the rows have tr J < 0.01
(44 % at d = 512); for q·k itself, whose sigma varies, 0.40, 0.92, 6.9 and 44 %.  What they are not:
E |J|_F² is 33 times *larger* than scaled.  Gradients follow it: for v, dout ~ N(0, 1)
    E[|dq_i|² across q_i, given p] = scale² (d-1) Dv |J|_F²,
    E[|dK|² given q and p] = scale² Dv sum_i |q_i|² |J_i|_F²,
so that those of a fresh unscaled layer are larger on average, while rows die one by one.

Decision: e-processes on the oracle's weights and gradients, false-alarm rate 1e-9 together; a mean holds
if it is within 4 % (rows of q·k and gradients 5 %; --quick: 10 and 25 %; E tr J: of the smaller of it
and sum p²; P(dead): within 0.012 and 0.03).  Power above 0.99 against one that is further off, within
thrice the samples shown: what tells the value from the margin tells the margin from the value.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1 ("extremely small gradients");
Derrida 1981, "Random-energy model: an exactly solvable model of disordered systems"; for attention
Giorlandino and Goldt 2025, arXiv:2505.24333.  Abate and Whitt 1995 for the Euler sum in `dead`.
Time: 80 s; --quick 4 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refattn import oracle
from refattn.montecarlo import ALPHA, Bounded, Decision, Finding, Mean, Run, Variance, exact, largest, main, within

Array = np.ndarray[Any, Any]

WORLDS = {
    "twice": "scores divided by d where they should be divided by sqrt(d)",
    "unscaled": "scores not divided where they should be divided by sqrt(d)",
    "laplace": "logits with the double exponential law of the same variance",
    "uncoupled": "a backward that takes diag(p) for the Jacobian",
}
STATISTICS = 120  # more than there are: each gets ALPHA / STATISTICS
DEAD = 0.995  # a largest weight above it makes tr J < 1 - DEAD² = 0.009975
SQRT_2PI = math.sqrt(2 * math.pi)


class Law(NamedTuple):
    """Expectations over a row: of 1, sum p², its square, |J|_F², the entropy, the largest weight, its square."""

    one: float
    squares: float
    squares2: float
    frobenius: float
    entropy: float
    largest: float
    largest2: float


def law(N: float, sigma: float, fine: float = 1.0) -> Law:
    """The expectations for N logits of deviation sigma; `fine` divides the steps."""
    step, dy = min(0.25, 0.3 / sigma) / fine, 0.25 / fine
    reach = max(11.0, math.sqrt(2 * math.log(N)) + 5)
    g = np.arange(-reach, reach + step, step)
    phi = np.exp(-g * g / 2) * (step / SQRT_2PI)
    y = np.arange(-(math.log(N) + min(sigma * sigma / 2, reach * sigma) + 32), 8.5 * sigma + 5, dy)
    e = np.exp(np.minimum(y[:, None] + sigma * g, 30))
    w = np.exp(-e)
    gone = -np.expm1(-e) @ phi
    log_a0 = np.where(gone < 0.5, np.log1p(-np.minimum(gone, 0.5)), np.log(np.maximum(w @ phi, 1e-300)))
    a = []
    for _ in range(4):
        w *= e
        a.append(w @ phi)
    others, two_less = np.exp((N - 1) * log_a0), np.exp((N - 2) * log_a0)
    one, squares, cubes, fourths = (float(N * dy * (a[k] * others).sum()) / math.factorial(k) for k in range(4))
    squares2 = fourths + float(N * (N - 1) * dy * (a[1] ** 2 * two_less).sum()) / 6
    log_z = float(dy * (np.exp(-np.exp(y)) - np.exp(N * log_a0)).sum())
    top, top2 = top_weight(N, sigma, fine)
    entropy = log_z - sigma * sigma * (1 - squares)
    return Law(one, squares, squares2, squares - 2 * cubes + squares2, entropy, top, top2)


def top_weight(N: float, sigma: float, fine: float = 1.0) -> tuple[float, float]:
    """E p_max and E p_max² for N <= 1e9: 1 / p_max = 1 + sum of exp(-sigma u) over gaps u to the largest logit g."""
    from scipy.special import ndtr

    step = 0.05 / fine
    g = np.arange(-9, 11 + step, step)
    node, weight = np.polynomial.legendre.leggauss(12 if fine == 1 else 16)
    width = min(1.0, 1.5 / sigma)
    panels = width * np.arange(math.ceil(min(22, 75 / sigma) / width))
    u = (panels[:, None] + width * (node + 1) / 2).ravel()
    density = np.exp(-((g[:, None] - u) ** 2) / 2) * np.tile(weight * width / 2 / SQRT_2PI, len(panels))
    t = np.exp(np.arange(-32, 4.2, 0.25 / fine))
    gone = ndtr(-g)[:, None] + density @ -np.expm1(-t * np.exp(-sigma * u)[:, None])
    first = (N * step / SQRT_2PI) * np.exp(-g * g / 2)
    given = t * np.exp(-t) * (first @ np.exp((N - 1) * np.log1p(-np.minimum(gone, 1 - 1e-16))))
    return float(given.sum()) * 0.25 / fine, float((given * t).sum()) * 0.25 / fine


def dead(N: float, sigma: float, top: float = DEAD) -> float:
    """P(largest weight > top), N >= 64 and top > 1/2, off by less than 1e-8 for N <= 1e6.

    N int phi(g) P(sum of N-1 of exp(sigma h) < r exp(sigma g)) dg, r = (1-top)/top; the law of the sum by
    inverting its Laplace transform A_0(s)^(N-1) / s on a line (Abate and Whitt), where for complex
    s = |s| e^(i theta) the path of g is moved by -i theta / sigma to make the integrand smooth.
    """
    shift, terms, smooth = 22.0, 28, 12
    step, lead_step = min(0.25, 0.3 / sigma), min(0.1, 0.5 / sigma)
    g = np.arange(-11, 11 + step, step)
    k = np.arange(terms + smooth + 1)
    s = (shift + 2j * math.pi * k) / 2
    theta = np.angle(s)[:, None]
    phi = np.exp(1j * theta * g / sigma + theta**2 / (2 * sigma * sigma) - g * g / 2) * (step / SQRT_2PI)
    binomial = np.array([math.comb(smooth, j) for j in range(smooth + 1)]) / 2.0**smooth
    total = 0.0
    for lead in np.arange(0, 10 + lead_step, lead_step):
        x = sigma * lead + math.log((1 - top) / top)
        u = np.log(np.abs(s))[:, None] - x + sigma * g
        gone = (-np.expm1(-np.exp(np.minimum(u, 7))) * phi).sum(1)
        term = ((1 - gone) ** (N - 1) / s).real * (-1.0) ** k
        term[0] /= 2
        total += math.exp(shift / 2 - lead * lead / 2) * float(np.cumsum(term)[terms:] @ binomial)
    return N * lead_step / SQRT_2PI * total


def lengths(d: int, nodes: int) -> tuple[Array, Array]:
    """Gauss nodes and weights for the law of |q|: |q|² / 2 is Gamma(d/2) (Golub and Welsch 1969)."""
    i = np.arange(nodes)
    off = np.sqrt(i[1:] * (i[1:] + d / 2 - 1))
    values, vectors = np.linalg.eigh(np.diag(2 * i + d / 2) + np.diag(off, 1) + np.diag(off, -1))
    return np.sqrt(2 * values), vectors[0] ** 2


def mixture(N: int, d: int, scale: float) -> Law:
    """The expectations over rows of scale q·k."""
    r, w = lengths(d, 10)
    return Law(*(w @ np.array([law(N, scale * length) for length in r])))


def softmax(q: Array, k: Array, scale: float) -> Array:
    """The oracle's weights of q (..., R, d) over k (..., N, d)."""
    v = np.zeros((*k.shape[:-1], 0))
    return oracle.scaled_dot_product_attention(q * (scale * math.sqrt(q.shape[-1])), k, v)[1]


def attend(run: Run, q: Array, k: Array, scaled: bool) -> Array:
    """The weights of rows of q·k in the run's world."""
    d = q.shape[-1]
    if scaled and run.world == "twice":
        return softmax(q, k, 1 / d)
    return softmax(q, k, 1 / math.sqrt(d) if scaled and run.world != "unscaled" else 1.0)


class Row(NamedTuple):
    """tr J, |J|_F², the entropy and the largest weight of rows, without cancellation where they are dead."""

    trace: Array
    frobenius: Array
    entropy: Array
    largest: Array


def measure(p: Array) -> Row:
    place = p.argmax(-1, keepdims=True)
    top = np.take_along_axis(p, place, -1)
    others = p.copy()
    np.put_along_axis(others, place, 0, -1)
    squares = others * others
    rest, rest2 = others.sum(-1), squares.sum(-1)
    trace = top[..., 0] * rest + (others * (1 - others)).sum(-1)
    # |J|_F² = sum p_i² [(1 - p_i)² + sum over the rest of p²]
    frobenius = (top**2)[..., 0] * (rest**2 + rest2)
    frobenius += (squares * ((1 - others) ** 2 + top * top + rest2[..., None] - squares)).sum(-1)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    return Row(trace, frobenius, entropy, top[..., 0])


Draw = Callable[[np.random.Generator, int], Sequence[Array]]


def settle(run: Run, name: str, tests: Mapping[str, Mean], draw: Draw, total: int, batch: int) -> Iterator[Finding]:
    """Feed the tests with what `draw` returns, in their order, until each knows."""
    rng = run.rng(name)
    for n in run.batches(total, batch):
        for test, values in zip(tests.values(), draw(rng, n), strict=True):
            if test.decision is Decision.UNDECIDED:
                test.update(values)
        if all(test.decision is not Decision.UNDECIDED for test in tests.values()):
            break
    for what, test in tests.items():
        yield Finding(f"{what}, {name}", test.moments.mean, test.value, test.decision, test.moments.count)


def quadrature(run: Run) -> Iterator[Finding]:
    """The integrals against plain ones for N = 2, against themselves with finer steps, and E sum p = 1."""
    from scipy import integrate, special

    def pair(x: float, s: float) -> Array:
        p, q = special.expit(s * x), special.expit(-s * x)
        entropy = -special.xlogy(p, p) - special.xlogy(q, q)
        return np.array([p * p + q * q, 4 * p * p * q * q, entropy, p]) * (2 / SQRT_2PI * math.exp(-x * x / 2))

    worst = one = 0.0
    for sigma in (0.5, 1.0, 8.0):
        plain = integrate.quad_vec(pair, 0, 12, epsabs=1e-13, args=(math.sqrt(2) * sigma,))[0]
        x = law(2, sigma)
        worst = largest(worst, np.abs(plain - (x.squares, x.frobenius, x.entropy, x.largest)))
    yield within("N = 2: largest difference from plain integrals", worst, 0, 1e-9)
    worst = 0.0
    for N in (64, 10**9) if run.quick else (64, 1024, 10**6, 10**9):
        for ratio in (0.1, 0.5, 1.0, 2.0):
            sigma = ratio * math.sqrt(2 * math.log(N))
            a, b = law(N, sigma), law(N, sigma, 1.3)
            worst, one = largest(worst, np.abs(np.subtract(a, b))), largest(one, abs(a.one - 1))
    yield within("N up to 1e9: largest change with finer steps", worst, 0, 1e-9)
    yield within("N up to 1e9: largest |E sum p - 1|", one, 0, 1e-9)


def logits(run: Run, N: int, sigma: float) -> Iterator[Finding]:
    """Normal logits through the oracle's softmax, against the integrals."""
    near, alpha, x = 0.1 if run.quick else 0.04, ALPHA / STATISTICS, law(N, sigma)
    narrowest = 1e-3 if run.quick else 2.5e-4  # what bets on a number in 0..1 can tell apart within the budget
    tests = {
        "E tr J": Mean(1 - x.squares, max(near * min(x.squares, 1 - x.squares), narrowest), Bounded(0, 1), alpha),
        "E |J|_F²": Mean(x.frobenius, near * x.frobenius, Bounded(0, 0.25), alpha),
        "E entropy": Mean(x.entropy, near * x.entropy, Bounded(0, math.log(N)), alpha),
        "E p_max": Mean(x.largest, near * x.largest, Bounded(0, 1), alpha),
        "P(dead)": Mean(dead(N, sigma), 0.3 * near, Bounded(0, 1), alpha),
    }

    def draw(rng: np.random.Generator, n: int) -> list[Array]:
        if run.world == "laplace":
            z: Array = rng.laplace(0, sigma / math.sqrt(2), (n, N, 1))
        else:
            z = sigma * rng.standard_normal((n, N, 1), dtype=np.float32)
        row = measure(softmax(np.ones((n, 1, 1)), z, 1.0)[:, 0])
        return [*row, row.largest > DEAD]

    name = f"N={N}, sigma={sigma:.3g}"
    yield from settle(run, name, tests, draw, run.budget(600_000, 60_000), max(250, 250_000 // N))


def rows(run: Run, d: int, scaled: bool) -> Iterator[Finding]:
    """Rows of q·k against the integrals: a sample is the mean over 16 rows of one set of keys."""
    near, N, alpha = 0.1 if run.quick else 0.05, 256 if run.quick else 1024, ALPHA / STATISTICS
    x = mixture(N, d, 1 / math.sqrt(d) if scaled else 1.0)
    margin = max(near * min(x.squares, 1 - x.squares), 0.004 if run.quick else 0.002)
    tests = {
        "E tr J": Mean(1 - x.squares, margin, Bounded(0, 1), alpha),
        "E entropy": Mean(x.entropy, near * x.entropy, Bounded(0, math.log(N)), alpha),
    }

    def draw(rng: np.random.Generator, n: int) -> list[Array]:
        q, k = (rng.standard_normal((n, length, d), dtype=np.float32) for length in (16, N))
        row = measure(attend(run, q, k, scaled))
        return [row.trace.mean(-1), row.entropy.mean(-1)]

    name = f"{'scaled' if scaled else 'unscaled'} q·k, N={N}, d={d}"
    yield from settle(run, name, tests, draw, run.budget(40_000, 14_000), max(4, 4_000_000 // (N * d)))


def backward(run: Run, q: Array, k: Array, v: Array, dout: Array, scale: float) -> tuple[Array, Array, Array]:
    """dq, dk and ds of the oracle, or of a world's; heads first."""
    if run.world == "uncoupled":
        ds = softmax(q, k, scale) * (dout @ v.swapaxes(-1, -2))
        return scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, ds
    bias = np.zeros((1, len(q), q.shape[1], k.shape[1]))
    got = oracle.attention_grad(q[None], k[None], v[None], dout[None], bias=bias, scale=scale)
    return got.dq[0], got.dk[0], np.asarray(got.dbias)[0]


def gradients(run: Run, scaled: bool) -> Iterator[Finding]:
    """dq and dk of the oracle over what |J|_F² predicts of their mean squares given the weights."""
    N, d, Dv, R = 64, 16, 8, 4
    scale = 1 / math.sqrt(d) if scaled else 1.0
    # bilinear in v and dout: the mean square of such a |.|² is at most 9 times its squared mean (hypercontractivity)
    tests = {
        f"|{name}|² over its mean by |J|_F²": Mean(1.0, 0.25 if run.quick else 0.05, Variance(8.0), ALPHA / STATISTICS)
        for name in ("dq", "dK")
    }
    passed = [0.0]

    def draw(rng: np.random.Generator, n: int) -> list[Array]:
        q, k, v, dout = (rng.standard_normal((n, *s)) for s in ((R, d), (N, d), (N, Dv), (R, Dv)))
        row = measure(softmax(q, k, scale))
        dq, dk, ds = backward(run, q, k, v, dout, scale)
        length2 = (q * q).sum(-1)
        across = (dq * dq).sum(-1) - (dq * q).sum(-1) ** 2 / length2  # p depends on k along q alone
        gain = np.linalg.norm(ds, axis=-1) / np.linalg.norm(dout @ v.swapaxes(-1, -2), axis=-1)
        passed.append(float(gain[row.largest > DEAD].max(initial=0)))
        mean = scale * scale * Dv * row.frobenius
        return [(across / ((d - 1) * mean)).mean(-1), (dk * dk).sum((-1, -2)) / (length2 * mean).sum(-1)]

    where = f"{'scaled' if scaled else 'unscaled'}, d={d}"
    yield from settle(run, where, tests, draw, run.budget(1_500_000, 120_000), 2000)
    if largest(passed) != 0:  # some row was dead
        yield within("largest |ds| / |dp| of a dead row", largest(passed), 0, 1 - DEAD**2)


def freezing(run: Run) -> Iterator[Finding]:
    """How the exact expectations approach the laws of the random energy model."""
    from scipy.stats import norm

    sizes = [64, 4096, 10**6, 10**9]
    for x in (0.5, 1.0, 2.0) if run.quick else (0.25, 0.5, 0.75, 1.0, 1.25, 2.0):
        limit = max(0.0, 1 - x * x)
        off = [law(N, x * math.sqrt(2 * math.log(N))).entropy / math.log(N) - limit for N in sizes]
        fell = sum(a > b > 0 for a, b in zip(off[:-1], off[1:], strict=True))
        yield exact(f"steps in N down to which H / ln N falls towards {limit:g} at {x:g} sigma_c", fell, 3)
    exponents = []
    for N in sizes:
        sigma = 2 * math.sqrt(2 * math.log(N))
        off_by = 1 - law(N, sigma).squares - float(norm.isf(1 / N)) / sigma
        yield within(f"(E tr J - b_N / sigma) ln N at 2 sigma_c, N={N:g}", off_by * math.log(N), 0, 0.1)
        if N <= 10**6:
            exponents.append(math.log10(dead(N, sigma, 0.95) / dead(N, sigma, 0.995)))
    falling = all(a > b > 0.5 for a, b in zip(exponents[:-1], exponents[1:], strict=True))
    yield exact("exponent of P(p_max > 1 - e) falls towards m = 1/2 there", falling, True)


def figures() -> Iterator[Finding]:
    """What scaling by 1 / sqrt(d) changes at N = 1024, and what it does not; limits: the rounding of the docstring."""
    N = 1024
    scaled, unscaled = law(N, 1.0), law(N, 8.0)
    yield within("E tr J scaled", 1 - scaled.squares, 0.9965, 0.9975)
    yield within("E tr J unscaled, d=64", 1 - unscaled.squares, 0.395, 0.405)
    yield within("E entropy scaled", scaled.entropy, 6.425, 6.435)
    yield within("E entropy unscaled, d=64", unscaled.entropy, 0.895, 0.905)
    yield within("E |J|_F² unscaled over scaled, d=64: larger", unscaled.frobenius / scaled.frobenius, 32.5, 33.5)
    own, other = mixture(N, 64, 1 / 8), mixture(N, 64, 1.0)
    yield within("E |dq|² across q, unscaled over scaled: larger", 64 * other.frobenius / own.frobenius, 1, math.inf)
    yield within("dead rows, scaled", dead(N, 1.0), -1e-8, 1e-8)
    for d, low, high in ((64, 0.0685, 0.0695), (128, 0.165, 0.175), (512, 0.435, 0.445)):
        yield within(f"dead rows, unscaled, d={d}", dead(N, math.sqrt(d)), low, high)


def prove(run: Run) -> Iterator[Finding]:
    yield from quadrature(run)
    yield from figures()
    yield from freezing(run)
    for N in (64, 1024) if run.quick else (64, 1024, 8192):
        for sigma in (1.0, math.sqrt(2 * math.log(N)), 8.0):
            yield from logits(run, N, sigma)
    for d in (64,) if run.quick else (16, 64, 128):
        yield from rows(run, d, True)
        yield from rows(run, d, False)
    yield from gradients(run, True)
    yield from gradients(run, False)


def picture(figure: Any, run: Run) -> None:
    """Entropy against sigma / sigma_c with its limit; dead rows against d, scaled and not."""
    left, right = figure.subplots(1, 2)
    ratio = np.linspace(0.05, 2.5, 50)
    for i, (N, name) in enumerate(((64, "64"), (1024, "1024"), (10**6, "10⁶"), (10**9, "10⁹"))):
        entropy = [law(N, x * math.sqrt(2 * math.log(N))).entropy / math.log(N) for x in ratio]
        left.plot(ratio, entropy, color=f"C{i}", label=f"N = {name}")
    left.plot(ratio, np.maximum(0, 1 - ratio**2), "k--", label="N → ∞")
    for x, y, text in ((0.62, 0.98, "free"), (1.9, 0.42, "frozen")):
        left.text(x, y, text, ha="center", fontsize=11, style="italic")
    left.axvline(1, color="0.8", zorder=0)
    left.set(xlabel="σ / σ_c,   σ_c = sqrt(2 ln N)", ylabel="mean entropy / ln N", ylim=(0, 1.05), xlim=(0, 2.5))
    left.set_title("Entropy of softmax(σ g)", fontsize=11)
    left.legend(loc="upper right", bbox_to_anchor=(1, 0.93))

    N = 1024
    line = 2.0 ** np.arange(2, 11)
    nodes = [lengths(int(d), 4) for d in line]
    exactly = [float(np.dot(w, [dead(N, float(length)) for length in r])) for r, w in nodes]
    right.plot(line, exactly, "C3", label="unscaled: exact")
    rng = run.rng("picture")
    for scaled, style in ((False, "C3o"), (True, "C0s")):
        seen = []
        for d in line.astype(int):
            heads = [rng.standard_normal((4, 64 + N, d), dtype=np.float32) for _ in range(max(4, 512 // d))]
            found = [measure(attend(run, x[:, :64], x[:, 64:], scaled)).largest > DEAD for x in heads]
            seen.append(np.mean(found))
        name = "scaled by 1/√d" if scaled else "unscaled"
        right.plot(line, seen, style, markersize=5, label=f"{name}: the oracle's rows")
    right.axvline(2 * math.log(N), color="0.6", linestyle=":")
    right.text(2 * math.log(N) * 0.93, 0.3, "2 ln N", ha="right")
    right.set(xscale="log", xlabel="d_k", ylabel="share of rows with a weight above 0.995", ylim=(-0.02, 0.6))
    right.set_xticks([4, 16, 64, 256, 1024], ["4", "16", "64", "256", "1024"])
    right.set_title("Dead rows (tr J < 0.01), N = 1024", fontsize=11)
    right.legend(loc="upper left")


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
