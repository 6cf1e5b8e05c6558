"""The key scan: whether the weight of one key is off in all rows that see it.

If key j counts 1 + c times, out is off by c p_ij (v_j - out_i), to first order.  For each key at once,

    f_ij = p_ij sum_k z_ik (v_jk - out_ik) / s_ik,    T_j = (|sum_i f_ij| - allowance) / sqrt(sum_i f_ij²)

where z is the error in units of s, less its parts along out and along d out / d log(scale) in its row; for a key
that is dropped c = -1.  Two matrix products, N keys, hence a limit for N tests.  The allowance is what the roundings
of that very weight can do if all have one sign: c = u_P and a few units of the accumulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .rows import Group, Rows
from .suspicion import Suspicion, limit_of

__all__ = ["Keys"]

Array = np.ndarray[Any, Any]

_LOOKED_AT = 8


class Keys:
    """The sums of one key head."""

    def __init__(self, group: Group) -> None:
        self.group = group
        case = group.case
        self.total, self.squares = np.zeros(case.Lk), np.zeros(case.Lk)
        self.limit = limit_of(case.B * case.Hkv * case.Lk)

    def add(self, rows: Rows) -> None:
        f = (rows.apart.astype(np.float32) * rows.per_s) @ rows.v.T
        f *= rows.p
        self.total += f.sum(0)
        self.squares += np.einsum("ij,ij->j", f, f)

    def found(self) -> Iterator[Suspicion]:
        """The key that is most off, if any is."""
        t = np.abs(self.total) / np.sqrt(np.where(self.squares > 0, self.squares, np.inf))
        beyond = np.flatnonzero(t > self.limit)
        if not len(beyond):
            return
        keys = beyond[np.argsort(-t[beyond])][:_LOOKED_AT]
        response = sum((self._response(rows, keys) for rows in self.group.chunks()), np.zeros(len(keys)))
        c, precision = self.group.c, self.group.precision
        slack = c.u_weights + 2 * (c.eps + 8 * c.u) + 64 * c.u_scores
        total = np.abs(self.total[keys]) - slack * response
        t = np.maximum(total, 0) / np.sqrt(self.squares[keys])
        best = int(np.argmax(t))
        if t[best] <= self.limit:
            return
        times = 1 + self.total[keys[best]] / response[best]
        others = int(np.count_nonzero(t > self.limit)) - 1 + max(len(beyond) - _LOOKED_AT, 0)
        more = f"; so are {others} more keys" if others else ""
        text = f"key {keys[best]} of b={self.group.b}, key head {self.group.kv} counts {times:.2f} times, {_what(times)}"
        yield Suspicion("key", "out", float(t[best]), self.limit, f"{text} ({t[best]:.0f} sigma){more}")

    def _response(self, rows: Rows, keys: Array) -> Array:
        """sum_i f_ij for an error of c = 1."""
        found = np.zeros(len(keys))
        scale = rows.less(rows.scale, rows.size)
        for n, j in enumerate(keys):
            d = np.where(rows.judged, rows.v[j] * rows.per_s - rows.size, 0.0)
            own = (d * rows.less(d, rows.size, scale)).sum(1)
            found[n] = float((rows.p[:, j].astype(np.float64) ** 2 * own).sum())
        return found


def _what(times: float) -> str:
    if abs(times) < 0.25:
        return "as if it was dropped"
    if abs(times - 2) < 0.25:
        return "as if it was added twice"
    return "not once"
