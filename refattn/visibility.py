"""Which keys a query may attend to: the predicate, its algebra, and any tile of it.

A mask is a value: it compares, hashes, prints as the code that makes it, and combines with `&`,
`|` and `~`.  It is a predicate over index arrays and the *effective* lengths lq, lk of a batch
entry, so that any tile of it can be had without the whole.  The kinds are in `refattn.masks`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["Align", "And", "Mask", "Not", "Or", "Visibility", "check_align", "check_int", "diagonal", "picture"]

Array = np.ndarray[Any, Any]
Align = Literal["top_left", "bottom_right"]


class Mask:
    """A predicate: `mask(b, h, i, j, lq, lk)` over broadcasting index arrays gives booleans.

    Each kind is a frozen dataclass; lists and arrays in its fields become tuples, which hash.
    """

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, f.name, _frozen(getattr(self, f.name)))

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        raise NotImplementedError

    def dense(self, B: int, H: int, Lq: int, Lk: int) -> Array:
        """The whole mask, booleans (B, H, Lq, Lk), where all memory exists."""
        return Visibility(self, B, H, Lq, Lk).tile()

    def __and__(self, other: Mask) -> Mask:
        return And(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        return Or(self, other) if isinstance(other, Mask) else NotImplemented

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

    def tile(
        self, rows: slice = slice(None), keys: slice = slice(None), b: int | None = None, h: int | None = None
    ) -> Array:
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


def check_int(name: str, value: Any, least: int, cure: str = "", most: int = 2**62) -> None:
    """Refuses a field that is not an int from least to most, by name."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r} must be an int >= {least}{cure}")
    if value > most:
        raise ValueError(f"{name}={value!r} must be <= {most}")


def check_align(align: str) -> None:
    """Refuses all but the two alignments."""
    if align not in ("top_left", "bottom_right"):
        raise ValueError(f"align={align!r} must be 'top_left' or 'bottom_right'")


def diagonal(align: Align, i: Array, lq: Array, lk: Array) -> Array:
    """The key at which query i stands: i ("top_left") or i + lk - lq ("bottom_right")."""
    return i if align == "top_left" else i + (lk - lq)


def _frozen(x: Any) -> Any:
    """`x` with lists and arrays made tuples, and NumPy's scalars Python's."""
    if isinstance(x, (np.ndarray, np.generic)):
        x = x.tolist()
    return tuple(map(_frozen, x)) if isinstance(x, Sequence) and not isinstance(x, str) else x


def _lengths(lens: tuple[int, ...] | None, B: int, longest: int, name: str) -> Array:
    if lens is None:
        return np.full(B, longest)
    if len(lens) != B or not all(0 <= n <= longest for n in lens):
        raise ValueError(f"{name}={lens} must hold B={B} lengths from 0 to {longest}")
    return np.array(lens, dtype=np.int64)
