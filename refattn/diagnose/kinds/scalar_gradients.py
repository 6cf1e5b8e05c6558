"""Hypotheses on dscale and dsoftcap: sums over all pairs, of what, and of which parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []


class Summed(Model):
    """Keeps what is summed."""

    def through_softmax(self, p: Array, dp: Array, incoming: Array) -> Array:
        self.p, self.dp, self.dt = p, dp, super().through_softmax(p, dp, incoming)
        return self.dt

    def whole(self) -> tuple[Array, Array]:
        """The gradients of capped scores, and of the scaled ones."""
        capped = self.dt if self.case.score_mod is None else self.dt * self.modifier_slope()
        return capped, capped if self.case.softcap is None else capped * self.slope(self.s, self.case.softcap)

    def backward(self) -> dict[str, Array]:
        y = super().backward()
        return y | {n: np.asarray(x) for n, x in self.sums(*self.whole()).items() if n in y}

    def sums(self, capped: Array, ds: Array) -> dict[str, Any]:
        return {}

    def all_of(self, x: Array) -> Any:
        return np.where(self.seen, x, 0).sum()


DSCALE: dict[str, Callable[[Any, Array, Array], Array]] = {
    "ds and capped scores": lambda x, c, ds: ds * x.before,
    "ds and logits": lambda x, c, ds: ds * np.where(x.seen, x.t, 0),
    "ds, with softcap's slope missing, and q·k": lambda x, c, ds: c * x.qk,
    "ds, with the slopes of softcap and modifier missing, and q·k": lambda x, c, ds: x.dt * x.qk,
    "weights, their gradients and q·k: delta is missing": lambda x, c, ds: x.p * x.dp * x.qk,
    "weights and q·k": lambda x, c, ds: x.p * x.qk, "gradients of weights and q·k": lambda x, c, ds: x.dp * x.qk,
    "ds alone": lambda x, c, ds: ds,
}  # fmt: skip


@kind(lambda case: "dscale" in case.want, "dscale", of=DSCALE)
class dscale_of(Summed):
    """dscale is the sum of {of}, not of ds and q·k."""

    of: Callable[[Any, Array, Array], Array]

    def sums(self, capped: Array, ds: Array) -> dict[str, Any]:
        return {"dscale": self.all_of(type(self).of(self, capped, ds))}


DSOFTCAP: dict[str, Callable[[Array, Array], Array]] = {
    "tanh(z) - z": lambda z, slope: np.tanh(z) - z,
    "tanh(z) + z (1 - tanh²)": lambda z, slope: np.tanh(z) + z * slope,
    "z (1 - tanh²)": lambda z, slope: z * slope, "-z (1 - tanh²)": lambda z, slope: -z * slope,
    "1 - tanh²": lambda z, slope: slope, "tanh(z) - (1 - tanh²)": lambda z, slope: np.tanh(z) - slope,
    "(tanh(z) - z (1 - tanh²)) (1 - tanh²)": lambda z, slope: (np.tanh(z) - z * slope) * slope,
    "tanh(z) (1 - tanh²)": lambda z, slope: np.tanh(z) * slope,
    "tanh(z) - tanh(z) (1 - tanh²)": lambda z, slope: np.tanh(z) * (1 - slope),
}  # fmt: skip


@kind(lambda case: "dsoftcap" in case.want, "dsoftcap", of=DSOFTCAP)
class dsoftcap_of(Summed):
    """dsoftcap is the sum of ds times {of}, z = s / softcap, not times tanh(z) - z (1 - tanh²)."""

    of: Callable[[Array, Array], Array]

    def sums(self, capped: Array, ds: Array) -> dict[str, Any]:
        z = self.s / (self.case.softcap or 1.0)
        return {"dsoftcap": self.all_of(capped * type(self).of(z, np.cosh(z) ** -2))}


@kind(lambda case: "dsoftcap" in case.want, "dsoftcap", z={
    "s, not divided by softcap": lambda s, c: s, "s / softcap²": lambda s, c: s / c / c,
    "the capped score over softcap": lambda s, c: np.tanh(s / c),
})  # fmt: skip
class dsoftcap_at(Summed):
    """dsoftcap is the sum of ds times tanh(s / softcap) - z (1 - tanh²), with a z that is {z}."""

    z: Callable[[Array, float], Array]

    def sums(self, capped: Array, ds: Array) -> dict[str, Any]:
        c = self.case.softcap or 1.0
        z = self.s / c
        return {"dsoftcap": self.all_of(capped * (np.tanh(z) - type(self).z(self.s, c) * np.cosh(z) ** -2))}


PARTS: dict[str, Callable[[Case, Array], Array]] = {
    "that of the first entry": lambda c, x: x[:1], "that of the last entry": lambda c, x: x[-1:],
    "that of the first head": lambda c, x: x[:, :1], "that of the last head": lambda c, x: x[:, -1:],
    "that of the last row": lambda c, x: x[:, :, -1:], "the mean over entries": lambda c, x: x / c.B,
    "that of the last head of the last entry": lambda c, x: x[-1:, -1:],
    "that of the first head of each group": lambda c, x: x[:, :: c.group],
    "the mean over heads": lambda c, x: x / c.H, "the mean over rows": lambda c, x: x / c.Lq,
    "the mean over keys": lambda c, x: x / c.Lk, "the mean over all pairs": lambda c, x: x / max(1, x.size),
} | {
    f"that of the {words} of {n} {what}": (lambda c, x, n=n, axis=axis, last=last: _tile(x, n, axis, last))
    for words, last in (("last tile", True), ("first tile", False)) for what, axis in (("rows", 2), ("keys", 3))
    for n in (8, 16, 32, 64)
}  # fmt: skip


def _tile(x: Array, n: int, axis: int, last: bool) -> Array:
    first = (x.shape[axis] - 1) // n * n if last else 0
    return x[(slice(None),) * axis + (slice(first, first + n),)]


def _wanted(case: Case, how: Any) -> bool:
    if not case.want >= set(how.of):
        return False
    number = np.broadcast_to(1.0, (case.B, case.H, case.Lq, case.Lk))
    return bool(case.B * case.Lq * case.Lk and how.part(case, number).sum() != number.sum())


class scalar_of_part(Summed):
    """{of} {part}, not the sum over all."""

    of: tuple[str, ...] = ("dscale",)
    part: Callable[[Case, Array], Array]

    def sums(self, capped: Array, ds: Array) -> dict[str, Any]:
        c = self.case.softcap or 1.0
        z = self.s / c
        each = {"dscale": ds * self.qk, "dsoftcap": capped * (np.tanh(z) - z * np.cosh(z) ** -2)}
        return {n: type(self).part(self.given, np.where(self.seen, each[n], 0)).sum() for n in self.of}


for words, of in {"dscale is": ("dscale",), "dsoftcap is": ("dsoftcap",),
                  "dscale and dsoftcap are": ("dscale", "dsoftcap")}.items():  # fmt: skip
    kind(_wanted, " ".join(of), of={words: of}, part=PARTS)(scalar_of_part)
