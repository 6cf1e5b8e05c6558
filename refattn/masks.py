"""Mask values and their algebra.

A mask says which keys a query may attend to.  It is a value: it compares, hashes, prints as the
code that makes it, and combines with `&`, `|` and `~`.  It is a predicate over index arrays and
the *effective* lengths lq, lk of a batch entry, so that any tile of it can be had without the
whole.  Each docstring shows its picture, rows = queries, x = may attend:

>>> print(picture(Causal("bottom_right"), 2, 4))
xxx.
xxxx
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np

__all__ = [
    "BlockSparse",
    "Causal",
    "Dense",
    "Documents",
    "Mask",
    "Padding",
    "Prefix",
    "SinkTokens",
    "Visibility",
    "Window",
    "mask_from_json",
    "picture",
]

Array = np.ndarray[Any, Any]
Align = Literal["top_left", "bottom_right"]


class Mask:
    """A predicate: `mask(b, h, i, j, lq, lk)` over broadcasting index arrays gives booleans."""

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        raise NotImplementedError

    def dense(self, B: int, H: int, Lq: int, Lk: int) -> Array:
        """The whole mask, booleans (B, H, Lq, Lk), where all memory exists."""
        return Visibility(self, B, H, Lq, Lk).dense(B, H, Lq, Lk)

    def __and__(self, other: Mask) -> Mask:
        return And(self, other)

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other)

    def __invert__(self) -> Mask:
        return Not(self)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `mask_from_json` makes an equal mask."""
        data: dict[str, Any] = {"type": type(self).__name__}
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            data[f.name] = value.to_json() if isinstance(value, Mask) else value
        return data


@dataclass(frozen=True)
class And(Mask):
    left: Mask
    right: Mask

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.logical_and(self.left(b, h, i, j, lq, lk), self.right(b, h, i, j, lq, lk))

    def __repr__(self) -> str:
        return f"({self.left!r} & {self.right!r})"


@dataclass(frozen=True)
class Or(Mask):
    left: Mask
    right: Mask

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.logical_or(self.left(b, h, i, j, lq, lk), self.right(b, h, i, j, lq, lk))

    def __repr__(self) -> str:
        return f"({self.left!r} | {self.right!r})"


@dataclass(frozen=True)
class Not(Mask):
    mask: Mask

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.logical_not(self.mask(b, h, i, j, lq, lk))

    def __repr__(self) -> str:
        return f"~{self.mask!r}"


@dataclass(frozen=True)
class Causal(Mask):
    """j <= i ("top_left") or j <= i + lk - lq ("bottom_right": the last query sees the last key).

    >>> print(picture(Causal("top_left"), 2, 4))
    x...
    xx..
    >>> print(picture(Causal("bottom_right"), 3, 2))
    ..
    x.
    xx
    """

    align: Align

    def __post_init__(self) -> None:
        _check_align(self.align)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.less_equal(j, _diagonal(self.align, i, lq, lk))

    def __repr__(self) -> str:
        return f"Causal({self.align!r})"


@dataclass(frozen=True)
class Window(Mask):
    """`left` keys before the diagonal and `right` after it, both inclusive; None = no limit.

    >>> print(picture(Window(1, 0, "top_left"), 4, 4))
    x...
    xx..
    .xx.
    ..xx
    >>> print(picture(Window(0, 1, "bottom_right"), 2, 4))
    ..xx
    ...x
    """

    left: int | None
    right: int | None
    align: Align

    def __post_init__(self) -> None:
        _check_align(self.align)
        for name, value in (("left", self.left), ("right", self.right)):
            if value is not None and value < 0:
                raise ValueError(f"{name}={value} must be >= 0; pass None for no limit")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        diagonal = _diagonal(self.align, i, lq, lk)
        seen: Array = np.ones((), dtype=bool)
        if self.left is not None:
            seen = seen & (j >= diagonal - self.left)
        if self.right is not None:
            seen = seen & (j <= diagonal + self.right)
        return seen

    def __repr__(self) -> str:
        return f"Window({self.left}, {self.right}, {self.align!r})"


@dataclass(frozen=True)
class Prefix(Mask):
    """Prefix-LM: the first `length` keys are seen by all, the rest causally.

    `length` is an int, or one for each batch entry.

    >>> print(picture(Prefix(2, "top_left"), 4, 4))
    xx..
    xx..
    xxx.
    xxxx
    """

    length: int | tuple[int, ...]
    align: Align

    def __post_init__(self) -> None:
        _check_align(self.align)
        _set_tuple(self, "length")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.logical_or(
            np.less(j, _per_batch(self.length, b, "length")), np.less_equal(j, _diagonal(self.align, i, lq, lk))
        )

    def __repr__(self) -> str:
        return f"Prefix({self.length}, {self.align!r})"


@dataclass(frozen=True)
class Documents(Mask):
    """Query i sees key j where their segment ids are equal.

    `q_ids` holds one id for each query, `k_ids` for each key (None: the same); nested one level
    deeper, one row for each batch entry.

    >>> print(picture(Documents((0, 0, 1)), 3, 3))
    xx.
    xx.
    ..x
    """

    q_ids: tuple[Any, ...]
    k_ids: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        _set_tuple(self, "q_ids")
        _set_tuple(self, "k_ids")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        keys = self.q_ids if self.k_ids is None else self.k_ids
        return np.equal(_look_up(self.q_ids, b, i, "q_ids"), _look_up(keys, b, j, "k_ids"))

    def __repr__(self) -> str:
        return f"Documents({self.q_ids})" if self.k_ids is None else f"Documents({self.q_ids}, {self.k_ids})"


@dataclass(frozen=True)
class Padding(Mask):
    """Hides the keys from `lengths[b]` on.  The memory exists; alignment does not change.

    >>> print(picture(Padding((2,)), 2, 4))
    xx..
    xx..
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        _set_tuple(self, "lengths")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.less(j, _per_batch(self.lengths, b, "lengths"))

    def __repr__(self) -> str:
        return f"Padding({self.lengths})"


@dataclass(frozen=True)
class SinkTokens(Mask):
    """The first n keys, to be joined to another mask with `|` (StreamingLLM).

    >>> print(picture(Window(0, 0, "top_left") | SinkTokens(1), 3, 3))
    x..
    xx.
    x.x
    """

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"n={self.n} must be >= 0 tokens")

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        return np.less(j, self.n)

    def __repr__(self) -> str:
        return f"SinkTokens({self.n})"


@dataclass(frozen=True)
class BlockSparse(Mask):
    """Blocks of `block_q` queries and `block_k` keys; `rows` draws which are seen, x or dot.

    One string for each row of blocks, or one such tuple for each head.  What lies beyond the
    drawing is hidden.

    >>> print(picture(BlockSparse(("x.", ".x"), 1, 2), 2, 4))
    xx..
    ..xx
    """

    rows: tuple[Any, ...]
    block_q: int
    block_k: int

    def __post_init__(self) -> None:
        _set_tuple(self, "rows")
        for name in ("block_q", "block_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be >= 1")
        _drawing(self.rows)

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        drawing = _drawing(self.rows)
        return _drawn(drawing, np.zeros_like(b), h, i // self.block_q, j // self.block_k)

    def __repr__(self) -> str:
        return f"BlockSparse({self.rows}, {self.block_q}, {self.block_k})"


@dataclass(frozen=True)
class Dense(Mask):
    """A mask drawn in full: strings of x and dot for each query, nested by head, then by batch.

    `Dense.of(array)` makes one from a boolean array.  What lies beyond the drawing is hidden; a
    single head or batch entry serves all.

    >>> print(picture(Dense(("x.x", "...")), 2, 3))
    x.x
    ...
    >>> Dense.of(np.eye(2, dtype=bool))
    Dense(('x.', '.x'))
    """

    rows: tuple[Any, ...]

    def __post_init__(self) -> None:
        _set_tuple(self, "rows")
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


@dataclass(frozen=True)
class Visibility:
    """A mask (or None) over memory of a given shape, part of which may not exist.

    `q_lens` and `k_lens` say for each batch entry how much of Lq and Lk exists.  They shift
    alignment, and nothing reveals a key beyond them.
    """

    mask: Mask | None
    B: int
    H: int
    Lq: int
    Lk: int
    q_lens: tuple[int, ...] | None = None
    k_lens: tuple[int, ...] | None = None

    def tile(self, rows: slice = slice(None), keys: slice = slice(None), b: int | None = None, h: int | None = None) -> Array:
        """Booleans (B, H, rows, keys), or (rows, keys) of one batch entry and head."""
        one = b is not None and h is not None
        bs = (np.arange(self.B) if b is None else np.array([b])).reshape(-1, 1, 1, 1)
        hs = (np.arange(self.H) if h is None else np.array([h])).reshape(1, -1, 1, 1)
        i = np.arange(self.Lq)[rows].reshape(1, 1, -1, 1)
        j = np.arange(self.Lk)[keys].reshape(1, 1, 1, -1)
        lq = _lengths(self.q_lens, self.B, self.Lq, "q_lens")[bs]
        lk = _lengths(self.k_lens, self.B, self.Lk, "k_lens")[bs]
        seen = (i < lq) & (j < lk)
        if self.mask is not None:
            seen = seen & self.mask(bs, hs, i, j, lq, lk)
        seen = np.broadcast_to(seen, (bs.size, hs.size, i.size, j.size))
        return seen[0, 0] if one else seen

    def dense(self, B: int, H: int, Lq: int, Lk: int) -> Array:
        if (B, H, Lq, Lk) != (self.B, self.H, self.Lq, self.Lk):
            raise ValueError(f"(B, H, Lq, Lk)={(B, H, Lq, Lk)} must be {(self.B, self.H, self.Lq, self.Lk)}")
        return self.tile()


def picture(mask: Mask, Lq: int, Lk: int, b: int = 0, h: int = 0) -> str:
    """The mask of one batch entry and head, drawn with x and dot."""
    seen = Visibility(mask, b + 1, h + 1, Lq, Lk).tile(b=b, h=h)
    return "\n".join("".join(np.where(row, "x", ".")) for row in seen)


def mask_from_json(data: Mapping[str, Any] | None) -> Mask | None:
    """The mask that `to_json` described."""
    if data is None:
        return None
    kinds = {c.__name__: c for c in (And, Or, Not, Causal, Window, Prefix, Documents, Padding, SinkTokens, BlockSparse, Dense)}
    kind = kinds.get(data["type"])
    if kind is None:
        raise ValueError(f"type={data['type']!r} is not one of {', '.join(kinds)}")
    values = {k: mask_from_json(v) if isinstance(v, Mapping) else v for k, v in data.items() if k != "type"}
    return kind(**values)


def _check_align(align: str) -> None:
    if align not in ("top_left", "bottom_right"):
        raise ValueError(f"align={align!r} must be 'top_left' or 'bottom_right'")


def _diagonal(align: Align, i: Array, lq: Array, lk: Array) -> Array:
    return i if align == "top_left" else i + (lk - lq)


def _set_tuple(mask: Any, name: str) -> None:
    """Lists (from JSON, or typed so) become tuples, which hash; ids and lengths become ints."""

    def freeze(x: Any) -> Any:
        if isinstance(x, (Sequence, np.ndarray)) and not isinstance(x, str):
            return tuple(map(freeze, x))
        return int(x) if isinstance(x, np.integer) else x

    object.__setattr__(mask, name, freeze(getattr(mask, name)))


def _lengths(lens: tuple[int, ...] | None, B: int, longest: int, name: str) -> Array:
    if lens is None:
        return np.full(B, longest)
    if len(lens) != B or not all(0 <= n <= longest for n in lens):
        raise ValueError(f"{name}={lens} must hold B={B} lengths from 0 to {longest}")
    return np.array(lens)


def _per_batch(value: int | tuple[int, ...], b: Array, name: str) -> Array:
    if isinstance(value, int):
        return np.array(value)
    if b.size and b.max() >= len(value):
        raise ValueError(f"{name}={value} must hold one value for each of B={int(b.max()) + 1} batch entries")
    return np.array(value)[b]


def _look_up(ids: tuple[Any, ...], b: Array, index: Array, name: str) -> Array:
    nested = bool(ids) and isinstance(ids[0], tuple)
    table = np.array(ids if nested else (ids,))
    entry = b if nested else np.zeros_like(b)
    if (entry.size and entry.max() >= table.shape[0]) or (index.size and index.max() >= table.shape[1]):
        raise ValueError(f"{name} of shape {table.shape} is too short for index {int(index.max())}")
    return np.asarray(table[entry, index])


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
    if drawing.ndim < 2 or drawing.ndim > 4:
        raise ValueError(f"a drawn mask has rows, [heads, [batch]] levels, not {drawing.ndim - 1}")
    return drawing.reshape((1,) * (4 - drawing.ndim) + drawing.shape)


def _drawn(drawing: Array, b: Array, h: Array, i: Array, j: Array) -> Array:
    B, H, I, J = drawing.shape
    for name, n, index in (("batch", B, b), ("head", H, h)):
        if n != 1 and index.size and index.max() >= n:
            raise ValueError(f"a mask drawn for {n} {name} entries has none for {name} {int(index.max())}")
    inside = (i < I) & (j < J)
    return inside & drawing[b if B > 1 else 0, h if H > 1 else 0, np.minimum(i, I - 1), np.minimum(j, J - 1)]
