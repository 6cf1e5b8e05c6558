"""Which keys' weights are off, read from out alone: what failing rows agree on, and the truth confirms.

Some failing rows are searched (`refattn.row_search`) for keys that have no weight, count twice, or are seen though
hidden.  What most of them agree on, in indices of keys or counted from the first or last key that a row sees, is
tried on all of them; and it is said only of rows whose answer is within the derived bound of attention in which the
keys count like that.  Of two explanations that hold equally, one of which is not part of the other, neither is said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..case import BiasSpec, Dense
from ..inputs import Problem
from ..precision import Precision
from ..sampling import Given
from ..truth import Expected, truth
from .index_sets import words
from .key_changes import Rows, rows_of
from .row_search import Changes, several, single, solved

__all__ = ["keys_that_are_off"]

Array = np.ndarray[Any, Any]

MOST_KEYS, MOST_PAIRS, MOST_WEIGHTS = 1 << 13, 1 << 25, 1 << 16
"""of a problem with more keys or pairs nothing is said; of the others so many weights are looked at"""
SEARCHED, TRIED, ROWS_TRIED, PROVED = 16, 100, 48, 3
"""rows that are searched; explanations that are tried, on so many rows; those that the truth is asked about"""
FAR_OFF = 4
"""numbers far from what they should be, that what explains them must bring within their bounds"""


def keys_that_are_off(
    problem: Problem, precision: Precision, got: Array, expected: Expected, failing: Array
) -> tuple[str, ...]:
    """Sentences; none if nothing explains at least half of the failing rows that are finite and not 0.

    got: out of the answer, dense, float64; failing (B, H, Lq).  The rows are explained together, by batch entry, or
    by head, whichever explains most, else one by one in examples.
    """
    case = problem.case
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(got) & np.isfinite(expected.hi - expected.lo) & np.isfinite(expected.value)
    at = np.argwhere(failing & finite.all(-1) & np.any(got != 0, axis=-1))
    if not (len(at) and case.Dv and 0 < case.Lk <= MOST_KEYS and case.scores <= MOST_PAIRS):
        return ()
    if case.scores > MOST_WEIGHTS:
        at = at[_spread(len(at), max(SEARCHED, MOST_WEIGHTS // (case.Lk * case.B * case.H)))]
    seen = case.visibility.tile()
    heads = [
        rows_of(problem, precision, b, h, at[(at[:, 0] == b) & (at[:, 1] == h), 2], got, expected, seen)
        for b, h in dict.fromkeys((int(b), int(h)) for b, h, _ in at)
    ]
    searched = _searched(heads)
    if not searched or 2 * sum(bool(explanations) for _, explanations in searched) < len(searched):
        return ()
    bench = _Bench(problem, precision, got, np.unique(at[:, 2]))
    judged = np.asarray((~expected.ignored).any((0, 1, 3)))
    ways: tuple[Callable[[Rows], str], ...] = (lambda x: "", lambda x: f"b={x.b}: ", lambda x: f"b={x.b}, h={x.h}: ")
    groups: dict[str, list[Rows]] = {}
    most, sentences = len(at) / 2, tuple[str, ...]()
    for way in ways:
        before, groups = len(groups), {}
        for head in heads:
            groups.setdefault(way(head), []).append(head)
        if before < len(groups) <= 8 and most < 0.95 * len(at):
            found = _explained(groups, {n: [x for x in searched if way(x[0]) == n] for n in groups}, bench)
            count = sum(int(x.sum()) for _, masks in found.values() for x in masks)
            if count >= most and (not sentences or count > 1.1 * most):
                most = count
                sentences = tuple(name + _sentence(*x, groups[name], judged) for name, x in found.items())
    return sentences or _examples(searched, bench)


Searched = tuple[Rows, "list[Changes]"]
"""one row, and what may explain it"""
Found = tuple[Changes, "list[Array]"]
"""changes, and for each head which of its rows they explain"""


class _Bench:
    """The truth of some query rows when keys count otherwise."""

    def __init__(self, problem: Problem, precision: Precision, got: Array, rows: Array) -> None:
        case, self.precision = problem.case, precision
        if case.score_mod is not None:  # it depends on positions
            rows = np.arange(case.Lq)
        self.rows, self.got = rows, got[:, :, rows]
        self.seen = case.visibility.tile()[:, :, rows]
        by_row = ("q", "bias", "keep")
        self.logical = {
            n: x[:, :, rows] if n in by_row and x.shape[2] == case.Lq else x for n, x in problem.logical.items()
        }
        self.bias = np.zeros(())
        if case.bias is not None:
            self.bias = np.asarray(self.logical["bias"], np.float64)
            self.seen = self.seen & ~np.isneginf(self.bias)
        self.case = replace(
            case, Lq=len(rows), q_lens=None, k_lens=None, want=frozenset({"out"}), storage=Dense(), bias=None
        )

    def explained(self, assignments: Sequence[tuple[Rows, Changes]]) -> list[Array]:
        """For each assignment which of its rows are within the bound of the truth under its changes."""
        seen, twice = self.seen.copy(), np.zeros(self.seen.shape, dtype=bool)
        places = [(x.b, x.h, np.searchsorted(self.rows, x.rows)) for x, _ in assignments]
        for place, (x, changes) in zip(places, assignments, strict=True):
            for change in changes:
                keys = change.keys(x.visible, x.end)
                if change.kind == "twice":
                    twice[place] |= keys
                else:
                    seen[place] = seen[place] | keys if change.kind == "seen" else seen[place] & ~keys
        case, logical = replace(self.case, mask=Given(seen)), dict(self.logical)
        logical.pop("bias", None)
        if self.bias.ndim or twice.any():  # to count twice is to have a logit that is log 2 larger
            bias = np.where(np.isneginf(self.bias), 0.0, self.bias) + np.log(2.0) * twice
            logical["bias"], case = bias, replace(case, bias=BiasSpec("BHQK", "float64"))
        e = truth(Problem(case, logical), self.precision)["out"]
        with np.errstate(invalid="ignore"):
            inside = np.asarray(((e.lo <= self.got) & (self.got <= e.hi)).all(-1))
        return [inside[place] for place in places]


def _searched(heads: list[Rows]) -> list[Searched]:
    """Some rows of all heads that are far off, and what may explain each."""
    places = [(head, i) for head in heads for i in np.flatnonzero(head.far_off()).tolist()]
    found = []
    for head, i in (places[n] for n in _spread(len(places), SEARCHED)):
        row = head.at([i])
        explanations: list[Changes] = []
        for search in (single, several, solved):
            explanations = explanations or list(dict.fromkeys(search(row)))
        found.append((row, explanations))
    return found


def _explained(
    groups: Mapping[str, list[Rows]], searched: Mapping[str, list[Searched]], bench: _Bench
) -> dict[str, Found]:  # fmt: skip
    """What explains most of the rows of each group of heads, if it is one thing."""
    likely = {name: _likely(heads, searched[name]) for name, heads in groups.items()}
    proved: dict[str, list[Found]] = {name: [] for name in groups}
    for i in range(max(map(len, likely.values()))):
        those = {name: changes[i] for name, changes in likely.items() if i < len(changes)}
        masks = iter(bench.explained([(head, those[name]) for name in those for head in groups[name]]))
        for name, changes in those.items():
            proved[name].append((changes, [next(masks) for _ in groups[name]]))
    best = {name: _best(found, groups[name]) for name, found in proved.items()}
    return {
        name: x for name, x in best.items()
        if x is not None and 2 * sum(int(mask.sum()) for mask in x[1]) >= sum(len(head.rows) for head in groups[name])
    }  # fmt: skip


def _likely(heads: list[Rows], searched: list[Searched]) -> list[Changes]:
    """What may explain most of the rows of some heads, the best first; only those that say different things.

    What is tried comes from the rows that have the fewest explanations.
    """
    tried: dict[Changes, None] = {}
    for _, explanations in sorted((x for x in searched if x[1]), key=lambda x: len(x[1])):
        if len(tried) + len(explanations) <= TRIED or not tried:
            tried |= dict.fromkeys(explanations[:TRIED])
    places = [(head, i) for head in heads for i in range(len(head.rows))]
    chosen = [places[n] for n in _spread(len(places), ROWS_TRIED)]
    some = [head.at([i for other, i in chosen if other is head]) for head in heads]
    some = [head for head in some if len(head.rows)]
    counts = {changes: sum(int(head.explained(changes).sum()) for head in some) for changes in tried}
    kept: list[Found] = []
    for changes in sorted(counts, key=lambda x: (-counts[x], _size(x, some))):
        same = [x for x in kept if counts[x[0]] == counts[changes] and _within(x, changes, some)]
        if len(kept) < PROVED and counts[changes] and not same:
            kept.append((changes, [head.explained(changes) for head in some]))
    return [changes for changes, _ in kept]


def _spread(n: int, most: int) -> list[int]:
    """At most so many of range(n), from all over."""
    return sorted(set(np.linspace(0, n - 1, min(n, most)).astype(int).tolist())) if n else []


def _touched(changes: Changes, head: Rows) -> Array:
    return np.logical_or.reduce([change.keys(head.visible, head.end) for change in changes])


def _size(changes: Changes, heads: Sequence[Rows]) -> tuple[int, int, int]:
    """How many keys change, and how simple it is to say."""
    lengths = (2 if c.start is None or c.stop is None else 2 * (c.stop - c.start) - 1 for c in changes)
    return sum(int(_touched(changes, head).sum()) for head in heads), sum(c.remoteness for c in changes), sum(lengths)


def _best(found: list[Found], heads: Sequence[Rows]) -> Found | None:
    """The explanation of most rows; None if another explains as many otherwise, or if rounding may be all there is."""
    count = [sum(int(x.sum()) for x in masks) for _, masks in found]
    if not max(count, default=0):
        return None
    best = [x for x, n in zip(found, count, strict=True) if n == max(count)]
    best.sort(key=lambda x: _size(x[0], heads))
    if sum(int(head.far_off()[mask].sum()) for head, mask in zip(heads, best[0][1], strict=True)) < FAR_OFF:
        return None
    return best[0] if all(_within(best[0], other[0], heads) for other in best[1:]) else None


def _within(small: Found, other: Changes, heads: Sequence[Rows]) -> bool:
    """Whether another explanation says the same, or the same of more keys, whose weights are too small to tell."""
    if {c.kind for c in small[0]} != {c.kind for c in other}:
        return False
    return not any(
        (_touched(small[0], head) & ~_touched(other, head))[mask].any()
        for head, mask in zip(heads, small[1], strict=True)
    )


def _sentence(changes: Changes, masks: list[Array], heads: list[Rows], judged: Array) -> str:
    explained = np.zeros(judged.shape, dtype=bool)
    for head, mask in zip(heads, masks, strict=True):
        explained[head.rows[mask]] = True
    count, of = sum(int(mask.sum()) for mask in masks), sum(len(head.rows) for head in heads)
    where = f" in {words(explained, judged, 'row', tiles=())}" if judged.size > 1 else ""
    if len(where) > 50 and count == of:
        where = ""
    share = f"{'all ' if count == of else f'{count} of '}{of} failing rows" if of > 1 else "the failing row"
    return f"{' and '.join(map(str, changes))}{where}: explains {share} within the bound"


def _examples(searched: list[Searched], bench: _Bench) -> tuple[str, ...]:
    """What explains single rows, where most of those searched have just one explanation."""
    chosen = []
    for row, explanations in searched:
        found = [(x, [np.ones(1, dtype=bool)]) for x in explanations if all(c.frame == "key" for c in x)]
        best = _best(found, [row])
        chosen += [(row, best[0])] if best is not None and len(best[0]) <= 4 else []
    if len(searched) < 3 or not chosen:
        return ()
    proved = [x for x, mask in zip(chosen, bench.explained(chosen), strict=True) if mask.all()]
    if len(proved) < 0.6 * len(searched):
        return ()
    return tuple(
        f"row [{row.b}, {row.h}, {row.rows[0]}]: {' and '.join(map(str, changes))}" for row, changes in proved[:3]
    )
