"""What only some problems have, of one head: score_mod, dropout, and inputs that are known but roughly.

A kernel that rotates or dequantises its inputs works on q + δq, k + δk, v + δv, of which it is known
that |δ| <= slack, element by element:

    |δ(q·k)| <= slack_q |k|ᵀ + (|q| + slack_q) slack_kᵀ,   |δ out| <= sum p slack_v.

Such an error is one for all that reads the element, so these problems get the rigorous bound.  In the
forward of rotated q and k whose roundings are `independent` of one another there is a sharp one: δk is
another error of each score, of variance scale² q² slack_k²ᵀ / 3, and δq_i is linear in all scores of
row i, so that it moves out by sum_d δq_id G_d, with

    G_d = scale sum_j p_j slope_j k_jd (v_j - o),   variance sum_d slack_q² G_d² / 3,   of lse with v - o = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..score_mods import ScoreMod

__all__ = ["NONE", "Extras", "Modified", "Slack"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Extras:
    score_mod: ScoreMod | None = None
    place: Callable[[slice, slice], tuple[Any, Any, Any, Any]] | None = None
    """(rows, keys) -> b, h, i, j, as score_mod takes them"""
    kept: Callable[[slice, slice], Array] | None = None
    """(rows, keys) -> 1 / (1 - dropout) where kept, 0 where dropped"""
    slack_q: Array | None = None
    slack_k: Array | None = None
    slack_v: Array | None = None
    independent: bool = False
    """whether the errors of different elements of q and k are roundings of different numbers"""

    @property
    def rough(self) -> bool:
        """Whether any input is known but roughly."""
        return not (self.slack_q is self.slack_k is self.slack_v is None)

    def factors(self, rows: slice, keys: slice) -> Array | None:
        return None if self.kept is None else self.kept(rows, keys)

    def mod(self, rows: slice, keys: slice) -> Modified | None:
        if self.score_mod is None or self.place is None:
            return None
        return Modified(self.score_mod, self.place(rows, keys))

    def slack(self, q: Array, k: Array, rows: slice, keys: slice) -> Slack | None:
        """What q·k may be off by, and the variance of what is not common to a row."""
        worst = self.product_slack(q, k, rows, keys)
        if worst is None:
            return None
        if not self.independent or self.slack_k is None:
            return Slack(worst, worst * worst)
        return Slack(worst, (q * q) @ (self.slack_k[..., keys, :] ** 2).swapaxes(-1, -2) / 3)

    def product_slack(self, q: Array, k: Array, rows: slice, keys: slice) -> Array | None:
        """Bound of the error of q·k, (rows, keys)."""
        if self.slack_q is None and self.slack_k is None:
            return None
        total = np.zeros((*q.shape[:-1], k.shape[-2]))
        if self.slack_q is not None:
            total += self.slack_q[..., rows, :] @ np.abs(k).swapaxes(-1, -2)
        if self.slack_k is not None:
            size = np.abs(q) if self.slack_q is None else np.abs(q) + self.slack_q[..., rows, :]
            total += size @ self.slack_k[..., keys, :].swapaxes(-1, -2)
        return total


NONE = Extras()


class Slack(NamedTuple):
    worst: Array
    variance: Array


@dataclass(frozen=True)
class Modified:
    """score_mod on one tile: the value, the slope, and their errors, of scores t known to within e.

        |f(t + δ) - f(t)| <= steepest e,   evaluation: roundings u terms,
        |f'(t + δ) - f'(t)| <= bend e,     evaluation: roundings u (1 + |f'|) max(1, |t|)
    """

    f: ScoreMod
    place: tuple[Any, Any, Any, Any]

    def apply(self, t: Array, e: Array, v: Array, u: float) -> tuple[Array, Array, Array]:
        """The value, its rigorous error and its variance."""
        own = self.f.roundings * u * self.f.terms(t, *self.place)
        error = self.f.steepest(t, e, *self.place) * e + own
        variance = self.f.slope(t, *self.place) ** 2 * v + (self.f.bend * e * e / 2) ** 2 + own * own
        return self.f.value(t, *self.place), error, variance

    def slope(self, t: Array, e: Array, v: Array, u: float) -> tuple[Array, Array, Array]:
        """The slope, its rigorous error and its standard deviation."""
        slope = self.f.slope(t, *self.place)
        own = self.f.roundings * u * (1 + np.abs(slope)) * np.maximum(1.0, np.abs(t))
        return slope, self.f.bend * e + own, np.hypot(self.f.bend * np.sqrt(v), own)
