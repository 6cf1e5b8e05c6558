"""Hypotheses on codes: which scale they have, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...case import Case
from ...dtypes import round_to
from ...memory import take
from ...quantise import BLOCK
from ..hypothesis import kind
from ..model import Array, Model
from .arrays import HEADS as KEY_HEADS

__all__: list[str] = []

GGML = ("q8_0", "q4_0")
BLOCK_OF_COLUMNS = 32


def _coded(case: Case) -> bool:
    return case.quant is not None


OF = {"keys": "k", "values": "v", "keys and values": "kv", "queries": "q"}


@kind(
    lambda case: _coded(case) and case.quant.granularity == "block" and case.quant.kind not in GGML, of=OF,
    size={str(n): n for n in (1, 8, 16, 32, 128, 256)} | {"as many of equal size": 0},
)  # fmt: skip
class code_block(Model):
    """The scale of codes of {of} is looked up as that of blocks of tokens, {size}."""

    of: Any = "k"
    size = 128

    def arrays(self) -> dict[str, Array]:
        x, coded = super().arrays(), take(self.given, self.inputs.handed())
        for n in (n for n in self.of if f"{n}_scale" in coded):
            s, j = coded[f"{n}_scale"], np.arange(x[n].shape[2])
            last, size = s.shape[2] - 1, self.size or -(-j.size // s.shape[2])
            x[n] = x[n] * (s[:, :, np.minimum(j // size, last)] / s[:, :, np.minimum(j // BLOCK, last)])
        return x


COLUMNS: dict[str, Callable[[Array, int], Array]] = {
    "d % blocks": lambda d, n: d % n, "d // 16": lambda d, n: d // 16, "d // 64": lambda d, n: d // 64,
    "the first for all": lambda d, n: 0 * d, "the next": lambda d, n: (d // 32 + 1) % n,
    "counted from the last": lambda d, n: n - 1 - d // 32,
}


@kind(lambda case: _coded(case) and case.quant.kind in GGML and case.D > 32,
      of={w: n for w, n in OF.items() if w != "queries"}, block=COLUMNS)  # fmt: skip
class code_block_of_column(Model):
    """In the codes of {of} column d has the scale of block {block}, not of block d // 32."""

    of: Any = "kv"
    block: Callable[[Array, int], Array]

    def arrays(self) -> dict[str, Array]:
        x, coded = super().arrays(), take(self.given, self.inputs.handed())
        for n in self.of:
            s, d = coded[f"{n}_scale"].astype(np.float64), np.arange(x[n].shape[3])
            own, taken = s[..., d // 32], s[..., np.minimum(self.block(d, s.shape[3]), s.shape[3] - 1)]
            x[n] = x[n] * np.where(own == 0, 1, taken / np.where(own == 0, 1, own))
        return x


TOKENS: dict[str, Callable[[Array], Array]] = {
    f"its place in a tile of {n}": (lambda j, n=n: j % n) for n in (16, 32, 64, 128)
} | {
    f"the first of its tile of {n}": (lambda j, n=n: j // n * n) for n in (8, 16, 32, 64, 128)
} | {
    "0 for all": lambda j: 0 * j, "the next one": lambda j: np.minimum(j + 1, j.max(initial=0)),
    "the one before": lambda j: np.maximum(j - 1, 0), "the last one for all": lambda j: 0 * j + j.max(initial=0),
}


def _each_token(case: Case, how: Any) -> bool:
    j = np.arange(case.Lk)
    return case.quant is not None and case.quant.kind in GGML and not np.array_equal(how.to(j), j)


@kind(_each_token, of={w: n for w, n in OF.items() if w != "queries"}, to=TOKENS,
      same=("to", lambda case, how: how.to(np.arange(case.Lk)).tobytes()))  # fmt: skip
class code_scale_of_token(Model):
    """The scales of the codes of {of}, those of a token each, are those of token {to}."""

    of: Any = "kv"
    to: Callable[[Array], Array]

    def arrays(self) -> dict[str, Array]:
        x, coded = super().arrays(), take(self.given, self.inputs.handed())
        for n in self.of:
            s, size = coded[f"{n}_scale"].astype(np.float64), x[n].shape[3]
            taken = s[:, :, type(self).to(np.arange(s.shape[2]))]
            ratio = np.where(s == 0, 1, taken / np.where(s == 0, 1, s))
            x[n] = x[n] * np.repeat(ratio, BLOCK_OF_COLUMNS, 3)[..., :size]
        return x


SCALES: dict[str, Callable[[Array, int], Array]] = {
    "1": lambda s, a: np.ones_like(s), "its inverse": lambda s, a: np.where(s == 0, 0, 1 / np.where(s == 0, 1, s)),
    "squared": lambda s, a: s * s, "its square root": lambda s, a: np.sqrt(np.abs(s)),
    "of the other sign": lambda s, a: -s, "twice as large": lambda s, a: 2 * s, "half as large": lambda s, a: s / 2,
    "divided by 127": lambda s, a: s / 127, "multiplied by 127": lambda s, a: s * 127,
    "divided by 448": lambda s, a: s / 448, "multiplied by 448": lambda s, a: s * 448,
    "rounded to bfloat16": lambda s, a: round_to(s, "bfloat16"),
    "rounded to float16": lambda s, a: s.astype(np.float16),
    "that of entry 0": lambda s, a: np.broadcast_to(s[:1], s.shape),
    "that of the last entry": lambda s, a: np.broadcast_to(s[-1:], s.shape),
    "that of the next entry": lambda s, a: np.roll(s, -1, 0),
    "that of entry and head exchanged in memory":
        lambda s, a: np.ascontiguousarray(s.swapaxes(0, 1)).reshape(s.shape),
    "that of the first block": lambda s, a: np.broadcast_to(np.take(s, [0], a), s.shape),
    "that of the next block": lambda s, a: np.roll(s, -1, a), "that of the block before": lambda s, a: np.roll(s, 1, a),
}  # fmt: skip
"""(scales, the axis of the blocks that they are of) -> those that are taken"""
OF_HEADS: dict[str, Callable[[Array, int], Array]] = {
    "that of head 0": lambda s, a: np.broadcast_to(s[:, :1], s.shape),
    "that of the last head": lambda s, a: np.broadcast_to(s[:, -1:], s.shape),
    "that of the next head": lambda s, a: np.roll(s, -1, 1), "that of the head before": lambda s, a: np.roll(s, 1, 1),
}  # fmt: skip
"""of keys and values alone `code_scale_of_head` says it"""


@kind(_coded, of={"queries": "q", "all": "qkv"}, how=OF_HEADS)
@kind(_coded, of=OF | {"all": "qkv"}, how=SCALES)
class code_scale(Model):
    """The scale of the codes of {of} is {how}."""

    of: Any = "k"
    how: Callable[[Array, int], Array]

    def arrays(self) -> dict[str, Array]:
        x, quant = take(self.given, self.inputs.handed()), self.given.quant
        axis = 3 if quant is not None and quant.kind in GGML else 2
        names = [f"{n}_scale" for n in self.of if f"{n}_scale" in x]
        return self.made(x | {n: np.ascontiguousarray(self.how(x[n], axis)).astype(x[n].dtype) for n in names})


@kind(
    _coded,
    of={"values of that of the keys": {"v": "k"}, "keys of that of the values": {"k": "v"}, "q of that of the keys":
        {"q": "k"}, "keys and values of that of q": {"k": "q", "v": "q"},
        "keys of that of the values, and the other way round": {"k": "v", "v": "k"}},
)  # fmt: skip
class code_scale_of_another(Model):
    """The codes have the scale of other codes: the {of}."""

    of: Mapping[str, str] = {}

    def arrays(self) -> dict[str, Array]:
        x = take(self.given, self.inputs.handed())
        other = {f"{n}_scale": x.get(f"{m}_scale") for n, m in self.of.items()}
        same = {n: s for n, s in other.items() if n in x and s is not None and s.shape == x[n].shape}
        return self.made(x | same)


CODES: dict[str, Callable[[Array], Array]] = {
    "codes with an offset of 128": lambda x: x.astype(np.float64) - 128,
    "in absolute value": lambda x: np.abs(x.astype(np.float64)),
}


@kind(lambda case, how: _coded(case) and case.quant.kind == "int8" and (how.of != "q" or case.quant.of == "qkv"),
      of=OF, how=CODES)  # fmt: skip
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


def _grouped(case: Case) -> bool:
    return _coded(case) and case.quant is not None and case.quant.granularity != "tensor" and case.Hkv > 1


def _differs(case: Case, how: Any) -> bool:
    group = case.group
    return _grouped(case) and not np.array_equal(how.to(case), np.arange(case.H) // group)


@kind(_differs, of={"keys": "k", "values": "v", "keys and values": "kv"}, to=KEY_HEADS)
class code_scale_of_head(Model):
    """For query head h the codes of {of} have the scale of key head {to}, though codes are those of their own."""

    of: Any = "k"
    to: Callable[[Case], Array]

    def ratio(self, name: str) -> Array:
        """(B, H, Lk, columns or 1): the scale that is taken, over the right one."""
        x = take(self.given, self.inputs.handed())
        s, quant = x[f"{name}_scale"].astype(np.float64), self.given.quant
        size = self.x[name].shape[3]
        if quant is not None and quant.kind in GGML:
            s = np.repeat(s, 32, 3)[..., :size]
        elif s.shape[2] > 1:
            s = s[:, :, np.minimum(np.arange(self.given.Lk) // BLOCK, s.shape[2] - 1)]
        taken, own = s[:, type(self).to(self.given)], s[:, self.heads()]
        return np.where(own == 0, 1, taken / np.where(own == 0, 1, own))

    def to_logits(self) -> None:
        for n in self.of:
            setattr(self, n, (getattr(self, n) * self.ratio(n)).astype(self.dtype))
        super().to_logits()


NIBBLES: dict[str, Callable[[Array], Array]] = {
    "the low and the high four bits are exchanged": lambda n: n.reshape(*n.shape[:-1], 2, 16)[..., ::-1, :].reshape(
        n.shape),
    "a byte holds two neighbours": lambda n: n.reshape(*n.shape[:-1], 2, 16).swapaxes(-1, -2).reshape(n.shape),
    "the offset of 8 is left out": lambda n: n + 8,
    "the offset of 8 is subtracted in 8 bits without a sign": lambda n: np.where(n < 0, n + 256, n),
    "the offset is 7": lambda n: n + 1,
    "they are signed numbers of four bits": lambda n: np.where(n < 0, n + 8, n - 8),
    "the high four bits are left out": lambda n: np.where(np.arange(32) < 16, n, 0),
    "the low four bits are left out": lambda n: np.where(np.arange(32) >= 16, n, 0),
    "the low four bits are used for both": lambda n: n[..., np.arange(32) % 16],
}


@kind(lambda case: _coded(case) and case.quant.kind == "q4_0", of={"keys": "k", "values": "v", "keys and values": "kv"},
      how=NIBBLES)  # fmt: skip
class nibbles_read(Model):
    """In the codes of {of}, of four bits each, {how}."""

    of: Any = "kv"
    how: Callable[[Array], Array]

    def arrays(self) -> dict[str, Array]:
        x, coded = super().arrays(), take(self.given, self.inputs.handed())
        for n in self.of:
            scale = np.repeat(coded[f"{n}_scale"].astype(np.float64), 32, 3)
            codes = np.where(scale == 0, 0, x[n] / np.where(scale == 0, 1, scale))
            blocks = np.rint(codes).reshape(*codes.shape[:3], -1, 32)
            x[n] = self.how(blocks).reshape(codes.shape) * scale
        return x
