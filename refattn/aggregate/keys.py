"""The key scan: whether the weight of one key is off in all rows that see it.

If key j counts 1 + c times, out is off by c p_ij (v_j - out_i), to first order.  For each key at once,

    f_ij = p_ij sum_k z_ik (v_jk - out_ik) / s_ik,    T_j = |sum_i f_ij| / sqrt(sum_i f_ij²)

where z is the error in units of s, less its parts along out and along d out / d log(scale) in its row; for a key
that is dropped c = -1.  One matrix product, N keys, hence a limit for N tests.

2 c f is the logarithm of how much likelier a row's error is under c than under -c.  A row in which |f| is large says no
more than that its sign is sure; so that few such rows do not outweigh all others, f is cut at +-CUT, which leaves it
symmetric.

One key that is far off moves rows so much that other keys seem to be off too.  Only if any T is beyond its limit,
what f is for c = 1 is had for all keys (four matrix products); what the roundings of that very weight can do if all
have one sign (c = u_P and a few units of the accumulator) is taken off |f|; and of the keys still beyond the limit
the one is named that explains most of sum z².
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .rows import Group, Rows
from .suspicion import Found, Suspicion, limit_of

__all__ = ["Keys"]

Array = np.ndarray[Any, Any]


CUT = 2.0
MOST = 8
"""c beyond which it is no error of a weight that would not be seen at once"""


class Keys:
    """The sums of one key head."""

    def __init__(self, group: Group) -> None:
        self.group = group
        case = group.case
        self.total, self.squares = np.zeros(case.Lk), np.zeros(case.Lk)
        self.limit = limit_of(case.B * case.Hkv * case.Lk)

    def add(self, rows: Rows) -> None:
        f = _f(rows)
        np.clip(f, -CUT, CUT, out=f)
        self.total += f.sum(0)
        self.squares += np.einsum("ij,ij->j", f, f)

    def _beyond(self, total: Array) -> Array:
        return np.asarray(np.abs(total) / np.sqrt(np.where(self.squares > 0, self.squares, np.inf)))

    def found(self) -> Iterator[Found]:
        """The key that is most off, if any is."""
        if not (self._beyond(self.total) > self.limit).any():
            return
        c = self.group.c
        slack = np.float32(c.u_weights + 2 * (c.eps + 8 * c.u) + 64 * c.u_scores)
        total, whole, response = np.zeros((3, len(self.total)))
        for rows in self.group.chunks():
            f, unit = _f(rows), _unit(rows)
            whole += f.sum(0)
            response += unit.sum(0)
            total += (np.sign(f) * np.clip(np.abs(f) - slack * unit, 0, CUT)).sum(0)
        t = self._beyond(total)
        response = np.where(response > 0, response, np.inf)
        likely = (t > self.limit) & (np.abs(whole) < MOST * response)
        explained = np.where(likely, whole**2 / response, 0.0)
        best = int(np.argmax(explained))
        if not explained[best] > 0:
            return
        times = 1 + whole[best] / response[best]
        where = f"key {best} of b={self.group.b}, key head {self.group.kv}"
        text = f"{where}, counts {round(times, 2) + 0.0:.2f} times in out, {_what(times)} ({t[best]:.0f} sigma)"
        yield Found(float(explained[best]), Suspicion("key", "out", float(t[best]), self.limit, text))


def _f(rows: Rows) -> Array:
    f = (rows.apart.astype(np.float32) * rows.per_s) @ rows.v.T
    f *= rows.p
    return np.asarray(f)


def _unit(rows: Rows) -> Array:
    """f for c = 1: p² (|d|² less the squares of its parts along size and scale), d = (v - out) / s."""
    per_s, v, size = rows.per_s, rows.v, rows.size.astype(np.float32)
    square = (size * size).sum(1, keepdims=True)
    d2 = (per_s * per_s) @ (v * v).T - 2 * (size * per_s) @ v.T + square
    for direction in (size, rows.turned.astype(np.float32)):
        length = np.sqrt((direction * direction).sum(1, keepdims=True))
        unit = direction / np.where(length > 0, length, 1)
        along = (unit * per_s) @ v.T - (unit * size).sum(1, keepdims=True)
        d2 -= along * along
    return np.asarray(rows.p * rows.p * np.maximum(d2, 0))


def _what(times: float) -> str:
    if abs(times) < 0.25:
        return "as if it was dropped"
    if abs(times - 2) < 0.25:
        return "as if it was added twice"
    return "not once"
