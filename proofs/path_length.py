"""The longest path between two positions is 1 in self-attention, n in recurrence, and n/k or log_k n in convolution.

Setting: the layers of Vaswani et al. 2017, table 1, on n positions of d features; each is unfolded, and searched
or executed, none is looked up.

1. Maximum path length, by graph search: breadth first from every input position until each output position is
   reached.  An edge is one step of a signal: through a layer, or from one state to the next.

       self-attention               1
       recurrent                    n edges: 1 into a state, n - 1 along the sequence
       convolution, contiguous      ceil(2 (n-1) / (k-1)) layers, centred; ceil((n-1) / (k-1)), causal
       convolution, dilated k^l     L = ceil(log_k n) layers, causal; L to 2 L, centred
       restricted self-attention    ceil(2 (n-1) / r) layers, r / 2 neighbours on each side

   A causal net has to connect only pairs j <= i.  The field of contiguous layers grows by k - 1 in each, that of
   dilated ones k-fold.  A centred kernel spends half its taps on the other side, and one cycle of dilations
   1, k, ..., k^(L-1) does not connect both ends; two do, as two balanced digits make any digit to base k.  So the
   log_k n that table 1 prints for convolutions holds for dilated ones alone; the paper's text says so, and
   O(n/k) for contiguous kernels.
2. Sequential operations, by execution on numbers that know their depth: the longest path of the graph of
   operations.  If one operation may add any number of terms, which table 1 takes for granted, the depth of
   attention is 6 and of a convolution 2, for every n, that of recurrence 3 n.  With adders of two inputs (d a power
   of two) it is 4 + log2 d + ceil(log2 n) for attention (no longer O(1)), and n (3 + log2 d) for recurrence.
3. Complexity per layer, by counting multiplications as they are executed:

       self-attention 2 n² d;   recurrent 2 n d²;   convolution k n d²;   separable k n d + n d²;   restricted 2 r n d

   Self-attention is cheaper than recurrence exactly for n < d.  That counts q kᵀ and p v alone: with the four
   projections of a Transformer layer (4 n d²) it is never cheaper than this recurrent layer, and cheaper than an
   LSTM (8 n d²) exactly for n < 2 d.  A convolution costs k/2 recurrent layers (W x and U h are two products), where
   the text says "a factor of k".

Decision: all is counted in integers, no chance in it.
Source: Vaswani et al. 2017, "Attention Is All You Need", table 1 and section 4.
Time: 4 s; --quick 1 s.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

from refattn.montecarlo import Finding, Run, exact, main, within

WORLDS = {
    "shortcut": "a recurrence whose states read the first state, not the one before",
    "windowed": "self-attention that sees four neighbours only",
    "stretched": "contiguous convolutions that are dilated in secret",
    "undilated": "dilated convolutions without dilation",
    "diagonal": "a recurrence whose matrix U is diagonal",
    "projected": "self-attention with its four projections counted as part of it",
}


def ceil_log(base: int, x: int) -> int:
    """The smallest L with base**L >= x, in integers."""
    L = 0
    while base**L < x:
        L += 1
    return L


# 1. path length


def offsets(run: Run, kind: str, k: int, n: int, layer: int) -> list[int]:
    """Where output 0 of a layer looks; dilations go 1, k, k², ... below n, and over again."""
    dilated = run.world != "undilated" if kind.startswith("dilated") else run.world == "stretched"
    step = k ** (layer % ceil_log(k, n)) if dilated else 1
    return [step * (t - (k // 2 if "centred" in kind else k - 1)) for t in range(k)]


def neighbours(r: int, layer: int) -> range:
    return range(-(r // 2), r // 2 + 1)


def layers_needed(n: int, looks: Callable[[int], Sequence[int]], causal: bool) -> float:
    """How many layers until each output is reached by every input (causal: every one not after it).

    All inputs are searched from at once: bit j of reached[i] says that input j reaches position i.
    Infinite if 2 n layers do not do.
    """
    reached = [1 << i for i in range(n)]
    everything = [(1 << (i + 1)) - 1 if causal else (1 << n) - 1 for i in range(n)]
    layers = 0
    while reached != everything:
        steps = looks(layers)
        sources = ([i + step for step in steps if 0 <= i + step < n] for i in range(n))
        reached = [reduce(or_, (reached[j] for j in js), 0) for js in sources]
        layers += 1
        if layers > 2 * n:
            return math.inf
    return layers


def stack(run: Run, kind: str, k: int, n: int) -> float:
    """Layers of a stack of convolutions of one kind."""
    return layers_needed(n, partial(offsets, run, kind, k, n), kind.endswith("causal"))


Node = tuple[str, int]


def self_attention_graph(run: Run, n: int) -> dict[Node, list[Node]]:
    near = 4 if run.world == "windowed" else n
    return {("in", j): [("out", i) for i in range(n) if abs(i - j) <= near] for j in range(n)}


def recurrent_graph(run: Run, n: int) -> dict[Node, list[Node]]:
    """in_t -> state_t -> state_(t+1); a state is what the layer puts out at t."""
    edges: dict[Node, list[Node]] = {("in", t): [("out", t)] for t in range(n)}
    edges |= {("out", t): [("out", t + 1)] if t + 1 < n else [] for t in range(n)}
    if run.world == "shortcut":
        edges |= {("out", t): [("out", s) for s in range(1, n)] if t == 0 else [] for t in range(n)}
    return edges


def longest(edges: dict[Node, list[Node]], n: int, causal: bool) -> float:
    """The largest distance from an input to an output (causal: not before it); infinite if there is no path."""
    worst: float = 0
    for source in range(n):
        distance = {("in", source): 0}
        queue = deque(distance)
        while queue:
            node = queue.popleft()
            for after in edges.get(node, []):
                if after not in distance:
                    distance[after] = distance[node] + 1
                    queue.append(after)
        wanted = range(source if causal else 0, n)
        worst = max(worst, max(distance.get(("out", i), math.inf) for i in wanted))
    return worst


def paths(run: Run) -> Iterator[Finding]:
    for n in (16, 64, 243) if run.quick else (16, 64, 243, 512):
        run.tick(f"paths, n={n}")
        yield exact(f"path, self-attention, n={n}", longest(self_attention_graph(run, n), n, False), 1)
        yield exact(f"path, recurrent, n={n}", longest(recurrent_graph(run, n), n, True), n)
        for kind in ("contiguous causal", "contiguous centred", "dilated causal", "dilated centred"):
            causal = kind.endswith("causal")
            for k in (2, 3, 5) if causal else (3, 5, 9):
                got = stack(run, kind, k, n)
                what = f"layers, {kind} convolution, k={k}, n={n}"
                if kind == "dilated centred":
                    yield within(what, got, ceil_log(k, n), 2 * ceil_log(k, n))
                elif kind == "dilated causal":
                    yield exact(what, got, ceil_log(k, n))
                else:
                    yield exact(what, got, math.ceil((1 if causal else 2) * (n - 1) / (k - 1)))
        for r in (8, 32):
            got = layers_needed(n, partial(neighbours, r), False)
            yield exact(f"layers, restricted self-attention, r={r}, n={n}", got, math.ceil(2 * (n - 1) / r))


# 2. and 3.: execution


@dataclass
class Machine:
    """Executes layers on numbers that know only how deep they lie, and counts multiplications."""

    fan_in: int | None = None  # how many terms an adder takes: 2, or any number
    multiplications: int = 0

    def times(self, a: int, b: int) -> int:
        self.multiplications += 1
        return max(a, b) + 1

    def add(self, terms: Iterable[int]) -> int:
        if self.fan_in is None:
            return max(terms) + 1
        heap = list(terms)
        heapq.heapify(heap)  # the two that are ready first, first: the least depth there is
        while len(heap) > 1:
            a, b = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, max(a, b) + 1)
        return heap[0]

    def dot(self, a: Sequence[int], b: Sequence[int]) -> int:
        return self.add(self.times(x, y) for x, y in zip(a, b, strict=True))

    def apply(self, a: int) -> int:
        """exp, tanh or a division."""
        return a + 1


Rows = list[list[int]]


def attend(machine: Machine, x: Rows, sees: Callable[[int], Sequence[int]]) -> Rows:
    """sum_j exp(x_i · x_j) x_j / sum_j exp(x_i · x_j) over what i sees."""
    out: Rows = []
    for i, row in enumerate(x):
        weights = [machine.apply(machine.dot(row, x[j])) for j in sees(i)]
        total = machine.add(weights)
        mixed = (machine.dot(weights, [x[j][c] for j in sees(i)]) for c in range(len(row)))
        out.append([machine.apply(max(total, m)) for m in mixed])
    return out


def self_attention(run: Run, machine: Machine, n: int, d: int) -> Rows:
    out = attend(machine, [[0] * d for _ in range(n)], lambda i: range(n))
    if run.world == "projected":
        machine.multiplications += 4 * n * d * d
    return out


def recurrent(run: Run, machine: Machine, n: int, d: int) -> Rows:
    """h_t = tanh(W x_t + U h_(t-1))."""
    h, zero = [0] * d, [0] * d
    out: Rows = []
    for t in range(n):
        before = out[0] if run.world == "shortcut" and t else h
        new = []
        for c in range(d):
            terms = [machine.times(w, x) for w, x in zip(zero, zero, strict=True)]
            columns = [c] if run.world == "diagonal" else range(d)
            terms += [machine.times(0, before[b]) for b in columns]
            new.append(machine.apply(machine.add(terms)))
        h = new
        out.append(h)
    return out


def convolution(run: Run, machine: Machine, n: int, d: int, k: int) -> Rows:
    """k neighbours (zeros beyond the ends), a d x d matrix times each."""
    return [[machine.dot([0] * (k * d), [0] * (k * d)) for _ in range(d)] for _ in range(n)]


def separable(run: Run, machine: Machine, n: int, d: int, k: int) -> Rows:
    """Each feature along the sequence, then features among themselves."""
    deep = [[machine.dot([0] * k, [0] * k) for _ in range(d)] for _ in range(n)]
    return [[machine.dot([0] * d, row) for _ in range(d)] for row in deep]


def depth(rows: Rows) -> int:
    return max(map(max, rows))


def sequential(run: Run) -> Iterator[Finding]:
    d = 8
    for n in (4, 8, 31) if run.quick else (4, 8, 31, 64, 128):
        run.tick(f"sequential operations, n={n}")
        yield exact(f"depth, self-attention, n={n}", depth(self_attention(run, Machine(), n, d)), 6)
        yield exact(f"depth, convolution, k=3, n={n}", depth(convolution(run, Machine(), n, d, 3)), 2)
        yield exact(f"depth, recurrent, n={n}", depth(recurrent(run, Machine(), n, d)), 3 * n)
        two = depth(self_attention(run, Machine(2), n, d))
        yield exact(f"depth with adders of two, self-attention, n={n}", two, 4 + ceil_log(2, d) + ceil_log(2, n))
        two = depth(recurrent(run, Machine(2), n, d))
        yield exact(f"depth with adders of two, recurrent, n={n}", two, n * (3 + ceil_log(2, d)))


def cost(layer: Callable[..., Rows], run: Run, n: int, d: int, *more: Any) -> int:
    machine = Machine()
    layer(run, machine, n, d, *more)
    return machine.multiplications


def complexity(run: Run) -> Iterator[Finding]:
    for n, d in ((6, 4), (5, 8), (16, 12)):
        at = f"n={n}, d={d}"
        yield exact(f"multiplications, self-attention, {at}", cost(self_attention, run, n, d), 2 * n * n * d)
        yield exact(f"multiplications, recurrent, {at}", cost(recurrent, run, n, d), 2 * n * d * d)
        for k in (3, 5):
            yield exact(f"multiplications, convolution, k={k}, {at}", cost(convolution, run, n, d, k), k * n * d * d)
            got = cost(separable, run, n, d, k)
            yield exact(f"multiplications, separable, k={k}, {at}", got, k * n * d + n * d * d)
        r, machine = 4, Machine()
        attend(machine, [[0] * d for _ in range(n)], lambda i: [0] * 4)
        yield exact(f"multiplications, restricted, r={r}, {at}", machine.multiplications, 2 * r * n * d)
    for d in (4, 8, 12) if run.quick else (4, 8, 12, 24, 32):
        run.tick(f"crossover, d={d}")
        sizes = range(1, 2 * d + 2)
        ours = {n: cost(self_attention, run, n, d) for n in sizes}
        theirs = {n: cost(recurrent, run, n, d) for n in sizes}
        layer = {n: ours[n] + 4 * n * d * d for n in sizes}
        for what, found, expected in (
            ("n at which self-attention is cheaper", [n for n in sizes if ours[n] < theirs[n]], range(1, d)),
            ("n at which it costs the same", [n for n in sizes if ours[n] == theirs[n]], [d]),
            ("n at which it is cheaper with projections", [n for n in sizes if layer[n] < theirs[n]], []),
            ("the same, against an LSTM", [n for n in sizes if layer[n] < 4 * theirs[n]], range(1, 2 * d)),
        ):
            yield exact(f"{what}, d={d}", spell(found), spell(expected))


def spell(numbers: Sequence[int]) -> str:
    """Smallest, largest and how many, which is all of a run of consecutive numbers."""
    return f"{min(numbers)} to {max(numbers)} ({len(numbers)})" if numbers else "none"


def prove(run: Run) -> Iterator[Finding]:
    yield from paths(run)
    yield from sequential(run)
    yield from complexity(run)


def picture(figure: Any, run: Run) -> None:
    """Path lengths against n, found by search."""
    axes = figure.add_subplot()
    sizes = [4, 8, 16, 32, 64, 128, 256, 512]
    searches: dict[str, Callable[[int], float]] = {
        "recurrent": lambda n: longest(recurrent_graph(run, n), n, True),
        "convolution, contiguous, k=3": lambda n: stack(run, "contiguous causal", 3, n),
        "restricted self-attention, r=32": lambda n: layers_needed(n, partial(neighbours, 32), False),
        "convolution, dilated, k=3": lambda n: stack(run, "dilated causal", 3, n),
        "self-attention": lambda n: longest(self_attention_graph(run, n), n, False),
    }
    for i, (label, search) in enumerate(searches.items()):
        found = [search(n) for n in sizes]
        axes.plot(sizes, found, "o-", color=f"C{i}", markersize=4)
        axes.annotate(label, (sizes[-1], found[-1]), (6, -3), textcoords="offset points", color=f"C{i}")
    axes.loglog()
    ticks = [1, 2, *sizes]
    axes.set_xticks(sizes, [str(n) for n in sizes])
    axes.set_yticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set(xlabel="positions n", ylabel="edges, or layers", xlim=(3, 5000))
    axes.set_title("Longest path between two positions, by search of the unfolded networks")
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
