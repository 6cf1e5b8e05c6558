"""Hypotheses on scale, softcap and the modifier of scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...oracle import scale_of
from ...score_mods import SCORE_MODS
from ..hypothesis import kind
from ..model import LN2, LOG2E, Array, Model

__all__: list[str] = []

SCALES: dict[str, Callable[[Case, float], float]] = {
    "1: it is not applied": lambda c, s: 1.0,
    "1 where none is given": lambda c, s: s if c.scale is not None else 1.0,
    "D**-0.5, whatever is passed": lambda c, s: max(c.D, 1) ** -0.5,
    "1 / D where none is given": lambda c, s: s if c.scale is not None else 1 / max(c.D, 1),
    "sqrt(D) where none is given": lambda c, s: s if c.scale is not None else max(c.D, 1) ** 0.5,
    "Dv**-0.5 where none is given": lambda c, s: s if c.scale is not None else max(c.Dv, 1) ** -0.5,
    "(D + Dv)**-0.5 where none is given": lambda c, s: s if c.scale is not None else max(c.D + c.Dv, 1) ** -0.5,
    "that of D rounded up to a power of two": lambda c, s: s if c.scale is not None else _power(c.D) ** -0.5,
    "that of D rounded up to 4": lambda c, s: s if c.scale is not None else max(-(-c.D // 4) * 4, 1) ** -0.5,
    "that of D rounded up to 8": lambda c, s: s if c.scale is not None else max(-(-c.D // 8) * 8, 1) ** -0.5,
    "that of D rounded up to 32": lambda c, s: s if c.scale is not None else max(-(-c.D // 32) * 32, 1) ** -0.5,
    "that of D rounded up to 16": lambda c, s: s if c.scale is not None else max(-(-c.D // 16) * 16, 1) ** -0.5,
    "that of D rounded up to 64": lambda c, s: s if c.scale is not None else max(-(-c.D // 64) * 64, 1) ** -0.5,
    "that of D rounded up to 128": lambda c, s: s if c.scale is not None else max(-(-c.D // 128) * 128, 1) ** -0.5,
    "that of all heads' sizes, (H D)**-0.5, where none is given":
        lambda c, s: s if c.scale is not None else max(c.H * c.D, 1) ** -0.5,
    "applied twice": lambda c, s: s * s,
    "applied together with D**-0.5": lambda c, s: s if c.scale is None else s * max(c.D, 1) ** -0.5,
    "its absolute value": lambda c, s: abs(s),
    "its inverse": lambda c, s: 1 / s if s else s,
    "its square root": lambda c, s: abs(s) ** 0.5,
    "the default where it is 0": lambda c, s: s or max(c.D, 1) ** -0.5,
    "1 where it is 0": lambda c, s: s or 1.0,
    "its negative": lambda c, s: -s,
    "log2(e) times too large": lambda c, s: s * LOG2E,
    "log2(e) times too small: e is forgotten in exp2": lambda c, s: s * LN2,
    "the default where it is negative": lambda c, s: s if s >= 0 else max(c.D, 1) ** -0.5,
}  # fmt: skip


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _another(case: Case, how: Any) -> bool:
    true = scale_of(case.scale, case.D)
    return bool(abs(how.how(case, true) - true) > 1e-3 * abs(true))


@kind(_another, how=SCALES)
class scale(Model):
    """The scale is {how}."""

    how: Callable[[Case, float], float]

    def factor(self) -> float:
        return self.how(self.case, super().factor())


def _capped(case: Case) -> bool:
    return case.softcap is not None


CAPS: dict[str, Callable[[Any, Array, float], Array]] = {
    "it is not applied": lambda x, s, c: s,
    "it falls on q·k before the scale": lambda x, s, c: x.factor() * c * np.tanh(x.qk / c),
    "it falls on q·k, and the scale is lost": lambda x, s, c: c * np.tanh(x.qk / c),
    "the factor softcap after tanh is missing": lambda x, s, c: np.tanh(s / c),
    "the division within tanh is missing": lambda x, s, c: c * np.tanh(s),
    "it is multiplied within tanh, and divided after": lambda x, s, c: np.tanh(s * c) / c,
    "it is multiplied within tanh": lambda x, s, c: c * np.tanh(s * c),
    "it clips": lambda x, s, c: np.clip(s, -c, c),
    "it caps from above alone": lambda x, s, c: np.minimum(s, c),
    "it bends as s / (1 + |s| / softcap)": lambda x, s, c: s / (1 + np.abs(s) / c),
    "it falls on scores in base 2": lambda x, s, c: LN2 * c * np.tanh(s * LOG2E / c),
    "log2(e) is within tanh": lambda x, s, c: c * np.tanh(s * LOG2E / c),
    "log2(e) is left out after it": lambda x, s, c: LN2 * c * np.tanh(s / c),
    "scores in base 2 are capped in natural units": lambda x, s, c: c * np.tanh(s * LN2 / c),
    "it is applied twice": lambda x, s, c: c * np.tanh(np.tanh(s / c)),
    "the scale is applied again after it": lambda x, s, c: x.factor() * c * np.tanh(s / c),
    "the scale is applied within tanh twice": lambda x, s, c: c * np.tanh(s * x.factor() / c),
    "it is half as high": lambda x, s, c: c / 2 * np.tanh(2 * s / c),
    "it is 50, whatever is passed": lambda x, s, c: 50 * np.tanh(s / 50),
    "it is 30, whatever is passed": lambda x, s, c: 30 * np.tanh(s / 30),
}


@kind(_capped, how=CAPS)
class softcap(Model):
    """Softcap: {how}."""

    how: Callable[[Any, Array, float], Array]

    def cap(self, s: Array, softcap: float) -> Array:
        return self.how(self, s, softcap)


@kind(lambda case: _capped(case) and case.backward, how=CAPS)
class softcap_and_slope(softcap):
    """Softcap: {how}; its slope is 1 - (capped / softcap)² of that."""

    def slope(self, s: Array, softcap: float) -> Array:
        return 1 - (self.cap(s, softcap) / softcap) ** 2


@kind(
    lambda case: _capped(case) and case.backward and case.scale != 0,
    how={words: how for words, how in CAPS.items() if not any(w in words for w in ("clips", "alone", "bends"))},
)  # fmt: skip
class softcap_and_own_slope(softcap):
    """Softcap: {how}, and the backward goes by the derivative of that."""

    def slope(self, s: Array, softcap: float) -> Array:
        step = 1e-30j  # the derivative of what is analytic is its imaginary part over the step
        qk, self.qk = self.qk, self.qk + step / self.factor()
        found = np.asarray(self.how(self, s + step, softcap)).imag / step.imag
        self.qk = qk
        return found


@kind(lambda case: _capped(case) and case.bias is not None)
class softcap_of_biased(Model):
    """Softcap caps the scores with their bias."""

    def logits(self, s: Array) -> Array:
        bias = self.x.pop("bias")
        finite = np.where(np.isneginf(bias), 0, bias)
        return super().logits(s + finite)


@kind(_capped)
class softcap_last(Model):
    """Softcap comes after the mask: what is hidden has the logit -softcap, and leaks."""

    def hide(self, t: Array) -> Array:
        seen = self.seen
        self.seen = np.ones_like(seen)
        return np.where(seen, t, -(self.case.softcap or 0.0))


def _modified(case: Case) -> bool:
    return case.score_mod is not None


@kind(
    _modified,
    how={
        "it is not applied": lambda b, h, i, j: None,
        "it is told head 0": lambda b, h, i, j: (b, h * 0, i, j),
        "it is told the next head": lambda b, h, i, j: (b, h + 1, i, j),
        "it is told entry 0": lambda b, h, i, j: (b * 0, h, i, j),
        "it is told entry and head exchanged": lambda b, h, i, j: (h, b, i, j),
        "it is told query and key exchanged": lambda b, h, i, j: (b, h, j, i),
        "it is told queries one too far": lambda b, h, i, j: (b, h, i + 1, j),
        "it is told keys one too far": lambda b, h, i, j: (b, h, i, j + 1),
        "it is told queries aligned at the last key":
            lambda b, h, i, j: (b, h, i + j.size - i.size, j),
    },
)  # fmt: skip
class modifier(Model):
    """The modifier of scores: {how}."""

    how: Callable[..., Any]

    def logits(self, s: Array) -> Array:
        if self.places_told() is None:
            self.x["bias"] = self.x.get("bias", np.zeros((1, 1, 1, 1), self.dtype))
            case = self.case
            s = s if case.softcap is None else self.cap(s, case.softcap)
            self.before = self.capped = s
            return s + self.x["bias"]
        return super().logits(s)

    def places_told(self) -> Any:
        return type(self).how(*np.ogrid[tuple(slice(n) for n in self.inputs.visible.shape)])

    def places(self) -> tuple[Array, ...]:
        told = self.places_told()
        return super().places() if told is None else told


PLACES: dict[str, tuple[int, int]] = {
    f"{' and '.join(f'{x} within tiles of {n}' for x, n in (('queries', i), ('keys', j)) if n)}": (i, j)
    for i in (0, 16, 32, 64, 128) for j in (0, 16, 32, 64, 128) if i or j
}  # fmt: skip


def _reach(case: Case, how: Any) -> tuple[int, int]:
    """The sizes of tiles, 0 where there is but one."""
    (rows, keys), (Lq, Lk) = how.at, (case.Lq, case.Lk)
    return rows * (rows < Lq), keys * (keys < Lk)


@kind(lambda case, how: _modified(case) and _reach(case, how) != (0, 0), same=("at", _reach), at=PLACES)
class modifier_by_place(Model):
    """The modifier of scores is told {at}, and not their indices."""

    at = (16, 16)

    def places(self) -> tuple[Array, ...]:
        b, h, i, j = super().places()
        rows, keys = self.at
        return b, h, i % rows if rows else i, j % keys if keys else j


@kind(lambda case: _modified(case) and case.H > case.Hkv > 0, of={
    "the key head": lambda c, h: h // c.group, "the place in the group": lambda c, h: h % c.group,
    "h % Hkv": lambda c, h: h % c.Hkv, "the first head of the group": lambda c, h: h // c.group * c.group,
})  # fmt: skip
class modifier_told_head(Model):
    """The modifier of scores is told {of} for the head."""

    of: Callable[[Case, Array], Array]

    def places(self) -> tuple[Array, ...]:
        b, h, i, j = super().places()
        return b, type(self).of(self.given, h), i, j


@kind(lambda case: _modified(case) and case.bias is not None)
class modifier_after_bias(Model):
    """The modifier sees the scores with their bias."""

    def logits(self, s: Array) -> Array:
        case = self.case
        s = s if case.softcap is None else self.cap(s, case.softcap)
        self.before = self.capped = s + self.x["bias"]
        return np.asarray(SCORE_MODS[case.score_mod or ""](self.before, *self.places()))


@kind(lambda case: _modified(case) and case.softcap is not None)
class modifier_before_softcap(Model):
    """The modifier comes before softcap, which caps what it makes of the scores."""

    def logits(self, s: Array) -> Array:
        case = self.case
        self.before = s
        self.capped = self.cap(np.asarray(SCORE_MODS[case.score_mod or ""](s, *self.places())), case.softcap or 1.0)
        return self.capped + self.x["bias"] if "bias" in self.x else self.capped


@kind(_modified, of={"q·k, before the scale": 0, "scores twice": 2})
class modifier_of(Model):
    """The modifier is applied to {of}."""

    of = 0

    def logits(self, s: Array) -> Array:
        case, modify = self.case, SCORE_MODS[self.case.score_mod or ""]
        s = self.qk if self.of == 0 else s
        s = s if case.softcap is None else self.cap(s, case.softcap)
        self.before = s
        self.capped = np.asarray(modify(s, *self.places()))
        if self.of == 0:
            self.capped = self.capped * self.dtype(self.factor())
        else:
            self.capped = np.asarray(modify(self.capped, *self.places()))
        return self.capped + self.x["bias"] if "bias" in self.x else self.capped
