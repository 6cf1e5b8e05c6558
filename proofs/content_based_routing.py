"""Attention is a routing matrix made of the content: it finds a planted key at any distance, a fixed one cannot.

Setting: out = P v, P = softmax(q kᵀ / sqrt(d)).  Whatever the inputs are,
- each row of P is a probability vector, and out lies in the convex hull of the rows of v;
- Attention(S q, T k, T v) = S Attention(q, k, v) for permutations S, T: order plays no part;
- a constant c_i added to row i of the logits changes nothing but lse, by c_i.
Checked on the oracle in float64, each element within the rigorous bound that `refattn.tolerance` derives.

Recall: keys k_1 .. k_N ~ N(0, 1)^d, values of random bits +-1, and q = k_t for one t.  Given r = |q|, the
other scores are scale r g_j with g ~ N(0, 1) and the target's is scale r², so that exactly, for any t,

    P(the largest weight is the target's) = E Phi(r)^(N-1),                           r ~ chi_d,
    E log(p_t / largest other p) = scale (d - E r E max(g_1 .. g_(N-1))),
    E (out - v_t)² = E [(1 - p_t)² + sum of the other p_j²],

the last by 1 / Z² = int s exp(-s Z) ds as one-dimensional integrals in which N is but an exponent.
With scale = 1 / sqrt(d) recall needs N << exp(sqrt(d) - 1/2), where the others outweigh the target: their
sum is about N exp(1/2), its weight exp(sqrt(d)).  (Unscaled, N << exp(d/2): the planted random energy model.)
A fixed P knows nothing of t: for t uniform, of all functions of the values the mean has the least error,
E (out - v_t)² = 1 - 1/N, by E[v_t | v] = mean(v).  So does attention whose queries are 0.

Decision: e-processes, false-alarm rate 1e-9 together; a mean holds if it is within 0.02 (--quick: 0.04;
the margin five times that) of what is predicted, at the first, a middle and the last position each; power
above 0.99 against one further off, within thrice the samples shown.

Source: Vaswani et al. 2017, "Attention Is All You Need", sections 3.2 and 3.2.1; Ramsauer et al. 2020,
"Hopfield Networks is All You Need", arXiv:2008.02217; Lucibello and Mezard 2023, "The exponential
capacity of dense associative memories", arXiv:2304.14964.
Time: 40 s; --quick 3 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from refattn import oracle
from refattn.montecarlo import ALPHA, Bounded, Decision, Finding, Mean, Run, Variance, largest, main, within
from refattn.precision import preset
from refattn.tolerance import Tile, forward

Array = np.ndarray[Any, Any]

WORLDS = {
    "fixed": "a mixing that looks at positions only, the same for every content",
    "unnormalised": "weights that sum to 1.001",
    "outside": "outputs stretched by 1 % away from the mean of the values",
    "positional": "logits that lose 0.01 for each step of distance",
    "sigmoid": "weights made by a sigmoid and divided by their sum",
}
STATISTICS = 60  # more than there are: each gets ALPHA / STATISTICS
SQRT_2PI = math.sqrt(2 * math.pi)


class Answer(NamedTuple):
    out: Array
    lse: Array
    weights: Array


def attend(run: Run, q: Array, k: Array, v: Array, bias: Array | None = None) -> Answer:
    """Attention in the run's world, (1, H, L, D); the weights are those without a bias."""
    if run.world in ("fixed", "positional", "sigmoid"):
        age = np.arange(k.shape[-2])[::-1]
        s = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + (0.0 if bias is None else bias)
        s = {"fixed": 0 * s - 0.1 * age, "positional": s - 0.01 * age, "sigmoid": -np.logaddexp(0, -s)}[run.world]
        top = s.max(-1, keepdims=True)
        e = np.exp(s - top)
        total = e.sum(-1, keepdims=True)
        return Answer(e / total @ v, (top + np.log(total))[..., 0], e / total)
    out, lse = oracle.attention(q, k, v, bias=bias)
    weights = oracle.scaled_dot_product_attention(q, k, v)[1]
    if run.world == "unnormalised":
        out, weights = 1.001 * out, 1.001 * weights
    if run.world == "outside":
        mean = v.mean(-2, keepdims=True)
        out = mean + 1.01 * (out - mean)
    return Answer(out, lse, weights)


class Radius(NamedTuple):
    """How far out, lse and the weights of an honest float64 kernel may be."""

    out: Array
    lse: Array
    weights: Array


def tile_of(x: Array | None) -> Tile:
    return lambda rows, keys: None if x is None else x[rows, keys]


def radius(q: Array, k: Array, v: Array, bias: Array | None = None) -> Radius:
    found = []
    for h in range(q.shape[1]):
        shape = (q.shape[2], k.shape[2])
        seen, extra = np.ones(shape, bool), None if bias is None else np.broadcast_to(bias[0, h], shape)
        bounds = [
            forward(
                q[0, h], k[0, h], values, tile_of(seen), tile_of(extra), q.shape[-1] ** -0.5, None, None,
                preset("float64"),
            )
            for values in (v[0, h], np.eye(shape[1]))
        ]  # fmt: skip
        found.append((bounds[0].rigorous, bounds[0].lse_rigorous[:, 0], bounds[1].rigorous))
    return Radius(*(np.stack(x)[None] for x in zip(*found, strict=True)))


def problems(run: Run) -> Iterator[tuple[np.random.Generator, Array, Array, Array]]:
    """(rng, q, k, v) of every difficulty: flat, usual and one-hot weights, equal keys, values of any size."""
    rng = run.rng("problems")
    for n in range(run.budget(120, 20)):
        Lq, Lk, D, Dv = (int(x) for x in rng.permutation([3, 5, 11, 29]))
        q, k, v = (rng.standard_normal((1, 2, *s)) for s in ((Lq, D), (Lk, D), (Lk, Dv)))
        q = q * (0.01, 1, 10, 100, 1)[n % 5]
        if n % 5 == 4:
            k[:, :, 1:] = k[:, :, :1]
        yield rng, q, k, v * 10.0 ** rng.integers(-3, 4, v.shape[-1])


def identities(run: Run) -> Iterator[Finding]:
    """Each of the laws, over what rounding may do; a ratio above 1 breaks it."""
    worst = dict.fromkeys(
        ("sum of a row of weights less 1", "out less weights @ v", "out beyond the hull of v",
         "permuted keys and queries", "shifted logits: out", "shifted logits: lse less the shift"), 0.0,
    )  # fmt: skip
    lowest = math.inf

    def note(name: str, difference: Array, bound: Array) -> None:
        worst[name] = largest(worst[name], np.abs(difference) / bound)

    count = 0
    for rng, q, k, v in problems(run):
        count += 1
        got, t = attend(run, q, k, v), radius(q, k, v)
        lowest = min(lowest, float(got.weights.min()))
        # Higham, section 4.2: the row's sum and the quotients, at most Lk + 1 roundings of a sum of 1, twice
        Lk = k.shape[2]
        note("sum of a row of weights less 1", got.weights.sum(-1) - 1, np.full(1, 2 * (Lk + 1) * 2.0**-53))
        product = (Lk + 1) * 2.0**-53 * (got.weights @ np.abs(v))
        note("out less weights @ v", got.out - got.weights @ v, t.out + t.weights @ np.abs(v) + product)
        low, high = v.min(2, keepdims=True), v.max(2, keepdims=True)
        note("out beyond the hull of v", np.maximum(got.out - high, low - got.out).clip(0), t.out)
        rows, keys = rng.permutation(q.shape[2]), rng.permutation(Lk)
        moved = attend(run, q[:, :, rows], k[:, :, keys], v[:, :, keys])
        note("permuted keys and queries", moved.out - got.out[:, :, rows], 2 * t.out[:, :, rows])
        shift = rng.uniform(-40, 40, (1, 2, q.shape[2], 1))
        after, u = attend(run, q, k, v, shift), radius(q, k, v, shift)
        note("shifted logits: out", after.out - got.out, t.out + u.out)
        once = 2.0**-52 * (np.abs(after.lse) + np.abs(shift[..., 0]))  # the two subtractions made here
        note("shifted logits: lse less the shift", after.lse - got.lse - shift[..., 0], t.lse + u.lse + once)
    yield within("smallest weight", lowest, 0, 1, samples=count)
    for name, ratio in worst.items():
        yield within(f"{name}, over its bound", ratio, 0, 1, samples=count)


class Recall(NamedTuple):
    """Predicted: P(largest weight is the target's), mean margin and its variance, E p_t, E (out - v_t)²."""

    hit: float
    margin: float
    margin_variance: float
    weight: float
    error: float


def recall(N: float, d: int, scale: float) -> Recall:
    """The predictions; nodes for |q| by Golub and Welsch 1969, the trapezoidal rule for the rest."""
    from scipy.special import gammaln, log_ndtr

    i, n = np.arange(48), N - 1
    off = np.sqrt(i[1:] * (i[1:] + d / 2 - 1))  # |q|² / 2 is Gamma(d / 2)
    values, vectors = np.linalg.eigh(np.diag(2 * i + d / 2) + np.diag(off, 1) + np.diag(off, -1))
    length, mass = np.sqrt(2 * values), vectors[0] ** 2
    hit = float(mass @ np.exp(n * log_ndtr(length)))

    g = np.arange(-9, 11, 0.02)
    density = n * np.exp(-g * g / 2 + (n - 1) * log_ndtr(g)) * (0.02 / SQRT_2PI)
    top, top2 = float(density @ g), float(density @ (g * g))
    r1, r3 = (2 ** (p / 2) * math.exp(gammaln((d + p) / 2) - gammaln(d / 2)) for p in (1, 3))
    margin = scale * (d - r1 * top)
    margin2 = scale**2 * (d * (d + 2) - 2 * r3 * top + d * top2)

    weight = error = 0.0
    for r, w in zip(length, mass, strict=True):
        if w > 1e-14:
            sigma = scale * r
            step = min(0.25, 0.3 / sigma)
            g = np.arange(-11, 11 + step, step)
            phi = np.exp(-g * g / 2) * (step / SQRT_2PI)
            y = np.arange(-36, 4.5, 0.25)
            e = np.exp(np.minimum(y[:, None] + sigma * (g - r), 30))  # s x, x = exp(score less the target's)
            log_a0 = np.log1p(-np.minimum(-np.expm1(-e) @ phi, 1 - 1e-16))
            a2 = (np.exp(-e) * e * e) @ phi
            s = np.exp(y)
            others = np.exp(-s + n * log_a0) * 0.25
            p, p2 = float((s * others).sum()), float((s * s * others).sum())
            rest = n * float((a2 * np.exp(-s + (n - 1) * log_a0)).sum()) * 0.25
            weight += w * p
            error += w * (1 - 2 * p + p2 + rest)
    return Recall(hit, margin, margin2 - margin**2, weight, error)


def task(rng: np.random.Generator, n: int, N: int, d: int, place: int) -> tuple[Array, Array, Array]:
    """q, k and v of n tasks whose target is at `place`, (1, n, L, D)."""
    k = rng.standard_normal((1, n, N, d), dtype=np.float32)
    return k[:, :, place : place + 1], k, rng.integers(0, 2, (1, n, N, 4)) * 2.0 - 1


def planted(run: Run, N: int, d: int, content: bool = True) -> Iterator[Finding]:
    """The task at three distances; without content the queries are 0."""
    near, alpha, x = 0.04 if run.quick else 0.02, ALPHA / STATISTICS, recall(N, d, d**-0.5)
    for name, place in (("first", 0), ("middle", N // 2), ("last", N - 1)):
        error = x.error if content else 1 - 1 / N
        tests = {"E (out - v_t)²": Mean(error, near, Bounded(0, 4.1), alpha)}  # 4, and what rounding adds
        if content:
            tests["E p_t"] = Mean(x.weight, near, Bounded(0, 1), alpha)
            tests["P(hit)"] = Mean(x.hit, near, Bounded(0, 1), alpha)
            tests["E margin"] = Mean(x.margin, 5 * near, Variance(x.margin_variance), alpha)
        where = f"N={N}, d={d}, {name}" if content else f"N={N}, no content, {name}"
        rng = run.rng(where)
        for n in run.batches(run.budget(400_000, 40_000), max(50, 400_000 // (N * d))):
            q, k, v = task(rng, n, N, d, place)
            got = attend(run, q if content else 0 * q, k, v)
            p = got.weights[0, :, 0]
            own, others = p[:, place], np.delete(p, place, 1).max(1)
            seen = {
                "E (out - v_t)²": ((got.out[0, :, 0] - v[0, :, place]) ** 2).mean(-1),
                "E p_t": np.minimum(own, 1), "P(hit)": own > others, "E margin": np.log(own / others),
            }  # fmt: skip
            for what, test in tests.items():
                if test.decision is Decision.UNDECIDED:
                    test.update(seen[what])
            if all(test.decision is not Decision.UNDECIDED for test in tests.values()):
                break
        for what, test in tests.items():
            yield Finding(f"{what}, {where}", test.moments.mean, test.value, test.decision, test.moments.count)


def prove(run: Run) -> Iterator[Finding]:
    yield from identities(run)
    for N, d in ((64, 8), (256, 32)) if run.quick else ((64, 8), (256, 32), (1024, 64)):
        yield from planted(run, N, d)
        error = recall(N, d, d**-0.5).error
        name = f"E (out - v_t)² of attention over the least of a fixed mixing, N={N}, d={d}"
        yield within(name, error * N / (N - 1), 0, 1)
    yield from planted(run, 64, 8, content=False)


def picture(figure: Any, run: Run) -> None:
    """What is lost of a planted value against N: predicted, measured, and by any fixed mixing."""
    left, right = figure.subplots(1, 2, sharex=True)
    sizes = 2.0 ** np.arange(1, 31)
    rng = run.rng("picture")
    for i, d in enumerate((8, 16, 32, 64, 128)):
        exactly = [recall(N, d, d**-0.5) for N in sizes]
        left.plot(sizes, [x.error for x in exactly], color=f"C{i}", label=f"d = {d}")
        right.plot(sizes, [x.hit for x in exactly], color=f"C{i}", label=f"d = {d}")
        for N in (4, 32, 256, 1024):
            lost, hits = [], []
            for _ in range(16):
                q, k, v = task(rng, max(25, 400_000 // (N * d)), N, d, N // 3)
                got = attend(run, q, k, v)
                lost.append(((got.out[0, :, 0] - v[0, :, N // 3]) ** 2).mean())
                hits.append((got.weights[0, :, 0].argmax(-1) == N // 3).mean())
            left.plot(N, np.mean(lost), "o", color=f"C{i}", markersize=4)
            right.plot(N, np.mean(hits), "o", color=f"C{i}", markersize=4)
    left.plot(sizes, 1 - 1 / sizes, "k--", label="any fixed mixing")
    right.plot(sizes, 1 / sizes, "k--", label="any fixed mixing")
    left.set(xscale="log", ylim=(0, 1.05), xlabel="number of keys N", ylabel="mean (out - v_t)²")
    left.set_title("Error of the recalled value, scale 1/√d", fontsize=11)
    right.set(xlabel="number of keys N", ylabel="probability", ylim=(0, 1.05))
    right.set_title("The largest weight is the target's", fontsize=11)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=6)


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
