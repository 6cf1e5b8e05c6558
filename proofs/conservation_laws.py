"""The backward pass conserves: 1ᵀdV = 1ᵀdO, 1ᵀdK = 0, QᵀdQ = dKᵀK and VᵀdV = OᵀdO.

Setting: O = P V, P = softmax(s Q Kᵀ + M) with rows that sum to 1; dQ, dK, dV the gradients of the sum of
O ∘ dO.  Four identities of what a kernel is given and returns: O(N D²) to check, at any length, and
no oracle is needed.  Heads that share keys count as more rows.

Derivation, with dP = dO Vᵀ, Δ = rows of P ∘ dP summed = rows of O ∘ dO summed, dS = P ∘ (dP - Δ):

    dV = Pᵀ dO       1ᵀdV = (P 1)ᵀ dO = 1ᵀdO, for P 1 = 1
                     VᵀdV = (P V)ᵀ dO = OᵀdO
    dK = s dSᵀ Q     1ᵀdK = s (dS 1)ᵀ Q = s (Δ - Δ)ᵀ Q = 0: softmax does not see a shift of its row
    dQ = s dS K      QᵀdQ = s Qᵀ dS K = dKᵀK: Q A and K A⁻ᵀ have the same scores, for every A in GL(D)

What breaks them (k = 1/(1-p) or 0 of each weight, for dropout):

    sinks            1ᵀdV and 1ᵀdK: the rows of P sum to less than 1
    dead rows        1ᵀdV: theirs sum to 0
    dropout          1ᵀdV: the rows of P ∘ k sum to something else
    a gradient dlse  1ᵀdK: it does see a shift
    softcap          1ᵀdK: its slope multiplies dS

What holds in their place: 1ᵀdV = (rows of P ∘ k summed)ᵀ dO and, but for softcap,
1ᵀdK = s ((1 - P 1) ∘ Δ + P 1 ∘ dlse)ᵀ Q.  Both matrix laws hold always; masks, biases and grouped heads
break none.

Statistic: exactly, the laws that fail for small integers with arbitrary rational weights.  In floating
point the largest |left - right| / bound of each law.  The bound is derived: both sides are linear in the
answer, so that errors of at most e in each element make at most |Q|ᵀe_dQ + e_dKᵀ|K| and the like, with e
from the rigorous bound of `refattn.tolerance`, and n u sum |terms| for the sums that evaluate the law.

Decision: a law holds if its ratio is at most 1, and is broken if it is above.  There is no chance in it:
no false alarms, at any rate.  Power: the third law sees a dK that is too large by 3e-4 in float32, 2 % in
float16, 20 % in bfloat16 (--plot); of what it adds up as worst cases an honest kernel uses 0.001 to 0.3.

Source: derived here; for the gradients Dao et al. 2022, "FlashAttention", appendix B.2.
Time: 15 s; --quick 3 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from refattn import oracle, streaming
from refattn.case import BiasSpec, Case
from refattn.inputs import Problem, make
from refattn.masks import Causal
from refattn.montecarlo import Finding, Run, exact, main, within
from refattn.mutants import MUTANTS
from refattn.precision import preset
from refattn.streaming import Rules, Schedule
from refattn.truth import truth

Array = np.ndarray[Any, Any]

WORLDS = {
    "delta": "the kernel forgets the delta that softmax subtracts",
    "dk": "dK is 1 % too large",
    "row": "one row of dV is lost",
    "sign": "one row of dQ has the wrong sign",
}
ONES, ZERO, ROTATION, VALUES = LAWS = ("1ᵀdV = 1ᵀdO", "1ᵀdK = 0", "QᵀdQ = dKᵀK", "VᵀdV = OᵀdO")
BREAKS: dict[str, set[str]] = {
    "plain": set(), "causal": set(), "grouped heads": set(), "bias": set(), "softcap": {ZERO}, "sinks": {ONES, ZERO},
    "dead rows": {ONES}, "dlse": {ZERO}, "dropout": {ONES},
}  # fmt: skip
DTYPES = ("float64", "float32", "float16", "bfloat16")


def both_sides(x: Mapping[str, Array], y: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """Left and right of each law; x and y hold (..., rows or keys, size)."""

    def t(a: Array) -> Array:
        return a.swapaxes(-1, -2)

    return {
        ONES: (y["dv"].sum(-2), x["dout"].sum(-2)),
        ZERO: (y["dk"].sum(-2), 0 * y["dk"].sum(-2)),
        ROTATION: (t(x["q"]) @ y["dq"], t(y["dk"]) @ x["k"]),
        VALUES: (t(x["v"]) @ y["dv"], t(y["out"]) @ x["dout"]),
    }


def planted(run: Run, y: dict[str, Array], percent: Any) -> dict[str, Array]:
    """The kernel's answer in the run's world."""
    if run.world == "dk":
        y["dk"] = y["dk"] * (1 + percent)
    for world, name, factor in (("row", "dv", 0), ("sign", "dq", -1)):
        if run.world == world:
            y[name] = np.concatenate([factor * y[name][..., :1, :], y[name][..., 1:, :]], axis=-2)
    return y


def subtracted(run: Run, delta: Array) -> Array:
    return 0 * delta if run.world == "delta" else delta


# exactly, in rational numbers: softmax enters by nothing but its Jacobian and the sums of its rows


def rational(run: Run, rng: np.random.Generator, feature: str) -> Iterator[Finding]:
    n, m, d, dv = 5, 4, 3, 2

    def integers(*shape: int, low: int = -9) -> Array:
        return np.vectorize(Fraction, otypes=[object])(rng.integers(low, 10, shape))

    def only(name: str, x: Array, otherwise: int) -> Array:
        return x if feature == name else x * 0 + otherwise

    # q, v and dout of one sign, so that what breaks a law is not by chance 0
    x = {"q": integers(n, d, low=1), "k": integers(m, d), "v": integers(m, dv, low=1), "dout": integers(n, dv, low=1)}
    weights = integers(n, m, low=1)
    weights *= only("causal", np.tri(n, m, dtype=int), 1) * only("dead rows", np.tri(n, m, -2, dtype=int), 1)
    keep, slope = only("dropout", 2 * rng.integers(0, 2, (n, m)), 1), only("softcap", integers(n, m, low=1) / 10, 1)
    sink, dlse = only("sinks", integers(n, low=1), 0), only("dlse", integers(n), 0)
    total = weights.sum(1) + sink
    p = weights / (total + (total == 0))[:, None]

    out = (p * keep) @ x["v"]
    dp = keep * (x["dout"] @ x["v"].T)
    delta = (out * x["dout"]).sum(1)
    ds = p * (dp - subtracted(run, delta)[:, None] + dlse[:, None]) * slope
    y = {"out": out, "dq": ds @ x["k"], "dk": ds.T @ x["q"], "dv": (p * keep).T @ x["dout"]}
    y = planted(run, y, Fraction(1, 100))

    broken = {law for law, (left, right) in both_sides(x, y).items() if (left != right).any()}
    yield exact(f"{feature} breaks, exactly", named(broken), named(BREAKS[feature]))
    if not BREAKS[feature]:
        return
    left = [y["dv"].sum(0) - (p * keep).sum(1) @ x["dout"]]
    if feature != "softcap":
        left.append(y["dk"].sum(0) - ((1 - p.sum(1)) * delta + p.sum(1) * dlse) @ x["q"])
    yield exact(f"{feature}: what is off what holds instead", float(max(np.abs(a).max() for a in left)), 0.0)


def named(laws: set[str]) -> str:
    return ", ".join(law for law in LAWS if law in laws) or "none"


# in floating point, within the bound


def problem(feature: str, dtype: str, seed: int, n: int = 24) -> Problem:
    every: dict[str, dict[str, Any]] = {
        "causal": {"mask": Causal("top_left")},
        "grouped heads": {"H": 6},
        "bias": {"bias": BiasSpec("HQK", dtype)},
        "softcap": {"softcap": 2.0},
        "sinks": {"sinks": "normal"},
        "dead rows": {"mask": Causal("bottom_right"), "Lk": n - 5},
    }
    sizes: dict[str, Any] = {"H": 2, "Hkv": 2, "Lq": n, "Lk": n + 7, "D": 16, "Dv": 12, **every.get(feature, {})}
    want = frozenset({"out", "lse", "dq", "dk", "dv"})
    made = make(Case("law", feature, dtype=dtype, seed=seed, want=want, **sizes))
    return replace(made, logical={k: a for k, a in made.logical.items() if k != "dlse" or feature == "dlse"})


def answer(run: Run, p: Problem, of_oracle: bool = False) -> dict[str, Array]:
    """What the oracle, or the honest kernel of the case's dtype, returns in the run's world."""
    case, x = p.case, p.logical
    options: dict[str, Any] = {
        "mask": case.visibility, "bias": x.get("bias"), "softcap": case.softcap, "sinks": x.get("sinks"),
    }  # fmt: skip
    solver: Any = oracle
    if not of_oracle or run.world == "delta":
        solver = streaming
        rules = MUTANTS["delta_missing"].implementation.rules if run.world == "delta" else Rules
        options |= {"precision": preset(case.dtype), "schedule": Schedule(16, 16, exp="exp2"), "rules": rules}
    y = solver.attention(x["q"], x["k"], x["v"], **options)._asdict()
    y |= solver.attention_grad(x["q"], x["k"], x["v"], x["dout"], x.get("dlse"), **options)._asdict()
    return planted(run, {name: np.asarray(y[name], dtype=np.float64) for name in ("out", "dq", "dk", "dv")}, 0.01)


def radii(p: Problem) -> dict[str, Array]:
    """The most by which each element of an honest answer differs from the exact value."""
    exactly = {name: np.asarray(a, dtype=np.float64) for name, a in p.logical.items()}
    case = replace(p.case, dtype="float64", out_dtype="float64")
    radius: dict[str, Array] = {}
    # the kernel's distance from the truth that is computed, and the truth's own from the exact one
    for one in (p, Problem(case, exactly)):
        for name, e in truth(one, preset(one.case.dtype)).items():
            if name != "lse":
                most = np.maximum(e.rigorous_hi - e.value, e.value - e.rigorous_lo)
                radius[name] = radius.get(name, 0.0) + most
    return radius


def ratios(p: Problem, y: dict[str, Array], radius: dict[str, Array]) -> dict[str, float]:
    """|left - right| / bound of each law, the largest."""
    B, Hkv = p.case.B, p.case.Hkv

    def joined(arrays: Mapping[str, Array], absolute: bool) -> dict[str, Array]:
        """The rows of the heads that share keys, together."""
        float64 = {name: np.asarray(a, dtype=np.float64) for name, a in arrays.items() if np.ndim(a) == 4}
        return {n: (np.abs(a) if absolute else a).reshape(B, Hkv, -1, a.shape[-1]) for n, a in float64.items()}

    found = {}
    sizes = both_sides(joined(p.logical, True), joined(y, True))
    errors = both_sides(joined(p.logical, True), joined(radius, False))
    terms = p.case.H // Hkv * p.case.Lq + p.case.Lk + 2
    for law, (left, right) in both_sides(joined(p.logical, False), joined(y, False)).items():
        error = errors[law][0] + (0.0 if law == ONES else errors[law][1])  # dO is exact
        bound = error + terms * 2.0**-53 * (sizes[law][0] + sizes[law][1])
        found[law] = float((np.abs(left - right) / bound).max())
    return found


def prove(run: Run) -> Iterator[Finding]:
    for feature in BREAKS:
        if feature in ("bias", "grouped heads"):  # no more than other weights, and more rows
            continue
        yield from rational(run, run.rng(f"rational {feature}"), feature)

    worst: dict[tuple[str, str], float] = {}
    seeds = run.budget(20, 2)
    for feature, breaks in BREAKS.items():
        if feature == "dropout":  # the oracle has none: exactly, above
            continue
        p = problem(feature, "float64", run.seed)
        found = ratios(p, answer(run, p, of_oracle=True), radii(p))
        broken = {law for law in LAWS if not found[law] <= 1}
        yield exact(f"{feature} breaks, of the oracle", named(broken), named(breaks))
        for dtype in DTYPES:
            for seed in range(seeds):
                p = problem(feature, dtype, 1000 * run.seed + seed)
                found = ratios(p, answer(run, p), radii(p))
                for law in LAWS:
                    if law not in breaks:
                        # NaN must not be lost
                        worst[law, dtype] = float(np.maximum(worst.get((law, dtype), 0.0), found[law]))
            run.tick(f"{feature}, {dtype}")
    for (law, dtype), ratio in worst.items():
        yield within(f"{law}, {dtype}, / bound", ratio, 0, 1, samples=seeds)


def picture(figure: Any, run: Run) -> None:
    """Left: what breaks what, on the oracle.  Right: what of a wrong dK the third law sees."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    features = [name for name in BREAKS if name != "dropout"]
    table = np.zeros((len(features), len(LAWS)))
    for i, feature in enumerate(features):
        p = problem(feature, "float64", run.seed)
        found = ratios(p, answer(run, p, of_oracle=True), radii(p))
        table[i] = [found[law] for law in LAWS]
    left.imshow(np.log10(np.maximum(table, 1e-3)), cmap="RdBu_r", vmin=-15, vmax=15, aspect="auto")
    left.set_xticks(range(len(LAWS)), [law.replace(" = ", "\n= ") for law in LAWS])
    left.set_yticks(range(len(features)), features)
    for (i, j), value in np.ndenumerate(table):
        left.text(j, i, f"{value:.2g}", ha="center", va="center", color="white" if value > 1 else "black")
    left.set_title("|left - right| / bound on the oracle")
    sizes = 10.0 ** np.arange(-16, 0.1, 0.5)
    for i, dtype in enumerate(DTYPES):
        p = problem("plain", dtype, run.seed)
        y, radius = answer(run, p), radii(p)
        seen = [ratios(p, {**y, "dk": y["dk"] * (1 + size)}, radius)[ROTATION] for size in sizes]
        right.plot(sizes, seen, color=f"C{i}", label=dtype)
    right.axhline(1, color="black", linestyle="--")
    right.set(xscale="log", yscale="log", xlabel="dK too large by this part", ylabel="ratio of " + ROTATION)
    right.set_title("broken above the dashed line")
    right.legend()


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
