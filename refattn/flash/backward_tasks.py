"""The tasks of the backward: who adds to what, by the lengths alone: no number of threads or heads alters a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from .backward import BLOCK
from .problem import Launch, Problem

__all__ = ["Layout"]

Array = np.ndarray[Any, Any]
PARTS = 4
"""of the keys, at most: each has a dq of its own"""


class Layout:
    """Blocks of keys, dealt to the parts in turn, and the room for dbias.

    A task is a part of the keys, for the query heads of a key head.  Where several heads or batches share a dbias of
    Lq x Lk entries, one task has them all; of a smaller one each head, and each part if need be, has its own.
    """

    def __init__(self, problem: Problem) -> None:
        x, bias = problem.x, problem.x.bias
        self.shape = (0,) * 4 if bias is None else (1,) * (4 - bias.ndim) + bias.shape
        dense = self.shape[2] > 1 and self.shape[3] > 1
        self.batches = max(1, x.B) if dense and self.shape[0] == 1 else 1
        self.heads = max(1, x.H) if dense and self.shape[1] == 1 else x.group
        self.parts = max(1, min(PARTS, -(-x.Lk // BLOCK)))
        room = self.shape if dense or bias is None else (x.B, x.H, *self.shape[2:])
        self.dbias = np.zeros((self.parts if self.shape[3] == 1 else 1, *room), problem.dtype)
        strides = (s // self.dbias.itemsize for s in self.dbias.strides)
        self.onto = tuple(0 if n == 1 else s for n, s in zip(self.dbias.shape, strides, strict=True))

    def tasks(self, problem: Problem, launch: Launch) -> tuple[Array, Array]:
        """Those of one launch as the kernel takes them, (n, 8), and how many pairs each has."""
        x, parts = problem.x, range(self.parts)
        if launch.bits.size:  # some rows of one head
            b, h = divmod(int(launch.tasks[0]) // -(-x.Lq // problem.wide), x.H)
            rows = launch.origin, launch.origin + len(launch.bits)
            found = [(b, b + 1, h, h + 1, *rows, part, part) for part in parts]
            return np.array(found, np.int64), np.full(self.parts, launch.pairs.sum() // self.parts)
        heads = [(b, h) for b in range(0, x.B, self.batches) for h in range(0, x.H, self.heads)]
        found = [(b, b + self.batches, h, h + self.heads, 0, x.Lq, part, 0) for b, h in heads for part in parts]
        tasks = np.array(found, np.int64).reshape(-1, 8)
        tasks[:, 7] = np.arange(len(tasks))
        pairs = self._pairs(x.shape, launch)
        pairs = pairs.reshape(x.B // self.batches, self.batches, x.H // self.heads, self.heads, self.parts)
        return tasks, pairs.sum((1, 3)).reshape(-1)

    def _pairs(self, shape: tuple[int, ...], launch: Launch) -> Array:
        """(B, H, parts)"""
        *sizes, Lk = shape
        kept = [n if stride else 1 for n, stride in zip(sizes, launch.strides, strict=True)]
        lo, hi = (ends.reshape(kept) for ends in launch.spans)
        pairs = np.zeros((*kept[:2], self.parts), np.int64)
        for i, k0 in enumerate(range(0, Lk, BLOCK)):
            seen = np.clip(hi, k0, k0 + BLOCK) - np.clip(lo, k0, k0 + BLOCK)
            pairs[..., i % self.parts] += seen.sum(2) * (1 if launch.strides[2] else sizes[2])
        return np.broadcast_to(pairs, (*sizes[:2], self.parts))

    def bias_gradient(self) -> Array:
        """dbias with four dimensions, of which those that the bias is broadcast over have one entry."""
        over = tuple(i for i, n in enumerate(self.shape) if n == 1)
        return np.asarray(self.dbias.sum(0).sum(over, keepdims=True))
