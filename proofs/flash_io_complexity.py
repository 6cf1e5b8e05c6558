"""Tiled attention makes Θ(N² d² / M) accesses to slow memory, standard attention Θ(N d + N²).

Setting: algorithms 0, 1, 3 and 4 of Dao et al. 2022, executed line by line as printed (no mask, no dropout) between
a slow memory, which counts each element that it hands out or takes in, and a fast one of M elements.  They
compute: their results lie within the bounds of `refattn.truth`.  What is accessed does not depend on values, so that
large sizes run on a memory that knows shapes alone.  With Bc = ceil(M / 4d) keys a tile and Tc = ceil(N / Bc),

    algorithm 0   4 N² + 4 N d                           algorithm 3   7 N² + 8 N d
    algorithm 1   3 N d + 2 N + Tc (3 N d + 4 N)         algorithm 4   7 N d + Tc (5 N d + 2 N)

to the element, ragged tiles too.  For d <= M <= N d, as 4dN/5M <= Tc <= 4dN/M + 1, counts / (N² d² / M) lie
between 2.4 and 18 + 22/d (algorithm 4: 4 and 32 + 10/d).  Slopes in N, d, M are 2, 2, -1 but for lower orders,
1.4/Tc + 4/3d at the smaller end over the logarithm of the span: below 0.02 at the sizes run (--quick: 0.04).
Crossover: 4 N² = 12 N² d² / M, so M = 3 d²; exactly, tiled wins if Tc (3 d + 4) < 4 N + d - 2: M / d² near 3 + 4/d.

What is taken for granted, and what is not reproduced:
- Algorithm 0's products read each operand once, however small M is ("by blocks").  Sent through the tiles of
  algorithm 1 they make as many passes as it does, and 4 N (N - Tc) - 2 N accesses more in all: then tiled attention
  wins for every M > 4 d.  The crossover is one of the accounting.
- M is met up to a constant: the printed tiles need up to 1.25 M (2 Bc d + 2 Br d + Br Bc), backward 2.5 M, and
  Bc = 1 below M = 4 d.  The theorem says Θ.
- Figure 2, left (N=1024, d=64, 16 heads, batch 64) prints 40.3 and 4.4 GB, 66.6 and 75.2 GFLOPs.  At 2 bytes an
  element and 10⁹ in a GB, algorithms 0 and 3 make 25.2.  Seven more passes over N x N would make 40.3; mask and dropout
  are likely ones, but which is a guess: another text of the paper has 35.3 GB for "key-padding mask and
  no dropout", 4.7 passes more, no whole number.  Algorithms 1 and 4 make 4.6 GB at 192 KB; no tile comes nearer to 4.4.
  The 8.6 GFLOPs between the two are one recomputed Q Kᵀ, 2 N² d, of 64 heads, where the caption has 1,024.
  The totals are not reproduced: 825 and 962 GFLOPs of products for 1,024 heads, 51.5 and 60.1 for 64.

Decision: counting, no chance in it; the paper's figures to their printed digits.
Source: Dao et al. 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", algorithms 0
and 1, theorem 2, figure 2; appendix B.4, algorithms 3 and 4, theorem 5; appendix C.
Time: 12 s; --quick 3 s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.case import Case
from refattn.inputs import Problem, make
from refattn.judge import ratios
from refattn.montecarlo import Finding, Run, exact, main, within
from refattn.precision import preset
from refattn.truth import truth

Array = np.ndarray[Any, Any]
Product = Callable[[Array, Array], Array]
ALL = slice(None)

WORLDS = {
    "reload": "a tiled loop that loads K and V again for every block of queries",
    "scores": "a tiled loop that sends its scores through slow memory",
    "fixed": "tiles of 64 rows, however large the fast memory is",
    "fused": "a standard attention that never writes its scores",
}


class Slow:
    """Slow memory of (N, width) arrays that counts the elements read and written.

    `on_chip` executes one step on blocks that were loaded.  Without numbers it knows shapes alone, and skips steps.
    """

    def __init__(self, N: int, d: int, arrays: dict[str, Array] | None = None) -> None:
        self.N, self.d, self.arrays = N, d, arrays
        self.reads = self.writes = self.flops = 0
        self.widths = {**dict.fromkeys("Q K V O dO dQ dK dV".split(), d), **dict.fromkeys("S P dS dP".split(), N)}
        self.widths |= {"l": 1, "m": 1}

    def size(self, name: str, rows: slice, columns: slice) -> int:
        height = self.N if rows is ALL else rows.stop - rows.start
        return height * (self.widths[name] if columns is ALL else columns.stop - columns.start)

    def load(self, name: str, rows: slice = ALL, columns: slice = ALL) -> Any:
        self.reads += self.size(name, rows, columns)
        return None if self.arrays is None else self.arrays[name][rows, columns].copy()

    def store(self, name: str, block: Any, rows: slice = ALL, columns: slice = ALL) -> None:
        self.writes += self.size(name, rows, columns)
        if self.arrays is not None:
            self.arrays.setdefault(name, np.zeros((self.N, self.widths[name])))[rows, columns] = block

    def on_chip(self, outputs: int, step: Callable[..., tuple[Array, ...]], *blocks: Any) -> tuple[Any, ...]:
        return (None,) * outputs if self.arrays is None else step(self.product, *blocks)

    def product(self, a: Array, b: Array) -> Array:
        c = np.asarray(a @ b)
        self.flops += 2 * c.size * a.shape[1]
        return c


# steps on chip


def softmax(product: Product, s: Array) -> tuple[Array, ...]:
    p = np.exp(s - s.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True),)


def softmax_backward(product: Product, p: Array, dp: Array) -> tuple[Array, ...]:
    return (p * (dp - (p * dp).sum(1, keepdims=True)),)


def forward_tile(product: Product, q: Array, o: Array, l: Array, m: Array, k: Array, v: Array) -> tuple[Array, ...]:  # noqa: E741
    """Algorithm 1, lines 9 to 13; and the scores, which stay on chip."""
    s = product(q, k.T)
    peak = s.max(1, keepdims=True)
    p = np.exp(s - peak)
    m_new = np.maximum(m, peak)
    old, new = np.exp(m - m_new), np.exp(peak - m_new)
    l_new = old * l + new * p.sum(1, keepdims=True)
    return (l * old * o + new * product(p, v)) / l_new, l_new, m_new, s


def backward_tile(
    product: Product, q: Array, o: Array, do: Array, dq: Array, l: Array, m: Array,  # noqa: E741
    k: Array, v: Array, dk: Array, dv: Array,
) -> tuple[Array, ...]:  # fmt: skip
    """Algorithm 4, lines 11 to 22."""
    p = np.exp(product(q, k.T) - m) / l
    dv = dv + product(p.T, do)
    ds = p * (product(do, v.T) - (do * o).sum(1, keepdims=True))
    return dq + product(ds, k), dk + product(ds.T, q), dv


Step = Callable[..., tuple[Array, ...]]
A_BT: Step = lambda product, a, b: (product(a, b.T),)  # noqa: E731
A_B: Step = lambda product, a, b: (product(a, b),)  # noqa: E731
AT_B: Step = lambda product, a, b: (product(a.T, b),)  # noqa: E731

# the algorithms


def passes(slow: Slow, *lines: tuple[Step, str, str]) -> None:
    """Lines of algorithms 0 and 3: load whole operands, compute, write."""
    for step, operands, result in lines:
        slow.store(result, *slow.on_chip(1, step, *(slow.load(name) for name in operands.split())))


def algorithm0(run: Run, slow: Slow, M: int) -> None:
    if run.world == "fused":
        passes(slow, (lambda product, q, k: softmax(product, product(q, k.T)), "Q K", "P"), (A_B, "P V", "O"))
    else:
        passes(slow, (A_BT, "Q K", "S"), (softmax, "S", "P"), (A_B, "P V", "O"))


def algorithm3(run: Run, slow: Slow, M: int) -> None:
    passes(slow, (AT_B, "P dO", "dV"), (A_BT, "dO V", "dP"), (softmax_backward, "P dP", "dS"))
    passes(slow, (A_B, "dS K", "dQ"), (AT_B, "dS Q", "dK"))


def tiles(run: Run, slow: Slow, M: int) -> Iterator[list[slice]]:
    """Algorithm 1, lines 1 and 3: tiles of queries, tiles of keys."""
    Bc = 64 if run.world == "fixed" else math.ceil(M / (4 * slow.d))
    for size in (min(Bc, slow.d), Bc):
        yield [slice(i, min(i + size, slow.N)) for i in range(0, slow.N, size)]


def algorithm0_tiled(run: Run, slow: Slow, M: int) -> None:
    """Algorithm 0 whose products go through the tiles of algorithm 1, in its order."""
    rows, keys = tiles(run, slow, M)
    for j in keys:
        k = slow.load("K", j)
        for i in rows:
            (s,) = slow.on_chip(1, A_BT, slow.load("Q", i), k)
            slow.store("S", s, i, j)
    passes(slow, (softmax, "S", "P"))
    slow.store("O", 0.0)
    for j in keys:
        v = slow.load("V", j)
        for i in rows:
            own = slow.load("O", i), slow.load("P", i, j)
            (o,) = slow.on_chip(1, lambda product, o, p, v: (o + product(p, v),), *own, v)
            slow.store("O", o, i)


def algorithm1(run: Run, slow: Slow, M: int) -> None:
    rows, keys = tiles(run, slow, M)
    for name, value in (("O", 0.0), ("l", 0.0), ("m", -np.inf)):
        slow.store(name, value)
    for j in keys:
        k, v = slow.load("K", j), slow.load("V", j)
        for i in rows:
            if run.world == "reload":
                k, v = slow.load("K", j), slow.load("V", j)
            own = [slow.load(name, i) for name in ("Q", "O", "l", "m")]
            *new, s = slow.on_chip(4, forward_tile, *own, k, v)
            if run.world == "scores":
                slow.store("S", s, i, j)
                slow.load("S", i, j)
            for name, block in zip(("O", "l", "m"), new, strict=True):
                slow.store(name, block, i)


def algorithm4(run: Run, slow: Slow, M: int) -> None:
    rows, keys = tiles(run, slow, M)
    for name in ("dQ", "dK", "dV"):
        slow.store(name, 0.0)
    for j in keys:
        k, v = slow.load("K", j), slow.load("V", j)
        dk = dv = np.zeros((j.stop - j.start, slow.d))
        for i in rows:
            own = [slow.load(name, i) for name in ("Q", "O", "dO", "dQ", "l", "m")]
            dq, dk, dv = slow.on_chip(3, backward_tile, *own, k, v, dk, dv)
            slow.store("dQ", dq, i)
        slow.store("dK", dk, j)
        slow.store("dV", dv, j)


Algorithm = Callable[[Run, Slow, int], None]
STANDARD, TILED = (algorithm0, algorithm3), (algorithm1, algorithm4)
WRITTEN = {"O": "out", "dQ": "dq", "dK": "dk", "dV": "dv"}


def accesses(run: Run, algorithm: Algorithm, N: int, d: int, M: int) -> int:
    """Executed on shapes alone."""
    slow = Slow(N, d)
    algorithm(run, slow, M)
    return slow.reads + slow.writes


def formulas(N: int, d: int, M: int) -> dict[Algorithm, int]:
    Tc = math.ceil(N / math.ceil(M / (4 * d)))
    return {
        algorithm0: 4 * N * N + 4 * N * d,
        algorithm3: 7 * N * N + 8 * N * d,
        algorithm1: 3 * N * d + 2 * N + Tc * (3 * N * d + 4 * N),
        algorithm4: 7 * N * d + Tc * (5 * N * d + 2 * N),
        algorithm0_tiled: 4 * N * N + 3 * N * d + 3 * N * d * Tc,
    }


def executed(run: Run, N: int, d: int, M: int) -> tuple[Problem, dict[Algorithm, Slow]]:
    """A problem, and each algorithm after it has run on it."""
    want = frozenset(("out", "dq", "dk", "dv"))
    problem = make(Case("io", "", Lq=N, Lk=N, D=d, Dv=d, dtype="float64", scale=1.0, want=want, seed=run.seed))
    q, k, v, dout = (problem.logical[name][0, 0] for name in ("q", "k", "v", "dout"))
    done: dict[Algorithm, Slow] = {}
    for chain in ((algorithm0, algorithm3), (algorithm1, algorithm4), (algorithm0_tiled,)):
        arrays = {"Q": q, "K": k, "V": v, "dO": dout}
        for algorithm in chain:
            done[algorithm] = Slow(N, d, arrays)
            algorithm(run, done[algorithm], M)
    return problem, done


def counts(run: Run) -> Iterator[Finding]:
    for N, d, M in ((96, 8, 512), (100, 12, 1000), (64, 16, 4096), (37, 5, 5)):
        problem, done = executed(run, N, d, M)
        # algorithm 1 rescales three times in a tile (lines 11 and 12), so that a third of one is promised
        promised = replace(preset("float64"), tile=max(1, math.ceil(M / (4 * d)) // 3))
        expected = truth(problem, promised)
        errors = [
            float(ratios(array[None, None], e.value, e.lo, e.hi).max())
            for last in (algorithm3, algorithm4, algorithm0_tiled)
            for name, array in (done[last].arrays or {}).items()
            if (e := expected.get(WRITTEN.get(name, ""))) is not None
        ]
        yield within(f"largest error of {len(errors)} outputs / bound, N={N}, d={d}, M={M}", max(errors), 0, 1)
        for algorithm, formula in formulas(N, d, M).items():
            slow, name = done[algorithm], algorithm.__name__
            yield exact(f"accesses, {name}, N={N}, d={d}, M={M}", slow.reads + slow.writes, formula)
            yield exact(f"the same on shapes alone, {name}", accesses(run, algorithm, N, d, M), formula)
    N, d = 128, 16
    for algorithm, lo, hi in ((algorithm1, 2.4, 18 + 22 / d), (algorithm4, 4, 32 + 10 / d)):
        found = [accesses(run, algorithm, N, d, M) * M / (N * d) ** 2 for M in (d, 5 * d, 99 * d, N * d)]
        for what, got in (("least", min(found)), ("most", max(found))):
            yield within(f"{what} accesses / (N² d² / M), {algorithm.__name__}, d <= M <= N d", got, lo, hi)


def slopes(run: Run) -> Iterator[Finding]:
    n, margin = (1, 0.04) if run.quick else (4, 0.02)
    spans = {
        "N": ((2048 * n, 64, 16384), (8192 * n, 64, 16384), 2),
        "d": ((4096 * n, 128, 32768), (4096 * n, 256, 32768), 2),
        "M": ((8192 * n, 64, 16384), (8192 * n, 64, 65536), -1),
    }
    for algorithm in (algorithm1, algorithm4, algorithm0, algorithm3):
        sizes = {size for start, end, _ in spans.values() for size in (start, end)}
        run.tick(f"slopes of {algorithm.__name__}")
        found = {size: accesses(run, algorithm, *size) for size in sizes}
        for i, (axis, (start, end, slope)) in enumerate(spans.items()):
            if axis == "N" or algorithm in TILED:
                got = math.log(found[end] / found[start], end[i] / start[i])
                yield within(f"slope in {axis}, {algorithm.__name__}", got, slope - margin, slope + margin)


def crossover(run: Run) -> Iterator[Finding]:
    for d in (32, 64, 128, 256):
        N = (32 if run.quick else 128) * d
        run.tick(f"crossover, d={d}")
        lo, hi = d // 2, d  # keys a tile: tiled attention loses at lo, wins at hi
        while hi - lo > 1:
            middle = (lo + hi) // 2
            wins = accesses(run, algorithm1, N, d, 4 * d * middle) < accesses(run, algorithm0, N, d, 0)
            lo, hi = (lo, middle) if wins else (middle, hi)
        first = next(Bc for Bc in range(1, N) if math.ceil(N / Bc) * (3 * d + 4) < 4 * N + d - 2)
        yield exact(f"least Bc at which algorithm1 makes fewer accesses than algorithm0, d={d}", hi, first)
        ends = (3 * d + 4) / (4 + (d - 2) / N), (3 * d + 4) / (4 - (2 * d + 6) / N) + 1
        yield within(f"M / d² there, d={d}", 4 * hi / d, 4 * ends[0] / d, 4 * ends[1] / d)
    N, d = 512, 16
    for M in (4 * d, 8 * d, 3 * d * d, 64 * d):
        more = accesses(run, algorithm0_tiled, N, d, M) - accesses(run, algorithm1, N, d, M)
        Tc = math.ceil(4 * d * N / M)
        yield exact(f"accesses of algorithm0_tiled beyond algorithm1, M={M}", more, 4 * N * (N - Tc) - 2 * N)


HEADS, N2, D2, SRAM = 1024, 1024, 64, 192 * 1024 // 2  # figure 2: 16 heads, batch 64; elements of 2 bytes


def gigabytes(run: Run, algorithms: tuple[Algorithm, ...], M: int = SRAM) -> float:
    return 2 * HEADS * sum(accesses(run, a, N2, D2, M) for a in algorithms) / 1e9


def figure2(run: Run) -> Iterator[Finding]:
    run.tick("figure 2")
    each = 2 * HEADS * N2**2 / 1e9
    counted = gigabytes(run, STANDARD)
    note = "Not reproduced: figure 2's GFLOPs in all, and seven passes that no printed algorithm makes; see --help."
    what = f"figure 2: passes over N x N missing from {counted:.2f} GB, algorithm0 and 3, to 40.3 GB"
    yield within(what, (40.3 - counted) / each, 7 - 0.05 / each, 7 + 0.05 / each, note)
    near = {Tc: abs(gigabytes(run, TILED, 4 * D2 * math.ceil(N2 / Tc)) - 4.4) for Tc in (1, 2, 3, 4, 6, 8)}
    Tc = math.ceil(N2 / math.ceil(SRAM / (4 * D2)))
    ours = gigabytes(run, TILED)
    what = f"figure 2: Tc at which algorithm1 and 4 come nearest to 4.4 GB; 192 KB give {ours:.2f}"
    yield exact(what, min(near, key=lambda Tc: near[Tc]), Tc)
    _, done = executed(run, N2, D2, SRAM)
    more = sum(done[a].flops for a in TILED) - sum(done[a].flops for a in STANDARD)
    yield exact("figure 2: FLOPs that algorithm1 and 4 add, one head", more, 2 * N2 * N2 * D2)
    yield within("figure 2: GFLOPs of 64 heads that they add, printed 8.6", 64 * more / 1e9, 8.5, 8.7)


def prove(run: Run) -> Iterator[Finding]:
    yield from counts(run)
    yield from slopes(run)
    yield from crossover(run)
    yield from figure2(run)


def picture(figure: Any, run: Run) -> None:
    """Accesses against M, counted; and figure 2 of the paper, printed and counted."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    N, d = 4096, 64
    M = [d * 2**i for i in range(4, 13)]
    for color, label, algorithm in (
        ("C3", "standard (algorithm 0), operands read once", algorithm0),
        ("C1", "standard, products in the same tiles", algorithm0_tiled),
        ("C0", "tiled (algorithm 1)", algorithm1),
    ):
        left.plot(M, [accesses(run, algorithm, N, d, m) for m in M], "o-", color=color, label=label, markersize=4)
    left.plot(M, [12 * (N * d) ** 2 / m for m in M], "k:", label="12 N² d² / M")
    left.axvline(3 * d * d, color="grey", alpha=0.5)
    left.text(3.2 * d * d, 6e8, "M = 3 d²", color="grey")
    left.set(xscale="log", yscale="log", xlabel="elements of fast memory, M")
    left.set_title(f"accesses to slow memory, N = {N:,}, d = {d}", fontsize="medium")
    left.legend(fontsize="small")
    counted = [gigabytes(run, STANDARD), gigabytes(run, TILED)]
    bars = right.bar([-0.2, 0.8], [40.3, 4.4], 0.38, color="lightgrey", label="printed")
    right.bar_label(bars, fmt="%.1f", padding=-14)
    bars = right.bar([0.2, 1.2], counted, 0.38, color="C0", label="counted")
    right.bar_label(bars, fmt="%.1f", padding=-14, color="w")
    right.bar([0.2], 40.3 - counted[0], 0.38, bottom=counted[0], fill=False, ls="--", label="7 passes assumed")
    right.set_xticks([0, 1], ["standard", "tiled"])
    right.set_title("GB of figure 2 (left)", fontsize="medium")
    right.legend(fontsize="small")


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
