"""Tiles of rows that are packed from the heads of a group: which rows they hold, by their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from refattn.case import Case
from refattn.diagnose.packing import HEADS, Packed, cut, of_tiles, place

CASE = Case("packed", "Entries of several lengths, one of none.", B=3, H=6, Hkv=2, Lq=7, Lk=9, q_lens=(7, 0, 4))


@pytest.mark.parametrize("rows", [1, 3, 4, 64])
@pytest.mark.parametrize("packed", [False, True, HEADS])
def test_rows_of_a_tile_are_those_of_neighbouring_places(packed: Packed, rows: int) -> None:
    """Each row is given the set of all rows of its tile, and rows that do not exist stay as they are."""
    shape = CASE.B, CASE.H, CASE.Lq
    names = np.arange(np.prod(shape)).reshape(shape)
    places = np.broadcast_to(place(CASE, packed), shape)
    found = of_tiles(names.astype(object), CASE.lengths[0], CASE.group, rows, packed, _set)
    for b, h, i in np.ndindex(shape):
        n, heads = CASE.lengths[0][b], range(h // 3 * 3, h // 3 * 3 + 3) if packed else [h]
        if i >= n:
            assert found[b, h, i] == names[b, h, i]
            continue
        tile = places[b, h, i] // rows
        assert found[b, h, i] == {names[b, g, j] for g in heads for j in range(n) if places[b, g, j] // rows == tile}


def _set(tile: Any) -> Any:
    found = np.empty(tile.shape[:-1], object)
    for at in np.ndindex(found.shape):
        found[at] = set(tile[at].tolist())
    return found


@pytest.mark.parametrize("packed", [False, True, HEADS])
def test_places_of_a_key_head_are_all_different(packed: Packed) -> None:
    at = np.broadcast_to(place(CASE, packed), (3, 6, 7))
    for b, n in enumerate(CASE.lengths[0]):
        own = at[b, :3, :n] if packed else at[b, :1, :n]
        assert sorted(own.ravel().tolist()) == list(range(own.size))


def test_the_last_tile_is_what_is_left() -> None:
    assert [x.tolist() for x in cut(np.arange(5), 2)] == [[0, 1], [2, 3], [4]] and cut(np.arange(0), 2) == []
