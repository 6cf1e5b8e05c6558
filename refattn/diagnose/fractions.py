"""Whether exp is off by a function of the fraction of x log2(e), as a polynomial or a table in place of exp2 makes it.

Let each exp(x) be exp(x) (1 + g(f)), f the fraction of x log2(e).  To first order a row with weights w_j, whose exp was
taken of x_j = t_j - m, has

    lse - right lse = sum_j w_j g(f_j),        out - right out = sum_j w_j g(f_j) (v_j - right out),

where a tile's own maximum so far is its m, and each rescaling has a g of its own.  g is the broken line through a few
knots that leaves the least of the squared error in every other failure; that it leaves little in the rest is the
finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..precision import Precision
from .bits import Along
from .effort import Effort
from .hypothesis import Answer, Hypothesis, hypotheses
from .model import LOG2E, Array, Inputs, Model, safe
from .order import spread
from .trial import Trial

__all__ = ["by_fraction"]

KNOTS = 17
LOOPS = ((1 << 20, 1), *((tile, splits) for splits in (1, 2, 3, 4) for tile in (16, 32, 64, 128)), (8, 1))
"""keys of a tile, and in how many splits these are; all keys at once first"""
CASES, SCORES = 20, 2**13
HINT = 0.3
"""Where most failures have no more of it, other loops are not asked,"""
CLEAR = 0.95
"""nor where this is the mean of all."""
LEAST = 0.7
"""Of the squared error of a failure by which g was not fitted."""
HALF, SURE = 0.5, 3
"""Of those failures it is so in so many, and in so many at least."""
FLAT = 0.5
"""No function is named if one number for all fractions leaves no more than this part beside what it leaves."""
LARGEST = 0.1
"""g is no more than this: what is more is no approximation of exp"""
MOST_RADII = 1e6


def by_fraction(trials: Sequence[Trial], effort: Effort, until: float) -> Along | None:
    """The share of the errors of out and lse that such a function explains, and what it is; none if not most."""
    some = [t for t in trials if t.worst.slight and t.failing & {"out", "lse"} and _can_tell(t)]
    if len(some) < max(4, len(trials) / 4):
        return None
    some = spread(sorted(some, key=lambda t: t.case.scores), CASES)
    best, telling = (0.0, np.zeros(KNOTS), 0), 0
    for tile, splits in LOOPS:
        if effort.seconds > until:
            break
        made = [x for t in some if (x := _equations(t, tile, splits, effort))[1].any()]
        if len(made) < 2 * SURE:
            return None
        fitted, kept = made[::2], made[1::2]
        a, b = (np.concatenate([x[n] / np.linalg.norm(x[1]) for x in fitted]) for n in (0, 1))
        g, flat = (np.linalg.lstsq(x, b, rcond=None)[0] for x in (a, a.sum(1, keepdims=True)))
        shares = [(_share(x @ g, y), _share(x.sum(1) * flat, y)) for x, y in kept]
        so = [share for share, constant in shares if share >= LEAST and 1 - share <= FLAT * (1 - constant)]
        if sum(so) > best[0]:
            best = sum(so), g, len(so)
        telling = len(kept)
        if 2 * sum(share > HINT for share, _ in shares) < telling or sum(so) > CLEAR * telling:
            break
    total, g, n = best
    if not (n >= max(HALF * telling, SURE) and np.abs(g).max() <= LARGEST):
        return None
    return Along(_hypothesis(g), total / n, round(n / telling * len(some)))


def _share(x: Array, wanted: Array) -> float:
    """Of the squared error, what is none beside x."""
    return 1 - float(((wanted - x) ** 2).sum()) / float(wanted @ wanted)


def _can_tell(trial: Trial) -> bool:
    case = trial.case
    return case.scores < SCORES and case.dropout is None and case.sinks is None and not trial.excused


def _equations(trial: Trial, tile: int, splits: int, effort: Effort) -> tuple[Array, Array]:
    """(numbers, KNOTS) what a knot's g makes of each number, and (numbers,) how far off it is, in radii."""
    effort.solved(trial.case.scores * KNOTS)
    right = Model(trial.inputs)
    with np.errstate(all="ignore"):
        right.forward()
        hats = _hats(right.t, tile, splits)
        weights = right.again()
    shares = {"lse": np.einsum("bhijg,bhij->bhig", hats, weights)}
    if "out" in trial.right:
        v = np.where(np.any(weights > 0, 2)[..., None], right.v, 0)
        shares["out"] = np.einsum("bhijg,bhij,bhjd->bhidg", hats, weights, v)
        shares["out"] -= right.out[..., None] * shares["lse"][..., None, :]
    rows, wanted = [np.zeros((0, KNOTS))], [np.zeros(0)]
    for name in sorted(trial.failing & shares.keys()):
        radius, _, free = trial.about(name)
        with np.errstate(all="ignore"):
            off = (trial.got[name] - trial.expected[name].value) / radius
            x = shares[name] / np.broadcast_to(radius, off.shape)[..., None]
        judged = ~free & np.isfinite(off) & (np.abs(off) < MOST_RADII) & np.isfinite(x).all(-1)
        rows.append(x[judged])
        wanted.append(off[judged])
    return np.concatenate(rows), np.concatenate(wanted)


def _hats(t: Array, tile: int, splits: int) -> Array:
    """(B, H, Lq, Lk, KNOTS): how much of each knot's g is in the weight of each pair, its rescalings with it."""
    found = np.zeros((*t.shape, KNOTS))
    begins = list(range(0, t.shape[3], tile))
    parts = [begins[i * len(begins) // splits : (i + 1) * len(begins) // splits] for i in range(splits)]
    merged = np.full(t.shape[:3], -np.inf)
    for part in (p for p in parts if p):
        m = np.full(t.shape[:3], -np.inf)
        for at in part:
            keys = slice(at, at + tile)
            new = np.maximum(m, t[..., keys].max(-1))
            found[..., part[0] : at, :] += _hat(m - safe(new))[..., None, :]
            found[..., keys, :] = _hat(t[..., keys] - safe(new)[..., None])
            m = new
        new = np.maximum(merged, m)
        if splits > 1:
            found[..., : part[0], :] += _hat(merged - safe(new))[..., None, :]
            found[..., part[0] : part[-1] + tile, :] += _hat(m - safe(new))[..., None, :]
        merged = new
    return found


def _hat(x: Array) -> Array:
    y = np.where(np.isfinite(x), x * LOG2E, 0)
    f = (y - np.floor(y)) * (KNOTS - 1)
    return np.maximum(0, 1 - np.abs(f[..., None] - np.arange(KNOTS)))


def _hypothesis(g: Array) -> Hypothesis:
    """The model of an exponential, with what it is off by."""
    known = next(h for h in hypotheses() if h.name.startswith("exponential["))
    if known.made is None:
        raise ValueError(f"{known.name} has no model")
    made = type("exp_by_fraction", (known.made,), {"how": staticmethod(partial(_off, g))})
    what = (
        f"exp(x) is off by {g.min():+.1e} to {g.max():+.1e} of it, by the fraction of x log2(e) alone: a polynomial or "
        "a table in place of exp2"
    )

    def solve(inputs: Inputs, contract: Precision | None, want: frozenset[str]) -> Answer:
        return made(inputs, contract).solve(want)

    return replace(known, name="exp_by_fraction", what=what, solve=solve, made=made, fitted=True)


def _off(g: Array, x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.exp(x) * (1 + _hat(x) @ g))
