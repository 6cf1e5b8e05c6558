"""Rules on pairs of queries and keys: from an edge on, before it, so many from it on, or those of some tiles.

What is known of the pairs of each case (`refattn.diagnose.known`) is compared with all rules of these forms, in all
rows or in those of a region; or, where edges are rows for each key, in all keys or in those of a region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .blocks import BLOCKS
from .dense import Array, Inputs
from .edges import EDGES, EDGES_OF_KEYS, Edge, Shape
from .effort import Effort
from .known import Known, inside, seen_shape
from .regions import Region

__all__ = ["Rule", "holding"]

RANGES, MOST_ENDS = (1, 4, 8, 16, 32, 64, 128), 16
"""keys in a run of a fixed size; edges that may begin one, and that may end one"""
EDGE = 1e-4
"""seconds to try a form with an edge"""
COST = 0.5
"""cases that a rule has to hold in more, if it is further from plain"""
TILED = 3
"""how far from plain tiles are"""
KEPT = 6
"""rules that are kept, which are about different pairs"""
CHECKED, CHECK = 64, 5e-5
"""So many of the simplest are asked of cases that passed, at so many seconds each."""
LIKELY = 0.7
"""of the cases that an edge has to fit, if it may be one of two"""


@dataclass(frozen=True, eq=False)
class Rule:
    """In words, the pairs (B, H, rows, keys) of a shape; or, `by_key`, (B, H, keys, rows) of one with them exchanged.

    `among` (B, H, rows, keys) says which pairs are meant at all.
    """

    words: str
    of: Callable[[Shape], Array]
    by_key: bool = False
    region: Region | None = None
    among: Callable[[Shape], Array] | None = None

    def pairs(self, inputs: Inputs) -> Array:
        """(B, H, Lq, Lk), of the keys that exist."""
        shape = seen_shape(inputs)
        at = np.broadcast_to(self.of(shape.by_key if self.by_key else shape), _sizes(shape, self.by_key))
        if self.region is not None:
            at = at & inside(self.region, inputs, self.by_key)[..., None]
        at = at.swapaxes(2, 3) if self.by_key else at
        at = at if self.among is None else at & self.among(shape)
        return at & (np.arange(inputs.case.Lk) < shape.keys[..., None])

    @property
    def where(self) -> str:
        """The region, in words."""
        return "" if self.region is None else f", {self.region.where}"


def _sizes(shape: Shape, by_key: bool) -> tuple[int, ...]:
    return (shape.by_key if by_key else shape).visible.shape


Form = tuple[str, Callable[..., Array], Callable[..., Array]]
"""words, whether edges (B, H, rows) fit each row of what is known, and the keys j that it says (j, edges)"""


def _forms(keys: str) -> tuple[Form, ...]:
    key = {"keys": "key", "rows": "row"}[keys]
    return (
        (f"{keys} from {{}} on", lambda k, e: (k.after_miss <= e) & (e <= k.first_hit), lambda j, e: j >= e),
        (f"{keys} before {{}}", lambda k, e: (k.after_hit <= e) & (e <= k.first_miss), lambda j, e: j < e),
        *((f"{n} {keys if n > 1 else key} from {{}} on", lambda k, e, n=n: k.within(e, e + n),
           lambda j, e, n=n: (j >= e) & (j < e + n)) for n in RANGES),
    )  # fmt: skip


FORMS = {"keys": _forms("keys"), "rows": _forms("rows")}
BETWEEN: dict[str, Form] = {
    keys: (f"{keys} from {{}} on, and before {{}}", lambda k, a, b: k.within(a, b), lambda j, a, b: (j >= a) & (j < b))
    for keys in FORMS
}


def _ends(known: Sequence[Known], edges: Sequence[Edge]) -> list[tuple[Edge, Edge]]:
    """Pairs of edges, the first of which may begin and the second end what is so, in most cases."""
    some = [k for k in known if k.some.any()]

    def likely(fits: Callable[[Known, Array], Array]) -> list[Edge]:
        counts = {edge: sum(not (k.some & ~fits(k, edge.at_least(k.shape))).any() for k in some) for edge in edges}
        best = sorted((edge for edge, n in counts.items() if n > LIKELY * len(some)),
                      key=lambda e: (-counts[e], e.cost))  # fmt: skip
        return best[:MOST_ENDS]

    begins = likely(lambda k, e: (e <= k.first_hit) & (k.between(e, k.first_hit) == 0))
    ends = likely(lambda k, e: (e >= k.after_hit) & (k.between(k.after_hit, e) == 0))
    return [(a, b) for a in begins for b in ends if a is not b]


@dataclass(frozen=True)
class _Way:
    """A rule before it is tried: how far from plain it is, and whether it fits each row of what is known."""

    cost: int
    words: str
    of: Callable[[Shape], Array]
    fits: Callable[[Known], Array]


def _ways(known: Sequence[Known], keys: str) -> Iterator[_Way]:
    edges = EDGES_OF_KEYS if keys == "rows" else EDGES
    for edge in edges:
        for at, form in enumerate(FORMS[keys]):
            yield _of_form(edge.cost + 2 * (at > 1), form, edge)
    for words, pairs in BLOCKS if keys == "keys" else ():
        yield _Way(TILED, f"keys {words}", pairs, partial(_just, pairs))
    for a, b in _ends(known, edges):
        yield _of_form(2 + a.cost + b.cost, BETWEEN[keys], a, b)


def _just(pairs: Callable[[Shape], Array], k: Known) -> Array:
    return k.just(pairs(k.shape))


def _of_form(cost: int, form: Form, *edges: Edge) -> _Way:
    def of(shape: Shape) -> Array:
        return form[2](np.arange(shape.visible.shape[3]), *(e.of(shape)[..., None] for e in edges))

    def fits(k: Known) -> Array:
        return form[1](k, *(e.at_least(k.shape) for e in edges))

    return _Way(cost, form[0].format(*(edge.words for edge in edges)), of, fits)


def holding(
    known: Sequence[Known], telling: int, effort: Effort, until: float,
    among: Callable[[Shape], Array] | None = None, passed: Sequence[Inputs] = (),
) -> list[tuple[float, int, Rule]]:  # fmt: skip
    """The rules that hold in half of `telling` cases and more, the simplest first: what speaks against them, and in how
    many they hold.  It speaks against one that there are such pairs in cases that `passed`.
    """
    if not known:
        return []
    by_key = known[0].by_key
    found: list[tuple[float, int, Rule]] = []
    for way in _ways(known, "rows" if by_key else "keys"):
        effort.work += EDGE
        if effort.seconds > until:
            break
        for region, n in _held(way, known):
            rule = Rule(way.words, way.of, by_key, region, among)
            against = COST * (2 * (region is not None) + way.cost) - n
            if n >= max(telling / 2, 1):
                found.append((against, n, rule))
    found = sorted(found, key=lambda x: x[0])[:CHECKED]
    different: dict[bytes, tuple[float, int, Rule]] = {}
    for against, n, rule in found:  # of those that are about the same pairs the simplest
        effort.work += CHECK * (len(known) + len(passed))
        there = [rule.pairs(inputs) for inputs in (*(k.inputs for k in known), *passed)]
        if among is None:
            there[len(known) :] = [x & seen_shape(i).visible for x, i in zip(there[len(known) :], passed, strict=True)]
        against += telling * sum(x.any() for x in there[len(known) :]) / max(len(passed), 1)
        different.setdefault(b"".join(np.packbits(x).tobytes() for x in there), (against, n, rule))
    return sorted(different.values(), key=lambda x: x[0])[:KEPT]


def _held(way: _Way, known: Sequence[Known]) -> Iterator[tuple[Region | None, int]]:
    """The region in which the rule holds, None for all rows, and in how many cases it does."""
    regions = known[0].all_regions
    everywhere, held = 0, np.zeros(len(regions), int)
    for left, k in zip(range(len(known) - 1, -1, -1), known, strict=True):
        fits = way.fits(k)
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
        yield regions[at], int(held[at])
