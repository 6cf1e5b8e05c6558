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
    found={"and read from it as they are then": True, "though attention sees the right ones": False},
)  # fmt: skip
class cache_slots(Model):
    """The new {of} are written into the cache {how}, {found}."""

    of: Any = "kv"
    how: Callable[[Array, int, int], Array]
    found = True

    def caches(self) -> dict[str, Array]:
        """(B, slots, Hkv, size) each."""
        case, handed = self.given, self.inputs.handed()
        room = handed["k_cache"].shape[1] - case.Lq
        at, made = type(self).how(handed["cache_lens"].astype(int), case.Lq, room), {}
        for n in self.of:
            cache = handed[f"{n}_cache"].astype(np.float64)
            for b, first in enumerate(at):
                for i in (i for i in range(case.Lq) if 0 <= first + i < cache.shape[1]):
                    cache[b, first + i] = handed[n][b, :, i]
            made[n] = cache
        return made

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        return x | {n: c[:, : self.given.Lk].swapaxes(1, 2) for n, c in self.caches().items() if self.found}

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {f"{n}_cache": take_answer(self.given, f"{n}_cache", c) for n, c in self.caches().items()}
