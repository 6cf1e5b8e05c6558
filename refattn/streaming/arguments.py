"""The arguments of one call, checked, and any head or tile of them on request; nothing is (Lq, Lk)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import format_of
from ..masks import Mask, Visibility
from ..score_mods import ScoreMod, check_score_mod

__all__ = ["Arguments", "floating", "stretched"]

Array = np.ndarray[Any, Any]


class Arguments:
    """q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv) and the options, as `attention` takes them.

    `dtype` is what heads and tiles are handed out in.
    """

    def __init__(
        self, q: Any, k: Any, v: Any, *,
        mask: Any, bias: Any, scale: float | None, softcap: float | None, sinks: Any,
        score_mod: Any = None, dropout: float | None = None, keep: Any = None, dtype: np.dtype[Any],
        backward: bool = False,
    ) -> None:  # fmt: skip
        self.q, self.k, self.v = floating(q, "q"), floating(k, "k"), floating(v, "v")
        for name, x in (("q", self.q), ("k", self.k), ("v", self.v)):
            if x.ndim != 4:
                raise ValueError(f"{name}.shape={x.shape} must have 4 dimensions (B, heads, length, size)")
        self.B, self.H, self.Lq, self.D = self.q.shape
        _, self.Hkv, self.Lk, self.Dv = self.v.shape
        if self.k.shape != (self.B, self.Hkv, self.Lk, self.D):
            raise ValueError(
                f"k.shape={self.k.shape} must be (B, Hkv, Lk, D)={(self.B, self.Hkv, self.Lk, self.D)}, "
                f"with q.shape={self.q.shape} and v.shape={self.v.shape}"
            )
        if self.v.shape[0] != self.B:
            raise ValueError(f"v.shape={self.v.shape} must begin with B={self.B}, as q.shape={self.q.shape} does")
        if self.H != self.Hkv and (self.Hkv == 0 or self.H % self.Hkv):
            raise ValueError(f"q has H={self.H} heads, which must be a multiple of the Hkv={self.Hkv} heads of k and v")
        if scale is not None and not math.isfinite(_number(scale, "scale", "D**-0.5")):
            raise ValueError(f"scale={scale} must be finite; pass None for D**-0.5")
        if softcap is not None and not 0 < _number(softcap, "softcap", "no softcap") < math.inf:
            raise ValueError(f"softcap={softcap} must be > 0 and finite; pass None for no softcap")
        self.dtype, self.scale, self.softcap = dtype, scale, softcap
        self.shape = (self.B, self.H, self.Lq, self.Lk)
        self.mask = self._checked_mask(mask)
        self.bias = None if bias is None else floating(bias, "bias")
        self._bias = None if self.bias is None else self._stretched(self.bias, "bias")
        self.sinks = None if sinks is None else self.shaped(sinks, "sinks", (self.H,))
        if score_mod is not None:
            check_score_mod(score_mod, backward)
        self.score_mod = score_mod
        self.dropout = self._checked_dropout(dropout, keep)
        self.keep = None if dropout is None else self._checked_keep(keep)

    @property
    def group(self) -> int:
        """How many query heads share a key head."""
        return self.H // self.Hkv if self.Hkv else 1

    def shaped(self, x: Any, name: str, shape: tuple[int, ...]) -> Array:
        x = floating(x, name)
        if x.shape != shape:
            raise ValueError(f"{name}.shape={x.shape} must be {shape}")
        return x

    def head(self, x: Array, b: int, h: int) -> Array:
        return np.ascontiguousarray(x[b, h], self.dtype)

    def tile(self, b: int, h: int, rows: slice, keys: slice) -> tuple[Array | None, Array | None]:
        """(visible, bias) of one tile: booleans, None where all is visible; and floats, None without a bias."""
        seen: Array | None = None
        if isinstance(self.mask, Visibility):
            seen = self.mask.tile(rows, keys, b, h)
        elif self.mask is not None:
            seen = self.mask[b, h, rows, keys]
        bias = None
        if self._bias is not None:
            bias = self._bias[b, h, rows, keys].astype(self.dtype)
            shown = ~np.isneginf(bias)
            seen = shown if seen is None else seen & shown
        return (None if seen is None or seen.all() else seen), bias

    def kept(self, b: int, h: int, rows: slice, keys: slice) -> Array | None:
        """Which weights of a tile survive dropout, booleans; None without dropout."""
        if self.keep is None:
            return None
        if not callable(self.keep):
            return np.asarray(self.keep[b, h, rows, keys])
        tile = (len(range(self.Lq)[rows]), len(range(self.Lk)[keys]))
        return stretched(_boolean(self.keep(b, h, rows, keys)), "keep", tile, "(rows, keys)")

    def place(self, b: int, h: int, rows: slice, keys: slice) -> tuple[Any, ...]:
        """b, h, i, j of a tile, as `score_mod` takes them; floats for those that are made of operators."""
        i, j = np.arange(self.Lq)[rows, None], np.arange(self.Lk)[None, keys]
        if isinstance(self.score_mod, ScoreMod):
            return self.dtype.type(b), self.dtype.type(h), i.astype(self.dtype), j.astype(self.dtype)
        return b, h, i, j

    def _checked_dropout(self, dropout: float | None, keep: Any) -> float | None:
        if (dropout is None) != (keep is None):
            given = "keep" if dropout is None else f"dropout={dropout}"
            lacking = "dropout" if dropout is None else "keep"
            raise ValueError(f"{given} needs {lacking} too: one says how much, one which")
        if dropout is not None and not 0 <= dropout <= 1:
            raise ValueError(f"dropout={dropout} must be from 0 to 1; pass None for no dropout")
        return dropout

    def _checked_keep(self, keep: Any) -> Any:
        if callable(keep):
            return keep
        return self._stretched(_boolean(keep), "keep")

    def _checked_mask(self, mask: Any) -> Visibility | Array | None:
        if mask is None:
            return None
        if isinstance(mask, type):
            raise TypeError(f"mask={mask.__name__} is a class; make one, such as {mask.__name__}('top_left')")
        if isinstance(mask, Mask):
            return Visibility(mask, *self.shape)
        if isinstance(mask, Visibility):
            if (mask.B, mask.H, mask.Lq, mask.Lk) != self.shape:
                raise ValueError(f"{mask} must be of (B, H, Lq, Lk)={self.shape}")
            return mask
        if np.ma.isMaskedArray(mask):
            raise TypeError("mask is a masked array, whose own mask would be ignored; pass mask.filled(False)")
        mask = np.asarray(mask)
        if mask.dtype != np.bool_:
            raise TypeError(f"mask.dtype={mask.dtype} must be bool, True = may attend; pass bias= for logits")
        return self._stretched(mask, "mask")

    def _stretched(self, x: Array, name: str) -> Array:
        return stretched(x, name, self.shape, "(B, H, Lq, Lk)")


def stretched(x: Array, name: str, shape: tuple[int, ...], sizes: str) -> Array:
    """`x` broadcast; `sizes` names the shape for the one who reads the refusal."""
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{name}.shape={x.shape} must broadcast to {sizes}={shape}") from None


def _number(x: Any, name: str, without: str) -> float:
    if isinstance(x, str | bytes) or np.ndim(x) != 0 or np.iscomplexobj(x):
        raise TypeError(f"{name}={x!r} must be a real number; pass None for {without}")
    return float(x)


def _boolean(keep: Any) -> Array:
    keep = np.asarray(keep)
    if keep.dtype != np.bool_:
        raise TypeError(f"keep.dtype={keep.dtype} must be bool, True = kept")
    return keep


def floating(x: Any, name: str) -> Array:
    """`x` as an array; refused unless its dtype is one of `refattn.dtypes`."""
    x = np.asanyarray(x)
    format_of(x.dtype, f"{name}.dtype")
    if np.ma.isMaskedArray(x):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored; pass {name}.filled() and a mask=")
    return np.asarray(x)
