"""Hypotheses on the lengths of sequences: which, and off by how many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model
from .alignment import SIZES, Asked

__all__: list[str] = []

def _lens(change: Callable[[Any, int, int], Any], case: Case, which: str) -> Case:
    lens = getattr(case, which)
    if lens is None:
        return case
    most = case.Lq if which == "q_lens" else case.Lk
    found = tuple(min(max(int(n), 0), most) for n in change(lens, case.B, most))
    return dataclasses.replace(case, q_lens=found) if which == "q_lens" else dataclasses.replace(case, k_lens=found)


@kind(
    lambda case, how: getattr(case, how.which) is not None,
    which=("k_lens", "q_lens"),
    how={
        "one too many: compared with <=": lambda lens, B, most: [n + 1 for n in lens],
        "one too few": lambda lens, B, most: [n - 1 for n in lens],
        "those of the first entry for all": lambda lens, B, most: lens[:1] * B,
        "those of the next entry": lambda lens, B, most: lens[1:] + lens[:1],
        "those of the entry before": lambda lens, B, most: lens[-1:] + lens[:-1],
        "the largest for all": lambda lens, B, most: [max(lens)] * B,
        "the smallest for all": lambda lens, B, most: [min(lens)] * B,
        "not applied": lambda lens, B, most: [most] * B,
        **{f"rounded up to {n}": (lambda lens, B, most, n=n: [-(-x // n) * n for x in lens]) for n in (4, 8, *SIZES)},
        **{f"rounded down to {n}": (lambda lens, B, most, n=n: [x // n * n for x in lens]) for n in (4, 8, *SIZES)},
    },
)  # fmt: skip
class lengths(Model):
    """The lengths {which}: {how}."""

    which = "k_lens"
    how: Callable[[Any, int, int], Any]

    def read(self, case: Case) -> Case:
        return _lens(type(self).how, case, self.which)


@kind(
    lambda case, how: getattr(case, how.which) is not None and case.mask is not None,
    which=("k_lens",),
    how={
        "one too many: compared with <=": lambda lens, B, most: [n + 1 for n in lens],
        "one too few": lambda lens, B, most: [n - 1 for n in lens],
        "not applied": lambda lens, B, most: [most] * B,
        **{f"rounded up to {n}": (lambda lens, B, most, n=n: [-(-x // n) * n for x in lens]) for n in (4, 8, *SIZES)},
    },
)  # fmt: skip
class end_of_keys(Model):
    """Where the keys end, the diagonal staying where it is: {how} ({which})."""

    which = "k_lens"
    how: Callable[[Any, int, int], Any]

    def visible(self) -> Array:
        case = self.case
        wide = np.asarray(_lens(lambda lens, B, most: [most] * B, case, self.which).visibility.tile())
        true = np.array(case.lengths[1])[:, None, None, None]
        j = np.arange(case.Lk)
        lens = np.array(_lens(type(self).how, case, self.which).lengths[1])[:, None, None, None]
        mask = case.mask
        if mask is not None:
            held = Asked(mask, lambda m, b, h, i, j, lq, lk: m(b, h, i, j, lq, np.broadcast_to(true, lk.shape)))
            open_ = dataclasses.replace(case.visibility, mask=held, k_lens=None)
            wide = np.asarray(open_.tile())
        return wide & (j < lens)
