"""Tiles of a kernel's loops by what the mask is in them: those that loops of a kernel treat apart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from .dense import Array
from .edges import Shape

__all__ = ["BLOCKS"]

ROWS, KEYS = (1, 8, 16, 32, 64, 128), (8, 16, 32, 64, 128)
"""queries and keys of a tile"""


class Tiles:
    """Of tiles of m rows and n keys: (B, H, tiles of rows, tiles of keys) what is visible in them."""

    def __init__(self, shape: Shape, m: int, n: int) -> None:
        visible = shape.visible
        B, H, rows, keys = visible.shape
        self.at = np.arange(rows)[:, None] // m, np.arange(keys) // n
        there = np.arange(keys) < shape.keys[..., None]
        there = there & (np.arange(rows) < shape.queries)[..., None]
        behind = there & ~visible & (np.arange(keys) >= shape.stop[..., None])
        ahead = there & ~visible & (np.arange(keys) < shape.first[..., None])

        def any_of(x: Array) -> Array:
            whole = np.pad(x, ((0, 0), (0, 0), (0, -rows % m), (0, -keys % n)))
            return np.asarray(whole.reshape(B, H, -(-rows // m), m, -(-keys // n), n).any((3, 5)))

        self.some, self.hidden = any_of(visible), any_of(there & ~visible)
        self.behind, self.ahead = any_of(behind), any_of(ahead)

    @property
    def number(self) -> Array:
        """The how many-th of those that a tile of rows sees something of."""
        return np.where(self.some, self.some.cumsum(-1), 0)

    @property
    def last(self) -> Array:
        return np.asarray(self.some & (self.number == self.some.sum(-1, keepdims=True)))

    def pairs(self, x: Array) -> Array:
        return np.asarray(x[:, :, self.at[0], self.at[1]])


KINDS: dict[str, Callable[[Tiles], Array]] = {
    "that are wholly visible": lambda t: t.some & ~t.hidden,
    "that are not wholly visible": lambda t: t.hidden,
    "that hide keys behind what a row sees": lambda t: t.behind,
    "that hide no keys behind what a row sees": lambda t: ~t.behind,
    "that hide keys ahead of what a row sees": lambda t: t.ahead,
    "that hide no keys ahead of what a row sees": lambda t: ~t.ahead,
    "that are the first that their rows see": lambda t: t.number == 1,
    "that are not the first that their rows see": lambda t: t.number != 1,
    "that are the last that their rows see": lambda t: t.last,
    "that are not the last that their rows see": lambda t: ~t.last,
    "of those that their rows see every other": lambda t: (t.number > 0) & (t.number % 2 == 0),
    "that their rows see nothing of": lambda t: ~t.some,
}


def _block(m: int, n: int, how: Callable[[Tiles], Array]) -> Callable[[Shape], Array]:
    def pairs(shape: Shape) -> Array:
        key = (m, n)
        if key not in shape.tiles:
            shape.tiles[key] = Tiles(shape, m, n)
        return shape.tiles[key].pairs(how(shape.tiles[key]))

    return pairs


BLOCKS: tuple[tuple[str, Callable[[Shape], Array]], ...] = tuple(
    (f"in tiles of {m} x {n} {words}" if m > 1 else f"in tiles of {n} keys {words}", _block(m, n, how))
    for words, how in KINDS.items() for m, n in product(ROWS, KEYS)
)  # fmt: skip
"""in words, and the pairs of such tiles"""
