"""Hypotheses on the bias where the backward computes the weights again: another place of it is read than before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array
from .gradients import ALL
from .weights_again import FromForward, _lse, _weights

__all__: list[str] = []

Place = Callable[[Array], Array]
"""(bias, (B, H, Lq, Lk)) -> what is read of it"""
PLACES: dict[str, Place] = {
    "of the next key": lambda x: np.roll(x, -1, 3), "of the key before": lambda x: np.roll(x, 1, 3),
    "of the next query": lambda x: np.roll(x, -1, 2), "of the query before": lambda x: np.roll(x, 1, 2),
    "of the next head": lambda x: np.roll(x, -1, 1), "of the head before": lambda x: np.roll(x, 1, 1),
    "of the next entry": lambda x: np.roll(x, -1, 0), "of head 0": lambda x: x[:, :1] + 0 * x,
    "of entry 0": lambda x: x[:1] + 0 * x, "of the first row": lambda x: x[:, :, :1] + 0 * x,
    "of the first key": lambda x: x[..., :1] + 0 * x, "with its sign changed": lambda x: -x, "twice": lambda x: 2 * x,
    "with rows and columns exchanged": lambda x: np.ascontiguousarray(x.swapaxes(2, 3)).reshape(x.shape),
}  # fmt: skip


def _in_tile(rows: int, keys: int) -> Place:
    return lambda x: x[:, :, np.arange(x.shape[2]) % (rows or x.shape[2])][..., np.arange(x.shape[3]) % (
        keys or x.shape[3])]  # fmt: skip


PLACES |= {f"at the place in a tile of {m} rows": _in_tile(m, 0) for m in (16, 32, 64)}
PLACES |= {f"at the place in a tile of {n} keys": _in_tile(0, n) for n in (16, 32, 64)}
PLACES |= {f"at the place in a tile of {m} rows and {n} keys": _in_tile(m, n)
           for m in (16, 32, 64) for n in (16, 32, 64)}  # fmt: skip


def _moves(case: Case, how: Any) -> bool:
    if case.bias is None or not case.backward or not case.B * case.Lq * case.Lk:
        return False
    each = np.arange(1, 1 + int(np.prod(case.bias_shape)), dtype=float).reshape(case.bias_shape)
    each = np.broadcast_to(each, (case.B, case.H, case.Lq, case.Lk))
    return bool((how.at(each) != each).any())


@kind(_moves, ALL, at=PLACES)
class bias_in_backward(FromForward):
    """Where the backward computes the weights again, the bias is read {at}."""

    at: Place

    def again(self) -> Array:
        bias = self.x["bias"]
        own = np.broadcast_to(np.where(np.isneginf(bias), 0, bias), self.t.shape)
        other = type(self).at(np.broadcast_to(bias, self.t.shape))
        return _weights(self, self.t - own + other, _lse(self))
