"""Hypotheses on gradients: factors, sums over groups and over what is broadcast, and where they are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...oracle import scale_of
from ..hypothesis import kind
from ..model import LN2, Array, Model

__all__: list[str] = []

ALL = "dq dk dv dbias dsinks dscale dsoftcap"
SCORED = "dq dk dbias dsinks dscale dsoftcap"
GRADIENTS = tuple(ALL.split())


def _back(case: Case) -> bool:
    return case.backward


FACTORS: dict[str, Callable[[float], float]] = {
    "not multiplied by the scale": lambda s: 1 / s if s else 1.0,
    "multiplied by the scale twice": lambda s: s,
    "ln 2 times too small": lambda s: LN2,
    "1 / ln 2 times too large: ln 2 is forgotten in base 2": lambda s: 1 / LN2,
    "negative": lambda s: -1.0,
    "0": lambda s: 0.0,
    "twice as large": lambda s: 2.0,
    "half as large": lambda s: 0.5,
}
SETS = {"dq": ("dq",), "dk": ("dk",), "dq and dk": ("dq", "dk"), "dv": ("dv",), "dk and dv": ("dk", "dv"),
        "dbias": ("dbias",), "dsinks": ("dsinks",), "dscale": ("dscale",), "dsoftcap": ("dsoftcap",),
        "all but dv": tuple(SCORED.split()), "all gradients": GRADIENTS,
        "dq, dk and dbias": ("dq", "dk", "dbias")}  # fmt: skip


def _wants(case: Case, how: Any) -> bool:
    scale = scale_of(case.scale, case.D)
    factor = how.how(scale)
    if how.of in (("dbias",), ("dsinks",)) and factor in (scale, 1 / scale if scale else 1.0):
        return False  # they have no scale that could be missing or there twice
    return not case.want.isdisjoint(how.of) and abs(factor - 1) > 1e-3


class gradient_factor(Model):
    """{of}: {how}."""

    of = ("dq",)
    how: Callable[[float], float]

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        s = self.factor()
        for n in (n for n in self.of if n in y):
            if s == 0 and n in ("dq", "dk") and self.how(2.0) == 0.5:  # without the scale, where it is 0
                continue
            y[n] = y[n] * self.how(s)
        return y


for words, of in SETS.items():
    kind(_wants, " ".join(of), of={words: of}, how=FACTORS)(gradient_factor)

@kind(lambda case: case.backward and scale_of(case.scale, case.D) == 0, "dq dk",
    of={"dq": "q", "dk": "k", "dq and dk": "qk"})
class scale_0_missing(Model):
    """{of}: not multiplied by the scale of 0."""

    of: Any = "q"

    def q_factor(self) -> float:
        return 1.0 if "q" in self.of else self.factor()

    def k_factor(self) -> float:
        return 1.0 if "k" in self.of else self.factor()


def _grouped(case: Case) -> bool:
    return case.H != case.Hkv and not case.want.isdisjoint(("dk", "dv"))


def _by_head(x: Any, y: Array, at: Array, how: str = "sum") -> Array:
    total = np.zeros((y.shape[0], x.given.Hkv, *y.shape[2:]), y.dtype)
    for h, own in enumerate(at):
        total[:, own] = y[:, h] if how == "last" else total[:, own] + y[:, h]
    return total


GROUPS: dict[str, Callable[[Any, Array], Array]] = {
    "those of the last head of the group, not the sum": lambda x, y: _by_head(x, y, x.heads(), "last"),
    "those of the first head of the group": lambda x, y: y[:, np.arange(x.given.Hkv) * x.group_size()],
    "the mean over the group": lambda x, y: _by_head(x, y, x.heads()) / x.group_size(),
    "added to key head h % Hkv": lambda x, y: _by_head(x, y, np.arange(x.given.H) % max(1, x.given.Hkv)),
    "those of head h % Hkv, the last one": lambda x,
    y: _by_head(x, y, np.arange(x.given.H) % max(1, x.given.Hkv), "last"),
    "those of head h, the first Hkv of them": lambda x, y: y[:, : x.given.Hkv],
    "all added to head 0": lambda x, y: _by_head(x, y, 0 * x.heads()),
    "those of all but the first head of the group":
        lambda x, y: _by_head(x, y, x.heads()) - y[:, np.arange(x.given.Hkv) * x.group_size()],
    "added to key head h % group, up to the last":
        lambda x, y: _by_head(x, y, np.minimum(np.arange(x.given.H) % x.group_size(), x.given.Hkv - 1)),
}


@kind(_grouped, "dk dv", of={"dk and dv are": (0, 1), "dk is": (0,), "dv is": (1,)}, how=GROUPS)
class group(Model):
    """{of} {how}."""

    of = (0, 1)
    how: Callable[[Any, Array], Array]
    calls = 0

    def group_size(self) -> int:
        return self.given.group

    def group(self, y: Array) -> Array:
        which, self.calls = self.calls, self.calls + 1  # dk comes before dv
        return self.how(self, y) if which in self.of else super().group(y)


WRITTEN: dict[str, Callable[[Array], Array]] = {
        "of the head before": lambda y: np.roll(y, 1, 1), "of the entry before": lambda y: np.roll(y, 1, 0),
        "with entries and heads exchanged in memory":
            lambda y: np.ascontiguousarray(y.swapaxes(0, 1)).reshape(y.shape),
        "with rows and columns exchanged in memory":
            lambda y: np.ascontiguousarray(y.swapaxes(2, 3)).reshape(y.shape),
        "with entries and rows exchanged in memory":
            lambda y: np.ascontiguousarray(y.swapaxes(0, 2)).reshape(y.shape),
        "with columns reversed": lambda y: y[..., ::-1], "with rows reversed": lambda y: y[:, :, ::-1],
        "without its last column": lambda y: np.concatenate([y[..., :-1], 0 * y[..., -1:]], 3),
        "of the next row": lambda y: np.roll(y, -1, 2), "of the row before": lambda y: np.roll(y, 1, 2),
        "of the next head": lambda y: np.roll(y, -1, 1), "of head 0 for all":
            lambda y: np.repeat(y[:, :1], y.shape[1], 1),
        "of the next entry": lambda y: np.roll(y, -1, 0), "of entry 0 for all": lambda y: np.repeat(y[:1], len(y), 0),
        "with heads and length exchanged in memory":
            lambda y: np.ascontiguousarray(y.swapaxes(1, 2)).reshape(y.shape),
        "without its last row": lambda y: np.concatenate([y[:, :, :-1], 0 * y[:, :, -1:]], 2),
        "without its first row": lambda y: np.concatenate([0 * y[:, :, :1], y[:, :, 1:]], 2),
}  # fmt: skip


class gradient_written(Model):
    """{of} is that {how}."""

    of: tuple[str, ...] = ("dq",)
    how: Callable[[Array], Array]

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        return y | {n: self.how(y[n]) for n in self.of if n in y}


for words, of in {"dq": ("dq",), "dk": ("dk",), "dv": ("dv",), "dk and dv": ("dk", "dv"),
                  "each of dq, dk and dv": ("dq", "dk", "dv")}.items():  # fmt: skip
    kind(lambda case, how: not case.want.isdisjoint(how.of), " ".join(of), of={words: of}, how=WRITTEN)(
        gradient_written)

@kind(_back, "dk dv", how={"dk and dv are exchanged": 0})
class gradients_exchanged(Model):
    """{how}."""

    how = 0

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        same = "dk" in y and y["dk"].shape == y["dv"].shape
        return y | {"dk": y["dv"], "dv": y["dk"]} if same else y
