"""The kernels on float32 and float64, which take plain arrays of any strides: k1_naive, k2_tiled, k2_gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import int32

from gpu.kernels import k1_naive as k1
from gpu.kernels import k2_gradients, k2_tiled
from gpu.kernels.plain import Given, real_of
from gpu.target import SIMULATED

from . import operands
from .arrays import Array
from .checks import Problem, Taken
from .choose import chosen
from .device import Machine, host_memory, launch

__all__ = ["not_for_k1", "not_for_k2", "optional", "run_gradients", "run_naive", "run_tiled", "strided"]


class Strided:
    """Memory of a device as numba takes it; with strides given, all arrays have one type."""

    def __init__(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "typestr": np.dtype(dtype).str, "shape": tuple(shape), "strides": tuple(strides),
            "version": 3,
        }  # fmt: skip


def strided(p: Problem, x: Array) -> Any:
    """The array as a kernel indexes it; packed ones are (1, heads, tokens, D) and (1, H, tokens)."""
    packed = p.packed and x.name not in ("bias", "sinks", "alibi_slopes", "dsinks") and len(x.shape) > 1
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
    tile = _smaller(k2_tiled.usual(p.dtype, p.D, p.Dv, m.shared_bytes // 2), "keys")
    shape, shared_bytes = operands.shape(p), k2_tiled.shared_bytes(p.dtype, tile)
    launch(
        k2_tiled.forward(p.dtype, tile), None, k2_tiled.grid(tile, shape), tile.rows, shared_bytes,
        (
            *(strided(p, x) for x in (p.q, p.k, p.v, out, lse)), optional(p, p.bias, 4, p.dtype),
            *(optional(p, x, 1, p.dtype) for x in (p.sinks, p.slopes)), *lengths(p), shape, operands.band(p), given(p),
            *scalars(p),
        ),
        [], p.q.device, p.stream,
    )  # fmt: skip


def run_gradients(p: Problem, x: Taken, m: Machine) -> None:
    """k2's backward: delta, then dk and dv, dq, and dsinks."""
    library = p.q.library
    place: tuple[Any, ...] = ([], p.q.device, p.stream)
    tile = _smaller(k2_gradients.usual(p.dtype, p.D, p.Dv, m.shared_bytes // 2), "others")
    kernels, shared_bytes = k2_gradients.kernels(p.dtype, tile), k2_gradients.shared_bytes(p.dtype, tile)
    shape, which = operands.shape(p), given(p)._replace(dlse=int32(x.dlse is not None))
    delta = strided(p, library.array("delta", library.new(p.rows, p.dtype, p.q.device)))
    q, k, v, out, dout, lse = (strided(p, a) for a in (p.q, p.k, p.v, x.out, x.dout, x.lse))
    start_q, start_k, used_q, used_k = lengths(p)
    rest = (
        optional(p, p.bias, 4, p.dtype), optional(p, p.slopes, 1, p.dtype), start_q, start_k, used_q, used_k, shape,
        operands.band(p), which, *scalars(p),
    )  # fmt: skip
    threads = k2_gradients.THREADS
    blocks = -(-p.B * p.H * p.Lq // threads)
    dlse = optional(p, x.dlse, 3, p.dtype)
    launch(kernels.delta, None, blocks, threads, 0, (out, dout, dlse, start_q, used_q, delta, shape, which), *place)
    read = (q, k, v, dout, lse, delta)
    for kernel, grid, written in (
        (kernels.keys, k2_gradients.keys_grid(tile, shape), (x.dk, x.dv)),
        (kernels.queries, k2_gradients.queries_grid(tile, shape), (x.dq,)),
    ):
        launch(kernel, None, grid, tile.rows, shared_bytes, (*read, *(strided(p, a) for a in written), *rest), *place)
    if x.dsinks is not None:
        sums = (optional(p, p.sinks, 1, p.dtype), lse, delta, strided(p, x.dsinks), start_q, used_q, shape, which)
        launch(kernels.sinks, None, p.H, threads, 0, sums, *place)


def _smaller(tile: Any, along: str) -> Any:
    """The tile with what was set by hand: `keys` goes by at a time, and rows are 32 for each of `warps`."""
    by_hand = chosen()
    if "keys" in by_hand:
        tile = tile._replace(**{along: min(getattr(tile, along), by_hand["keys"])})
    return tile._replace(rows=min(tile.rows, 32 * by_hand.get("warps", 32)))


def not_for_k2(p: Problem, m: Machine) -> str | None:
    """Why k2 cannot take a problem."""
    if max(p.D, p.Dv) > 256:
        return f"takes head sizes up to 256, and D={p.D}, Dv={p.Dv}"
    return _in_16_bits(p)


def not_for_k1(p: Problem, m: Machine) -> str | None:
    """Why k1 cannot take a problem."""
    size = math.prod((p.B, p.H, p.Lq, p.Lk)) * (8 if p.dtype == "float64" else 4)
    if size > 2**34:
        return f"holds all scores, which are {size / 2**30:.0f} GiB; at most 16 GiB"
    return _in_16_bits(p)


def _in_16_bits(p: Problem) -> str | None:
    return None if p.dtype in ("float32", "float64") else f"takes float32 and float64, and q.dtype={p.dtype}"
