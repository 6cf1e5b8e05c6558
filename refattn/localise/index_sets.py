"""A set of indices in words: "rows from 64 on", "heads 4..7", "rows with i % 16 = 0".

The set is `failing` among those that are `judged`; of all descriptions that hold the simplest is said.  One that
takes in some more, at most a tenth, says so; where none holds, the indices themselves are listed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["TILES", "listed", "words"]

Array = np.ndarray[Any, Any]

TILES = (16, 32, 64, 128)
"""usual numbers of rows or keys in a tile"""
_PERIODS = (2, 3, 4, 5, 6, 7, 8, *TILES)


def words(
    failing: Array, judged: Array, what: str, *, names: Mapping[int, str] | None = None, periods: Sequence[int] = (),
    tiles: Sequence[int] = TILES,
) -> str:  # fmt: skip
    """What `failing` is of `judged`, both booleans (n,); `what` is one of them, such as "row".

    `names` are numbers that mean something, `periods` are tried before the usual ones.

    >>> every = np.ones(40, dtype=bool)
    >>> words(np.arange(40) >= 32, every, "row")
    'rows from 32 on (the last, ragged tile of 16 or 32)'
    >>> words(np.arange(40) % 4 == 1, every, "column")
    'columns with i % 4 = 1'
    """
    failing, judged = np.asarray(failing), np.asarray(judged)
    at = np.flatnonzero(failing & judged)
    total = int(np.count_nonzero(judged))
    if not at.size:
        return f"no {what}"
    if at.size == total:
        return f"all {total} {_many(what)}" if total > 1 else f"the only {what}"
    if at.size == 1:
        return f"{what} {at[0]}" + _tags(int(at[0]), int(at[0]) + 1, judged, names or {}, tiles)
    for slack in (0.0, 0.1):
        found = _run(at, judged, what, names or {}, tiles, slack)
        found = found or _periodic(at, judged, what, (*periods, *_PERIODS), slack)
        if found:
            return found
    missing = np.flatnonzero(judged & ~failing)
    if missing.size <= max(3, total // 20) and missing.size < at.size:
        return f"all {_many(what)} but {listed(missing)}"
    return f"{_many(what)} {listed(at)}"


def listed(at: Array, most: int = 8) -> str:
    """Indices, runs of three or more of them as a..b.

    >>> listed(np.array([0, 4, 5, 6, 9]))
    '0, 4..6 and 9'
    """
    at = np.unique(at)
    runs = np.split(at, np.flatnonzero(np.diff(at) != 1) + 1)
    parts = [f"{r[0]}..{r[-1]}" if r.size > 2 else ", ".join(map(str, r)) for r in runs]
    if len(parts) > most:
        left = sum(r.size for r in runs[most:])
        return f"{', '.join(parts[:most])} and {left} more up to {at[-1]}"
    return " and ".join(x for x in (", ".join(parts[:-1]), parts[-1]) if x)


def _many(what: str) -> str:
    return f"{what[:-1]}ies" if what.endswith("ry") else f"{what}s"


def _but(at: Array, whole: Array) -> str:
    return "" if at.size == whole.size else f" ({at.size} of the {whole.size} there)"


def _run(at: Array, judged: Array, what: str, names: Mapping[int, str], tiles: Sequence[int], slack: float) -> str:
    """All that are judged from the first of `at` to the last, if that is what they are."""
    every = np.flatnonzero(judged)
    whole = every[(every >= at[0]) & (every <= at[-1])]
    if at.size < 2 or at.size < (1 - slack) * whole.size or whole.size == every.size:
        return ""
    first, last = int(at[0]), int(at[-1])
    if last == every[-1]:
        text = f"{_many(what)} from {first} on"
    elif first == every[0]:
        text = f"{_many(what)} up to {last}"
    else:
        text = f"{_many(what)} {first}..{last}"
    return text + _but(at, whole) + _tags(first, last + 1, judged, names, tiles)


def _tags(start: int, stop: int, judged: Array, names: Mapping[int, str], tiles: Sequence[int]) -> str:
    """What is special about a range: where it starts, and whether it is a tile."""
    tags = [f"{start} = {names[start]}"] if start and start in names else []
    if not start and stop != judged.size and stop in names and stop > 1:
        tags.append(f"{stop} = {names[stop]}")
    ragged = [t for t in tiles if judged.size % t and start == judged.size // t * t and stop == judged.size and start]
    whole = [t for t in tiles if start % t == 0 and stop == start + t]
    if ragged:
        tags.append(f"the last, ragged tile of {' or '.join(map(str, ragged))}")
    elif whole:
        tags.append(f"tile {start // whole[0]} of {whole[0]}")
    elif stop == judged.size:
        tags += [f"{start} is a multiple of {t}" for t in sorted(tiles, reverse=True) if start and start % t == 0][:1]
    return f" ({', '.join(tags)})" if tags else ""


def _periodic(at: Array, judged: Array, what: str, periods: Sequence[int], slack: float) -> str:
    """Those of the same few places in every period, if that is what they are; at least two periods."""
    every = np.flatnonzero(judged)
    for period in dict.fromkeys(periods):
        places = np.unique(at % period)
        if places.size == period or (places.size > 1 and places[-1] - places[0] != places.size - 1):
            continue
        whole = every[np.isin(every % period, places)]
        if whole.size == every.size or at.size < (1 - slack) * whole.size or at[-1] // period == at[0] // period:
            continue
        if period > 2 and at.size < 2 * places.size:
            continue
        if places.size == 1:
            which = f"i % {period} = {places[0]}"
        elif places[0] == 1 and places[-1] == period - 1:
            which = f"i % {period} > 0"
        else:
            which = f"i % {period} in {places[0]}..{places[-1]}"
        return f"{_many(what)} with {which}{_but(at, whole)}"
    return ""
