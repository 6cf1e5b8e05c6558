"""One call's arguments as the kernels take them: flat arrays of one dtype, padded, and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from .. import oracle
from ..dtypes import FORMATS, format_of
from ..masks import Visibility
from ..precision import Precision
from ..streaming.arguments import Arguments
from .geometry import spans, strips
from .pairs import above_each_other, contract, side_by_side
from .products import ROWS
from .vectors import ACROSS, PAIRS, lanes

__all__ = ["Launch", "Problem", "lean"]

Array = np.ndarray[Any, Any]
Made = TypeVar("Made")
NO_BITS = np.zeros((0, 0), np.uint8)
NO_BITS.flags.writeable = False
FEW = 1 << 12
"""rows of all heads whose geometry is kept for the next call with an equal mask"""


class Launch(NamedTuple):
    """Tasks of `sub` tiles of queries, with the pairs that each has; what rows see: flat lo and hi with the strides of
    (b, h, i), and the bits of the rows from `origin` on, or none."""

    sub: int
    tasks: Array
    pairs: Array
    spans: tuple[Array, Array]
    strides: tuple[int, ...]
    bits: Array
    origin: int

    @property
    def seen(self) -> tuple[Any, ...]:
        return *self.spans, self.strides, self.bits, self.origin


def lean(a: Array, dtype: Any) -> tuple[Array, tuple[int, ...]]:
    """`a` flat, without the dimensions that it is only repeated along, and the strides that repeat it."""
    kept = a[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in a.strides)]
    strides = np.cumprod([1, *kept.shape[:0:-1]])[::-1]
    return flat(kept, dtype), tuple(0 if n == 1 else int(stride) for n, stride in zip(kept.shape, strides, strict=True))


def flat(a: Any, dtype: Any) -> Array:
    """`a` in one dimension, in order, aligned, and read-only, so that kernels have one signature."""
    a = np.ascontiguousarray(a, dtype)
    a = (a if a.flags.aligned else a.copy()).reshape(-1)
    a.flags.writeable = False
    return a


class once(Generic[Made]):  # noqa: N801 - a decorator
    """`functools.cached_property` without its lock, which up to Python 3.11 is one for all, and kept by a fork."""

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self.make = make

    def __get__(self, owner: Any, kind: Any = None) -> Made:
        made = owner.__dict__[self.make.__name__] = self.make(owner)
        return made


class Problem:
    """The arguments of `attention` in the dtype that it computes in: float64 for float64, else float32."""

    def __init__(self, q: Any, k: Any, v: Any, **options: Any) -> None:
        kinds = {format_of(np.asanyarray(x).dtype, f"{name}.dtype").name for name, x in (("q", q), ("k", k), ("v", v))}
        if len(kinds) > 1:
            raise TypeError(f"q, k and v of {', '.join(sorted(kinds))} must have one dtype; convert with astype")
        self.kind = kinds.pop()
        if FORMATS[self.kind].bits <= 4:
            raise TypeError(f"q.dtype={self.kind} must have 16 bits or more; convert all with astype(np.float16)")
        self.dtype = np.dtype(np.float64 if self.kind == "float64" else np.float32)
        self.x = x = Arguments(q, k, v, **options, dtype=self.dtype)
        self.scale = self.dtype.type(oracle.scale_of(x.scale, x.D))
        range_of = np.finfo(self.dtype)
        least, most = range_of.smallest_subnormal, range_of.max
        self.softcap = self.dtype.type(0 if x.softcap is None else np.clip(x.softcap, least, most))  # 0 is no softcap
        self.sinks = flat(() if x.sinks is None else x.sinks, self.dtype)
        self.keys, self.columns = (-(-n // ROWS) * ROWS for n in (x.Lk, x.Dv))
        self.wide = ACROSS * lanes(self.dtype)

    @once
    def q(self) -> Array:
        return flat(self.x.q, self.dtype)

    @once
    def k(self) -> Array:
        return self.padded(self.x.k, self.x.D)

    @once
    def v(self) -> Array:
        return self.padded(self.x.v, self.columns)

    def operands(self) -> tuple[Array, Array, Array, tuple[int, ...]]:
        """q, k, v and sizes as `forward` takes them: in pairs where this machine multiplies bfloat16."""
        x = self.x
        if self.kind == "bfloat16" and PAIRS:
            q, k = side_by_side(x.q, x.Lq), side_by_side(x.k, self.keys)
            v = above_each_other(x.v, self.keys, self.columns)
            sizes = (x.H, x.Hkv, x.Lq, q.shape[3], x.Dv, self.keys, self.columns, 2)
            return flat(q, np.int32), flat(k, np.int32), flat(v, np.int32), sizes
        return self.single()

    def single(self) -> tuple[Array, Array, Array, tuple[int, ...]]:
        """`operands` in the dtype that is computed in."""
        x = self.x
        return self.q, self.k, self.v, (x.H, x.Hkv, x.Lq, x.D, x.Dv, self.keys, self.columns, 1)

    @property
    def contract(self) -> Precision:
        return contract(self.kind)

    @property
    def finite(self) -> bool:
        """Whether there is no NaN and no infinity, but in a bias that hides."""
        bias = self.x.bias
        arrays = (self.q, self.k, self.v, self.sinks)
        return all(np.isfinite(a).all() for a in arrays) and (bias is None or bool((bias < np.inf).all()))

    def padded(self, a: Array, size: int) -> Array:
        """(B, Hkv, Lk, size) with zeros after the last key and the last column."""
        B, heads, n, own = a.shape
        if n == self.keys and own == size:
            return flat(a, self.dtype)
        room = np.zeros((B, heads, self.keys, size), self.dtype)
        room[:, :, :n, :own] = a
        return flat(room, self.dtype)

    def bias(self) -> tuple[Array, tuple[int, ...]]:
        x = self.x
        if x.bias is None:
            return flat((), self.dtype), (0,) * 4
        bias, strides = lean(np.broadcast_to(x.bias, x.shape), x.bias.dtype)
        if bias.dtype.itemsize > self.dtype.itemsize:  # only what is -inf hides, so that no other is to become it
            bias = np.where(np.isneginf(bias), bias, np.maximum(bias, np.finfo(self.dtype).min))
        return flat(bias, self.dtype), strides

    def launches(self) -> Iterator[Launch]:
        """All tasks: at once where each row sees an interval of keys, else strip of rows by strip of rows."""
        x = self.x
        sub = self._shared()
        if x.mask is None:
            tasks = x.B * x.H * -(-x.Lq // (sub * self.wide))
            pairs, everything = np.full(tasks, sub * self.wide * x.Lk), (flat(0, np.int64), flat(x.Lk, np.int64))
            yield Launch(sub, np.arange(tasks), pairs, everything, (0, 0, 0), NO_BITS, 0)
            return
        of = _kept if isinstance(x.mask, Visibility) and x.B * x.H * x.Lq <= FEW else _of_spans
        known = of(x.mask, x.shape, sub, self.wide)
        if known is not None:
            yield known
            return
        lo, hi = np.zeros((2, x.B, x.H, x.Lq), np.int64)
        strides = (x.H * x.Lq, x.Lq, 1)
        blocks = -(-x.Lq // self.wide)
        for b, h, rows, first, last, bits in strips(x):
            lo[b, h, rows], hi[b, h, rows] = first, last
            bits.flags.writeable = False
            costs = _costs(last - first, self.wide)
            tasks = (b * x.H + h) * blocks + rows.start // self.wide + np.arange(len(costs))
            yield Launch(1, tasks, costs, (flat(lo, np.int64), flat(hi, np.int64)), strides, bits, rows.start)

    def _shared(self) -> int:
        """How many tiles of queries share a tile of keys: as many as leave eight tasks, at most 4."""
        tiles = -(-self.x.Lq // self.wide)
        return max(1, min(4, tiles, self.x.B * self.x.H * tiles // 8))


def _of_spans(mask: Any, shape: tuple[int, int, int, int], sub: int, wide: int) -> Launch | None:
    """All tasks at once, where each row sees an interval of keys."""
    known = spans(mask, shape)
    if known is None:
        return None
    (lo, strides), (hi, others) = (lean(end, np.int64) for end in known)
    if strides != others:
        (lo, strides), (hi, _) = (lean(np.array(end), np.int64) for end in known)
    costs = _costs(known[1] - known[0], sub * wide)
    return Launch(sub, np.arange(len(costs)), costs, (lo, hi), strides, NO_BITS, 0)


_kept: Any = lru_cache(maxsize=16)(_of_spans)


def _costs(seen: Array, block: int) -> Array:
    """The number of pairs in each block of rows, those of all heads in one list."""
    *heads, Lq = seen.shape
    blocks = -(-Lq // block)
    filled = np.zeros((*heads, blocks * block), np.int64)
    filled[..., :Lq] = seen
    return filled.reshape(-1, block).sum(1)
