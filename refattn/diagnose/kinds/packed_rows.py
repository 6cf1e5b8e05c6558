"""Hypotheses on rows of a group's heads packed into one tile: where a row's head and query are taken from its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...masks import (
    BlockSparse,
    Causal,
    Chunked,
    Dense,
    Documents,
    Gathered,
    Mask,
    Prefix,
    SinkTokens,
    Tree,
    Window,
)
from ...mutants import rewritten
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import ALIGNED, Asked

__all__ = ["PLACES", "Place"]

Place = Callable[[Array, Array, int, Array, int], tuple[Array, Array]]
"""(place in the group, query, size of the group, own number of queries, Lq) -> the two that are taken for them"""


def _over(n: Array) -> Array:
    return np.maximum(n, 1)


PLACES: dict[str, Place] = {
    "the packed row, head by head, for the query": lambda g, i, G, n, Lq: (g, g * n + i),
    "the packed row, head by head in padded lengths, for the query": lambda g, i, G, n, Lq: (g, g * Lq + i),
    "the packed row, query by query, for the query": lambda g, i, G, n, Lq: (g, i * G + g),
    "head and query of a row packed head by head, as if query by query":
        lambda g, i, G, n, Lq: ((g * n + i) % G, (g * n + i) // G),
    "head and query of a row packed query by query, as if head by head":
        lambda g, i, G, n, Lq: ((i * G + g) // _over(n), (i * G + g) % _over(n)),
    "head and query of a row packed by its own length, as if by the padded one":
        lambda g, i, G, n, Lq: ((g * n + i) // Lq, (g * n + i) % Lq),
    "the query of a row packed query by query, divided by one more": lambda g, i, G, n, Lq: (g, (i * G + g) // (G + 1)),
    "the query divided by the size of its group, though rows are not packed": lambda g, i, G, n, Lq: (g, i // G),
    "the query of the first of its group's rows, rounded up": lambda g, i, G, n, Lq: (g, -(-(i * G + g) // G)),
}  # fmt: skip
COMPUTED = (*ALIGNED, SinkTokens)
DRAWN = (BlockSparse, Dense, Documents, Gathered, Tree)
MASKS: dict[str, Any] = {
    "All masks": Mask, "Causal": Causal, "Causal, Window, Prefix and Chunked": (Causal, Window, Prefix, Chunked),
    "masks": COMPUTED, "Window": Window,
}  # fmt: skip


def _masked(case: Case, how: Any) -> bool:
    if how.of is Mask:
        return case.group > 1 and case.mask is not None
    kinds = how.of if isinstance(how.of, tuple) else (how.of,)
    return case.group > 1 and any(f"{k.__name__}(" in repr(case.mask) for k in kinds)


@kind(_masked, of=MASKS, place=PLACES)
class mask_of_packed_row(Model):
    """{of}, as they are computed, take {place}."""

    of: Any = Causal
    place: Place

    def visible(self) -> Array:
        G, Lq = self.case.group, self.case.Lq

        def told(m: Mask, b: Array, h: Array, i: Array, j: Array, lq: Array, lk: Array) -> Array:
            g, row = type(self).place(h % G, i, G, lq, Lq)
            return m(b, h // G * G + g, np.minimum(row, Lq - 1) if isinstance(m, DRAWN) else row, j, lq, lk)

        def own(m: Any) -> Mask:
            return Asked(m, told) if isinstance(m, self.of) else m

        mask = rewritten(self.case.mask, own)
        return np.asarray(dataclasses.replace(self.case.visibility, mask=mask).tile())


READ: dict[str, tuple[str, ...]] = {
    "q": ("q",), "q and dout": ("q", "dout"), "dout": ("dout",), "the bias": ("bias",),
    "what dropout keeps": ("keep",),
}  # fmt: skip


def _read(case: Case, how: Any) -> bool:
    there = {"bias": case.bias is not None and case.bias_shape[2] > 1, "keep": case.dropout is not None,
             "dout": case.backward}  # fmt: skip
    return case.group > 1 and all(there.get(n, True) for n in how.of)


class Packed(Model):
    """(B, H, Lq): the flat index of the row that is taken, of an array of so many entries, heads and rows."""

    place: Place

    def at(self, shape: tuple[int, ...]) -> Array:
        case, G = self.given, self.given.group
        b, h, i = np.ogrid[: case.B, : case.H, : case.Lq]
        g, row = type(self).place(h % G, i, G, np.array(case.lengths[0])[:, None, None], case.Lq)
        head = h // G * G + g
        found = (np.minimum(b, shape[0] - 1) * shape[1] + np.minimum(head, shape[1] - 1)) * shape[2] + row
        return np.broadcast_to(np.clip(found, 0, int(np.prod(shape[:3])) - 1), (case.B, case.H, case.Lq))


@kind(_read, of=READ, place=PLACES)
class read_at_packed_row(Packed):
    """To read {of} it takes {place}."""

    of: tuple[str, ...] = ("q",)

    def arrays(self) -> dict[str, Array]:
        x = super().arrays()
        found = {n: x[n].reshape(-1, x[n].shape[3])[self.at(x[n].shape)] for n in self.of if n in x}
        return x | found


@kind(
    lambda case, how: case.group > 1, "out lse dq", place=PLACES,
    of={"the output": ("out",), "lse": ("lse",), "output and lse": ("out", "lse"), "dq": ("dq",)},
)  # fmt: skip
class written_at_packed_row(Packed):
    """To write {of} it takes {place}, and what is not written stays NaN."""

    of: tuple[str, ...] = ("out",)

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: self.moved(y[n]) for n in self.of if n in y}

    def moved(self, x: Array) -> Array:
        there = np.broadcast_to((np.arange(self.given.Lq) < np.array(self.given.lengths[0])[:, None])[:, None],
                                x.shape[:3])  # fmt: skip
        at, rows = self.at(x.shape)[there], x.reshape(-1, *x.shape[3:])
        found = np.full_like(rows, np.nan)
        found[at] = x[there]
        return found.reshape(x.shape)


@kind(lambda case, how: case.group > 1 and case.score_mod is not None, place=PLACES)
class modifier_of_packed_row(Model):
    """The modifier of scores takes {place}."""

    place: Place

    def places(self) -> tuple[Array, ...]:
        b, h, i, j = super().places()
        G = self.given.group
        g, row = type(self).place(h % G, i, G, np.array(self.given.lengths[0])[:, None, None, None], self.given.Lq)
        return b, h // G * G + g, row, j
