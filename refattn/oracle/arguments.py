"""The arguments of the oracle, checked, in float64, with key heads repeated and the mask dense."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dtypes import exact64
from ..score_mods import check_score_mod

__all__ = ["Inputs", "broadcast", "scale_of", "shaped"]

Array = np.ndarray[Any, Any]


class Inputs:
    """The arguments, checked, in float64, with key heads repeated and the mask dense."""

    def __init__(
        self, q: Any, k: Any, v: Any, *,
        mask: Any, bias: Any, scale: float | None, softcap: float | None, sinks: Any,
        score_mod: Any, dropout: float | None, keep: Any, backward: bool = False,
    ) -> None:  # fmt: skip
        q, k, v = exact64(q, "q"), exact64(k, "k"), exact64(v, "v")
        for name, array in (("q", q), ("k", k), ("v", v)):
            if array.ndim != 4:
                raise ValueError(f"{name}.shape={array.shape} must have 4 dimensions (B, heads, length, size)")
        B, H, Lq, D = q.shape
        Hkv, Lk = k.shape[1:3]
        if k.shape != (B, Hkv, Lk, D):
            raise ValueError(f"k.shape={k.shape} must be (B, Hkv, Lk, D) with B={B} and D={D} of q.shape={q.shape}")
        if v.shape[:3] != (B, Hkv, Lk):
            raise ValueError(f"v.shape={v.shape} must begin with {(B, Hkv, Lk)}, as k.shape={k.shape} does")
        if H != Hkv and (H == 0 or Hkv == 0 or H % Hkv):
            raise ValueError(f"q has H={H} heads, which must be a multiple of the Hkv={Hkv} heads of k and v")
        self.softcap: float | None = None
        if softcap is not None:
            self.softcap = _real(softcap, "softcap", "pass a number > 0, or None for no softcap")
            if not self.softcap > 0:
                raise ValueError(f"softcap={softcap} must be > 0; pass None for no softcap")
        self.group = H // Hkv if Hkv else 1
        self.scale = scale_of(scale, D)
        self.q, self.k, self.v = q, np.repeat(k, self.group, axis=1), np.repeat(v, self.group, axis=1)
        shape = (B, H, Lq, Lk)

        visible = np.ones(shape, dtype=bool)
        if mask is not None:
            if np.ma.isMaskedArray(mask):
                raise TypeError("mask is a masked array, whose own mask would be ignored; pass mask.filled(False)")
            if isinstance(mask, type):
                raise TypeError(f"mask={mask.__name__} is a class; make one, such as {mask.__name__}('top_left')")
            mask = np.asarray(mask.dense(*shape) if hasattr(mask, "dense") else mask)
            if mask.dtype != np.bool_:
                raise TypeError(f"mask.dtype={mask.dtype} must be bool, True = may attend; pass bias= for logits")
            visible = visible & broadcast(mask, "mask", shape)
        self.bias_shape: tuple[int, ...] | None = None
        self.bias: Array | None = None
        if bias is not None:
            bias = exact64(bias, "bias")
            self.bias_shape = bias.shape
            self.bias = broadcast(bias, "bias", shape)
            visible = visible & ~np.isneginf(self.bias)
        self.visible = visible
        self.sinks = None if sinks is None else shaped(sinks, "sinks", (H,))
        if score_mod is not None:
            check_score_mod(score_mod, backward)
        self.score_mod = score_mod
        self.place = np.ogrid[tuple(slice(n) for n in shape)]
        """b, h, i, j, broadcasting to (B, H, Lq, Lk)"""
        self.kept: Array | None = None
        """1 / (1 - dropout) where kept, 0 where dropped"""
        if dropout is not None or keep is not None:
            self.kept = _kept(dropout, keep, shape)

    def sum_over_group(self, x: Array) -> Array:
        B, H, L, D = x.shape
        return x if self.group == 1 else x.reshape(B, H // self.group, self.group, L, D).sum(2)


def _kept(dropout: float | None, keep: Any, shape: tuple[int, ...]) -> Array:
    if dropout is None or keep is None:
        given = "keep" if dropout is None else f"dropout={dropout}"
        raise ValueError(f"{given} needs {'dropout' if dropout is None else 'keep'} too: one says how much, one which")
    dropout = _real(dropout, "dropout", "pass a probability from 0 to 1, or None for no dropout")
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout={dropout} must be from 0 to 1; pass None for no dropout")
    keep = np.asarray(keep)
    if keep.dtype != np.bool_:
        raise TypeError(f"keep.dtype={keep.dtype} must be bool, True = kept")
    return np.where(broadcast(keep, "keep", shape), 1 / (1 - dropout) if dropout < 1 else 0.0, 0.0)


def scale_of(scale: float | None, D: int) -> float:
    """`scale`, or D**-0.5 for None (1 when D is 0); refused unless a finite real number."""
    if scale is None:
        return D**-0.5 if D else 1.0
    return _real(scale, "scale", "pass None for D**-0.5")


def _real(x: Any, name: str, cure: str) -> float:
    if isinstance(x, (bool, np.bool_)) or not isinstance(x, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}={x!r} must be a real number; {cure}")
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{name}={value} must be finite; {cure}")
    return value


def shaped(x: Any, name: str, shape: tuple[int, ...]) -> Array:
    x = exact64(x, name)
    if x.shape != shape:
        raise ValueError(f"{name}.shape={x.shape} must be {shape}")
    return x


def broadcast(x: Array, name: str, shape: tuple[int, ...]) -> Array:
    try:
        return np.broadcast_to(x, shape)
    except ValueError:
        raise ValueError(f"{name}.shape={x.shape} must broadcast to (B, H, Lq, Lk)={shape}") from None
