"""Problems made from a base problem: parts of it, in another order, with other arrays.

Every array that a law makes is exact in its dtype; where it cannot be, the law does not apply.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..case import Case
from ..inputs import Problem
from ..masks import Mask

__all__ = ["Inexact", "Mapped", "altered", "junk", "remade", "rng_of", "taken"]

Array = np.ndarray[Any, Any]


class Inexact(Exception):
    """An array of a law does not fit the dtype of the case."""


@dataclass(frozen=True)
class Mapped(Mask):
    """The mask of a larger problem, of size Lq x Lk: entry b is its entries[b], row i its rows[i], key j its keys[j].

    None stands for all, in order.  Only the laws make it; it has no JSON of its own.
    """

    mask: Mask
    entries: tuple[int, ...] | None
    rows: tuple[int, ...] | None
    keys: tuple[int, ...] | None
    Lq: int
    Lk: int

    def __call__(self, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
        b, i, j = (x if of is None else of[x] for x, of in zip((b, i, j), self._tables, strict=True))
        return self.mask(b, h, i, j, np.full_like(lq, self.Lq), np.full_like(lk, self.Lk))

    @cached_property
    def _tables(self) -> list[Array | None]:
        return [None if of is None else np.array(of, dtype=np.int64) for of in (self.entries, self.rows, self.keys)]

    def __repr__(self) -> str:
        return f"Mapped({self.mask!r})"


def rng_of(problem: Problem, law: str) -> np.random.Generator:
    """The random numbers of a law for a problem."""
    return np.random.Generator(np.random.Philox(key=(zlib.crc32(law.encode()) << 64) + problem.case.seed))


def taken(
    problem: Problem, suffix: str, *, entries: Any = None, rows: Any = None, keys: Any = None, **fields: Any
) -> Problem:
    """The problem of these batch entries, query rows and keys, in this order; each an index array or None."""
    case = problem.case
    index = {
        axis: None if of is None else np.asarray(of, dtype=np.int64)
        for axis, of in ((0, entries), (2, rows), (3, keys))
    }
    along = {
        **dict.fromkeys(("q", "dout", "dlse"), {0: 0, 2: 2}),
        **dict.fromkeys(("k", "v"), {0: 0, 3: 2}),
        "bias": {0: 0, 2: 2, 3: 3},
    }
    logical = {}
    for name, x in problem.logical.items():
        for of, axis in along.get(name, {}).items():
            chosen = index[of]
            if chosen is not None and not (name == "bias" and x.shape[axis] == 1):
                x = np.take(x, chosen, axis=axis)
        logical[name] = x
    mask = case.mask
    if mask is not None:
        of_b, of_i, of_j = (None if i is None else tuple(i.tolist()) for i in (index[0], index[2], index[3]))
        mask = Mapped(mask, of_b, of_i, of_j, case.Lq, case.Lk)
    sizes = {
        size: len(of)
        for size, of in (("B", index[0]), ("Lq", index[2]), ("Lk", index[3]))
        if of is not None
    }  # fmt: skip
    return remade(case, logical, suffix, {}, {"mask": mask, **sizes, **fields})


def altered(problem: Problem, suffix: str, arrays: Mapping[str, Array] | None = None, **fields: Any) -> Problem:
    """The problem with other arrays, in the dtypes of the old ones, and other fields of its case."""
    return remade(problem.case, problem.logical, suffix, arrays or {}, fields)


def remade(
    of: Case, old: Mapping[str, Array], suffix: str, arrays: Mapping[str, Array], fields: Mapping[str, Any]
) -> Problem:  # fmt: skip
    """The same of a case and arrays that need not fit each other yet."""
    case = replace(of, id=f"{of.id}.{suffix}", **fields)
    logical = dict(old)
    for name, x in arrays.items():
        with np.errstate(over="ignore", invalid="ignore"):
            logical[name] = np.asarray(x).astype(old[name].dtype)
        if not np.array_equal(logical[name].astype(np.float64), np.asarray(x, dtype=np.float64), equal_nan=True):
            raise Inexact(f"{name} of {case.id} is not exact in {logical[name].dtype}")
    if not case.backward:
        logical.pop("dout", None)
    if not (case.backward and "lse" in case.want):
        logical.pop("dlse", None)
    return Problem(case, logical)


def junk(rng: np.random.Generator, like: Array) -> Array:
    """Finite numbers far from those of the usual families, exact in every dtype; float64."""
    return rng.choice([-1.0, 1.0], like.shape) * rng.choice([4.0, 8.0, 16.0], like.shape)

