"""Hypotheses on codes that are taken for those of another format: float8 of other bits, integers, nibbles."""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ...case import Case
from ...dtypes import round_to
from ...precision import preset
from ...quantise import Kind, dequantise
from ...streaming import Rules, Schedule
from ..hypothesis import kind
from ..model import Array, Model

__all__: list[str] = []

FORMATS: dict[str, tuple[Any, float]] = {
    "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, 1), "float8_e5m2": (ml_dtypes.float8_e5m2, 1),
    "float8_e4m3fnuz": (ml_dtypes.float8_e4m3fnuz, 1), "float8_e5m2fnuz": (ml_dtypes.float8_e5m2fnuz, 1),
    "float8_e4m3b11fnuz": (ml_dtypes.float8_e4m3b11fnuz, 1), "int8": (np.int8, 1), "uint8": (np.uint8, 1),
    "int8, divided by 127": (np.int8, 1 / 127), "int8, divided by 128": (np.int8, 1 / 128),
    "bytes with an offset of 128": (np.uint8, 0),
}  # fmt: skip
STORED = {"int8": "int8", "q8_0": "int8", "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2"}


@cache
def _numbers(words: str) -> Array:
    """What each of the 256 bytes stands for."""
    dtype, factor = FORMATS[words]
    found = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    return found * factor if factor else found - 128


class Bytes(Rules):
    """Codes are looked up by their bytes."""

    of, to = "kv", "int8"

    def dequantise(self, name: str, codes: Array, scale: Array, kind: Kind) -> Array:
        if name not in self.of or kind not in STORED:
            return super().dequantise(name, codes, scale, kind)
        scales = dequantise(np.ones_like(codes), scale, kind)
        return np.asarray(_numbers(self.to)[np.ascontiguousarray(codes).view(np.uint8)] * scales)


def _other(case: Case, how: Any) -> bool:
    if case.quant is None or ("q" in how.of and case.quant.of != "qkv"):
        return False
    return STORED.get(case.quant.kind, how.to) != how.to


@kind(_other, of={"keys": "k", "values": "v", "keys and values": "kv", "queries": "q", "all": "qkv"},
      to={words: words for words in FORMATS})  # fmt: skip
class codes_taken_for(Model):
    """The bytes of the codes of {of} are read as {to}."""

    of, to = "kv", "int8"

    def rules(self) -> Rules:
        made = type("Wrong", (Bytes,), {"of": self.of, "to": self.to})
        found: Rules = made(preset("float64"), Schedule())
        return found

    def arrays(self) -> dict[str, Array]:
        return self.from_memory(self.inputs.handed())


def _uncoded(case: Case) -> bool:
    return case.quant is not None and case.quant.of == "kv" and "float8" in case.quant.kind


@kind(_uncoded, rounding=True)
class queries_cast_to_codes(Model):
    """Queries are cast to the float8 of the codes of keys and values, with a scale of 1."""

    def arrays(self) -> dict[str, Array]:
        x, quant = super().arrays(), self.given.quant
        return x if quant is None else x | {"q": round_to(x["q"], quant.kind)}
