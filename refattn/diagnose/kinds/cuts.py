"""How keys are cut into splits: in chunks of a size, in so many parts, in whole tiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...case import Case

__all__ = ["CUTS", "SAME", "Cut", "chunks"]

Cut = Callable[[int, int], tuple[int, ...]]
"""of the number of keys of an entry, and of the longest, where each part but the first begins"""
NUMBERS, TILES = (2, 3, 4, 8), (16, 32, 64, 128)


def _part(n: int) -> str:
    return {2: "half", 3: "third"}.get(n, f"{n}th")


def _sized(n: int, most: int, size: int) -> tuple[int, ...]:
    return tuple(range(size, n, size))


def _up(n: int, most: int, parts: int) -> tuple[int, ...]:
    """As many in each, rounded up, but the last."""
    return _sized(n, most, max(-(-n // parts), 1))


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


def _from_last(n: int, most: int, parts: int, tile: int) -> tuple[int, ...]:
    """As many whole tiles in each, counted from the last, but in the first."""
    tiles = -(-n // tile)
    return tuple(sorted({(tiles - i * -(-tiles // parts)) * tile for i in range(1, parts)} & set(range(1, n))))


def _of_longest(n: int, most: int, cut: Cut) -> tuple[int, ...]:
    return tuple(at for at in cut(most, most) if at < n)


CUTS: dict[str, Cut] = {f"{size} keys": partial(_sized, size=size) for size in (*TILES, 256)}
CUTS |= {f"Lk / {n} keys, rounded up": partial(_up, parts=n) for n in NUMBERS}
CUTS |= {f"Lk / {n} keys, the rest with the last": partial(_floor, parts=n) for n in NUMBERS}
CUTS |= {f"Lk / {n} keys, the first ones a key longer": partial(_even, parts=n) for n in NUMBERS}
CUTS |= {f"a {_part(n)} of the tiles of {tile} keys, rounded {'up' if up else 'down'}":
         partial(_tiles, parts=n, tile=tile, up=up) for tile in TILES for n in NUMBERS for up in (True, False)}
CUTS |= {f"a {_part(n)} of the tiles of {tile} keys, rounded up, from the last": partial(_from_last, parts=n, tile=tile)
         for tile in TILES for n in NUMBERS}  # fmt: skip
CUTS |= {f"{words}, of the longest entry": partial(_of_longest, cut=CUTS[words])
         for words in list(CUTS) if "rounded up" in words and "from" not in words}  # fmt: skip


def _cuts(case: Case, how: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(how.cut(n, case.Lk) for n in case.lengths[1])


SAME = ("cut", _cuts)


def chunks(case: Case, how: Any) -> bool:
    return any(_cuts(case, how))
