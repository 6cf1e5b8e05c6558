"""Score modifiers: functions t = f(s, b, h, i, j) of a score and its place, with their derivatives.

FlexAttention's way (Dong et al. 2024, "Flex Attention", section 3.1): after scale and softcap, before the
bias.  Each is written with operators and `abs` alone, so that it takes NumPy arrays, torch tensors
and scalars alike; b, h, i, j are integers that broadcast with s.

A bound needs more than the derivative: `steepest` is the largest |slope| within e of s, `bend` the
largest |second derivative|, and the value as computed is off by no more than `roundings` units of
`terms`, the sum of the absolute values that were added up.  Pairs that it `hides`, by their place
alone, get a score of -inf: FlexAttention's other way to mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["SCORE_MODS", "ScoreMod", "check_score_mod"]

_INF = float("inf")
Mod = Callable[[Any, Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class ScoreMod:
    """f and df/ds, both of (s, b, h, i, j), and what the bound needs to know of them."""

    name: str
    value: Mod
    slope: Mod
    steepest: Callable[[Any, Any, Any, Any, Any, Any], Any]
    """(s, e, b, h, i, j) -> at least |slope| wherever |s' - s| <= e"""
    bend: float
    terms: Mod
    roundings: int = 4
    hides: Callable[[Any, Any, Any, Any], Any] | None = None
    """(b, h, i, j) -> whether the score becomes -inf, whatever it was; None: none does"""

    def __call__(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        t = self.value(s, b, h, i, j)
        if self.hides is None:
            return t
        return t - (_INF ** (1 * self.hides(b, h, i, j)) - 1)  # inf**0 is 1


def _one(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 1.0 + 0.0 * abs(s)


def _tilt(b: Any, h: Any) -> Any:
    return 1 + h / 4 + b / 8


SCORE_MODS: dict[str, ScoreMod] = {
    mod.name: mod
    for mod in (
        ScoreMod(
            "relative",  # a bias that grows along the keys
            lambda s, b, h, i, j: s + (j - i) / 16,
            _one,
            lambda s, e, b, h, i, j: _one(s, b, h, i, j),
            0.0,
            lambda s, b, h, i, j: abs(s) + abs(j - i) / 16,
        ),
        ScoreMod(
            "distance",  # ALiBi with a slope of 1/2, 1/4, ... for each head
            lambda s, b, h, i, j: s - abs(i - j) / 2 ** (h + 1.0),
            _one,
            lambda s, e, b, h, i, j: _one(s, b, h, i, j),
            0.0,
            lambda s, b, h, i, j: abs(s) + abs(i - j) / 2 ** (h + 1.0),
        ),
        ScoreMod(
            "checkerboard",  # every other score halved
            lambda s, b, h, i, j: s * (1 - (i + j) % 2 / 2),
            lambda s, b, h, i, j: _one(s, b, h, i, j) * (1 - (i + j) % 2 / 2),
            lambda s, e, b, h, i, j: _one(s, b, h, i, j),
            0.0,
            lambda s, b, h, i, j: abs(s),
        ),
        ScoreMod(
            "tilt",  # a scale for each batch entry and head
            lambda s, b, h, i, j: s * _tilt(b, h),
            lambda s, b, h, i, j: _one(s, b, h, i, j) * _tilt(b, h),
            lambda s, e, b, h, i, j: _one(s, b, h, i, j) * _tilt(b, h),
            0.0,
            lambda s, b, h, i, j: abs(s) * _tilt(b, h),
        ),
        ScoreMod(
            "softsign",  # a softcap without tanh
            lambda s, b, h, i, j: s / (1 + abs(s) / 8),
            lambda s, b, h, i, j: 1 / (1 + abs(s) / 8) ** 2,
            lambda s, e, b, h, i, j: 1 / (1 + (abs(s) - e + abs(abs(s) - e)) / 16) ** 2,
            0.25,
            lambda s, b, h, i, j: abs(s) / (1 + abs(s) / 8),
        ),
        ScoreMod(
            "parabola",  # not monotone: its slope changes sign at s = -8
            lambda s, b, h, i, j: s + s * s / 16,
            lambda s, b, h, i, j: 1 + s / 8,
            lambda s, e, b, h, i, j: abs(1 + s / 8) + e / 8,
            0.125,
            lambda s, b, h, i, j: abs(s) + s * s / 16,
        ),
        ScoreMod(
            "staircase",  # hides what a stair of two keys a query has not reached: of the first query all
            lambda s, b, h, i, j: s,
            _one,
            lambda s, e, b, h, i, j: _one(s, b, h, i, j),
            0.0,
            lambda s, b, h, i, j: abs(s),
            hides=lambda b, h, i, j: j >= 2 * i,
        ),
    )
}
"""by name, as `Case.score_mod` has them"""


def check_score_mod(score_mod: Any, backward: bool) -> None:
    """Refuses what is not a function of (s, b, h, i, j), or in a backward has no `slope`."""
    if not callable(score_mod):
        names = ", ".join(SCORE_MODS)
        raise TypeError(f"score_mod={score_mod!r} must be callable as f(s, b, h, i, j); SCORE_MODS has {names}")
    if backward and not callable(getattr(score_mod, "slope", None)):
        raise TypeError(f"score_mod={score_mod!r} must have slope(s, b, h, i, j), its derivative; see ScoreMod")
