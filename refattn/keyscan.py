"""Which keys' weights are off, read from out alone.

If key j counts a_j times and not m_j times (1 if visible, 0 if hidden), then with e_j, r_j of `refattn.key_changes`

    out' - out = sum_j x_j (r_j v_j - out),    x_j = (a_j - m_j) e_j / (sum_j a_j e_j + sink),

which is 0 but for the keys that are off.  In each of some failing rows every single key, every tile and every end
of what the row sees is tried alone; then two or three keys or tiles at once, by orthogonal matching pursuit (Pati,
Rezaiifar and Krishnaprasad 1993); then, where there are no more keys than columns of v, all keys by least squares.
What rows agree on is computed anew for all failing ones, and said only of those that it explains within the bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .index_sets import TILES, words
from .inputs import Problem
from .key_changes import Change, Kind, Rows, rows_of
from .truth import Expected

__all__ = ["keys_that_are_off"]

Array = np.ndarray[Any, Any]
Changes = tuple[Change, ...]
Range = tuple["int | None", "int | None"]

MOST_KEYS, MOST_WEIGHTS = 1 << 13, 1 << 20
"""with more keys nothing is said; so many weights are looked at in all"""
SEARCHED, VERIFIED = 12, 16
"""rows that are searched for what explains them; explanations that are tried on all rows"""
_KINDS: tuple[tuple[Kind, float], ...] = (("dropped", -1.0), ("twice", 1.0), ("seen", 1.0))


@dataclass(frozen=True)
class _Found:
    changes: Changes
    explains: tuple[Array, ...]
    """for each of the heads (rows,)"""

    @property
    def count(self) -> int:
        return sum(int(x.sum()) for x in self.explains)


def keys_that_are_off(problem: Problem, got: Array, expected: Expected, failing: Array) -> tuple[str, ...]:
    """Sentences; none if nothing explains at least half of the failing rows that are finite.

    got: out of the answer, dense, float64; failing (B, H, Lq).  The rows are looked at together, else by batch
    entry, else by head.
    """
    case = problem.case
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(got) & np.isfinite(expected.hi - expected.lo) & np.isfinite(expected.value)
    at = np.argwhere(failing & finite.all(-1))
    if not (len(at) and case.Dv and 0 < case.Lk <= MOST_KEYS):
        return ()
    most = max(SEARCHED, MOST_WEIGHTS // case.Lk)
    at = at[np.unique(np.linspace(0, len(at) - 1, min(most, len(at))).astype(int))]
    heads = [
        rows_of(problem, b, h, at[(at[:, 0] == b) & (at[:, 1] == h), 2], got, expected)
        for b, h in dict.fromkeys((int(b), int(h)) for b, h, _ in at)
    ]
    judged: Array = ~np.asarray(expected.ignored.all(-1))
    ways: tuple[Callable[[Rows], str], ...] = (lambda x: "", lambda x: f"b={x.b}: ", lambda x: f"b={x.b}, h={x.h}: ")
    for way in ways:
        groups: dict[str, list[Rows]] = {}
        for head in heads:
            groups.setdefault(way(head), []).append(head)
        if len(groups) > 8:
            break
        found = {name: _explained(members) for name, members in groups.items()}
        if 2 * sum(x.count for x in found.values() if x is not None) >= len(at):
            return tuple(name + _sentence(x, groups[name], judged) for name, x in found.items() if x is not None)
    return _examples(heads)


def _explained(heads: list[Rows]) -> _Found | None:
    """What explains most of the rows of some heads, if it is one thing."""
    rows = [head.at([i]) for head in heads for i in range(len(head.rows))]
    rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(SEARCHED, len(rows))).astype(int)).tolist()]
    for search in (_single, _several, _solved):
        votes = Counter(changes for row in rows for changes in dict.fromkeys(search(row)))
        needed = len(rows) if len(rows) < 4 else max(2, 0.4 * len(rows))
        likely = [changes for changes, n in votes.most_common(VERIFIED) if n >= needed]
        found = [_Found(changes, tuple(head.explained(changes) for head in heads)) for changes in likely]
        if not found:
            continue
        most = max(x.count for x in found)
        best = [x for x in found if x.count == most]
        sizes = {x.changes: sum(int(_touched(x.changes, head).sum()) for head in heads) for x in best}
        best.sort(key=lambda x: (sizes[x.changes], [c.frame != "key" for c in x.changes]))
        if all(_within(best[0], other, heads) for other in best[1:]):
            return best[0]
    return None


def _touched(changes: Changes, head: Rows) -> Array:
    return np.logical_or.reduce([change.keys(head.visible) for change in changes])


def _within(small: _Found, large: _Found, heads: list[Rows]) -> bool:
    """Whether two explanations say the same, or one the same of more keys, whose weights are too small to tell."""
    if {c.kind for c in small.changes} != {c.kind for c in large.changes}:
        return False
    return all(
        not (_touched(small.changes, head) & ~_touched(large.changes, head))[explained].any()
        for head, explained in zip(heads, small.explains, strict=True)
    )


def _sentence(found: _Found, heads: list[Rows], judged: Array) -> str:
    of = sum(len(head.rows) for head in heads)
    failing, explained = np.zeros((2, judged.shape[2]), dtype=bool)
    for head, explains in zip(heads, found.explains, strict=True):
        failing[head.rows] = True
        explained[head.rows[explains]] = True
    what = ", and ".join(map(str, found.changes))
    where = words(explained, np.asarray(judged.any((0, 1))), "row") if judged.shape[2] > 1 else "the row"
    share = f"all {of}" if found.count == of else f"{found.count} of {of}"
    return f"{what} in {where}: explains {share} failing row{'s' * (of > 1)} within the bound"


def _examples(heads: list[Rows]) -> tuple[str, ...]:
    """What least squares find in single rows, where they find it in most of them."""
    rows = [head.at([i]) for head in heads for i in range(len(head.rows))]
    rows = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(SEARCHED, len(rows))).astype(int)).tolist()]
    solved = [(row, changes) for row in rows for changes in _solved(row) if len(changes) <= 4]
    if len(rows) < 3 or len(solved) < 0.6 * len(rows):
        return ()
    return tuple(
        f"row [{row.b}, {row.h}, {row.rows[0]}]: {', and '.join(map(str, changes))}" for row, changes in solved[:3]
    )


# ---- the search in one row


def _single(row: Rows) -> Iterator[Changes]:
    """The changes of one key, tile or end that explain the row, in every frame in which they can be said."""
    first, last = row.edges()
    for change in _likely(row, first, last):
        if row.explained([change])[0]:
            for framed in _frames(change, first, last, row.visible.shape[1]):
                yield (framed,)


def _likely(row: Rows, first: int, last: int) -> Iterator[Change]:
    """Of all single changes those that may explain the row, by a look at a few columns."""
    n = row.out.shape[1]
    columns = np.unique(np.linspace(0, n - 1, 8).astype(int))
    m = columns.size
    weighted = row.weighted()[:, [0, *(1 + columns), *(1 + n + columns)]]
    whole = float(np.where(row.visible[0], row.e[0], 0.0).sum() + row.sink[0, 0])
    got, out, size = (x[0, columns] for x in (row.got, row.out, row.size))
    for kind, sign in _KINDS:
        w = np.where((row.visible if kind != "seen" else ~row.visible)[0][:, None], weighted, 0.0)
        for sums, ranges in _ranges(kind, w, first, last):
            with np.errstate(all="ignore"):
                after = whole + sign * sums[:, :1]
                made = (out * whole + sign * sums[:, 1 : 1 + m]) / after
                larger = np.abs(size * whole + sign * sums[:, 1 + m :]) / np.abs(after)
                lost = 1e-12 * (np.abs(out) + size) / np.abs(after)  # to cancellation, where little is left
                fits = (np.abs(got - made) <= 1.01 * row.room(made, larger, columns) + lost).all(1) & (sums[:, 0] > 0)
            yield from (Change(kind, "key", *ranges[i]) for i in np.flatnonzero(fits)[:32].tolist())


def _ranges(kind: Kind, w: Array, first: int, last: int) -> Iterator[tuple[Array, list[Range]]]:
    """Sums of w (keys, ...) over single keys and tiles, and of what is not "twice" over ends; with their ranges."""
    n, some = len(w), np.flatnonzero(w[:, 0])
    if not some.size:
        return
    yield w[some], [(j, j + 1) for j in some.tolist()]
    for tile in TILES:
        if tile < n:
            starts = np.arange(0, n, tile)
            yield np.add.reduceat(w, starts, axis=0), [(s, s + tile) for s in starts.tolist()]
    if kind == "dropped":
        yield np.cumsum(w[::-1], 0)[::-1][some], [(j, None) for j in some.tolist()]
        yield np.cumsum(w, 0)[some], [(0, j + 1) for j in some.tolist()]
    elif kind == "seen":
        yield w.sum(0, keepdims=True), [(None, None)]
        yield np.cumsum(w[last + 1 :], 0), [(last + 1, j + 1) for j in range(last + 1, n)]
        yield np.cumsum(w[:first][::-1], 0)[::-1], [(j, first) for j in range(first)]


def _frames(change: Change, first: int, last: int, n: int) -> Iterable[Change]:
    """The same keys of the row in all ways that another row may share."""
    yield change
    start, stop, kind = change.start, change.stop, change.kind
    if start is None or last < first:
        return
    if stop is None:
        yield Change(kind, "last", start - last, 1)
    elif start == 0 and stop > max(first, 1) and kind == "dropped":
        yield Change(kind, "first", 0, stop - first)
    else:
        yield Change(kind, "first", start - first, stop - first)
        yield Change(kind, "last", start - last, stop - last)
    if kind == "seen" and start == last + 1 and stop == n:
        yield Change(kind, "last", 1, None)
    if kind == "seen" and start == 0 and stop == first:
        yield Change(kind, "first", None, 0)


def _several(row: Rows, most: int = 3) -> Iterator[Changes]:
    """Two or three keys or tiles, by orthogonal matching pursuit on v - out."""
    n = row.out.shape[1]
    weighted = row.weighted()[:, : 1 + n]
    changes: list[Change] = []
    parts: list[Array] = []
    kinds: tuple[Kind, ...] = ("dropped", "seen")  # the sums of "twice" are those of "dropped"
    for kind in kinds:
        w = np.where((row.visible if kind != "seen" else ~row.visible)[0][:, None], weighted, 0.0)
        for sums, ranges in _ranges("twice", w, 0, -1):
            parts.append(sums)
            changes += [Change(kind, "key", *x) for x in ranges]
    if len(changes) < 2:
        return
    sums, target, chosen = np.concatenate(parts), row.got[0] - row.out[0], list[int]()
    atoms = sums[:, 1:] - sums[:, :1] * row.out[0]
    norms = np.sqrt((atoms * atoms).sum(1))
    norms[~(np.isfinite(norms) & (norms > 0))] = np.inf
    rest = target
    for _ in range(min(most, n)):
        along = np.abs(np.where(np.isinf(norms)[:, None], 0.0, atoms) @ rest) / norms
        along[chosen] = 0.0
        chosen.append(int(along.argmax()))
        x = np.linalg.lstsq(atoms[chosen].T, target, rcond=None)[0]
        rest = target - atoms[chosen].T @ x
        left = 1 - float(x @ sums[chosen, 0])
        times = x / left if left > 0 else x * 0
        if len(chosen) < 2 or (np.abs(np.abs(times) - 1) > 0.5).any():
            continue
        found = []
        for i, count in zip(chosen, times.tolist(), strict=True):
            kind = "twice" if changes[i].kind == "dropped" and count > 0 else changes[i].kind
            found.append(Change(kind, "key", changes[i].start, changes[i].stop))
        if row.explained(found)[0]:
            yield tuple(sorted(found, key=lambda c: c.start or 0))
            return


def _solved(row: Rows) -> Iterator[Changes]:
    """All keys that are off, by least squares, where there are no more keys than columns of v."""
    n, e, visible = row.out.shape[1], row.e[0], row.visible[0]
    rv = row.weighted()[:, 1 : 1 + n]
    usable = np.flatnonzero((e > 1e-6 * e.max()) & rv.any(1))
    if not 0 < usable.size <= n:
        return
    ratio, _, rank, _ = np.linalg.lstsq(rv[usable].T, row.got[0], rcond=None)
    if rank < usable.size or not (ratio > 0).any():
        return
    for whole in (1.0, 1 / float(np.median(ratio[ratio > 0.3 * ratio.max()]))):
        counts = np.rint(ratio * whole)
        if not (np.abs(ratio * whole - counts) < 0.3).all() or counts.min() < 0 or counts.max() > 2:
            continue
        times = visible.astype(np.float64)
        times[usable] = counts
        if row.given_by(times[None])[0]:
            yield _runs(times, visible)
            return


def _runs(times: Array, visible: Array) -> Changes:
    """What `times` changes, as runs of keys."""
    found = []
    off: Mapping[Kind, Array] = {
        "dropped": visible & (times == 0), "twice": visible & (times == 2), "seen": ~visible & (times > 0),
    }  # fmt: skip
    for kind, keys in off.items():
        at = np.flatnonzero(keys)
        for run in np.split(at, np.flatnonzero(np.diff(at) != 1) + 1):
            if run.size:
                found.append(Change(kind, "key", int(run[0]), int(run[-1]) + 1))
    return tuple(found)
