"""Hypotheses on keys and tiles that are lost between splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from .cuts import Seen, ends

__all__: list[str] = []


KEYS = {"Lk": "all", "its length": "own", "the number that it sees": "seen"}
OTHERS: dict[str, Callable[[Array], int]] = {
    "first": lambda n: int(n[0]), "shortest": lambda n: int(n.min()), "last": lambda n: int(n[-1]),
}


def _past(case: Case, how: Any) -> tuple[tuple[int, int], ...]:
    """Of each entry the first key past its splits, and one past the last of all that are split."""
    over: tuple[tuple[int, ...], ...]
    if how.of == "seen":
        over = ends(case, Seen(lambda n, most: ()))
    else:
        over = tuple((0, case.Lk if how.of == "all" else n) for n in case.lengths[1])
    return tuple((a + how.splits * max((b - a) // how.splits, how.least), b) for a, b in over)


def _of_another(case: Case, how: Any) -> tuple[int, ...]:
    """Of each entry the first key past splits that are as long as another's keys take."""
    n = np.array(case.lengths[1])
    most = how.splits * max(-(-how.of(n) // how.splits), how.least) if len(n) else 0
    return tuple(int(min(most, own)) for own in n)


@kind(
    lambda case, how: _of_another(case, how) != case.lengths[1], same=("least", _of_another), of=OTHERS,
    splits=(2, 3, 4, 8, 16), least={"": 1, ", at least 8": 8, ", at least 16": 16, ", at least 64": 64},
)  # fmt: skip
class split_size_of_another(Model):
    """Each of {splits} splits has as many keys as those of the {of} entry take{least}: in longer ones some are lost."""

    of: Callable[[Array], int]
    splits, least = 2, 1

    def visible(self) -> Array:
        ends = np.array(_of_another(self.given, type(self)))[:, None, None, None]
        return super().visible() & (np.arange(self.given.Lk) < ends)


def _left(case: Case, how: Any) -> bool:
    return any(a < b for a, b in _past(case, how))


@kind(
    _left, same=("least", _past), of=KEYS, splits=(2, 3, 4, 8, 16, 32),
    least={"": 1, ", at least 8": 8, ", at least 16": 16, ", at least 32": 32, ", at least 64": 64, " or 0": 0},
)  # fmt: skip
class keys_past_splits(Model):
    """Keys have {splits} splits of {of} // {splits}{least} keys, or so many of {splits}: those past them are lost."""

    of, splits, least = "all", 2, 1

    def visible(self) -> Array:
        seen = np.array(super().visible())
        for own, (first, last) in zip(seen, _past(self.given, type(self)), strict=True):
            own[..., first:last] = False
        return seen


def _left_over(case: Case, how: Any) -> bool:
    lengths = [case.Lk] if how.of else case.lengths[1]
    return any((tiles := -(-n // how.tile)) > how.splits and tiles % how.splits for n in lengths)


@kind(
    _left_over, tile=(16, 32, 64, 128), splits=(2, 3, 4, 8), of={"": False, " of the longest": True},
    end={"last": False, "first": True},
)  # fmt: skip
class tiles_past_splits(Model):
    """Each of {splits} splits has as many tiles of {tile} keys{of}, rounded down: the {end} ones are left out."""

    tile, splits, end, of = 64, 2, False, False

    def visible(self) -> Array:
        seen = np.array(super().visible())
        for b, n in enumerate([self.case.Lk] * self.case.B if self.of else self.case.lengths[1]):
            tiles = -(-n // self.tile)
            some = tiles // self.splits * self.splits * self.tile
            if some and self.end:
                seen[b, ..., : tiles * self.tile - some] = False
            elif some:
                seen[b, ..., some:] = False
        return seen
