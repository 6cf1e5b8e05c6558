"""The bound of an honest kernel is not idle: the median largest ratio stays above 0.05.

Setting: as in the proof that the bound holds: random small problems of every dtype, input family and
precision contract (`refattn.honest`), an honest kernel with random tiles and orders for each, and the
intervals of `refattn.tolerance`.  The ratio of an element says how much of the way from the true value
to the end of its interval the kernel used, and the largest ratio of a problem how much room it left.

Why a bound can be that close: the sharp bound is LAMBDA = 8.2 deviations, the largest of n errors of
a problem some sqrt(2 ln n) = 4 of them, and roundings in a row partly repeat or cancel: hence 0.1 to 0.5.
In 16 and 8 bits the interval of a small error holds one or two numbers of the output's format, and the
ratio is then 1 for any kernel whatever; it says that nothing narrower could be asked.  The interval of
float64 is twice as wide, for the truth is computed in float64 too: its ratios are half of float32's.

Statistic: whether the largest ratio of a problem, over its outputs, is above 0.05; the median is above
0.05 exactly if that is so for more than half of the problems.  Single outputs use less: dq, dk and dv of
float64 have medians of 0.01 to 0.03 (--plot).

Decision: e-processes bet that the share is above 1/2 and that it is below (Bounded 0..1); the first to
reach 1e9 times the number of statistics decides, so that the false-alarm rate of all together is 1e-9,
either way.  At a share of 0.9 it takes about 70 problems, at 0.6 (float64) about 1,300.  --quick decides the
dtypes taken together, a full run each dtype as well.  Power: bounds 100 times too wide have a share of
0.1, and are refuted after about 70.

Source: measured for the tolerance model of this repository; Hoeffding 1963 for the sub-Gaussian tail;
Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", for the bets.
Time: 35 s; --quick 1 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from refattn.honest import DTYPES, Trial, answer, draw, ratios_of
from refattn.montecarlo import ALPHA, Bounded, Decision, Finding, Run, log_mean_exp, main
from refattn.truth import Expected, truth

Array = np.ndarray[Any, Any]

WORLDS = {
    "wide": "every interval is 100 times as wide",
    "allclose": "every interval is the value within atol = rtol = 0.1",
}
LEVEL = 0.05
STATISTICS = 1 + len(DTYPES)


def bounds(run: Run, trial: Trial) -> dict[str, Expected]:
    """The intervals of the run's world."""
    return {name: widened(run, e) for name, e in truth(trial.problem, trial.precision).items()}


def widened(run: Run, e: Expected) -> Expected:
    if run.world not in WORLDS:
        return e
    finite = np.isfinite(e.value)
    value = np.where(finite, e.value, 0.0)
    if run.world == "wide":
        below, above = 100 * (value - np.where(finite, e.lo, 0.0)), 100 * (np.where(finite, e.hi, 0.0) - value)
    else:
        below = above = 0.1 + 0.1 * np.abs(value)
    return replace(e, lo=e.value - below, hi=e.value + above)


def largest_ratio(run: Run, rng: np.random.Generator, dtype: str) -> float:
    """Of one random problem."""
    trial = draw(rng, dtype)
    return max(r.sharp for r in ratios_of(answer(trial), bounds(run, trial)).values())


@dataclass
class Median:
    """Whether the median of a stream is above LEVEL, by bets on the share of values above it."""

    what: str
    alpha: float = ALPHA / STATISTICS
    values: list[float] = field(default_factory=list)
    decision: Decision = Decision.UNDECIDED

    def add(self, values: list[float]) -> None:
        self.values += values
        above = np.array([float(x > LEVEL) for x in self.values])
        half = Bounded(0, 1)
        for up, decision in ((True, Decision.HOLDS), (False, Decision.REFUTED)):
            wealth = np.array([half.log_growth(above, 0.5, bet) for bet in half.bets(0.5, 0.0, up)])
            if self.decision is Decision.UNDECIDED and log_mean_exp(wealth) >= -math.log(self.alpha):
                self.decision = decision

    def finding(self) -> Finding:
        share = float(np.mean(np.array(self.values) > LEVEL))
        note = "Where a row sees one key there is nothing to round, and the ratio is 0."
        what = f"median largest ratio, {self.what} (above {LEVEL} in {share:.0%})"
        got = float(np.median(self.values))
        return Finding(what, got, f"> {LEVEL}", self.decision, len(self.values), note)


def prove(run: Run) -> Iterator[Finding]:
    together = Median("all dtypes")
    rng = run.rng("all")
    for n in run.batches(run.budget(3000, 600), len(DTYPES)):
        together.add([largest_ratio(run, rng, dtype) for dtype in DTYPES[:n]])
        if together.decision is not Decision.UNDECIDED:
            break
    yield together.finding()
    for dtype in () if run.quick else DTYPES:
        median = Median(dtype)
        rng = run.rng(dtype)
        for n in run.batches(run.budget(6000, 600), 10):
            median.add([largest_ratio(run, rng, dtype) for _ in range(n)])
            if median.decision is not Decision.UNDECIDED:
                break
        yield median.finding()


def picture(figure: Any, run: Run) -> None:
    """The largest ratio of each problem, by dtype and output, with the medians."""
    axes = figure.add_subplot()
    rng = run.rng("picture")
    n = 40 if run.quick else 150
    outputs = ("out", "lse", "dq", "dk", "dv")
    for i, dtype in enumerate(DTYPES):
        found: dict[str, list[float]] = {name: [] for name in outputs}
        while len(found["out"]) < n:
            trial = draw(rng, dtype)
            for name, r in ratios_of(answer(trial), bounds(run, trial)).items():
                found.get(name, []).append(max(r.sharp, 1e-3))
        for j, name in enumerate(outputs):
            if found[name]:
                x = i + (j - 2) * 0.16
                axes.plot(x + rng.uniform(-0.05, 0.05, len(found[name])), found[name], ".", color=f"C{j}", alpha=0.35)
                axes.plot([x - 0.07, x + 0.07], [np.median(found[name])] * 2, color=f"C{j}", linewidth=3,
                          label=name if i == 0 else None)  # fmt: skip
    axes.axhline(1, color="black", linestyle="--")
    axes.axhline(LEVEL, color="black", linestyle=":")
    axes.set(yscale="log", ylim=(8e-4, 2), ylabel="largest ratio of a problem (0 is drawn at 0.001)")
    axes.set_xticks(range(len(DTYPES)), DTYPES)
    axes.set_title("Use that honest kernels make of their bound (bars: medians; dotted: 0.05)")
    axes.legend(loc="upper left", ncols=2)


if __name__ == "__main__":
    raise SystemExit(main(__doc__, prove, WORLDS, picture))
