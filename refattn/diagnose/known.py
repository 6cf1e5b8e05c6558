"""What a failing case tells of which keys count in which rows, and what that says of where the keys begin and end."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ..localise.key_changes import rows_of
from ..localise.participation import times_of_keys
from .dense import Array, Inputs
from .edges import Shape
from .regions import REGIONS
from .trial import Trial

__all__ = ["ROWED", "Known", "Look", "look_at", "seen_shape"]

FAR = 1 << 30
ROWED = tuple(r for r in REGIONS if r.rows is not None)


@dataclass
class Look:
    """A failing case: its mask, and how often each key counts, NaN where that is not known."""

    inputs: Inputs
    shape: Shape
    times: Array

    def of(self, how: str) -> tuple[Array, Array]:
        """Pairs that are so, and pairs that may be and are not."""
        if how == "seen":
            there = ~self.shape.visible & (np.arange(self.times.shape[3]) < self.shape.keys[..., None])
            return there & (self.times >= 1), there & (self.times == 0)
        as_told = self.times == (0 if how == "left out" else 2)
        return self.shape.visible & as_told, self.shape.visible & ~as_told & ~np.isnan(self.times)


def seen_shape(inputs: Inputs) -> Shape:
    if "shape" not in inputs.made:
        visible = inputs.visible
        if "bias" in inputs.arrays:
            visible = visible & ~np.isneginf(inputs.arrays["bias"])
        inputs.made["shape"] = Shape(inputs.case, visible)
    found: Shape = inputs.made["shape"]
    return found


def look_at(trial: Trial) -> Look | None:
    """None if not one row that is wrong is explained."""
    case, inputs = trial.case, trial.inputs
    if not (case.H and case.Hkv and case.Dv and case.Lk) or trial.excused:
        return None
    expected, got, seen = trial.expected["out"], trial.got["out"], inputs.visible
    right = trial.right["out"].all(-1) & (trial.right["lse"] if "lse" in trial.right else True)
    times = np.full(seen.shape, np.nan)
    for b, h in product(range(case.B), range(case.H)):
        rows = np.flatnonzero(np.isfinite(got[b, h]).all(-1) & (np.arange(case.Lq) < case.lengths[0][b]))
        if not rows.size:
            continue
        sums = None
        if "lse" in trial.got:
            with np.errstate(all="ignore"):
                sums = np.exp(trial.got["lse"][b, h, rows] - trial.expected["lse"].value[b, h, rows])
        at = rows_of(inputs.problem, trial.contract, b, h, rows, got, expected, seen)
        times[b, h, rows] = times_of_keys(at, sums, right[b, h, rows])
    wrong = ~right & ~np.isnan(times).all(-1)
    return Look(inputs, seen_shape(inputs), times) if wrong.any() else None


@dataclass
class Known:
    """Of a case, what bounds an edge in each row: the first and the last pair that is so, and that is not."""

    look: Look
    hit: Array
    miss: Array

    def __post_init__(self) -> None:
        n = self.hit.shape[3]
        self.some = self.hit.any(-1)
        self.first_hit = np.where(self.some, self.hit.argmax(-1), FAR)
        self.after_hit = np.where(self.some, n - self.hit[..., ::-1].argmax(-1), 0)
        any_miss = self.miss.any(-1)
        self.first_miss = np.where(any_miss, self.miss.argmax(-1), FAR)
        self.after_miss = np.where(any_miss, n - self.miss[..., ::-1].argmax(-1), 0)
        self.misses = np.concatenate([np.zeros((*self.some.shape, 1), int), self.miss.cumsum(-1)], -1)

    def between(self, low: Array, high: Array) -> Array:
        """How many known not to be so lie from `low` to before `high`."""
        n = self.hit.shape[3]
        a, b = (np.take_along_axis(self.misses, np.clip(x, 0, n)[..., None], -1)[..., 0] for x in (low, high))
        return np.asarray(b - a)

    def within(self, low: Array, high: Array) -> Array:
        """Whether just those from `low` to before `high` may be so."""
        inside = ~self.some | ((low <= self.first_hit) & (self.after_hit <= high))
        return np.asarray(inside & (self.between(low, high) <= 0))

    def regions(self) -> Array:
        """(regions, rows): of all regions the rows that are in them."""
        shape = self.some.shape
        if "rows of regions" not in self.look.inputs.made:
            rows = [np.broadcast_to(r.rows(self.look.inputs), shape).ravel() for r in ROWED if r.rows is not None]
            self.look.inputs.made["rows of regions"] = np.array(rows, np.float32)
        return np.asarray(self.look.inputs.made["rows of regions"])
