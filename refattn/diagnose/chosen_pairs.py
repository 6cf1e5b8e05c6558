"""For which pairs of a query and a key something is wrong, solved from what was returned.

Let a pair's part of a result be c_ij where nothing is wrong and c'_ij where something is, and x_ij 1 or 0.  Outputs are
linear in x: with e_ij = exp(t_ij - lse) of the right lse, and n_ij of them what dropout leaves,

    sum_j x_ij ((n'_ij v'_j - n_ij v_j) - (e'_ij - e_ij) out_i) = out_i - right out_i,
    sum_j x_ij (e'_ij - e_ij) = exp(lse_i - right lse_i) - 1,
    sum_j x_ij (ds'_ij k'_j - ds_ij k_j) = dq_i - right dq_i,

and so with dk_j and dv_j, of which each query head of a group is taken to be alike.  Gradients say so only if the
forward is right.  `refattn.localise.whole_numbers` solves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..localise.whole_numbers import TELLING, chosen
from .dense import Array
from .distances import grown, largest_of_row, roundings
from .model import Model
from .order import spread
from .trial import Trial

__all__ = ["ASPECTS", "chosen_pairs"]

ASPECTS = {"out": frozenset({"out"}), "dq": frozenset({"dq"}), "dk and dv": frozenset({"dk", "dv"})}
"""what is solved together, of it what is wrong"""
FIRST, MOST = 3, 24
"""so many rows that are wrong tell whether it may be so, and so many are solved"""
MOSTLY = 0.7
"""of the rows that are solved"""
LEAST = 1e-3
"""of a sum of weights, for the noise of what is divided by it"""


def chosen_pairs(trial: Trial, made: type[Model], aspect: str) -> Array | None:
    """(B, H, Lq, Lk): 1 if it is wrong there, 0 if not, NaN where that is not told; None if that explains nothing."""
    if aspect != "out" and (trial.case.rotary is not None or {"out", "lse"} & trial.failing):
        return None
    right = Model(trial.inputs)
    with np.errstate(all="ignore"):
        right.forward()
        try:
            wrong = made(trial.inputs)
            wrong.to_logits()
            wrong.goes_by(right)
            make = _of_out(trial, right, wrong) if aspect == "out" else _of_gradients(trial, right, wrong, aspect)
        except Exception:  # it needs other inputs than these
            return None
        return None if make is None else _solved(make, aspect)


@dataclass
class _Equations:
    """columns(at) (unknowns, numbers) and wanted(at) (numbers,) of a row (b, h, i), in units of noise; which are off"""

    columns: Callable[[tuple[int, ...]], Array]
    wanted: Callable[[tuple[int, ...]], Array]
    off: Array
    shape: tuple[int, ...]


def _solved(x: _Equations, aspect: str) -> Array | None:
    rows = [tuple(map(int, at)) for at in np.argwhere(x.off)]
    some = spread(rows, MOST)
    first = set(spread(some, FIRST))
    found = np.full((*x.off.shape, x.shape[3] if aspect in ("out", "dq") else x.shape[2]), np.nan)
    tried = solved = 0
    for at in (*first, *(at for at in some if at not in first)):
        values = chosen(x.columns(at).T, x.wanted(at))
        tried += 1
        solved += values is not None
        if (tried == len(first) and 2 * solved < tried) or (len(some) - (tried - solved) < MOSTLY * len(some)):
            return None
        if values is not None:
            found[at] = values
    if not (found == 1).any():
        return None
    for at in spread([tuple(map(int, at)) for at in np.argwhere(~x.off)], MOST):  # what is right does not have it
        found[at] = np.where((np.abs(x.columns(at)) > TELLING).any(1), 0.0, np.nan)
    if aspect in ("out", "dq"):
        return found
    return np.repeat(found, x.shape[1] // x.off.shape[1], 1).swapaxes(2, 3)


def _times(weights: Array, x: Array) -> Array:
    """Rows times weights, of what has a weight."""
    return np.where(weights[..., None] == 0, 0, weights[..., None] * x)


def _noise(trial: Trial, name: str) -> Array:
    got = trial.got[name]
    radius = trial.about(name)[0] * grown(got, trial.expected[name].value)
    return np.maximum(np.maximum(radius, roundings(trial.contract) * largest_of_row(np.abs(got))), 1e-300)


def _of_out(trial: Trial, right: Model, wrong: Model) -> _Equations | None:
    if "out" not in trial.right:
        return None
    lse = right.log(right.m, right.l)
    got, e = trial.got["out"], trial.expected["out"]
    weights = [np.where(m.seen, np.exp(np.minimum(m.t - lse[..., None], 300)), 0) for m in (right, wrong)]
    kept = [w if m.keep is None else np.where(m.keep, w, 0) * m.undropped()
            for m, w in zip((right, wrong), weights, strict=True)]  # fmt: skip
    noise, off = _noise(trial, "out"), ~trial.right["out"].all(-1)
    ratio = None
    if "lse" in trial.right:
        off = off | ~trial.right["lse"]
        ratio = np.exp(trial.got["lse"] - lse)
        far = trial.expected["lse"]
        ratio_noise = 2 * np.maximum(far.hi - far.value, far.value - far.lo) + roundings(trial.contract)
    told = np.isfinite(got).all(-1) & np.isfinite(lse) & np.isfinite(e.value).all(-1)
    told &= True if ratio is None else np.isfinite(ratio)

    def size(at: tuple[int, ...]) -> float:
        return 1.0 if ratio is None else max(float(ratio[at]), LEAST)

    def columns(at: tuple[int, ...]) -> Array:
        b, h, _ = at
        more = weights[1][at] - weights[0][at]
        x = _times(kept[1][at], wrong.v[b, h]) - _times(kept[0][at], right.v[b, h]) - more[:, None] * got[at]
        x = x / (noise[at] * size(at))
        return x if ratio is None else np.c_[x, more / (ratio_noise[at] * size(at))]

    def wanted(at: tuple[int, ...]) -> Array:
        x = (got[at] - e.value[at]) / (noise[at] * size(at))
        return x if ratio is None else np.r_[x, (ratio[at] - 1) / (ratio_noise[at] * size(at))]

    return _Equations(columns, wanted, off & told, right.t.shape) if told.any() else None


def _of_gradients(trial: Trial, right: Model, wrong: Model, aspect: str) -> _Equations | None:
    names = sorted(ASPECTS[aspect] & trial.failing & set(trial.right))
    if not names:
        return None
    both = (right, wrong)
    pairs = [m.pairwise() for m in both]
    offs = [~trial.right[n].all(-1) & np.isfinite(trial.got[n]).all(-1) for n in names]
    group = trial.case.group

    def part(name: str, at: tuple[int, ...], which: int) -> Array:
        (p, _, _, ds), m = pairs[which], both[which]
        b, h, i = at
        if name == "dq":
            return _times(ds[at], m.k[b, h]) * m.q_factor()
        heads = slice(h * group, (h + 1) * group)
        if name == "dk":
            return _times(ds[b, heads, :, i], m.q[b, heads]).sum(0) * m.k_factor()
        if m.keep is not None:
            p = np.where(m.keep, p, 0)
        return _times(p[b, heads, :, i], m.x["dout"][b, heads]).sum(0) * m.undropped()

    noise = {n: _noise(trial, n) for n in names}

    def columns(at: tuple[int, ...]) -> Array:
        return np.concatenate([(part(n, at, 1) - part(n, at, 0)) / noise[n][at] for n in names], 1)

    def wanted(at: tuple[int, ...]) -> Array:
        return np.concatenate([(trial.got[n][at] - trial.expected[n].value[at]) / noise[n][at] for n in names])

    return _Equations(columns, wanted, np.logical_or.reduce(offs), right.t.shape)
