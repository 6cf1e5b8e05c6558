"""Hypotheses on codes: which scale they have, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...case import Case
from ...memory import take
from ...quantise import BLOCK
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

GGML = ("q8_0", "q4_0")


def _coded(case: Case) -> bool:
    return case.quant is not None


OF = {"keys": "k", "values": "v", "keys and values": "kv", "queries": "q"}


@kind(
    lambda case: _coded(case) and case.quant.granularity == "block" and case.quant.kind not in GGML, of=OF,
    size=(1, 8, 16, 32, 128, 256),
)  # fmt: skip
class code_block(Model):
    """The scale of codes of {of} is looked up as that of blocks of {size} tokens."""

    of: Any = "k"
    size = 128

    def arrays(self) -> dict[str, Array]:
        x, coded = super().arrays(), take(self.given, self.inputs.handed())
        for n in (n for n in self.of if f"{n}_scale" in coded):
            s, j = coded[f"{n}_scale"], np.arange(x[n].shape[2])
            last = s.shape[2] - 1
            x[n] = x[n] * (s[:, :, np.minimum(j // self.size, last)] / s[:, :, np.minimum(j // BLOCK, last)])
        return x


HEADS: dict[str, Callable[[Array], Array]] = {
    "the head before": lambda s: np.roll(s, 1, 1),
    "the last head": lambda s: np.broadcast_to(s[:, -1:], s.shape),
    "the next entry": lambda s: np.roll(s, -1, 0),
    "the last entry": lambda s: np.broadcast_to(s[-1:], s.shape),
    "entry and head exchanged in memory": lambda s: np.ascontiguousarray(s.swapaxes(0, 1)).reshape(s.shape),
    "its own, with the other sign": lambda s: -s,
    "its own, twice as large": lambda s: 2 * s,
    "its own, half as large": lambda s: s / 2,
    "its own, divided by 127": lambda s: s / 127,
    "its own, times 127": lambda s: s * 127,
    "its own, divided by 448": lambda s: s / 448,
    "its own, times 448": lambda s: s * 448,
    "its own, its square root": lambda s: np.sqrt(np.abs(s)),
}


@kind(_coded, of=OF | {"all": "qkv"}, how=HEADS)
class code_scale_read(Model):
    """The scale of codes of {of} is that of {how}."""

    of: Any = "k"
    how: Callable[[Array], Array]

    def arrays(self) -> dict[str, Array]:
        x = take(self.given, self.inputs.handed())
        names = [f"{n}_scale" for n in self.of if f"{n}_scale" in x]
        return self.made(x | {n: np.ascontiguousarray(self.how(x[n])).astype(x[n].dtype) for n in names})


CODES: dict[str, Callable[[Array], Array]] = {
    "unsigned": lambda x: np.where(x < 0, x.astype(np.float64) + 256, x.astype(np.float64)),
    "codes with an offset of 128": lambda x: x.astype(np.float64) - 128,
    "with the other sign": lambda x: -x.astype(np.float64),
    "in absolute value": lambda x: np.abs(x.astype(np.float64)),
}


@kind(lambda case: _coded(case) and case.quant.kind == "int8", of=OF, how=CODES)
class codes_read(Model):
    """The codes of {of} are taken as {how}."""

    of: Any = "k"
    how: Callable[[Array], Array]

    def arrays(self) -> dict[str, Array]:
        x, coded = super().arrays(), take(self.given, self.inputs.handed())
        for n in self.of:
            codes = coded[n].astype(np.float64) if n in coded else np.zeros(())
            if n in x and codes.shape == x[n].shape:
                ratio = np.where(codes == 0, 1, self.how(coded[n]) / np.where(codes == 0, 1, codes))
                x[n] = x[n] * ratio
        return x
