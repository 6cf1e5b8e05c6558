"""From arrays to the tuples that kernels are handed (`gpu.kernels.arguments`), in one place."""

from __future__ import annotations

from collections.abc import Iterable

from numpy import float32, int32, int64

from gpu.kernels.arguments import Band, Bias, Lengths, Operand, Rows, Scores, Shape

from .arrays import Array
from .checks import Problem

__all__ = ["aligned", "band", "bias", "lengths", "operand", "rows", "scores", "shape", "used"]


def operand(x: Array) -> Operand:
    """(B, heads, L, D), or packed (tokens, heads, D)."""
    batch, head, row = x.strides[:3] if len(x.shape) == 4 else (0, x.strides[1], x.strides[0])
    return Operand(int64(x.address), int64(batch), int64(head), int64(row))


def rows(x: Array) -> Rows:
    """(B, H, Lq), or packed (H, tokens)."""
    batch, head = x.strides[:2] if len(x.shape) == 3 else (0, x.strides[0])
    return Rows(int64(x.address), int64(batch), int64(head))


def bias(x: Array | None) -> Bias:
    """(B, H, Lq, Lk), each dimension 1 or full: strides of 0 where it is 1."""
    if x is None:
        return Bias(*[int64(0)] * 5)
    return Bias(int64(x.address), *(int64(0 if n == 1 else s) for n, s in zip(x.shape, x.strides, strict=True)))


def shape(p: Problem) -> Shape:
    return Shape(*map(int32, (p.B, p.H, p.H // p.Hkv if p.Hkv else 1, p.Lq, p.Lk, p.D, p.Dv)))


def band(p: Problem) -> Band:
    return Band(int32(p.band.left), int32(p.band.right), int32(p.band.bottom_right))


def lengths(p: Problem) -> Lengths:
    return Lengths(*(int64(0 if x is None else x.address) for x in (p.start_q, p.start_k, p.used_q, p.used_k)))


def scores(p: Problem) -> Scores:
    addresses = (int64(0 if x is None else x.address) for x in (p.sinks, p.slopes))
    return Scores(float32(p.scale), float32(p.softcap or 0), *addresses)


def used(p: Problem, *others: Array) -> list[Array]:
    """All arrays whose memory a kernel may touch."""
    given = (p.q, p.k, p.v, p.bias, p.slopes, p.sinks, p.start_q, p.start_k, p.used_q, p.used_k, *others)
    return [x for x in given if x is not None]


def aligned(arrays: Iterable[Array]) -> bool:
    """Whether every row begins at a multiple of 16 bytes and is a multiple of 16 bytes long."""
    for x in arrays:
        steps = [x.address, x.shape[-1] * x.itemsize]
        steps += [s for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True) if n > 1]
        if any(s % 16 for s in steps):
            return False
    return True
