"""No element of an honest kernel exceeds its bound: lo <= got <= hi at every precision contract.

Setting: `refattn.tolerance` derives for each element of out, lse and the gradients the interval that
every kernel of a declared precision contract hits.  Here random small problems (`refattn.honest`: all
input families, dtypes, masks, biases, softcap, sinks, grouped heads) meet `refattn.streaming`, which
makes every rounding that its contract allows, under random tiles, orders, splits and ways to have exp.

What is needed: that the kernel is no worse than its contract, and that nothing overflows inside it.
The sharp bound also needs roundings that are independent from key to key: scores that agree are added
coherently (`refattn.tolerance.ties`), and where q is scaled and rounded beforehand, which is one error for
all keys of a row, it is the rigorous one.

Statistic: the ratio of each element, how much of the way from the true value to the end of its
interval it uses; at most 1 exactly where lo <= got <= hi, and NaN is not.

Decision: one element above 1 refutes.  By the rigorous bound that is never a false alarm.  The sharp
bound of an element is LAMBDA = 8.2 deviations of a sub-Gaussian sum: exceeded by an honest kernel with
probability 2 exp(-8.2² / 2) = 5e-15, so that a full run of 1e7 elements raises a false alarm with at
most 5e-8 (--quick: 5e-9).  Holds as soon as an e-process on the problems' indicators (Bounded 0..1) shows
that the share of problems with an element outside is below 1 % (--quick: 10 %), wrong with at most
1e-9; it needs 2,580 (246) problems without one.  Power: a fault that shows in a share s of the problems
is missed by n of them with probability (1 - s)^n, at s = 10 % 6e-12 for 246.

Derivation: in `refattn.tolerance`, where it is computed; the errors before the output is rounded are at
most t, and rounding is monotone, so that RN(o - t) <= got <= RN(o + t).

Source: Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 4.2, for sums; Higham and
Mary 2019, "A new approach to probabilistic rounding error analysis", for the independent form.
Time: 30 s; --quick 3 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refattn.honest import DTYPES, Trial, answer, draw, ratios_of
from refattn.montecarlo import Bounded, Decision, Finding, Mean, Run, main, within
from refattn.mutants import MUTANTS
from refattn.streaming import Rules
from refattn.truth import truth

Array = np.ndarray[Any, Any]

WORLDS = {
    "accumulator": "the kernel keeps its running output in bfloat16 between tiles",
    "scale": "the kernel's scale is 1 % off",
    "key": "the kernel hides the last key of each tile",
    "exp": "the kernel's exp is off by up to 2**-17",
}


class scale_off(Rules):
    def products(self, q: Array, k: Array, scale: float) -> Array:
        return super().products(q, k, 1.01 * scale)


class key_lost(Rules):
    def hide(self, s: Array, visible: Array | None) -> Array:
        s = super().hide(s, visible)
        s[:, -1] = -np.inf
        return s


class exp_off(Rules):
    def exp(self, x: Array, shift: Array) -> Array:
        y = super().exp(x, shift)
        return np.asarray(y * (1 + 2.0**-17 * np.sin(1e3 * x)).astype(y.dtype))


KERNELS: dict[str, type[Rules]] = {
    "accumulator": MUTANTS["bf16_accumulator"].implementation.rules,
    "scale": scale_off,
    "key": key_lost,
    "exp": exp_off,
}


def kernel(run: Run, trial: Trial) -> dict[str, Array]:
    """The answer of the run's world: honest, or with its planted error."""
    return answer(trial, KERNELS.get(run.world, Rules))


@dataclass
class Tally:
    """What one dtype has shown so far: the largest ratio of each problem, and of all."""

    elements: int = 0
    decisive: list[float] = field(default_factory=list)
    rigorous: list[float] = field(default_factory=list)

    def add(self, run: Run, rng: np.random.Generator, dtype: str) -> bool:
        """Draw a problem and judge the kernel's answer: whether an element is outside."""
        trial = draw(rng, dtype)
        found = ratios_of(kernel(run, trial), truth(trial.problem, trial.precision)).values()
        self.elements += sum(r.elements for r in found)
        self.rigorous.append(max(r.rigorous for r in found))
        self.decisive.append(max(r.sharp for r in found))
        return not (self.decisive[-1] <= 1 and self.rigorous[-1] <= 1)


def prove(run: Run) -> Iterator[Finding]:
    test = Mean(0.0, 0.1 if run.quick else 0.01, Bounded(0, 1))
    tallies = {dtype: Tally() for dtype in DTYPES}
    rng = run.rng("problems")
    outside = 0
    for n in run.batches(run.budget(4000, 400), len(DTYPES)):
        seen = [tallies[dtype].add(run, rng, dtype) for dtype in DTYPES[:n]]
        outside += sum(seen)
        test.update(seen)
        if outside or test.decision is Decision.HOLDS:
            break
    # a single element refutes: the e-process decides only when there is none
    decision = Decision.REFUTED if outside else test.decision
    n = test.moments.count
    expected = f"0 (< {test.margin:.0%})"
    yield Finding("share of problems with an element outside", outside / max(n, 1), expected, decision, n)
    for dtype, tally in tallies.items():
        if tally.elements:
            yield within(f"largest ratio, {dtype}", max(tally.decisive), 0, 1, samples=tally.elements)
            yield within(f"its rigorous ratio, {dtype}", max(tally.rigorous), 0, 1, samples=tally.elements)


def picture(figure: Any, run: Run) -> None:
    """For each dtype the share of problems whose largest ratio is above x."""
    axes = figure.add_subplot()
    rng = run.rng("picture")
    n = 60 if run.quick else 200
    for i, dtype in enumerate(DTYPES):
        tally = Tally()
        for _ in range(n):
            tally.add(run, rng, dtype)
        x = np.sort(np.maximum(tally.decisive, 1e-3))
        axes.step(x, 1 - np.arange(n) / n, where="pre", color=f"C{i}", label=dtype)
    axes.axvline(1, color="black", linestyle="--")
    axes.annotate("the bound", (1, 0.97), xytext=(-6, 0), textcoords="offset points", ha="right")
    axes.set(xscale="log", xlim=(1e-3, 3), ylim=(0, 1.02), xlabel="largest ratio of a problem (0 is drawn at 0.001)")
    axes.set(ylabel="share of problems above it")
    axes.set_title(f"Honest kernels never exceed their bound ({n} random problems for each dtype)")
    axes.legend(loc="lower left")


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
