"""Keys that count otherwise than they should: in words, and what a row gives then.

A row whose key j counts a_j times (1 if visible, 0 if hidden) gives

    out = sum_j a_j e_j r_j v_j / (sum_j a_j e_j + sink),    e_j = exp(t_j - lse),

t_j the logits as `refattn.oracle` defines them, r_j the factor of dropout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ..dtypes import FORMATS
from ..inputs import Problem
from ..oracle import scale_of
from ..precision import Precision
from ..score_mods import SCORE_MODS
from ..truth import Expected

__all__ = ["Change", "Kind", "Rows", "rows_of"]

Array = np.ndarray[Any, Any]
Kind = Literal["dropped", "twice", "seen"]

_DOES: dict[Kind, tuple[str, str]] = {
    "dropped": ("has no weight", "have no weight"),
    "twice": ("is counted twice", "are counted twice"),
    "seen": ("has weight and must be hidden", "have weight and must be hidden"),
}
_LARGEST = 300.0
"""of the logarithm of a hidden key's weight"""


@dataclass(frozen=True)
class Change:
    """The visible keys from `start` to before `stop` have no weight, or count twice; or the hidden ones have weight.

    Indices are those of keys, or counted from the first or the last key that a row sees, or from `end`, the number of
    keys that exist; None is no end, and keys that do not exist are not meant then.

    >>> print(Change("dropped", "key", 64, 128))
    keys 64..127 have no weight
    >>> print(Change("seen", "first", -1, 0))
    one key too many at the left edge of what a row sees
    """

    kind: Kind
    frame: Literal["key", "first", "last", "end"]
    start: int | None
    stop: int | None

    @property
    def remoteness(self) -> int:
        """0 of plain indices of keys, 1 at an edge, 2 elsewhere."""
        at_edge = 0 in (self.start, self.stop) or (self.frame == "last" and 1 in (self.start, self.stop))
        return 0 if self.frame == "key" else 1 if at_edge else 2

    def keys(self, visible: Array, end: int) -> Array:
        """The keys that it is about, booleans of the shape of `visible` (rows, keys)."""
        j = np.broadcast_to(np.arange(visible.shape[1]), visible.shape)
        about = ~visible if self.kind == "seen" else visible
        if self.stop is None and self.frame != "end":
            about = about & (j < end)
        if self.frame == "first":
            j = j - visible.argmax(1)[:, None]
        elif self.frame == "last":
            j = j - (visible.shape[1] - 1 - visible[:, ::-1].argmax(1))[:, None]
        elif self.frame == "end":
            j = j - end
        if self.frame in ("first", "last"):
            about = about & np.asarray(visible.any(1))[:, None]
        if self.start is not None:
            about = about & (j >= self.start)
        if self.stop is not None:
            about = about & (j < self.stop)
        return about

    def __str__(self) -> str:
        n = None if self.start is None or self.stop is None else self.stop - self.start
        does = _DOES[self.kind][n != 1]
        return f"{self._absolute(n)} {does}" if self.frame == "key" else self._relative(n, does)

    def _absolute(self, n: int | None) -> str:
        if self.start is None and self.stop is None:
            return "all hidden keys" if self.kind == "seen" else "all visible keys"
        if n == 1:
            return f"key {self.start}"
        if self.stop is None:
            return f"keys from {self.start} on"
        return f"keys up to {self.stop - 1}" if not self.start else f"keys {self.start}..{self.stop - 1}"

    def _relative(self, n: int | None, does: str) -> str:
        many = f"{'one' if n == 1 else n} key{'s' * (n != 1)}"
        if self.frame == "end":
            if self.kind == "seen":
                return f"{'keys' if n is None else many} beyond the length {does}"
            return f"the last {'key' if n == 1 else f'{n} keys'} that exist{'s' * (n == 1)} {does}"
        left = self.frame == "first"
        edge = f"at the {'left' if left else 'right'} edge of what a row sees"
        outside = self.stop == 0 if left else self.start == 1
        inside = self.start == 0 if left else self.stop == 1
        if self.kind == "seen" and outside:
            return f"{many} too many {edge}" if n is not None else f"all keys beyond the {edge[7:]} {does}"
        if self.kind == "dropped" and inside and n is not None:
            return f"{many} too few {edge}"
        places = [f"{x:+d}" for x in (self.start, None if self.stop is None else self.stop - 1) if x is not None]
        which = places[0] if n == 1 else " to ".join(places)
        return f"key{'s' * (n != 1)} {which} from the {self.frame} that a row sees {does}"


@dataclass(frozen=True)
class Rows:
    """Some rows of one head: weights, values, truth, answer and bound.

    e (rows, keys) are the weights of all keys, those of hidden ones as if they joined the others; visible
    (rows, keys); sink (rows, 1); factor (rows, keys) of dropout; both (keys, 2 Dv) v and |v|; got, out and half,
    half the width of the interval, (rows, Dv); size (rows, Dv) sum p |v|; slack (rows, 1) is a guess, on the large
    side, of the relative error of a weight; `end` is the number of keys that exist.
    """

    b: int
    h: int
    rows: Array
    e: Array
    visible: Array
    sink: Array
    factor: Array | None
    both: Array
    got: Array
    out: Array
    half: Array
    size: Array
    slack: Array
    end: int
    dtype: str

    def at(self, which: Any) -> Rows:
        """Some of them."""
        names = ("rows", "e", "visible", "sink", "got", "out", "half", "size", "slack")
        factor = None if self.factor is None else self.factor[which]
        return replace(self, factor=factor, **{name: getattr(self, name)[which] for name in names})

    def edges(self) -> tuple[int, int]:
        """The first and the last key that the first row sees; 0 and -1 if it sees none."""
        at = np.flatnonzero(self.visible[0])
        return (int(at[0]), int(at[-1])) if at.size else (0, -1)

    def weighted(self) -> Array:
        """Of the first row (keys, 1 + 2 Dv): e, e r v and e r |v|."""
        e = self.e[0][:, None]
        return np.concatenate([e, (e if self.factor is None else e * self.factor[0][:, None]) * self.both], 1)

    def far_off(self) -> Array:
        """(rows,): how many columns are so far from what they should be that it is no rounding."""
        return np.asarray((np.abs(self.got - self.out) > 4 * self.half).sum(1))

    def explained(self, changes: Sequence[Change]) -> Array:
        """(rows,): whether these changes together give what was got, about."""
        times = self.visible.astype(np.float64)
        for change in changes:
            times += change.keys(self.visible, self.end) * (-1.0 if change.kind == "dropped" else 1.0)
        return self.given_by(times)

    def given_by(self, times: Array) -> Array:
        """(rows,): whether keys that count so many times (rows, keys) give what was got, about."""
        weights = times * self.e
        whole = weights.sum(1, keepdims=True) + self.sink
        with np.errstate(all="ignore"):
            made = (weights if self.factor is None else weights * self.factor) @ self.both / whole
        made = np.where(whole > 0, made, 0.0)
        n = self.out.shape[1]
        return np.asarray((np.abs(self.got - made[:, :n]) <= self.room(made[:, :n], made[:, n:])).all(1))

    def room(self, made: Array, size: Array, columns: Any = slice(None)) -> Array:
        """A radius about `made`, of which sum p |v| is `size`, that is rather too large than too small."""
        before = self.size[:, columns] + np.abs(self.out[:, columns])
        with np.errstate(all="ignore"):
            stretched = (size + np.abs(made)) / before
        stretched = np.where(np.isfinite(stretched), np.maximum(stretched, 1.0), 1.0)
        f = FORMATS[self.dtype]
        floor = f.u * np.abs(made) + self.slack * size + f.eta
        return np.asarray(np.maximum(1.1 * self.half[:, columns] * stretched, floor))


def rows_of(
    problem: Problem, precision: Precision, b: int, h: int, rows: Array, got: Array, expected: Expected, seen: Array
) -> Rows:  # fmt: skip
    """The rows (n,) of one head; got is out as the answer has it, dense and float64, and finite in them.

    seen (B, H, Lq, Lk) is the mask; what a bias of -inf hides is hidden too.
    """
    case, x = problem.case, problem.logical
    hk = h // (case.H // case.Hkv)
    q, k, v = (np.asarray(a, np.float64) for a in (x["q"][b, h][rows], x["k"][b, hk], x["v"][b, hk]))
    visible = seen[b, h][rows]
    with np.errstate(all="ignore"):
        t = scale_of(case.scale, case.D) * (q @ k.T)
        if case.softcap is not None:
            t = case.softcap * np.tanh(t / case.softcap)
        if case.score_mod is not None:
            t = np.asarray(SCORE_MODS[case.score_mod](t, b, h, rows[:, None], np.arange(case.Lk)[None]))
        if case.bias is not None:
            bias = np.broadcast_to(x["bias"], (case.B, case.H, case.Lq, case.Lk))[b, h][rows].astype(np.float64)
            t, visible = t + bias, visible & ~np.isneginf(bias)
        t = np.where(np.isfinite(t) & np.isfinite(v).all(1), t, -np.inf)
        peak = np.where(visible, t, -np.inf).max(1, initial=-np.inf, keepdims=True)
        sinks = np.full_like(peak, float(x["sinks"][h]) if "sinks" in x else -np.inf)
        peak = np.maximum(peak, sinks)
        peak = np.where(np.isfinite(peak), peak, np.maximum(t.max(1, initial=-np.inf, keepdims=True), -1e300))
        e, sink = np.exp(np.minimum(t - peak, _LARGEST)), np.exp(sinks - peak)
    whole = np.where(visible, e, 0.0).sum(1, keepdims=True) + sink
    whole = np.where(whole > 0, whole, 1.0)
    e, sink = e / whole, sink / whole
    factor = None
    if case.dropout is not None:
        factor = np.where(x["keep"][b, h][rows], 1 / (1 - case.dropout) if case.dropout < 1 else 0.0, 0.0)
    v = np.where(np.isfinite(v), v, 0.0)
    weights = np.where(visible, e, 0.0)
    stored = [precision.accumulate, precision.scores, precision.scaled_q]
    stored += [precision.rotated] if case.rotary else []
    stored += [precision.dequantised] if case.quant else []
    u = max(FORMATS[name].u for name in stored if name is not None)
    products = np.sqrt((q * q).sum(1))[:, None] * np.sqrt(np.nan_to_num((k * k).sum(1), posinf=0.0).max(initial=0.0))
    scores = abs(scale_of(case.scale, case.D)) * products + np.abs(np.where(np.isfinite(t), t, 0.0)).max(1)[:, None]
    slack = 4 * u * (1 + scores) + FORMATS[precision.weights or "float64"].u
    size = (weights if factor is None else weights * factor) @ np.abs(v)
    out = expected.value[b, h][rows]
    half = np.maximum(expected.hi[b, h][rows] - out, out - expected.lo[b, h][rows])
    return Rows(
        b, h, rows, e, visible, sink, factor, np.concatenate([v, np.abs(v)], 1), got[b, h][rows], out, half, size,
        slack, case.lengths[1][b], expected.dtype,
    )  # fmt: skip
