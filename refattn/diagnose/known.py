"""What a failing case tells of the pairs of queries and keys: for which something is so, and what bounds them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ..localise.key_changes import rows_of
from ..localise.participation import times_of_keys
from .dense import Array, Inputs
from .edges import Shape
from .regions import REGIONS, Region
from .trial import Trial

__all__ = ["Known", "inside", "seen_shape", "times_of"]

FAR = 1 << 30
ROWED = tuple(r for r in REGIONS if r.rows is not None)
KEYED = tuple(r for r in REGIONS if r.keys is not None)


def seen_shape(inputs: Inputs) -> Shape:
    if "shape" not in inputs.made:
        visible = inputs.visible
        if "bias" in inputs.arrays:
            visible = visible & ~np.isneginf(inputs.arrays["bias"])
        inputs.made["shape"] = Shape(inputs.case, visible)
    found: Shape = inputs.made["shape"]
    return found


def times_of(trial: Trial) -> Array | None:
    """(B, H, Lq, Lk): how often each key counts in a row of out, NaN where that is not known.

    None if not one row that is wrong is explained.
    """
    case, inputs = trial.case, trial.inputs
    if not (case.H and case.Hkv and case.Dv and case.Lk):
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
    return times if wrong.any() else None


@dataclass
class Known:
    """Of a case, the pairs that are so and those that are not, by rows or by keys, and what bounds an edge in each."""

    inputs: Inputs
    hit: Array
    miss: Array
    by_key: bool = False

    def __post_init__(self) -> None:
        if self.by_key:
            self.hit, self.miss = self.hit.swapaxes(2, 3), self.miss.swapaxes(2, 3)
        n = self.hit.shape[3]
        self.some = self.hit.any(-1)
        self.first_hit = np.where(self.some, self.hit.argmax(-1), FAR)
        self.after_hit = np.where(self.some, n - self.hit[..., ::-1].argmax(-1), 0)
        any_miss = self.miss.any(-1)
        self.first_miss = np.where(any_miss, self.miss.argmax(-1), FAR)
        self.after_miss = np.where(any_miss, n - self.miss[..., ::-1].argmax(-1), 0)
        self.misses = np.concatenate([np.zeros((*self.some.shape, 1), int), self.miss.cumsum(-1)], -1).ravel()
        self.begins = np.arange(self.some.size).reshape(self.some.shape) * (n + 1)

    @property
    def shape(self) -> Shape:
        shape = seen_shape(self.inputs)
        return shape.by_key if self.by_key else shape

    def between(self, low: Array, high: Array) -> Array:
        """How many known not to be so lie from `low` to before `high`."""
        n = self.hit.shape[3]
        a, b = (self.misses[self.begins + np.minimum(np.maximum(x, 0), n)] for x in (low, high))
        return np.asarray(b - a)

    def within(self, low: Array, high: Array) -> Array:
        """Whether just those from `low` to before `high` may be so."""
        inside = ~self.some | ((low <= self.first_hit) & (self.after_hit <= high))
        return inside & (self.between(low, high) <= 0) if inside.all() else inside

    def just(self, pairs: Array) -> Array:
        """Whether just these pairs may be so, of each row."""
        return np.asarray(~((self.hit & ~pairs) | (self.miss & pairs)).any(-1))

    def regions(self) -> Array:
        """(regions, rows): of all regions of rows, or of keys, those that are in them."""
        key = ("regions", self.by_key)
        if key not in self.inputs.made:
            self.inputs.made[key] = np.array([x.ravel() for x in map(self._inside, self.all_regions)], np.float32)
        return np.asarray(self.inputs.made[key])

    @property
    def all_regions(self) -> tuple[Region, ...]:
        return KEYED if self.by_key else ROWED

    def _inside(self, region: Region) -> Array:
        return inside(region, self.inputs, self.by_key)


def inside(region: Region, inputs: Inputs, by_key: bool) -> Array:
    """(B, H, rows), or (B, H, keys)."""
    case = inputs.case
    if not by_key and region.rows is not None:
        return np.broadcast_to(region.rows(inputs), (case.B, case.H, case.Lq))
    if region.keys is None:
        raise ValueError(f"{region.words}: no keys are meant")
    keys = np.broadcast_to(region.keys(inputs), (case.B, case.Hkv, case.Lk))
    return np.repeat(keys, case.group, axis=1)
