"""Which keys count in which rows, deduced from the answers, and a rule that says so: a hypothesis nobody wrote down.

Where no hypothesis explains the failures, out and lse of each row tell how often its keys count
(`refattn.localise.participation`).  What differs from the mask is compared with all rules of a form: keys from an edge
on, before it, or so many from it on are left out, counted twice, or seen although they are hidden, in all rows or in
those of a region (`refattn.diagnose.edges`, `refattn.diagnose.regions`).  A rule that holds in most cases becomes a
hypothesis, and has to explain the answers as any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..case import NAMES, Case
from ..localise.key_changes import rows_of
from ..localise.participation import times_of_keys
from .dense import Array, Inputs
from .edges import EDGES, Edge, Shape, shape_of
from .evidence import scores
from .hypothesis import Hypothesis
from .match import Trial
from .model import Model
from .regions import REGIONS, Region

__all__ = ["deduced"]

CASES, MOST = 12, 2**13
"""so many failing cases are looked at, of no more scores"""
FAR = 1 << 30
RANGES = (1, 4, 8, 16, 32, 64, 128)
ROWED = tuple(r for r in REGIONS if r.rows is not None)
KEPT, BOTH = 6, 2
"""rules that become hypotheses, and of each way in which keys count otherwise, where there are several"""
DOES = {"left out": "are left out", "counted twice": "count twice", "seen": "are seen"}
SURE = 2
"""Cases that a rule holds in, or rows of one with edges of its own."""


@dataclass(frozen=True, eq=False)
class Rule:
    """Which pairs of query and key it is about, and in what way: "left out", "counted twice" or "seen"."""

    how: str
    words: str
    inside: Callable[[Shape], Array]
    region: Region | None = None

    def pairs(self, inputs: Inputs) -> Array:
        """(B, H, Lq, Lk)."""
        shape = _shape(inputs)
        at = self.inside(shape) & (shape.visible if self.how != "seen" else ~shape.visible)
        at = at & (np.arange(inputs.case.Lk) < shape.keys[..., None])
        if self.region is not None and self.region.rows is not None:
            at = at & np.broadcast_to(self.region.rows(inputs), at.shape[:3])[..., None]
        return at

    def __str__(self) -> str:
        return f"{self.words} {DOES[self.how]}" + ("" if self.region is None else f", in {self.region.words}")


def deduced(trials: Sequence[Trial], until: float) -> list[Hypothesis]:
    """The simplest rules that hold in most of the failures; none if out tells nothing."""
    small = [t for t in sorted(trials, key=lambda t: scores(t.case)) if "out" in t.failing and scores(t.case) < MOST]
    looks = []
    for trial in small[:: -(-len(small) // CASES)] if small else ():
        if time.thread_time() > until:
            break
        look = _look(trial)
        if look is not None:
            looks.append(look)
    found = [rules for how in DOES if (rules := _rules(how, looks, until))]
    some = [rules[: KEPT if len(found) == 1 else BOTH] for rules in found]
    return [_hypothesis(rules) for rules in product(*some)] if some else []


# ---- what is known of a case


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


def _shape(inputs: Inputs) -> Shape:
    if "shape" not in inputs.made:
        visible = inputs.visible
        if "bias" in inputs.arrays:
            visible = visible & ~np.isneginf(inputs.arrays["bias"])
        inputs.made["shape"] = Shape(inputs.case, visible)
    found: Shape = inputs.made["shape"]
    return found


def _look(trial: Trial) -> Look | None:
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
    return Look(inputs, _shape(inputs), times) if wrong.any() else None


# ---- rules


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

    def regions(self) -> Array:
        """(regions, rows): of all regions the rows that are in them."""
        shape = self.some.shape
        if "rows of regions" not in self.look.inputs.made:
            rows = [np.broadcast_to(r.rows(self.look.inputs), shape).ravel() for r in ROWED if r.rows is not None]
            self.look.inputs.made["rows of regions"] = np.array(rows, np.float32)
        return np.asarray(self.look.inputs.made["rows of regions"])


Form = tuple[str, Callable[[Known, Array], Array], Callable[[Array, Array], Array]]
"""words, whether an edge (B, H, Lq) fits a row, and the keys j that it says (j, edge)"""

FORMS: tuple[Form, ...] = (
    ("keys from {} on", lambda k, e: (k.after_miss <= e) & (e <= k.first_hit), lambda j, e: j >= e),
    ("keys before {}", lambda k, e: (k.after_hit <= e) & (e <= k.first_miss), lambda j, e: j < e),
    *((f"{n} key{'s' * (n > 1)} from {{}} on",
       lambda k, e, n=n: (e <= k.first_hit) & (k.after_hit <= e + n) & (k.between(e, e + n) == 0),
       lambda j, e, n=n: (j >= e) & (j < e + n)) for n in RANGES),
)  # fmt: skip
SIDES: dict[str, Callable[[Shape], Array]] = {
    "behind what the row sees": lambda x: np.arange(x.visible.shape[3]) >= x.stop[..., None],
    "ahead of what the row sees": lambda x: np.arange(x.visible.shape[3]) < x.first[..., None],
}


def _rules(how: str, looks: Sequence[Look], until: float) -> list[Rule]:
    """Those that hold in most cases, the simplest first; none if nothing is so, or no rule holds in enough of them."""
    sides: dict[str, Callable[[Shape], Array]] = {"": lambda x: np.ones((), bool)} | (SIDES if how == "seen" else {})
    found: list[tuple[int, int, int, Rule]] = []
    telling = 0
    for words, side in sides.items():
        known = []
        for look in looks:
            hit, miss = look.of(how)
            at = side(look.shape)
            if hit.any() and not (hit & ~at).any():
                known.append(Known(look, hit, miss & at))
        telling = max(telling, len(known))
        if not known or (len(known) < SURE and len(looks) >= 2 * SURE):
            continue
        for place, edge in enumerate(EDGES):
            if place % 16 == 0 and time.thread_time() > until:
                break
            said: set[tuple[Region | None, int]] = set()
            for form_at, form in enumerate(FORMS):
                for region, n in _held(form, edge, known):
                    if (region, n) not in said:  # or a simpler form says as much
                        said.add((region, n))
                        made = Rule(how, _words(how, words, form, edge), _pairs(side, form, edge), region)
                        found.append((-n, 2 * (region is not None) + (form_at > 1) + edge.cost, place, made))
    if not found:
        return []
    best = sorted(found, key=lambda x: x[:3])
    return _distinct([rule for n, _, _, rule in best if -n >= max(telling / 2, 1)], looks)


def _distinct(rules: Sequence[Rule], looks: Sequence[Look]) -> list[Rule]:
    """The first few that are about different pairs."""
    found: dict[bytes, Rule] = {}
    for rule in rules[: 8 * KEPT]:
        found.setdefault(b"".join(np.packbits(rule.pairs(look.inputs)).tobytes() for look in looks), rule)
    return list(found.values())[:KEPT]


def _words(how: str, side: str, form: Form, edge: Edge) -> str:
    text = form[0].format(edge.words)
    return f"Hidden {text}{f', {side},' if side else ''}" if how == "seen" else f"{text[0].upper()}{text[1:]}"


def _pairs(side: Callable[[Shape], Array], form: Form, edge: Edge) -> Callable[[Shape], Array]:
    return lambda shape: form[2](np.arange(shape.visible.shape[3]), edge.of(shape)[..., None]) & side(shape)


def _held(form: Form, edge: Edge, known: Sequence[Known]) -> Iterator[tuple[Region | None, int]]:
    """The region in which the rule holds, None for all rows, and in how many cases it does."""
    everywhere, held = 0, np.zeros(len(ROWED), int)
    for left, k in zip(range(len(known) - 1, -1, -1), known, strict=True):
        fits = form[1](k, np.maximum(edge.of(k.look.shape), 0))
        if not (k.some & ~fits).any():
            everywhere += bool(fits.all())
            rows = k.regions()
            bad, some = (~fits).ravel().astype(np.float32), k.some.ravel().astype(np.float32)
            held += (rows @ bad == 0) & (rows @ some == some.sum())
        if max(everywhere, held.max()) + left < len(known) / 2:
            return
    if 2 * everywhere >= len(known):
        yield None, everywhere
    for at in np.flatnonzero(held > max(everywhere, (len(known) - 1) / 2)).tolist():
        yield ROWED[at], int(held[at])


def _hypothesis(rules: Sequence[Rule]) -> Hypothesis:
    class deduced_rule(Model):
        def visible(self) -> Array:
            seen = super().visible()
            for rule in rules:
                at = rule.pairs(self.inputs)
                seen = seen | at if rule.how == "seen" else seen & ~at if rule.how == "left out" else seen
            return seen

        def hide(self, t: Array) -> Array:
            t = super().hide(t)
            for rule in rules:
                t = t + self.dtype(math.log(2)) * rule.pairs(self.inputs) if rule.how == "counted twice" else t
            return t

    words = "; ".join(map(str, rules))

    def separates(case: Case) -> bool:
        shape = shape_of(case)
        return any(bool(rule.inside(shape).any()) for rule in rules)

    def solve(inputs: Inputs, contract: Any, want: frozenset[str]) -> Any:
        return deduced_rule(inputs, contract).solve(want)

    return Hypothesis(
        f"deduced[{words}]", words, separates, frozenset(NAMES), solve, made=deduced_rule, narrow=1, fitted=True
    )
