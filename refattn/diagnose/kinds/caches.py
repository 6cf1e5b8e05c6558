"""Hypotheses on caches: where the new keys and values are written, and which are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Cache, Case
from ...memory import take_answer
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []


def _cached(case: Case) -> bool:
    return isinstance(case.storage, Cache)


SLOTS: dict[str, Callable[[Array, int, int], Array]] = {
    "one slot too late, where that fits": lambda past, n, room: np.minimum(past + 1, room),
    "one slot too late": lambda past, n, room: past + 1,
    "one slot too early": lambda past, n, room: past - 1,
    "at the start of the cache": lambda past, n, room: 0 * past,
    "where those of the first entry go": lambda past, n, room: 0 * past + past[:1],
    "where those of the longest entry go": lambda past, n, room: 0 * past + past.max(initial=0),
    "so many slots too late as they are": lambda past, n, room: past + n,
    "so many slots too early as they are": lambda past, n, room: past - n,
    "nowhere": lambda past, n, room: past + 2**20,
}


@kind(
    _cached, "out lse k_cache v_cache", of={"keys and values": "kv", "keys": "k", "values": "v"}, how=SLOTS,
    found={"and read from it as they are then": True, "though attention sees the right ones": False,
           "and where they should be is 0": None},
)  # fmt: skip
class cache_slots(Model):
    """The new {of} are written into the cache {how}, {found}."""

    of: Any = "kv"
    how: Any = None
    found: bool | None = True

    def new(self, name: str) -> Array:
        """(B, Lq, Hkv, size), keys as they are rotated."""
        x, lk = self.inputs.arrays[name], self.given.lengths[1]
        return np.stack([x[b, :, n - self.given.Lq : n].swapaxes(0, 1) for b, n in enumerate(lk)])

    def slots(self, past: Array, room: int) -> Array:
        """Where the new ones of each entry begin."""
        return type(self).how(past, self.given.Lq, room)

    def caches(self) -> dict[str, Array]:
        """(B, slots, Hkv, size) each."""
        case, handed = self.given, self.inputs.handed()
        at = self.slots(handed["cache_lens"].astype(int), handed["k_cache"].shape[1] - case.Lq)
        made = {}
        for n in self.of:
            made[n], new = handed[f"{n}_cache"].astype(np.float64), self.new(n)
            for b, past in enumerate(handed["cache_lens"].tolist() if self.found is None else ()):
                made[n][b, past : past + case.Lq] = 0
            for b, i in np.ndindex(case.B, case.Lq):
                if 0 <= at[b] + i < made[n].shape[1] and not np.isnan(new[b, i]).all():
                    made[n][b, at[b] + i] = new[b, i]
        return made

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        if self.found is False:
            return x
        return x | {n: c[:, : self.given.Lk].swapaxes(1, 2) for n, c in self.caches().items()}

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {f"{n}_cache": take_answer(self.given, f"{n}_cache", c) for n, c in self.caches().items()}


def _but(keep: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Of the new tokens some alone."""
    return lambda x: np.where(keep(np.arange(x.shape[1]))[None, :, None, None], x, np.nan)


NEW: dict[str, Callable[[Array], Array]] = {
    "in reverse": lambda x: x[:, ::-1],
    "with heads and tokens exchanged in memory":
        lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape),
    "the first one alone": _but(lambda i: i == 0),
    "the last one alone": _but(lambda i: i == i.max(initial=0)),
    "all but the last": _but(lambda i: i < i.max(initial=0)),
    "all but the first": _but(lambda i: i > 0),
    "the first one for all": lambda x: np.repeat(x[:, :1], x.shape[1], 1),
    "the last one for all": lambda x: np.repeat(x[:, -1:], x.shape[1], 1),
    "those of the first entry for all": lambda x: np.repeat(x[:1], len(x), 0),
    "those of the next entry": lambda x: np.roll(x, -1, 0),
    "those of the first head for all": lambda x: np.repeat(x[:, :, :1], x.shape[2], 2),
    "those of the next head": lambda x: np.roll(x, -1, 2),
    "heads in reverse": lambda x: x[:, :, ::-1],
    "those of the first entry alone": lambda x: np.where(np.arange(len(x))[:, None, None, None] == 0, x, np.nan),
    "those of the first head alone": lambda x: np.where(np.arange(x.shape[2])[:, None] == 0, x, 0),
}


@kind(
    _cached, "out lse k_cache v_cache", of={"keys and values": "kv", "keys": "k", "values": "v"}, how=NEW,
    found={"and read from it as they are then": True, "though attention sees the right ones": False},
)  # fmt: skip
class cache_written(cache_slots):
    """Of the new {of} into the cache are written {how}, {found}."""

    def new(self, name: str) -> Array:
        return np.asarray(type(self).how(super().new(name)))

    def slots(self, past: Array, room: int) -> Array:
        return past


@kind(lambda case: _cached(case) and case.D == case.Dv, "out lse k_cache v_cache",
      what={"keys are written for values": {"v": "k"}, "values are written for keys": {"k": "v"},
            "keys and values are exchanged": {"v": "k", "k": "v"}})  # fmt: skip
class cache_exchanged(cache_written):
    """Of what is written into the cache {what}, and read from it as they are then."""

    what: dict[str, str] = {}
    found = True

    @property
    def of(self) -> Any:
        return "".join(self.what)

    def new(self, name: str) -> Array:
        return cache_slots.new(self, self.what[name])
