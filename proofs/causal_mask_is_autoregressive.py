"""A causal mask makes attention autoregressive: o_i depends on no key and value after position i.

Setting: M_ij = 0 for j <= i + a and -inf beyond, added to the scores; a = 0 (top left), or Lk - Lq
(bottom right: the last query sees the last key, as in decoding with a cache).  The two differ
whenever Lq != Lk: with Lq < Lk queries they are the first and the last Lq rows of the square case.

Derivation: exp(s_ij - inf) = 0 exactly, so that hidden keys enter neither the sum nor p v, and
do_i/dv_j = p_ij, do_i/dk_j = p_ij (v_j - o_i) qᵀ scale are zero exactly, not nearly.  What is left
is softmax over the first i + a + 1 keys: the row that a prefix alone would give.  Rows of later
layers see only rows that depend on nothing later, so that whole stacks are autoregressive.

Checked for every 1 <= Lq, Lk <= 7 (--quick: 5), both alignments, ordinary scores and scores below
-1e9, against j <= i + a written out (not against the masks' own code): the Jacobian of every o_i in
every q, k, v, by the oracle's gradients, as zero exactly where hidden and as nonzero exactly where
visible; bits of out and lse when all that is hidden becomes huge or NaN, in the oracle and in the tiled
kernel; prefixes recomputed, within twice the rigorous float64 bound; M added against a boolean mask;
decoding token by token; a stack of four layers.  The inputs are random, the statements hold for
each: counts, no chance and no false alarm.

-1e9 in place of -inf is the same (added: bit for bit) where a visible score is above -1e9 +
745.2 in float64 (exp of less is below half the smallest subnormal, 2^-1075), or -1e9 + 104 in float32
(2^-150).  It differs where a row sees nothing: filled in, out is the mean of v; added, in float64 it is as
if there were no mask, and in float32 the mean again, for scores there become multiples of 64.  And where
visible scores are lower than that (added: lower than hidden ones by as much), hidden keys take their
share.  In float16 it is -inf.

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.3.
Time: 2 s; --quick 1 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from refattn import oracle, streaming
from refattn.masks import Causal, Visibility
from refattn.montecarlo import Finding, Run, exact, largest, main, within
from refattn.precision import preset
from refattn.tolerance import forward

Array = np.ndarray[Any, Any]

WORLDS = {
    "leak": "one row sees one key too many",
    "finite": "-1e9 added in place of -inf",
    "shifted": "top left where bottom right is asked for, and the other way round",
}
ALIGNMENTS: tuple[Any, ...] = ("top_left", "bottom_right")
LOW = -2e9
"""far below the -1e9 that would hide a key"""
D, Dv = 3, 2


def hidden(run: Run, align: Any, Lq: int, Lk: int) -> dict[str, Any]:
    """What the kernel is told, in the run's world: `mask` or `bias`."""
    if run.world == "shifted":
        align = ALIGNMENTS[1 - ALIGNMENTS.index(align)]
    seen = Visibility(Causal(align), 1, 1, Lq, Lk).tile()
    if run.world == "finite":
        return {"bias": np.where(seen, 0.0, -1e9)}
    if run.world == "leak":
        rows = np.flatnonzero(~seen[0, 0].all(1))
        if len(rows):
            row = rows[len(rows) // 2]
            seen = seen.copy()
            seen[0, 0, row, seen[0, 0, row].sum()] = True
    return {"mask": seen}


def after(align: Any, Lq: int, Lk: int) -> int:
    """The offset a: row i sees the keys j <= i + a."""
    return 0 if align == "top_left" else Lk - Lq


def seen_by(align: Any, Lq: int, Lk: int) -> Array:
    """The definition, (Lq, Lk)."""
    return np.array([[j <= i + after(align, Lq, Lk) for j in range(Lk)] for i in range(Lq)])


def draw(rng: np.random.Generator, Lq: int, Lk: int, level: float) -> tuple[Array, Array, Array]:
    """q (1, 1, Lq, D), k, v; scores are about `level` (the first coordinate's) plus a standard normal."""
    q, k, v = (rng.standard_normal((1, 1, *shape)) for shape in ((Lq, D), (Lk, D), (Lk, Dv)))
    if level:
        q[..., 0], k[..., 0] = 2.0**16, level * math.sqrt(D) / 2.0**16
    return q, k, v


def many(x: Array, n: int) -> Array:
    return np.repeat(x, n, axis=0)


def jacobian(run: Run, align: Any, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Whether o_i depends at all on q_r, k_j, v_j: (Lq, Lq), (Lq, Lk), (Lq, Lk)."""
    Lq, Lk = q.shape[2], k.shape[2]
    n = Lq * Dv  # one batch entry for each number that is differentiated
    dout = np.eye(n).reshape(n, 1, Lq, Dv)
    g = oracle.attention_grad(many(q, n), many(k, n), many(v, n), dout, **hidden(run, align, Lq, Lk))
    found = (np.abs(x).reshape(Lq, Dv, x.shape[2], x.shape[3]).max((1, 3)) != 0 for x in (g.dq, g.dk, g.dv))
    dq, dk, dv = found
    return dq, dk, dv


def poisoned(run: Run, align: Any, q: Array, k: Array, v: Array, poison: float) -> int:
    """Rows whose bits change when all keys and values that they should not see become `poison`."""
    Lq, Lk = q.shape[2], k.shape[2]
    seen = seen_by(align, Lq, Lk)
    told = hidden(run, align, Lq, Lk)
    dead = ~seen[:, None, :, None]  # one batch entry for each row: what row i does not see
    ks, vs = (np.where(dead, poison * x, many(x, Lq)) for x in (k, v))
    changed = 0
    tiled: dict[str, Any] = {
        "schedule": streaming.Schedule(tile_q=2, tile_k=2), "precision": replace(preset("float64"), tile=2),
    }  # fmt: skip
    for kernel, more in ((oracle.attention, {}), (streaming.attention, tiled)):
        before = kernel(many(q, Lq), many(k, Lq), many(v, Lq), **told, **more)
        later = kernel(many(q, Lq), ks, vs, **told, **more)
        for x, y in zip(before, later, strict=True):
            changed += sum(not np.array_equal(x[i, 0, i], y[i, 0, i]) for i in range(Lq))
    return changed


def bound(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """The rigorous float64 bound of out, (Lq, Dv)."""
    visible = lambda rows, keys: seen[rows, keys]  # noqa: E731
    return forward(q[0, 0], k[0, 0], v[0, 0], visible, lambda *_: None, D**-0.5, None, None, preset("float64")).rigorous


def prefixes(run: Run, align: Any, q: Array, k: Array, v: Array) -> float:
    """Largest difference, in bounds, between each row and attention over its prefix, without any mask."""
    Lq, Lk = q.shape[2], k.shape[2]
    out = oracle.attention(q, k, v, **hidden(run, align, Lq, Lk)).out[0, 0]
    alone = np.zeros_like(out)
    for i in range(Lq):
        n = min(max(i + after(align, Lq, Lk) + 1, 0), Lk)
        alone[i] = oracle.attention(q[:, :, i : i + 1], k[:, :, :n], v[:, :, :n]).out[0, 0, 0]
    return worst(out - alone, 2 * bound(q, k, v, seen_by(align, Lq, Lk)))


def worst(difference: Array, allowed: Array) -> float:
    """The largest |difference| / allowed; 0 / 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(difference == 0, 0.0, np.abs(difference) / allowed).max(initial=0.0))


def rows_and_keys(run: Run) -> Iterator[Finding]:
    n = 5 if run.quick else 7
    for level, name in ((0.0, "scores about 0"), (LOW, "scores about -2e9")):
        wrong = {"q": 0, "k": 0, "v": 0}
        pairs = changed = added = 0
        ratio = 0.0
        for Lq, Lk, align in product(range(1, n + 1), range(1, n + 1), ALIGNMENTS):
            run.tick(f"{name}, Lq={Lq}, Lk={Lk}, {align}")
            q, k, v = draw(run.rng(f"{name} {Lq} {Lk} {align}"), Lq, Lk, level)
            seen = seen_by(align, Lq, Lk)
            pairs += seen.size
            count = seen.sum(1, keepdims=True)
            dq, dk, dv = jacobian(run, align, q, k, v)
            wrong["v"] += int((dv != seen).sum())
            wrong["k"] += int((dk != (seen & (count > 1))).sum())  # a row that sees one key gives its value
            wrong["q"] += int((dq != np.diag(count[:, 0] > 1)).sum())
            changed += sum(poisoned(run, align, q, k, v, poison) for poison in (-1e6, math.nan))
            ratio = largest(ratio, prefixes(run, align, q, k, v))
            told, M = hidden(run, align, Lq, Lk), np.where(seen, 0.0, -np.inf)
            added += not np.array_equal(oracle.attention(q, k, v, **told).out, oracle.attention(q, k, v, bias=M).out)
        for x, count in wrong.items():
            yield exact(f"pairs (i, j) where do_i/d{x}_j is wrong about 0, of {pairs}, {name}", count, 0)
        yield exact(f"rows that hear of hidden keys, {name}", changed, 0)
        yield within(f"rows against their prefix alone, in bounds, {name}", ratio, 0.0, 1.0)
        yield exact(f"problems where M added differs from a mask, {name}", added, 0)


def decoding(run: Run) -> Iterator[Finding]:
    """With a cache: one query at a time at the bottom right of all keys so far, and the stack of layers."""
    L = 12
    q, k, v = draw(run.rng("decoding"), L, L, 0.0)
    square = oracle.attention(q, k, v, **hidden(run, "bottom_right", L, L)).out[0, 0]
    decoded = np.zeros_like(square)
    for n in range(1, L + 1):
        told = hidden(run, "bottom_right", 1, n)
        decoded[n - 1] = oracle.attention(q[:, :, n - 1 : n], k[:, :, :n], v[:, :, :n], **told).out[0, 0, 0]
    ratio = worst(decoded - square, 2 * bound(q, k, v, seen_by("top_left", L, L)))
    yield within("decoding token by token against the square, in bounds", ratio, 0.0, 1.0)
    Lq = 4
    for name, rows, align in (("first", slice(0, Lq), "top_left"), ("last", slice(L - Lq, L), "bottom_right")):
        part = oracle.attention(q[:, :, rows], k, v, **hidden(run, align, Lq, L)).out[0, 0]
        ratio = worst(part - square[rows], 2 * bound(q, k, v, seen_by("top_left", L, L))[rows])
        yield within(f"{align}, Lq=4, Lk=12, against the square's {name} rows, in bounds", ratio, 0.0, 1.0)
    x = run.rng("stack").standard_normal((1, 1, L, D))
    before = stack(run, x)
    heard = np.zeros((L, L), bool)
    for j in range(L):
        y = x.copy()
        y[0, 0, j] += 1
        heard[:, j] = (stack(run, y) != before)[0, 0].any(-1)
    yield exact("four layers: pairs where output i hears of input j against j <= i", int((heard != np.tri(L)).sum()), 0)


def stack(run: Run, x: Array, layers: int = 4) -> Array:
    """x <- x + attention(x, x, x) under the causal mask, some layers of it."""
    for _ in range(layers):
        x = x + oracle.attention(x, x, x, **hidden(run, "top_left", x.shape[2], x.shape[2])).out
    return x


def share_of_hidden(c: float) -> float:
    """What a filled-in key weighs beside one visible key of score -1e9 + c, in the textbook function."""
    q, k = np.ones((1, 1)), np.array([[-1e9 + c], [0.0]])
    return float(oracle.scaled_dot_product_attention(q, k, k, np.array([[1, 0]]))[1][0, 1])


def finite_fill(run: Run) -> Iterator[Finding]:
    """Where -1e9 is the same as -inf, and where it is not."""
    rng = run.rng("finite")
    q, k, v = draw(rng, 9, 6, 0.0)
    seen = seen_by("bottom_right", 9, 6)
    some = seen.any(1)
    true = oracle.attention(q, k, v, mask=seen).out[0, 0]
    added = oracle.attention(q, k, v, bias=np.where(seen, 0, -1e9)).out[0, 0]
    filled = oracle.scaled_dot_product_attention(q, k, v, seen)[0][0, 0]
    yield exact("-1e9 added: rows that see a key and differ from -inf", int((added != true)[some].sum()), 0)
    b = bound(q, k, v, seen)[some]
    ratio = worst((filled - true)[some], 2 * b)
    yield within("-1e9 filled in: these rows against -inf, in bounds", ratio, 0.0, 1.0)
    mean, everything = v[0, 0].mean(0), oracle.attention(q, k, v).out[0, 0]
    reach = np.abs(v).max()
    yield exact("rows that see nothing, -inf: largest |out|", float(np.abs(true[~some]).max()), 0.0)
    far = float(np.abs(filled[~some] - mean).max())
    yield within("-1e9 filled in: their distance from mean(v)", far, 0.0, 2 * 6 * 2.0**-53 * reach)
    # scores are rounded by at most 2^-24 each, which changes weights by 2 * 2^-24 relatively at most
    far = float(np.abs(added[~some] - everything[~some]).max())
    yield within("-1e9 added: their distance from no mask at all", far, 0.0, 4 * 2.0**-24 * reach)
    single = [x.astype("f4") for x in (q, k, v)]
    added = streaming.attention(*single, bias=np.where(seen, 0, -1e9), precision=preset("float32")).out[0, 0]
    far = float(np.abs(added[~some] - mean).max())
    yield within("-1e9 added in float32: their distance from mean(v)", far, 0.0, 2 * 6 * 2.0**-24 * reach)

    lo, hi = 700.0, 800.0
    while hi - lo > 2.0**-22:  # scores near 1e9 are multiples of 2^-23
        middle = (lo + hi) / 2
        lo, hi = (middle, hi) if share_of_hidden(middle) > 0 else (lo, middle)
    # an exp that is off by half a unit or more in its last, subnormal, place ends between 2^-1074 and 2^-1075
    log2 = math.log(2)
    yield within("float64: c up to which hidden keys weigh beside -1e9 + c", lo, 1074 * log2 - 1e-6, 1075 * log2 + 1e-6)
    yield exact("float64: weight of a hidden key beside -1e9", share_of_hidden(0.0), 0.5)
    yield within("float64: weight of a hidden key beside -1e9 - 50", share_of_hidden(-50.0), 1 - 1e-15, 1.0)
    for c, expected in ((64.0, math.exp(-64)), (128.0, 0.0)):
        k1 = np.array([-1e9 + c, 0.0], "f4").reshape(1, 1, 2, 1)
        v1 = np.array([0.0, 1.0], "f4").reshape(1, 1, 2, 1)
        bias = np.array([0.0, -1e9])
        o = streaming.attention(np.ones((1, 1, 1, 1), "f4"), k1, v1, bias=bias, scale=1.0, precision=preset("float32"))
        # exp is off by half a unit in its last place, the quotient by as much again
        lo, hi = expected * (1 - 2.0**-22), expected * (1 + 2.0**-22)
        yield within(f"float32: weight of a hidden key beside -1e9 + {c:.0f}", float(o.out.item()), lo, hi)
    with np.errstate(over="ignore"):
        yield exact("-1e9 in float16", float(np.float16(-1e9)), -math.inf)


def prove(run: Run) -> Iterator[Finding]:
    yield from rows_and_keys(run)
    yield from decoding(run)
    yield from finite_fill(run)


def picture(figure: Any, run: Run) -> None:
    """Left: |do_i/dv_j| under both alignments; right: what hidden keys weigh under -1e9."""
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25))
    Lq, Lk = 6, 9
    q, k, v = draw(run.rng("picture"), Lq, Lk, 0.0)
    eye = np.eye(Lq * Dv).reshape(-1, 1, Lq, Dv)[::Dv]
    for axes, align in zip(left.subplots(2, 1), ALIGNMENTS, strict=True):
        told = hidden(run, align, Lq, Lk)
        dv = oracle.attention_grad(many(q, Lq), many(k, Lq), many(v, Lq), eye, **told).dv[:, 0, :, 0]
        image = axes.imshow(np.where(dv == 0, np.nan, dv), cmap="viridis_r", vmin=0, vmax=1)
        axes.set_facecolor("0.92")
        axes.set(title=f"{align}, Lq = 6, Lk = 9", xlabel="key j", ylabel="query i", xticks=range(Lk), yticks=range(Lq))
    left.colorbar(image, ax=left.axes, label="do_i / dv_j  (grey: 0 exactly)", shrink=0.7)
    axes = right.subplots()
    c = np.linspace(-30, 900, 1200)
    axes.semilogy(c, [share_of_hidden(x) or np.nan for x in c], color="C3", label="-1e9, float64")
    steps = np.array([0, 64])
    axes.semilogy(steps, 1 / (1 + np.exp(steps)), "o", color="C0", label="-1e9, float32 (scores in steps of 64)")
    for x, color, name in ((745.13, "C3", "745.1"), (104, "C0", "104.0")):
        axes.axvline(x, color=color, linestyle=":")
        axes.text(x, 1e-300, f" {name}", color=color)
    axes.set(xlabel="visible score + 1e9", ylabel="weight of a hidden key", xlim=(-30, 900), ylim=(1e-323, 1e10))
    axes.set_yticks([10.0**-e for e in range(0, 301, 50)])
    axes.set_title("-1e9 in place of -inf leaks\nwhere visible scores are low")
    axes.legend(loc="upper right")


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
