"""Hypotheses on the positions at which keys that are appended to a cache are rotated."""

from __future__ import annotations

from ...case import Cache, Case
from ...streaming.prepare import prepare
from ..hypothesis import kind
from ..model import PLAIN, Array
from .rotation import PLACES, rotary_position

__all__: list[str] = []


def _appended(case: Case) -> bool:
    return case.rotary is not None and isinstance(case.storage, Cache)


@kind(_appended, of={"its new keys": "k", "queries": "q", "queries and its new keys": "qk"}, how=PLACES)
class position_with_cache(rotary_position):
    """With a cache the position by which {of} are rotated is {how}."""


@kind(lambda case: case.rotary is not None and case.Lk > 0, how=PLACES)
class position_of_all_that_is_new(rotary_position):
    """The position by which queries are rotated, and the new keys of a cache, is {how}."""

    def wrong(self, x: dict[str, Array]) -> dict[str, Array]:
        found = super().wrong(x)
        cached = isinstance(self.given.storage, Cache)
        return found if cached else found | {"k": prepare(self.given, x, PLAIN)["k"]}
