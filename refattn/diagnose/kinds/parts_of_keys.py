"""Hypotheses on some keys alone: the first, the last, those of a tile that is not whole, or that a mask cuts.

What is wrong there is a model; elsewhere all is right.  Logits, values and what is kept are those of the one or of
the other, key by key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Cache, Case
from ..hypothesis import always, kind
from ..model import Array, Model
from ..of_keys import WRONG
from .bounds import ROWS, SAME, Bounds, hides

__all__: list[str] = []

SIZES = (8, 16, 32, 64, 128)
Where = Callable[[Case, Array], Array]
"""(case, numbers of keys (B, 1)) -> which of the keys (B, Lk) it is about"""


def _j(case: Case) -> Array:
    return np.arange(case.Lk)


def _past(case: Case, n: Array) -> Array:
    return n - case.Lq if isinstance(case.storage, Cache) else n


WHERE: dict[str, Where] = {
    "the first key": lambda c, n: (_j(c) == 0) & (n > 0),
    "the last key": lambda c, n: _j(c) == n - 1,
    "all keys but the first": lambda c, n: (_j(c) > 0) & (n > 0),
    "every other key": lambda c, n: (_j(c) % 2 == 1) & (n > 0),
    "the second half of the keys": lambda c, n: _j(c) >= n // 2,
    "the first half of the keys": lambda c, n: _j(c) < n // 2,
    "the keys of the cache, not the new ones": lambda c, n: _j(c) < _past(c, n) if isinstance(c.storage, Cache)
    else _j(c) < 0 * n,
    "the new keys, not those of the cache": lambda c, n: _j(c) >= _past(c, n),
    "keys past the length of the first entry": lambda c, n: _j(c) >= n[:1] + 0 * n,
    "keys past the length of the shortest entry": lambda c, n: _j(c) >= n.min(initial=c.Lk) + 0 * n,
    "keys past the number of queries": lambda c, n: _j(c) >= np.array(c.lengths[0])[:, None],
} | {
    f"the first {m} keys": (lambda c, n, m=m: (_j(c) < m) & (n > m)) for m in SIZES
} | {
    f"keys past the first {m}": (lambda c, n, m=m: (_j(c) >= m) & (n > 0)) for m in SIZES
} | {
    f"keys past the last whole tile of {m}": (lambda c, n, m=m: _j(c) >= n // m * m) for m in SIZES
} | {
    f"keys past the last whole tile of {m}, where there is one": (
        lambda c, n, m=m: (_j(c) >= n // m * m) & (n >= m)) for m in SIZES
} | {
    f"the last tile of {m} keys": (lambda c, n, m=m: (_j(c) >= (n - 1) // m * m) & (n > m)) for m in SIZES
} | {
    f"all but the last tile of {m} keys": (lambda c, n, m=m: (_j(c) < (n - 1) // m * m) & (n > m)) for m in SIZES
} | {
    f"the second tile of {m} keys": (lambda c, n, m=m: (_j(c) // m == 1) & (n > m)) for m in SIZES
} | {
    f"the last whole tile of {m} keys": (lambda c, n, m=m: (_j(c) // m == n // m - 1) & (n > m)) for m in SIZES
} | {
    f"every other tile of {m} keys": (lambda c, n, m=m: (_j(c) // m % 2 == 1) & (n > m)) for m in SIZES
} | {
    f"the first key of each tile of {m}": (lambda c, n, m=m: (_j(c) % m == 0) & (n > m)) for m in SIZES
} | {
    f"the first key of each tile of {m} but the first": (lambda c, n, m=m: (_j(c) % m == 0) & (_j(c) > 0) & (n > m))
    for m in SIZES
} | {
    f"the last key of each tile of {m}": (lambda c, n, m=m: (_j(c) % m == m - 1) & (n > m)) for m in SIZES
}  # fmt: skip


class Mixed(Bounds):
    """A wrong model for some pairs of query and key, the right one for all others."""

    what: tuple[type[Model], Callable[[Case], bool]] = (Model, always)

    def inside(self) -> Array:
        """Which pairs, to broadcast; of an axis of one query where it is the same for all."""
        raise NotImplementedError

    def to_logits(self) -> None:
        right = Model(self.inputs, self.contract)
        right.to_logits()
        wrong = self.wrong()
        vars(self).update({n: getattr(right, n) for n in ("case", "q", "before", "capped")}, x=dict(right.x))
        at = self.inside()
        vars(self).update({n: np.where(at, getattr(wrong, n), getattr(right, n)) for n in ("seen", "qk", "s", "t")})
        self.keep = None if right.keep is None or wrong.keep is None else np.where(at, wrong.keep, right.keep)
        self.k, self.v = right.k, right.v
        if at.shape[2] == 1:
            keys = np.broadcast_to(at, (*at.shape[:3], self.given.Lk)).swapaxes(2, 3)
            self.k, self.v = np.where(keys, wrong.k, right.k), np.where(keys, wrong.v, right.v)

    def wrong(self) -> Model:
        key = (self.dtype, "wrong", self.what[0])
        if key not in self.inputs.made:
            found = self.inputs.made[key] = self.what[0](self.inputs, self.contract)
            found.to_logits()
        made: Model = self.inputs.made[key]
        return made


def _keys(case: Case, how: Any) -> Array:
    return np.asarray(how.where(case, np.array(case.lengths[1])[:, None]))


def _some(case: Case, how: Any) -> bool:
    return how.what[1](case) and bool(_keys(case, how).any())


@kind(_some, same=("where", lambda case, how: _keys(case, how).tobytes()), what=WRONG, where=WHERE)
class some_keys(Mixed):
    """Of an entry, {where}: {what}."""

    where: Where

    def inside(self) -> Array:
        return _keys(self.given, type(self))[:, None, None]


@kind(
    lambda case, how: hides(case) and case.Lk > how.keys and how.what[1](case),
    what={words: WRONG[words] for words in (
        "they are left out", "the mask is not applied", "the bias is not applied", "softcap is not applied",
        "the scale is not applied", "the scale is applied twice", "log2(e) is not applied", "they count twice",
        "dropout is not applied",
    )},
    how={"cuts": True, "does not cut": False}, rows={words: ROWS[words] for words in ("1", "16", "64", "64 packed")},
    keys=(16, 32, 64, 128), same=SAME,
)  # fmt: skip
class some_tiles(Mixed):
    """In tiles of {rows} rows and {keys} keys that the mask {how}: {what}."""

    how = True

    def inside(self) -> Array:
        seen = np.asarray(self.given.visibility.tile())
        at = np.zeros_like(seen)
        for j in range(0, seen.shape[3], self.keys):
            tile = seen[..., j : j + self.keys]
            some = self.of_tile(tile.any(-1), lambda x: x.any(-1))
            whole = self.of_tile(tile.all(-1), lambda x: x.all(-1))
            at[..., j : j + self.keys] = (some & (whole != self.how))[..., None]
        return at


@kind(_some, same=("where", lambda case, how: _keys(case, how).tobytes()), where=WHERE,
      what={"left out of the sum": (Model, always)})  # fmt: skip
class some_keys_of_sum(Model):
    """Of an entry, {where}: they are {what}, and count in the output."""

    where: Where
    what = (Model, always)

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        m, _, o = super().attend(t)
        left = np.where(_keys(self.given, type(self))[:, None, None], -np.inf, t)
        return m, np.exp(left - np.where(np.isneginf(m), 0, m)[..., None]).sum(-1), o
