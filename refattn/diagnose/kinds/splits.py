"""Hypotheses on splits of the keys: what is lost or counted twice between them, and what goes by a place in one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...case import Case
from ...masks import SinkTokens
from ..hypothesis import kind
from ..model import Array, Model, safe
from .alignment import Asked
from .cuts import BY_INDEX, CUTS, SAME, Cut, chunks, ends

__all__: list[str] = []


class Local(Model):
    """What goes by a key's place within its split, and not by its index."""

    cut: Cut

    def ends(self) -> tuple[tuple[int, ...], ...]:
        """Of each entry."""
        return ends(self.given, self.cut)

    def place(self) -> Array:
        """(B, 1, 1, Lk)"""
        rows = [[np.arange(b - a) for a, b in zip(of, of[1:], strict=False)] for of in self.ends()]
        return np.stack([np.concatenate(row) for row in rows])[:, None, None]


@kind(chunks, same=SAME, cut=BY_INDEX, what={"left out": 0.0, "counted twice": 2.0}, end={"first": 0, "last": -1})
class key_between_splits(Local):
    """The {end} key of each split of {cut}, but at the ends, is {what}."""

    what, end = 0.0, 0

    def attend(self, t: Array) -> tuple[Array, Array, Array]:
        times = np.ones((t.shape[0], t.shape[3]), t.dtype)
        for own, of in zip(times, self.ends(), strict=True):
            own[[at + self.end for at in of[1:-1]]] = self.what
        m = t.max(-1, initial=-np.inf)
        p = np.exp(t - safe(m)[..., None]) * times[:, None, None]
        return m, p.sum(-1), self.weighed(p)


@kind(lambda case, how: case.mask is not None and chunks(case, how), same=SAME, cut=BY_INDEX)
class mask_by_place_in_split(Local):
    """The mask is told a key's place within its split of {cut}, not its index."""

    def visible(self) -> Array:
        place, case = self.place(), self.case
        open_ = np.asarray(replace(case.visibility, mask=None).tile())
        mask = Asked(case.mask or SinkTokens(0), lambda m, b, h, i, j, lq, lk: m(b, h, i, place[b, 0, 0, j], lq, lk))
        return np.asarray(replace(case.visibility, mask=mask).tile()) & open_


def _has(case: Case, how: Any) -> bool:
    there = {"bias": case.bias is not None and case.bias_shape[3] > 1, "keep": case.dropout is not None}
    return chunks(case, how) and all(there.get(n, True) for n in how.of)


@kind(_has, same=SAME, cut=BY_INDEX, of={
    "The bias is": ("bias",), "What dropout keeps is": ("keep",), "Keys and values are": ("k", "v"),
    "Keys are": ("k",), "Values are": ("v",),
})  # fmt: skip
class by_place_in_split(Local):
    """{of} looked up by a key's place within its split of {cut}, not by its index."""

    of: tuple[str, ...] = ("bias",)

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        for n in self.of:
            if n in "kv":
                x[n] = np.take_along_axis(x[n], self.place().swapaxes(2, 3), 2)
            else:
                wide = np.broadcast_to(x[n], (self.given.B, *x[n].shape[1:]))
                x[n] = np.take_along_axis(wide, self.place(), 3)
        return x


@kind(lambda case, how: case.k_lens is not None and chunks(case, how), same=SAME, cut=BY_INDEX)
class length_by_place_in_split(Local):
    """The length of the keys is compared with a key's place within its split of {cut}."""

    def visible(self) -> Array:
        case = self.case
        wide = replace(case, k_lens=None)
        there = self.place() < np.array(case.lengths[1])[:, None, None, None]
        return np.asarray(wide.visibility.tile()) & there


EVEN = {words: cut for words, cut in CUTS.items() if words.startswith("Lk / ") and words.endswith(
    ("rounded up", "at least 8", "at least 16", "at least 64", "the rest with the last"))}  # fmt: skip


@kind(
    chunks, same=SAME, cut=EVEN, tile=(8, 16, 32, 64),
    end={"begins at a tile": True, "ends with a tile": False},
)  # fmt: skip
class split_of_whole_tiles(Local):
    """Each split of {cut} {end} of {tile}, and keys of that tile count in both splits that share it."""

    tile, end = 16, True

    def hide(self, t: Array) -> Array:
        times = np.zeros((len(self.ends()), t.shape[-1]))
        for own, of in zip(times, self.ends(), strict=True):
            for a, b in zip(of, of[1:], strict=False):
                first, last = (a // self.tile * self.tile, b) if self.end else (a, -(-b // self.tile) * self.tile)
                own[first:last] += 1
        return super().hide(t + np.log(np.maximum(times, 1))[:, None, None])


@kind(lambda case, how: case.sinks is not None and chunks(case, how), same=SAME, cut=CUTS)
class sink_per_split(Local):
    """The sink joins the denominator once in each split, or tile, of {cut}."""

    def sink(self, sinks: Array) -> Array | None:
        splits = np.array([len(parts) - 1 for parts in self.ends()])
        return (sinks + np.log(splits)[:, None])[..., None]
