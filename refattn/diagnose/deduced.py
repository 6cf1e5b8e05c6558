"""Which keys count in which rows, deduced from the answers, and a rule that says so: a hypothesis nobody wrote down.

Where no hypothesis explains the failures, out and lse of each row tell how often its keys count
(`refattn.localise.participation`).  What differs from the mask is compared with all rules of a form: keys from an edge
on, before it, or so many from it on are left out, counted twice, or seen although they are hidden, in all rows or in
those of a region (`refattn.diagnose.edges`, `refattn.diagnose.regions`).  A rule that holds in most cases becomes a
hypothesis, and has to explain the answers as any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from ..case import NAMES, Case
from .dense import Array, Inputs
from .edges import EDGES, Edge, Shape, shape_of
from .effort import Effort
from .hypothesis import Hypothesis
from .known import ROWED, Known, Look, look_at, seen_shape
from .model import Model
from .regions import Region
from .trial import Trial

__all__ = ["deduced"]

CASES, MOST = 9, 2**13
"""so many failing cases are looked at, of no more scores"""
RANGES, MOST_ENDS = (1, 4, 8, 16, 32, 64, 128), 16
"""keys in a run of a fixed size; edges that may begin one, and that may end one"""
KEPT, BOTH = 6, 2
"""rules that become hypotheses, and of each way in which keys count otherwise, where there are several"""
DOES = {"left out": "are left out", "counted twice": "count twice", "seen": "are seen"}
LOOK, ROW, EDGE = 0.05, 5e-4, 1e-4
"""seconds to look at a case and at each row of it, and to try a form with an edge"""
COST = 0.5
"""cases that a rule has to hold in more, if it is further from plain"""
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
        shape = seen_shape(inputs)
        at = self.inside(shape) & (shape.visible if self.how != "seen" else ~shape.visible)
        at = at & (np.arange(inputs.case.Lk) < shape.keys[..., None])
        if self.region is not None and self.region.rows is not None:
            at = at & np.broadcast_to(self.region.rows(inputs), at.shape[:3])[..., None]
        return at

    def __str__(self) -> str:
        return f"{self.words} {DOES[self.how]}" + ("" if self.region is None else f", in {self.region.words}")


def deduced(trials: Sequence[Trial], effort: Effort, until: float) -> list[Hypothesis]:
    """The simplest rules that hold in most of the failures; none if out tells nothing."""
    small = [t for t in sorted(trials, key=lambda t: t.case.scores) if "out" in t.failing and t.case.scores < MOST]
    looks: list[Look] = []
    for tried, trial in enumerate(small[:: -(-len(small) // CASES)] if small else ()):
        if effort.seconds > until or (tried >= CASES / 3 and not looks):
            break
        look = look_at(trial)
        effort.work += LOOK + ROW * trial.case.B * trial.case.H * trial.case.Lq
        looks += [] if look is None else [look]
    found = [rules for how in DOES if (rules := _rules(how, looks, effort, until))]
    some = [rules[: KEPT if len(found) == 1 else BOTH] for rules in found]
    return [_hypothesis(rules) for rules in product(*some)] if some else []


Form = tuple[str, Callable[..., Array], Callable[..., Array]]
"""words, whether edges (B, H, Lq) fit a row of what is known, and the keys j that it says (j, edges)"""

FORMS: tuple[Form, ...] = (
    ("keys from {} on", lambda k, e: (k.after_miss <= e) & (e <= k.first_hit), lambda j, e: j >= e),
    ("keys before {}", lambda k, e: (k.after_hit <= e) & (e <= k.first_miss), lambda j, e: j < e),
    *((f"{n} key{'s' * (n > 1)} from {{}} on", lambda k, e, n=n: k.within(e, e + n),
       lambda j, e, n=n: (j >= e) & (j < e + n)) for n in RANGES),
)  # fmt: skip
BETWEEN: Form = ("keys from {} on, and before {}", lambda k, a, b: k.within(a, b), lambda j, a, b: (j >= a) & (j < b))


def _ends(known: Sequence[Known]) -> list[tuple[Edge, Edge]]:
    """Pairs of edges, the first of which may begin and the second end what is so, in most cases."""
    some = [k for k in known if k.some.any()]

    def likely(fits: Callable[[Known, Array], Array]) -> list[Edge]:
        counts = {edge: sum(not (k.some & ~fits(k, edge.of(k.look.shape))).any() for k in some) for edge in EDGES}
        best = sorted((edge for edge, n in counts.items() if n > 0.7 * len(some)), key=lambda e: (-counts[e], e.cost))
        return best[:MOST_ENDS]

    begins = likely(lambda k, e: (e <= k.first_hit) & (k.between(e, k.first_hit) == 0))
    ends = likely(lambda k, e: (e >= k.after_hit) & (k.between(k.after_hit, e) == 0))
    return [(a, b) for a in begins for b in ends if a is not b]


SIDES: dict[str, Callable[[Shape], Array]] = {
    "behind what the row sees": lambda x: np.arange(x.visible.shape[3]) >= x.stop[..., None],
    "ahead of what the row sees": lambda x: np.arange(x.visible.shape[3]) < x.first[..., None],
}


def _rules(how: str, looks: Sequence[Look], effort: Effort, until: float) -> list[Rule]:
    """Those that hold in most cases, the simplest first; none if nothing is so, or no rule holds in enough of them."""
    sides: dict[str, Callable[[Shape], Array]] = {"": lambda x: np.ones((), bool)} | (SIDES if how == "seen" else {})
    found: list[tuple[float, int, int, Rule]] = []
    telling = 0
    for words, side in sides.items():
        known = []
        for look in looks:
            hit, miss = look.of(how)
            at = side(look.shape)
            some = hit.any(-1)
            if how == "left out" and 2 * (some & miss.any(-1)).sum() < some.sum():
                continue  # where nothing is left of most rows, that is no matter of which keys
            if some.any() and not (hit & ~at).any():
                known.append(Known(look, hit, miss & at))
        telling = max(telling, len(known))
        if not known or (len(known) < SURE and len(looks) >= 2 * SURE):
            continue
        forms: list[tuple[int, Form, tuple[Edge, ...]]] = [
            (edge.cost + 2 * (at > 1), form, (edge,)) for edge in EDGES for at, form in enumerate(FORMS)
        ]
        forms += [(2 + a.cost + b.cost, BETWEEN, (a, b)) for a, b in _ends(known)]
        said: set[tuple[Any, Region | None, int]] = set()
        for place, (cost, form, edges) in enumerate(forms):
            effort.work += EDGE
            if effort.seconds > until:
                break
            for region, n in _held(form, edges, known):
                if (edges, region, n) not in said:  # or a simpler form says as much
                    said.add((edges, region, n))
                    made = Rule(how, _words(how, words, form, edges), _pairs(side, form, edges), region)
                    found.append((COST * (2 * (region is not None) + cost) - n, place, n, made))
    if not found:
        return []
    best = sorted(found, key=lambda x: x[:2])
    return _distinct([rule for _, _, n, rule in best if n >= max(telling / 2, 1)], looks)


def _distinct(rules: Sequence[Rule], looks: Sequence[Look]) -> list[Rule]:
    """The first few that are about different pairs."""
    found: dict[bytes, Rule] = {}
    for rule in rules[: 8 * KEPT]:
        found.setdefault(b"".join(np.packbits(rule.pairs(look.inputs)).tobytes() for look in looks), rule)
    return list(found.values())[:KEPT]


def _words(how: str, side: str, form: Form, edges: Sequence[Edge]) -> str:
    text = form[0].format(*(edge.words for edge in edges))
    return f"Hidden {text}{f', {side},' if side else ''}" if how == "seen" else f"{text[0].upper()}{text[1:]}"


def _pairs(side: Callable[[Shape], Array], form: Form, edges: Sequence[Edge]) -> Callable[[Shape], Array]:
    return lambda x: form[2](np.arange(x.visible.shape[3]), *(e.of(x)[..., None] for e in edges)) & side(x)


def _held(form: Form, edges: Sequence[Edge], known: Sequence[Known]) -> Iterator[tuple[Region | None, int]]:
    """The region in which the rule holds, None for all rows, and in how many cases it does."""
    everywhere, held = 0, np.zeros(len(ROWED), int)
    for left, k in zip(range(len(known) - 1, -1, -1), known, strict=True):
        fits = form[1](k, *(np.maximum(edge.of(k.look.shape), 0) for edge in edges))
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
        return case.scores > 0 and any(bool(rule.inside(shape).any()) for rule in rules)

    def solve(inputs: Inputs, contract: Any, want: frozenset[str]) -> Any:
        return deduced_rule(inputs, contract).solve(want)

    return Hypothesis(
        f"deduced[{words}]", words, separates, frozenset(NAMES), solve, made=deduced_rule, narrow=1, fitted=True
    )
