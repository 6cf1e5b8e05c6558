"""How keys are cut into splits: in chunks, in so many parts, in whole tiles; of all keys, or of those seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ...case import Case

__all__ = ["AND_EMPTY", "BY_INDEX", "CUTS", "SAME", "USUAL", "Cut", "chunks", "ends"]

Cut = Callable[[int, int], tuple[int, ...]]
"""of the number of keys of an entry, and of the longest, where each part but the first begins"""
NUMBERS, TILES, LEAST = (2, 3, 4, 8), (16, 32, 64, 128), (8, 16, 64)


@dataclass(frozen=True)
class Seen:
    """A cut of the keys from the first to the last that some query of an entry sees."""

    cut: Cut

    def __call__(self, n: int, most: int) -> tuple[int, ...]:
        return self.cut(n, most)


def _part(n: int) -> str:
    return {2: "half", 3: "third"}.get(n, f"{n}th")


def _sized(n: int, most: int, size: int) -> tuple[int, ...]:
    return tuple(range(size, n, size))


def _up(n: int, most: int, parts: int, least: int = 1) -> tuple[int, ...]:
    """As many in each, rounded up, but the last."""
    return _sized(n, most, max(-(-n // parts), least))


def _even(n: int, most: int, parts: int) -> tuple[int, ...]:
    """As np.array_split cuts."""
    return tuple(sorted({i * (n // parts) + min(i, n % parts) for i in range(1, parts)} - {0, n}))


def _floor(n: int, most: int, parts: int) -> tuple[int, ...]:
    """As many in each, rounded down, and the rest with the last."""
    return tuple(sorted({i * (n // parts) for i in range(1, parts)} - {0, n}))


def _tiles(n: int, most: int, parts: int, tile: int, up: bool) -> tuple[int, ...]:
    """Whole tiles in each."""
    tiles = -(-n // tile)
    at = {i * -(-tiles // parts) if up else i * tiles // parts for i in range(1, parts)}
    return tuple(sorted({a * tile for a in at if 0 < a * tile < n}))


def _and_empty(n: int, most: int, parts: int, tile: int, up: bool) -> tuple[int, ...]:
    """As `_tiles`, but that there are always as many, some of which may have no keys."""
    tiles = -(-n // tile)
    at = [i * -(-tiles // parts) if up else i * tiles // parts for i in range(1, parts)]
    return tuple(min(a * tile, n) for a in at)


def _from_last(n: int, most: int, parts: int, tile: int) -> tuple[int, ...]:
    """As many whole tiles in each, counted from the last, but in the first."""
    tiles = -(-n // tile)
    return tuple(sorted({(tiles - i * -(-tiles // parts)) * tile for i in range(1, parts)} & set(range(1, n))))


def _of_longest(n: int, most: int, cut: Cut) -> tuple[int, ...]:
    return tuple(at for at in cut(most, most) if at < n)


BY_INDEX: dict[str, Cut] = {f"{size} keys": partial(_sized, size=size) for size in (*TILES, 256)}
BY_INDEX |= {f"Lk / {n} keys, rounded up": partial(_up, parts=n) for n in NUMBERS}
BY_INDEX |= {f"Lk / {n} keys, the rest with the last": partial(_floor, parts=n) for n in NUMBERS}
BY_INDEX |= {f"Lk / {n} keys, the first ones a key longer": partial(_even, parts=n) for n in NUMBERS}
BY_INDEX |= {f"a {_part(n)} of the tiles of {tile} keys, rounded {'up' if up else 'down'}":
             partial(_tiles, parts=n, tile=tile, up=up) for tile in TILES for n in NUMBERS for up in (True, False)}
BY_INDEX |= {f"a {_part(n)} of the tiles of {tile} keys, rounded up, from the last":
             partial(_from_last, parts=n, tile=tile) for tile in TILES for n in NUMBERS}  # fmt: skip
BY_INDEX |= {f"{words}, of the longest entry": partial(_of_longest, cut=BY_INDEX[words])
             for words in list(BY_INDEX) if "rounded up" in words and "from" not in words}  # fmt: skip
CUTS: dict[str, Cut] = BY_INDEX | {
    f"Lk / {n} keys, rounded up, at least {least}": partial(_up, parts=n, least=least)
    for n in (2, 4, 8, 16) for least in LEAST
}  # fmt: skip
USUAL = {words: cut for words, cut in CUTS.items() if words.endswith(" keys") or (
    "rounded up" in words and " entry" not in words and "from" not in words)}  # fmt: skip
USUAL |= {f"{words}, of those that an entry sees": Seen(cut) for words, cut in USUAL.items() if "tiles" not in words}
CUTS |= USUAL
AND_EMPTY: dict[str, Cut] = {
    f"a {_part(n)} of the tiles of {tile} keys, rounded {'up' if up else 'down'}, those without keys too":
    partial(_and_empty, parts=n, tile=tile, up=up) for tile in TILES for n in NUMBERS for up in (True, False)
}  # fmt: skip
"""where an entry of few tiles has as many splits"""


@lru_cache(maxsize=4096)
def _seen(case: Case) -> tuple[tuple[int, int], ...]:
    """Of each entry the first key that some query sees, and one past the last."""
    rows = np.asarray(case.visibility.tile().any((1, 2)))
    return tuple((int(x.argmax()), len(x) - int(x[::-1].argmax())) if x.any() else (0, 0) for x in rows)


def ends(case: Case, cut: Cut) -> tuple[tuple[int, ...], ...]:
    """Of each entry where its parts begin, and where the last one ends."""
    if isinstance(cut, Seen):
        return tuple((a, *(a + at for at in cut(b - a, b - a)), b) for a, b in _seen(case))
    return tuple((0, *cut(n, case.Lk), case.Lk) for n in case.lengths[1])


def _ends(case: Case, how: Any) -> tuple[tuple[int, ...], ...]:
    return ends(case, how.cut)


SAME = ("cut", _ends)


def chunks(case: Case, how: Any) -> bool:
    return any(len(parts) > 2 for parts in _ends(case, how))
