"""The search for the keys that are off in one row: what may explain it, by one, by few, and by all keys.

With e_j, r_j of `refattn.key_changes`, m_j = 1 for visible and 0 for hidden keys, a key that counts a_j times gives

    out' - out = sum_j x_j (r_j v_j - out),    x_j = (a_j - m_j) e_j / (sum_j a_j e_j + sink),

which is 0 but for the keys that are off.  `single` tries every key, every tile and every end of what the row sees
alone; `several` looks for two or three keys or tiles at once, by orthogonal matching pursuit (Pati, Rezaiifar and
Krishnaprasad 1993); `solved` solves for all keys by least squares (`refattn.localise.participation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .index_sets import TILES
from .key_changes import Change, Kind, Rows
from .participation import times_of_keys

__all__ = ["Changes", "several", "single", "solved"]

Array = np.ndarray[Any, Any]
Changes = tuple[Change, ...]
Range = tuple["int | None", "int | None"]

_KINDS: tuple[tuple[Kind, float], ...] = (("dropped", -1.0), ("twice", 1.0), ("seen", 1.0))


def single(row: Rows) -> Iterator[Changes]:
    """The changes of one key, tile or end that explain the row, in every frame in which they can be said."""
    first, last = row.edges()
    for change in _likely(row, first, last):
        if row.explained([change])[0]:
            yield (change,)
            for framed in _frames(change, first, last, row.end, row.visible.shape[1]):
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
        for sums, ranges in _ranges(kind, w, first, last, row.end):
            with np.errstate(all="ignore"):
                after = whole + sign * sums[:, :1]
                after = np.where(np.abs(after) > 1e-13 * whole, after, np.inf)  # nothing is left: out is 0
                made = (out * whole + sign * sums[:, 1 : 1 + m]) / after
                larger = np.abs(size * whole + sign * sums[:, 1 + m :]) / np.abs(after)
                lost = 1e-12 * (np.abs(out) + size) / np.abs(after)  # to cancellation, where little is left
                fits = (np.abs(got - made) <= 1.01 * row.room(made, larger, columns) + lost).all(1) & (sums[:, 0] > 0)
            for i in np.flatnonzero(fits)[:32].tolist():
                start, stop = ranges[i]
                every = kind == "dropped" and (start or 0) <= first and (stop is None or stop > last)
                yield Change(kind, "key", None, None) if every else Change(kind, "key", start, stop)


def _ranges(kind: Kind, w: Array, first: int, last: int, end: int) -> Iterator[tuple[Array, list[Range]]]:
    """Sums of w (keys, ...) over single keys and tiles, and of what is not "twice" over ends; with their ranges."""
    n, some = len(w), np.flatnonzero(w[:, 0])
    if not some.size:
        return
    yield w[some], [(j, j + 1) for j in some.tolist()]
    for tile in TILES:
        if tile < n:
            starts = np.arange(0, n, tile)
            yield np.add.reduceat(w, starts, axis=0), [(s, min(s + tile, n)) for s in starts.tolist()]
    if kind == "dropped":
        yield np.cumsum(w[::-1], 0)[::-1][some], [(j, None) for j in some.tolist()]
        yield np.cumsum(w, 0)[some], [(0, j + 1) for j in some.tolist()]
    elif kind == "seen":
        yield w[:end].sum(0, keepdims=True), [(None, None)]
        yield np.cumsum(w[end:], 0), [(end, j + 1) for j in range(end, n)]
        yield np.cumsum(w[last + 1 :], 0), [(last + 1, j + 1) for j in range(last + 1, n)]
        yield np.cumsum(w[:first][::-1], 0)[::-1], [(j, first) for j in range(first)]


def _frames(change: Change, first: int, last: int, end: int, n: int) -> Iterable[Change]:
    """The same keys of the row in all other ways that another row may share."""
    start, stop, kind = change.start, change.stop, change.kind
    if start is None:
        return
    if kind == "seen" and stop is not None and start == end < n:
        yield Change(kind, "end", 0, None if stop == n else stop - end)
    if kind == "dropped" and (stop is None or stop >= end) and start > 0:
        yield Change(kind, "end", start - end, 0)
    if last < first:
        return
    if stop is None:
        yield Change(kind, "last", start - last, 1)
    elif start == 0 and stop > max(first, 1) and kind == "dropped":
        yield Change(kind, "first", 0, stop - first)
    else:
        right, left = kind == "seen" and start == last + 1, kind == "seen" and stop == first
        tile = stop > start + 1 and any(start % t == 0 and stop == min(start + t, n) for t in TILES)
        if left or not (right or tile):
            yield Change(kind, "first", start - first, stop - first)
        if right or not (left or tile):
            yield Change(kind, "last", start - last, stop - last)
    if kind == "seen" and start == last + 1 and stop == end:
        yield Change(kind, "last", 1, None)
    if kind == "seen" and start == 0 and stop == first:
        yield Change(kind, "first", None, 0)


def several(row: Rows, most: int = 3) -> Iterator[Changes]:
    """Two or three keys or tiles, by orthogonal matching pursuit on v - out."""
    n = row.out.shape[1]
    weighted = row.weighted()[:, : 1 + n]
    changes: list[Change] = []
    parts: list[Array] = []
    kinds: tuple[Kind, ...] = ("dropped", "seen")  # the sums of "twice" are those of "dropped"
    for kind in kinds:
        w = np.where((row.visible if kind != "seen" else ~row.visible)[0][:, None], weighted, 0.0)
        for sums, ranges in _ranges("twice", w, 0, -1, row.end):
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
            yield _joined(found)
            return


def _joined(changes: Iterable[Change]) -> Changes:
    """In the order of their keys, those of a kind that follow one another as one."""
    joined: list[Change] = []
    for change in sorted(changes, key=lambda c: c.start or 0):
        if joined and (joined[-1].kind, joined[-1].stop) == (change.kind, change.start):
            change = Change(change.kind, "key", joined.pop().start, change.stop)
        joined.append(change)
    return tuple(joined)


def solved(row: Rows) -> Iterator[Changes]:
    """All keys that are off, by least squares."""
    visible = row.visible[0]
    found = times_of_keys(row, None, np.zeros(1, bool))[0]
    times = np.where(np.isnan(found), visible, found)
    if not np.isnan(found).all() and row.given_by(times[None])[0]:
        yield _runs(times, visible)


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
