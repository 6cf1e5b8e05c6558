"""Hypotheses on what a backward reads of each row, lse or its parts, delta and dlse, from the place of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case, Packed
from ...layouts import cu_seqlens
from ..hypothesis import kind
from ..model import Array, safe
from .gradients import ALL
from .weights_again import FromForward

__all__: list[str] = []

Place = Callable[[Case, Array], Array]
"""(case, of each row (B, H, Lq)) -> what is read for each row"""
SIZES = (16, 32, 64, 128)
OF = {"lse": "s", "delta": "d", "lse and delta": "sd", "dlse": "g", "the row sum": "l", "the maximum": "m"}


def _padded(case: Case, x: Array, n: int) -> Array:
    """Written with rows of a head padded, and read as if they were not."""
    wide = np.pad(x, ((0, 0), (0, 0), (0, -case.Lq % n)))
    return wide.ravel()[: x.size].reshape(x.shape)


def _unpadded(case: Case, x: Array, n: int) -> Array:
    """Written without padding, and read as if rows of a head were padded."""
    at = np.arange(case.B * case.H)[:, None] * -(-case.Lq // n) * n + np.arange(case.Lq)
    return np.where(at < x.size, x.ravel()[np.minimum(at, x.size - 1)], 0).reshape(x.shape)


def _in_memory(case: Case, x: Array, back: bool) -> Array:
    """Written as (heads, tokens) and read as (batch, heads, padded rows), or the other way."""
    starts, total = cu_seqlens(case.lengths[0], getattr(case.storage, "gap", 0)), case.H * case.Lq * case.B
    b, h, i = np.ogrid[: case.B, : case.H, : case.Lq]
    packed, padded = h * int(starts[-1]) + starts[b] + i, (b * case.H + h) * case.Lq + i
    there = np.broadcast_to(i < np.array(case.lengths[0])[:, None, None], x.shape)
    memory = np.zeros(2 * total, x.dtype)
    written, read = (padded, packed) if back else (packed, padded)
    memory[np.broadcast_to(written, x.shape)[there]] = x[there]
    return np.where(there, memory[read], 0)


def _before(case: Case, x: Array, n: int) -> Array:
    """That of the tile before; what is read for the first is 0."""
    return np.where(np.arange(case.Lq) < n, 0, np.roll(x, n, 2))


def _after(case: Case, x: Array, n: int) -> Array:
    """That of the tile after, which is 0 where that is not whole; the last has its own."""
    i = np.arange(case.Lq) + n
    own = i >= -(-case.Lq // n) * n
    return np.where(own, x, np.where(i < case.Lq, x[:, :, np.minimum(i, case.Lq - 1)], 0))


PLACES: dict[str, Place] = {
    f"at a row's place in its tile of {n}": (lambda c, x, n=n: x[:, :, np.arange(c.Lq) % n]) for n in SIZES
} | {
    f"of the first row of its tile of {n}": (lambda c, x, n=n: x[:, :, np.arange(c.Lq) // n * n]) for n in SIZES
} | {
    f"of the tile of {n} rows before": (
        lambda c, x, n=n: x[:, :, np.where(np.arange(c.Lq) < n, np.arange(c.Lq), np.arange(c.Lq) - n)]) for n in SIZES
} | {
    f"of the tile of {n} rows before, 0 at the first": (lambda c, x, n=n: _before(c, x, n)) for n in SIZES
} | {
    f"of the tile of {n} rows after": (lambda c, x, n=n: _after(c, x, n)) for n in SIZES
} | {
    f"as if rows of a head, padded to a multiple of {n} where they were written, were not": (
        lambda c, x, n=n: _padded(c, x, n)) for n in (8, *SIZES)
} | {
    f"as if rows of a head were padded to a multiple of {n}": (lambda c, x, n=n: _unpadded(c, x, n))
    for n in (8, *SIZES)
} | {
    "of head h % Hkv": lambda c, x: x[:, np.arange(c.H) % max(1, c.Hkv)],
    "of the place of h in its group": lambda c, x: x[:, np.arange(c.H) % c.group],
}  # fmt: skip
PACKED: dict[str, Place] = {
    "as rows padded to the longest entry, though it is packed": lambda c, x: _in_memory(c, x, False),
    "as packed rows, though it is padded to the longest entry": lambda c, x: _in_memory(c, x, True),
}
NEXT: dict[str, Place] = {
    "of the next row": lambda c, x: np.roll(x, -1, 2), "of the row before": lambda c, x: np.roll(x, 1, 2),
    "of the next head": lambda c, x: np.roll(x, -1, 1), "of the head before": lambda c, x: np.roll(x, 1, 1),
    "of the first row": lambda c, x: np.repeat(x[:, :, :1], c.Lq, 2),
    "of the last row": lambda c, x: np.repeat(x[:, :, -1:], c.Lq, 2),
    "of head 0": lambda c, x: np.repeat(x[:, :1], c.H, 1), "of entry 0": lambda c, x: np.repeat(x[:1], c.B, 0),
    "of the first head of the group": lambda c, x: x[:, np.arange(c.H) // c.group * c.group],
    "of the key head's index": lambda c, x: x[:, np.arange(c.H) // c.group],
}  # fmt: skip


def _elsewhere(case: Case, how: Any) -> bool:
    if not case.backward or ("g" in how.of and "lse" not in case.want) or not case.B * case.H * case.Lq:
        return False
    number = np.arange(case.B * case.H * case.Lq).reshape(case.B, case.H, case.Lq)
    return bool((how.at(case, number) != number).any())


def _packed(case: Case, how: Any) -> bool:
    return isinstance(case.storage, Packed) and case.B > 1 and _elsewhere(case, how)


@kind(_elsewhere, ALL, of={words: OF[words] for words in ("the row sum", "the maximum")}, at=NEXT)
@kind(_packed, ALL, of=OF, at=PACKED)
@kind(_elsewhere, ALL, of=OF, at=PLACES)
class row_value_read(FromForward):
    """The backward reads {of} {at}."""

    of = "s"
    at: Place

    def moved(self, x: Array, of: str) -> Array:
        return np.asarray(type(self).at(self.given, x)) if of in self.of else x

    def delta(self) -> Array:
        return self.moved(super().delta(), "d")

    def arriving(self) -> Array:
        return self.moved(super().arriving(), "g")

    def again(self) -> Array:
        m, z = self.moved(self.m, "m"), self.moved(self.l, "l")
        if "s" in self.of:
            m, z = self.moved(self.log(self.m, self.l), "s"), np.ones_like(z)
        return np.where(self.seen, np.exp(self.t - safe(m)[..., None]) / np.where(z == 0, 1, z)[..., None], 0)
