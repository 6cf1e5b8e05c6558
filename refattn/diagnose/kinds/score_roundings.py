"""Hypotheses of too few bits on the way to the logits."""

from __future__ import annotations

import numpy as np

from ..hypothesis import kind
from ..model import LOG2E, Array, Model
from .roundings import TO, _applies, lowered

__all__: list[str] = []


@kind(_applies, rounding=True, what={"scaled scores are": 1, "q·k is": 0, "q·k, and the scaled scores, are": 2}, to=TO)
class scores_rounded(Model):
    """{what} rounded to {to}."""

    what, to = 1, ""

    def scaled(self, qk: Array) -> Array:
        qk = qk if self.what == 1 else lowered(qk, self.to, self.given)
        s = super().scaled(qk)
        return s if self.what == 0 else lowered(s, self.to, self.given)


@kind(_applies, rounding=True, to=TO)
class logits_rounded(Model):
    """The logits, with softcap and bias, are rounded to {to}."""

    to = ""

    def logits(self, s: Array) -> Array:
        return lowered(super().logits(s), self.to, self.given)


@kind(_applies, rounding=True, times={"": 1.0, " and log2(e)": LOG2E}, to=TO)
class scaled_q_rounded(Model):
    """q times scale{times} is rounded to {to}."""

    times, to = 1.0, ""

    def scaled(self, qk: Array) -> Array:
        q = lowered(self.q * self.dtype(self.factor() * self.times), self.to, self.given)
        return np.asarray(q @ self.k.swapaxes(-1, -2) / self.dtype(self.times))


@kind(_applies, rounding=True, of={"scale": 1.0, "square root of the scale": 0.5}, to=TO)
class scaled_k_rounded(Model):
    """Keys times the {of} are rounded to {to}, and queries too if it is a square root."""

    of, to = 1.0, ""

    def scaled(self, qk: Array) -> Array:
        s = abs(self.factor()) ** self.of
        k = lowered(self.k * self.dtype(s), self.to, self.given)
        q = lowered(self.q * self.dtype(s), self.to, self.given) if self.of < 1 else self.q
        return np.asarray(q @ k.swapaxes(-1, -2)) * self.dtype(np.sign(self.factor()))


@kind(_applies, rounding=True, size=(8, 16, 32, 64), to=TO)
class scores_accumulated(Model):
    """q·k is rounded to {to} after each {size} columns."""

    size, to = 16, ""

    def scaled(self, qk: Array) -> Array:
        total = np.zeros_like(qk)
        for d in range(0, self.given.D, self.size):
            part = self.q[..., d : d + self.size] @ self.k[..., d : d + self.size].swapaxes(-1, -2)
            total = lowered(total + part, self.to, self.given)
        return super().scaled(total)
