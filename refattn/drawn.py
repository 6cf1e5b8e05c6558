"""Masks drawn with x and dot: one character for each pair, or for each block of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .visibility import Mask, check_int

__all__ = ["BlockSparse", "Dense"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class BlockSparse(Mask):
    """Blocks of `block_q` queries and `block_k` keys; `rows` draws which are seen, x or dot.

    One string for each row of blocks, nested by head, then by batch, as in `Dense`.  What lies
    beyond the drawing is hidden.

    >>> from refattn.visibility import picture
    >>> print(picture(BlockSparse(("x.", ".x"), 1, 2), 2, 4))
    xx..
    ..xx
    """

    rows: tuple[Any, ...]
    block_q: int
    block_k: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("block_q", self.block_q, 1)
        check_int("block_k", self.block_k, 1)
        _drawing(self.rows)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return _drawn(_drawing(self.rows), b, h, i // self.block_q, j // self.block_k)

    def __repr__(self) -> str:
        return f"BlockSparse({self.rows}, {self.block_q}, {self.block_k})"


@dataclass(frozen=True)
class Dense(Mask):
    """A mask drawn in full: strings of x and dot for each query, nested by head, then by batch.

    `Dense.of(array)` makes one from a boolean array.  What lies beyond the drawing is hidden; a
    single head or batch entry serves all.

    >>> from refattn.visibility import picture
    >>> print(picture(Dense(("x.x", "...")), 2, 3))
    x.x
    ...
    >>> Dense.of(np.eye(2, dtype=bool))
    Dense(('x.', '.x'))
    """

    rows: tuple[Any, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        _drawing(self.rows)

    @classmethod
    def of(cls, array: Any) -> Dense:
        array = np.asarray(array)
        if array.dtype != np.bool_ or not 2 <= array.ndim <= 4:
            raise TypeError(f"array of {array.dtype} with {array.ndim} dimensions must be bool with 2 to 4")

        def draw(a: Array) -> Any:
            return "".join(np.where(a, "x", ".")) if a.ndim == 1 else tuple(map(draw, a))

        return cls(draw(array))

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return _drawn(_drawing(self.rows), b, h, i, j)

    def __repr__(self) -> str:
        return f"Dense({self.rows})"


@lru_cache(maxsize=64)
def _drawing(rows: tuple[Any, ...]) -> Array:
    """Strings of x and dot, nested up to 3 levels, as booleans (B, H, rows, columns)."""

    def read(x: Any) -> Any:
        if isinstance(x, str):
            if set(x) - set("x."):
                raise ValueError(f"row {x!r} of a drawn mask may hold only x and dot")
            return [c == "x" for c in x]
        return [read(y) for y in x]

    try:
        drawing = np.array(read(rows), dtype=bool)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a drawn mask needs strings of x and dot, all of one length: {error}") from None
    if rows == ():
        drawing = drawing.reshape(0, 0)
    if drawing.ndim < 2 or drawing.ndim > 4:
        raise ValueError(f"a drawn mask has rows, [heads, [batch]] levels, not {drawing.ndim - 1}")
    return drawing.reshape((1,) * (4 - drawing.ndim) + drawing.shape)


def _drawn(drawing: Array, b: Array, h: Array, i: Array, j: Array) -> Array:
    B, H, rows, columns = drawing.shape
    for name, n, index in (("batch", B, b), ("head", H, h)):
        if n != 1 and index.size and index.max() >= n:
            raise ValueError(f"a mask drawn for {n} {name} entries has none for {name} {int(index.max())}")
    inside = np.less(i, rows) & np.less(j, columns)
    if rows == 0 or columns == 0:
        return np.asarray(inside)
    b, h = (b if B > 1 else np.intp(0)), (h if H > 1 else np.intp(0))
    return np.asarray(inside & drawing[b, h, np.minimum(i, rows - 1), np.minimum(j, columns - 1)])
