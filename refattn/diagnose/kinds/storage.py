"""Hypotheses on pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...case import Case, Paged
from ...memory import take
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

def _paged(case: Case) -> bool:
    return isinstance(case.storage, Paged)


Page = Callable[[Array, Array, int], tuple[Array, Array]]
"""(table, token, page size) -> (page, slot) of each entry and token"""


def _in(table: Array, at: Array) -> Array:
    """Entries of each row of a table; what is not there is the last, -1 page 0."""
    return np.maximum(table[:, np.clip(at, 0, table.shape[1] - 1)], 0)


def _flat(table: Array, j: Array, size: int) -> tuple[Array, Array]:
    at = np.arange(len(table))[:, None] * table.shape[1] + j // size
    return at, j % size + 0 * at


def _run(table: Array, j: Array, size: int, tile: int) -> tuple[Array, Array]:
    first = j // tile * tile
    at = _in(table, first // size) * size + first % size + j % tile
    return at // size, at % size


def _by_width(table: Array, j: Array, size: int, width: Callable[[Array, Array, int], int]) -> tuple[Array, Array]:
    """A table whose rows are looked for by another number of columns."""
    at = np.arange(len(table))[:, None] * width(table, j, size) + j // size
    return np.maximum(table.ravel()[np.minimum(at, table.size - 1)], 0), j % size + 0 * at


PAGES: dict[str, Page] = {
    "in their order in memory, without the table": lambda t, j, n: (np.repeat((j // n)[None], len(t), 0), j % n),
    "in their order in memory, entry after entry, without the table": _flat,
    "by the table of the first entry": lambda t, j, n: (_in(np.repeat(t[:1], len(t), 0), j // n), j % n),
    "by the table of the next entry": lambda t, j, n: (_in(np.roll(t, -1, 0), j // n), j % n),
    "by the next column of the table": lambda t, j, n: (_in(t, j // n + 1), j % n),
    "by the column of the table before": lambda t, j, n: (_in(t, np.maximum(j // n - 1, 0)), j % n),
    "by the first column of the table": lambda t, j, n: (_in(t, 0 * j), j % n),
    "one slot too far": lambda t, j, n: (_in(t, (j + 1) // n), (j + 1) % n),
    "with one slot too far within the page": lambda t, j, n: (_in(t, j // n), (j + 1) % n),
    "with one slot too early": lambda t, j, n: (_in(t, np.maximum(j - 1, 0) // n), np.maximum(j - 1, 0) % n),
    "with the slots in reverse": lambda t, j, n: (_in(t, j // n), n - 1 - j % n),
    "with the first slot of each page for all": lambda t, j, n: (_in(t, j // n), 0 * j),
    "one page too far": lambda t, j, n: (_in(t, j // n) + 1, j % n),
    "by the table transposed": lambda t, j, n: (
        _in(np.ascontiguousarray(t.T).reshape(t.shape), j // n), j % n),
} | {
    f"as if they held {m} tokens": (lambda t, j, n, m=m: (_in(t, j // m), j % m % n)) for m in (8, 16, 32, 64, 128)
} | {
    f"one after the other in memory from the first key of each tile of {m}": partial(_run, tile=m)
    for m in (8, 16, 32, 64, 128)
} | {
    f"as if they held {m} tokens one after the other": (
        lambda t, j, n, m=m: ((_in(t, j // m) * m + j % m) // n, (_in(t, j // m) * m + j % m) % n))
    for m in (8, 16, 32, 64, 128)
} | {
    f"from that of the first key of each tile of {m}": (lambda t, j, n, m=m: (_in(t, j // m * m // n), j % n))
    for m in (8, 16, 32, 64, 128)
} | {
    f"as if {m} tokens of each were in use, from its first slot on": (
        lambda t, j, n, m=m: ((_in(t, j // m) * n + j % m) // n, (_in(t, j // m) * n + j % m) % n))
    for m in (8, 16, 32, 64, 128)
} | {
    f"with {words} counted from the first key of each tile of {m}": (lambda t, j, n, m=m, both=both: (
        _in(t, (j % m if both else j) // n), (j % m if both < 2 else j) % n))
    for m in (8, 16, 32, 64, 128) for both, words in enumerate(("slots", "columns of the table and slots",
                                                                "columns of the table"))
} | {
    f"by a table whose rows have {words}": partial(_by_width, width=how)
    for words, how in {
        "one column fewer": lambda t, j, n: t.shape[1] - 1, "one column more": lambda t, j, n: t.shape[1] + 1,
        "as many columns as there are entries": lambda t, j, n: len(t),
        "as many columns as the longest entry has whole pages": lambda t, j, n: len(j) // n,
        "as many columns as the longest entry has keys": lambda t, j, n: len(j),
        "as many columns as a page has slots": lambda t, j, n: n,
    }.items()
}  # fmt: skip


@kind(_paged, of={"": "kv", " of keys": "k", " of values": "v"}, how=PAGES)
class pages(Model):
    """Pages{of} are read {how}."""

    of: Any = "kv"
    how: Page

    def arrays(self) -> dict[str, Array]:
        handed, case = self.inputs.handed(), self.given
        if not isinstance(case.storage, Paged) or not len(handed["k"]) or not handed["block_table"].size:
            return super().arrays()
        j = np.arange(case.Lk)
        page, slot = self.how(handed["block_table"].astype(np.int64), j, case.storage.page_size)
        page = self.within(page, len(handed["k"]))
        there = np.arange(case.Lk) < np.array(case.lengths[1])[:, None]
        x = take(case, handed)
        for n in self.of:
            read = handed[n][page, slot].swapaxes(1, 2)
            x[n] = np.where(there[:, None, :, None], read, np.zeros((), read.dtype))
        return self.made(x)

    def within(self, page: Array, n: int) -> Array:
        """Pages that there are."""
        return np.clip(page, 0, n - 1)


USED: dict[str, Callable[[Array], Array]] = {
    "as each uses, one after the other": lambda used: used.cumsum() - used,
    "as its own entry uses": lambda used: np.arange(len(used)) * used,
}


@kind(lambda case: _paged(case) and min(case.lengths[1]) < case.Lk, rows=USED,
      least={"": -1, ", and what is in no use is page 0": 0})  # fmt: skip
class table_rows_in_use(pages):
    """Rows of the page table are looked for as if they had as many columns {rows}{least}."""

    rows: Callable[[Array], Array]
    least = -1

    def how(self, table: Array, j: Array, size: int) -> tuple[Array, Array]:
        at = type(self).rows(-(-np.array(self.given.lengths[1]) // size))[:, None] + j // size
        return np.maximum(np.take(table.ravel(), at, mode="wrap"), self.least), j % size + 0 * at

    def within(self, page: Array, n: int) -> Array:
        return page % n


FURTHER = {words: how for words, how in PAGES.items() if "one after the other" in words or "too far" in words}


@kind(_paged, of={"": "kv", " of keys": "k", " of values": "v"}, how=FURTHER)
class pages_around(pages):
    """Pages{of} are read {how}, and past the last page of all from the first on."""

    def within(self, page: Array, n: int) -> Array:
        return page % n


INSIDE: dict[str, Callable[[Array], Array]] = {
    "slot and head exchanged: as (page, head, slot, size)": lambda x: x.reshape(
        x.shape[0], x.shape[2], x.shape[1], x.shape[3]).swapaxes(1, 2),
    "page and head exchanged: as (head, page, slot, size)": lambda x: x.reshape(
        x.shape[2], x.shape[0], x.shape[1], x.shape[3]).transpose(1, 2, 0, 3),
    "page and slot exchanged: as (slot, page, head, size)": lambda x: x.reshape(
        x.shape[1], x.shape[0], *x.shape[2:]).swapaxes(0, 1),
    "slot and size exchanged: as (page, size, head, slot)": lambda x: x.reshape(
        x.shape[0], x.shape[3], x.shape[2], x.shape[1]).swapaxes(1, 3),
}  # fmt: skip


@kind(_paged, of={"keys and values": "kv", "keys": "k", "values": "v"}, how=INSIDE)
class inside_pages(Model):
    """Pages of {of} are read with {how}."""

    of: Any = "kv"
    how: Callable[[Array], Array]

    def arrays(self) -> dict[str, Array]:
        handed = self.inputs.handed()
        return self.from_memory(handed | {n: np.ascontiguousarray(self.how(handed[n])) for n in self.of})


@kind(lambda case: _paged(case), how={"whole pages, rounded up": 1, "whole pages, rounded down": 0})
class paged_length(Model):
    """The length of the keys is counted in {how}."""

    how = 1

    def read(self, case: Case) -> Case:
        size = case.storage.page_size if isinstance(case.storage, Paged) else 1
        lens = tuple(min(-(-n // size) * size if self.how else n // size * size, case.Lk) for n in case.lengths[1])
        return dataclasses.replace(case, k_lens=lens)

    def arrays(self) -> dict[str, Array]:
        case, handed = self.given, self.inputs.handed()
        if not isinstance(case.storage, Paged) or not self.how or case.quant is not None:
            return super().arrays()
        x = super().arrays()
        table, j = handed["block_table"].astype(np.int64), np.arange(case.Lk)
        if table.size:
            for n in "kv":
                x[n] = np.asarray(handed[n][_in(table, j // case.storage.page_size), j % case.storage.page_size],
                                  np.float64).swapaxes(1, 2)  # fmt: skip
        return x
