"""Hypotheses on the matrices that are returned: scores, capped, biased and weights of another step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..hypothesis import kind
from ..model import Array, Model, safe

__all__: list[str] = []

Made = Callable[[Any], Array]
RETURNED: dict[str, tuple[str, Made]] = {
    "weights that are returned are those after dropout": ("weights", lambda x: x.kept(x.again()) * x.undropped()),
    "weights that are returned are dropped, and not divided by 1 - p": ("weights", lambda x: x.kept(x.again())),
    "weights that are returned are not divided by their sum": ("weights", lambda x: x.again() * x.l[..., None]),
    "weights that are returned lack the sink in their sum": ("weights", lambda x: x.of_keys()),
    "weights that are returned are their logarithms": ("weights", lambda x: np.log(x.again())),
    "scores that are returned are q·k, without the scale": ("scores", lambda x: x.qk),
    "scores that are returned are those after softcap": ("scores", lambda x: x.capped),
    "scores that are returned are the logits, with bias and mask": ("scores", lambda x: x.t),
    "capped scores that are returned are those before softcap": ("capped", lambda x: x.s),
    "capped scores that are returned have bias and mask": ("capped", lambda x: x.t),
    "logits that are returned lack the bias": ("biased", lambda x: np.where(x.seen, x.capped, -np.inf)),
    "logits that are returned lack the mask": ("biased", lambda x: x.logits(x.s)),
    "logits that are returned lack softcap": ("biased", lambda x: np.where(x.seen, x.s, -np.inf)),
    "logits that are returned are less the maximum": ("biased", lambda x: x.t - safe(x.m)[..., None]),
}  # fmt: skip


@kind(lambda case, how: how.what[0] in case.want, "scores capped biased weights", what=RETURNED)
class matrix_returned(Model):
    """The {what}."""

    what: tuple[str, Made] = ("weights", lambda x: x.again())

    def kept(self, p: Array) -> Array:
        return p if self.keep is None else np.where(self.keep, p, 0)

    def of_keys(self) -> Array:
        p = self.again()
        total = p.sum(-1, keepdims=True)
        return p / np.where(total == 0, 1, total)

    def told(self, y: dict[str, Array]) -> dict[str, Array]:
        name, made = self.what
        return y | ({name: made(self)} if name in y else {})
