"""The kernels on float32 and float64, which take plain arrays of any strides: k1_naive and k2_tiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import int32

from gpu.kernels import k1_naive as k1
from gpu.kernels import k2_tiled as k2
from gpu.kernels.plain import Given, real_of
from gpu.target import SIMULATED

from . import operands
from .arrays import Array
from .checks import Problem
from .choose import chosen
from .device import Machine, host_memory, launch

__all__ = ["optional", "run_naive", "run_tiled", "strided"]


class Strided:
    """Memory of a device as numba takes it; with strides given, all arrays have one type."""

    def __init__(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "typestr": np.dtype(dtype).str, "shape": tuple(shape), "strides": tuple(strides),
            "version": 3,
        }  # fmt: skip


def strided(p: Problem, x: Array) -> Any:
    """The array as a kernel indexes it; packed ones are (1, heads, tokens, D) and (1, H, tokens)."""
    packed = p.packed and x.name not in ("bias", "sinks", "alibi_slopes") and len(x.shape) > 1
    turned = packed and len(x.shape) == 3
    if SIMULATED:
        host = host_memory(x)
        host = host.swapaxes(0, 1) if turned else host
        return host[None] if packed else host
    order = (1, 0, 2) if turned else range(len(x.shape))
    shape, strides = [x.shape[a] for a in order], [x.strides[a] for a in order]
    return Strided(x.address, x.dtype, [1, *shape] if packed else shape, [0, *strides] if packed else strides)


def optional(p: Problem, x: Array | None, ndim: int, dtype: str) -> Any:
    """The array, or a stand-in of one element that is never read."""
    if x is not None:
        return strided(p, x)
    if SIMULATED:
        return np.zeros((1,) * ndim, dtype)
    return Strided(p.q.address, dtype, (1,) * ndim, (0,) * ndim)


def given(p: Problem) -> Given:
    """Which optional arguments are there."""
    found = (p.start_q, p.start_k, p.used_q, p.used_k, p.bias, p.sinks, p.slopes)
    return Given(*(int32(x is not None) for x in found))


def lengths(p: Problem) -> list[Any]:
    return [optional(p, x, 1, "int32") for x in (p.start_q, p.start_k, p.used_q, p.used_k)]


def scalars(p: Problem) -> list[Any]:
    cast = real_of(p.dtype).cast
    return [cast(p.scale), cast(p.softcap or 0)]


def run_naive(p: Problem, out: Array, lse: Array, m: Machine) -> None:
    """k1: three kernels on a workspace of all scores."""
    library, place = p.q.library, (p.q.device, p.stream)
    weights = library.array("weights", library.new((p.B, p.H, p.Lq, p.Lk), p.dtype, p.q.device))
    whole = host_memory(weights) if SIMULATED else Strided(weights.address, p.dtype, weights.shape, weights.strides)
    q, k, v = (strided(p, x) for x in (p.q, p.k, p.v))
    bias, slopes, sinks = (optional(p, x, n, p.dtype) for x, n in ((p.bias, 4), (p.slopes, 1), (p.sinks, 1)))
    start_q, start_k, used_q, used_k = lengths(p)
    shape, band, which = operands.shape(p), operands.band(p), given(p)
    score, normalise, mix = k1.kernels(p.dtype)
    rows = p.B * p.H * p.Lq
    for kernel, threads, arguments in (
        (
            score, rows * p.Lk,
            (q, k, bias, slopes, start_q, start_k, used_q, used_k, whole, shape, band, which, *scalars(p)),
        ),
        (normalise, rows, (whole, sinks, start_q, used_q, strided(p, lse), shape, which)),
        (mix, rows * p.Dv, (whole, v, start_q, start_k, used_q, used_k, strided(p, out), shape, which)),
    ):  # fmt: skip
        launch(kernel, None, k1.grid(threads), k1.THREADS, 0, arguments, [], *place)


def run_tiled(p: Problem, out: Array, lse: Array, m: Machine) -> None:
    """k2: the forward."""
    tile = tile_of(p, m)
    shape = operands.shape(p)
    launch(
        k2.forward(p.dtype, tile), None, k2.grid(tile, shape), tile.rows, k2.shared_bytes(p.dtype, tile),
        (
            *(strided(p, x) for x in (p.q, p.k, p.v, out, lse)), optional(p, p.bias, 4, p.dtype),
            *(optional(p, x, 1, p.dtype) for x in (p.sinks, p.slopes)), *lengths(p), shape, operands.band(p), given(p),
            *scalars(p),
        ),
        [], p.q.device, p.stream,
    )  # fmt: skip


def tile_of(p: Problem, m: Machine) -> k2.Tile:
    """k2's tile; what `tiles` says of keys holds here too, and rows are 32 for each of its warps."""
    tile = k2.usual(p.dtype, p.D, p.Dv, min(m.shared_bytes, 96 * 1024))
    by_hand = chosen()
    if "keys" in by_hand:
        tile = tile._replace(keys=min(tile.keys, by_hand["keys"]))
    if "warps" in by_hand:
        tile = tile._replace(rows=min(tile.rows, 32 * by_hand["warps"]))
    return tile


def not_for_k2(p: Problem, m: Machine) -> str | None:
    """Why k2 cannot take a problem."""
    if max(p.D, p.Dv) > k2.SIZES[-1]:
        return f"takes head sizes up to {k2.SIZES[-1]}, and D={p.D}, Dv={p.Dv}"
    return _in_16_bits(p)


def not_for_k1(p: Problem, m: Machine) -> str | None:
    """Why k1 cannot take a problem."""
    size = math.prod((p.B, p.H, p.Lq, p.Lk)) * (8 if p.dtype == "float64" else 4)
    if size > 2**34:
        return f"holds all scores, which are {size / 2**30:.0f} GiB; at most 16 GiB"
    return _in_16_bits(p)


def _in_16_bits(p: Problem) -> str | None:
    return None if p.dtype in ("float32", "float64") else f"takes float32 and float64, and q.dtype={p.dtype}"
