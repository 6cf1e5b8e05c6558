"""Hypotheses on strides: the row, head or entry of an array is looked for by the size of something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

Size = Callable[[Case, int], int]
"""(case, the true number of elements along an axis) -> the one that is taken for it"""
SIZES: dict[str, Size] = {
    "the number of queries": lambda c, n: c.Lq,
    "the number of keys": lambda c, n: c.Lk,
    "the size of a key": lambda c, n: c.D,
    "the size of a value": lambda c, n: c.Dv,
    "the number of heads": lambda c, n: c.H,
    "the number of key heads": lambda c, n: c.Hkv,
    "the number of entries": lambda c, n: c.B,
    "one more than there are": lambda c, n: n + 1,
    "one fewer than there are": lambda c, n: n - 1,
} | {f"those that there are, rounded up to {m}": (lambda c, n, m=m: -(-n // m) * m) for m in (4, 8, 16, 32, 64, 128)}
AXES = {"rows": 3, "heads": 2, "entries": 1}
READ = ("q", "k", "v", "bias", "keep", "dout", "k and v")
WRITTEN = ("out", "lse", "dq", "dk", "dv")


def sizes(case: Case) -> dict[str, tuple[int, ...]]:
    """The shapes of arrays, by name."""
    B, H, Hkv, Lq, Lk, D, Dv = case.B, case.H, case.Hkv, case.Lq, case.Lk, case.D, case.Dv
    q, k, v, o = (B, H, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv), (B, H, Lq, Dv)
    found = {"q": q, "k": k, "v": v, "out": o, "dout": o, "dq": q, "dk": k, "dv": v, "mask": (B, H, Lq, Lk),
             "lse": (B, H, Lq, 1)}
    found |= {"keep": (B, H, Lq, Lk)} if case.dropout is not None else {}
    return found | ({"bias": case.bias_shape} if case.bias is not None else {})


def _taken(case: Case, how: Any) -> bool:
    shapes = sizes(case)
    names = [n for n in how.of.split(" and ") if n in shapes]
    if not names or ("dout" in names and not case.backward) or 0 in shapes[names[0]]:
        return False
    shape = shapes[names[0]]
    n = shape[how.axis]
    if how.axis == 1 and getattr(how, "further", False):
        return False  # there is nothing further
    return n > 1 and int(np.prod(shape[: how.axis])) > 1 and how.size(case, n) not in (n, 0)


def _index(shape: tuple[int, ...], axis: int, n: int, further: bool = False) -> Array:
    """Where each element is looked for, `n` taken for the number of elements along an axis."""
    taken = [n if a == axis else size for a, size in enumerate(shape)]
    steps = [int(np.prod(taken[a + 1 :])) for a in range(4)]
    if axis > 1 and not further:  # what is further out is right
        steps[: axis - 1] = [int(np.prod(shape[a + 1 :])) for a in range(axis - 1)]
    return sum(np.arange(size).reshape([-1 if a == b else 1 for b in range(4)]) * step
               for a, (size, step) in enumerate(zip(shape, steps, strict=True)))  # type: ignore[return-value]


def _read(x: Array, axis: int, n: int, further: bool = False) -> Array:
    at = _index(x.shape, axis, n, further)
    return np.ravel(x)[np.minimum(at, x.size - 1)]


def _true(case: Case, how: Any) -> Any:
    shape = sizes(case).get(how.of.split(" and ")[0])
    return None if shape is None else how.size(case, shape[how.axis])


FURTHER = {"": False, ", and all that is further": True}


@kind(_taken, same=("size", _true), of=READ, axis=AXES, size=SIZES, further=FURTHER)
class stride(Model):
    """The {axis} of {of}{further} are looked for as if what they hold were {size}."""

    of, axis, further = "q", 3, False
    size: Size

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        names = [n for n in self.of.split(" and ") if n in x]
        size = {n: self.size(self.given, x[n].shape[self.axis]) for n in names}
        return x | {n: _read(x[n], self.axis, size[n], self.further) for n in names}


@kind(
    lambda case, how: _taken(case, how) and _true(case, how) > sizes(case)[how.of][3],
    same=("size", _true), of=READ[:-1], size=SIZES, end={"the last element": False, "0": True},
)  # fmt: skip
class stride_within_head(Model):
    """The rows of {of} are looked for as if what they hold were {size}, and past the end of the head {end} is read."""

    of, axis, end = "q", 3, False
    size: Size

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | ({self.of: self.taken(x[self.of])} if self.of in x else {})

    def taken(self, x: Array) -> Array:
        rows, n = x.shape[2:]
        at = np.arange(rows)[:, None] * self.size(self.given, n) + np.arange(n)
        head = x.reshape(*x.shape[:2], -1)
        return np.where((at >= rows * n) & self.end, 0, head[..., np.minimum(at, rows * n - 1)])


@kind(lambda case, how: case.mask is not None and _taken(case, how), axis=AXES, size=SIZES)
class mask_stride(Model):
    """The {axis} of a mask are looked for as if what they hold were {size}."""

    of, axis = "mask", 3
    size: Size

    def visible(self) -> Array:
        case = self.case
        seen = np.asarray(case.visibility.tile())
        real = np.asarray(replace(case.visibility, mask=None).tile())
        return _read(seen, self.axis, self.size(case, seen.shape[self.axis])) & real


@kind(_taken, "out lse dq dk dv", same=("size", _true), of=WRITTEN, axis=AXES, size=SIZES, further=FURTHER)
class written_stride(Model):
    """The {axis} of {of}{further} are written as if what they hold were {size}, and what is not written stays NaN."""

    of, axis, further = "out", 3, False
    size: Size

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        if self.of not in y:
            return y
        x = y[self.of].reshape(sizes(self.given)[self.of])
        at = _index(x.shape, self.axis, self.size(self.given, x.shape[self.axis]), self.further)
        found = np.full(x.size, np.nan)
        within = (at >= 0) & (at < x.size)
        found[at[within]] = x[within]
        return y | {self.of: found.reshape(y[self.of].shape)}
