"""The picture of TOLERANCE.md: `python docs/tolerance.py docs/tolerance.png` (needs matplotlib).

Rows of 512 keys, nearly flat, in float32.  Left: one number of out, as honest kernels compute it that add the keys in
300 orders, and its interval.  Right: the errors of all numbers of one honest kernel and of one that drops the last key,
against each number's own bound and against atol = rtol = 1e-2.  Fails if an honest kernel is not within its intervals,
or if the bug is not seen by them, or is seen by 1e-2.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np

from refattn.case import Case
from refattn.inputs import Problem, make
from refattn.precision import preset
from refattn.streaming import implementation as honest
from refattn.truth import Expected, truth

Array = np.ndarray[Any, Any]
CASE = Case(
    "picture", "Nearly flat rows of 512 keys.", B=1, H=1, Lq=16, Lk=512, D=64, Dv=64, dtype="float32",
    want=frozenset({"out"}), seed=0,
)  # fmt: skip
ORDERS = 300
AT = (0, 0, 3, 10)


def answers(problem: Problem) -> tuple[Array, Array, Array]:
    """One number in many orders of the keys; out of an honest kernel; out of one that drops the last key."""
    given = problem.fresh()
    out = np.asarray(honest(CASE, problem.fresh())["out"], np.float64)
    rng = np.random.default_rng(0)
    orders = []
    for _ in range(ORDERS):
        order = rng.permutation(CASE.Lk)
        shuffled = {"q": given["q"], "k": given["k"][:, :, order], "v": given["v"][:, :, order]}
        orders.append(float(honest(CASE, shuffled)["out"][AT]))
    short = {name: x if name == "q" else x[:, :, :-1] for name, x in given.items()}
    dropped = np.asarray(honest(replace(CASE, Lk=CASE.Lk - 1), short)["out"], np.float64)
    return np.array(orders), out, dropped


def check(expected: Expected, orders: Array, out: Array, dropped: Array) -> None:
    """What the page says of the picture."""
    def within(x: Array) -> Array:
        return (expected.lo <= x) & (x <= expected.hi)

    usual = 1e-2 + 1e-2 * np.abs(expected.value)
    said = {
        "honest kernels are within": bool(within(out).all()),
        "in any order": bool(((expected.lo[AT] <= orders) & (orders <= expected.hi[AT])).all()),
        "hardly a number of the bug is": bool(within(dropped).mean() < 0.01),
        "1e-2 does not see it": bool((np.abs(dropped - expected.value) <= usual).all()),
    }
    for what, so in said.items():
        print(f"{what}: {so}")
        if not so:
            raise SystemExit(f"not so: {what}")


def draw(path: str, expected: Expected, orders: Array, out: Array, dropped: Array) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    value, lo, hi = (float(x[AT]) for x in (expected.value, expected.lo, expected.hi))
    left.hist((orders - value) * 1e8, bins=30, color="#4477aa", label=f"{ORDERS} orders of the keys")
    left.axvspan((lo - value) * 1e8, (hi - value) * 1e8, color="#4477aa", alpha=0.15, label="the interval [lo, hi]")
    beyond = f"\N{LEFTWARDS ARROW} the last key dropped: at {(float(dropped[AT]) - value) * 1e8:,.0f}"
    left.annotate(beyond, (0.02, 0.9), (0.02, 0.9), "axes fraction", color="#cc3311", fontsize=8)
    left.set_xlabel("got - true value, in units of 1e-8")
    left.set_ylabel("honest kernels")
    left.set_title(f"one number, {value:.4f}")
    left.legend(fontsize=8)
    size, floor = np.abs(expected.value).ravel(), 1e-11
    bound = ((expected.hi - expected.lo) / 2).ravel()
    for x, colour, label in ((dropped, "#cc3311", "the last key dropped"), (out, "#4477aa", "an honest kernel")):
        right.scatter(size, np.maximum(np.abs(x - expected.value).ravel(), floor), s=4, color=colour, label=label)
    right.scatter(size, bound, s=4, marker="_", color="black", label="each number's own bound")
    line = np.geomspace(size.min(), size.max(), 50)
    right.plot(line, 1e-2 + 1e-2 * line, "--", color="grey", label="atol = rtol = 1e-2")
    right.set(xscale="log", yscale="log", ylim=(floor, 0.1), xlabel="|true value|", ylabel="|error|")
    right.set_title("all numbers")
    right.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=110)


def main() -> None:
    problem = make(CASE)
    expected = truth(problem, preset(CASE.dtype, CASE.out_dtype))["out"]
    found = answers(problem)
    check(expected, *found)
    if sys.argv[1:]:
        draw(sys.argv[1], expected, *found)


if __name__ == "__main__":
    main()
