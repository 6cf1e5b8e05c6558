"""A case: the description of one attention problem, without its arrays.

A case is a value: hashable, comparable, and it goes to JSON and back unchanged.  The arrays are
made from it by `refattn.inputs`, the truth by `refattn.truth`.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from .dtypes import format_of
from .masks import Mask, Visibility, mask_from_json
from .nearest import nearest
from .quantise import Quant
from .rotary import Rotary
from .score_mods import SCORE_MODS
from .storage import (
    Cache,
    Dense,
    Packed,
    Paged,
    Shared,
    Storage,
    Strided,
    part_from_json,
    storage_from_json,
    storage_to_json,
)  # fmt: skip

__all__ = [
    "CACHES", "GRADIENTS", "MATRICES", "NAMES", "OUTPUTS",
    "BiasSpec", "Cache", "Case", "Dense", "Packed", "Paged", "Shared", "Strided",
]  # fmt: skip

OUTPUTS = ("out", "lse")
MATRICES = ("scores", "capped", "biased", "weights")
"""(B, H, Lq, Lk), as `refattn.oracle.Scores` has them"""
CACHES = ("k_cache", "v_cache")
"""the cache after the new tokens were appended"""
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks", "dscale", "dsoftcap")
NAMES = OUTPUTS + MATRICES + CACHES + GRADIENTS
_OFF = {"scale": "D**-0.5", "softcap": "no softcap", "dropout": "no dropout"}


@dataclass(frozen=True)
class BiasSpec:
    """An additive bias: which dimensions it has (the others are 1), its dtype and its family.

    `dims` is a string out of B, H, Q, K: "HQK" is a bias of shape (1, H, Lq, Lk).
    """

    dims: str = "BHQK"
    dtype: str = "float32"
    family: str = "normal"

    def __post_init__(self) -> None:
        if not isinstance(self.dims, str) or not self.dims or not set(self.dims) <= set("BHQK"):
            raise ValueError(f"dims={self.dims!r} must hold some of the letters B, H, Q, K")
        object.__setattr__(self, "dtype", format_of(self.dtype, "bias dtype").name)


@dataclass(frozen=True)
class Case:
    """One problem: sizes, dtypes, input family and features; see the module's docstring.

    `flags` name the bugs that the case is for, `why` says it in a sentence.  `q_lens` and `k_lens`
    say, for each batch entry, how much of Lq and Lk exists at all.
    """

    id: str
    why: str
    flags: tuple[str, ...] = ()
    chapter: str = "user"
    B: int = 1
    H: int = 1
    Hkv: int = 1
    Lq: int = 1
    Lk: int = 1
    D: int = 8
    Dv: int = 8
    dtype: str = "float32"
    out_dtype: str = ""
    family: str = "normal"
    seed: int = 0
    want: frozenset[str] = frozenset(OUTPUTS)
    mask: Mask | None = None
    q_lens: tuple[int, ...] | None = None
    k_lens: tuple[int, ...] | None = None
    scale: float | None = None
    softcap: float | None = None
    bias: BiasSpec | None = None
    sinks: str | None = None
    score_mod: str | None = None
    dropout: float | None = None
    rotary: Rotary | None = None
    quant: Quant | None = None
    storage: Storage = Dense()

    def __new__(cls, *_: Any, **given: Any) -> Case:
        _check_fields(given, TypeError)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", self.id):
            raise ValueError(f"id={self.id!r} must be made of letters, digits and _ . + -")
        for name in ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv", "seed"):
            value = getattr(self, name)
            if not hasattr(value, "__index__") or value < 0:
                raise ValueError(f"{name}={value!r} must be an int >= 0")
            object.__setattr__(self, name, operator.index(value))
        if self.H != self.Hkv and (self.H == 0 or self.Hkv == 0 or self.H % self.Hkv):
            raise ValueError(f"H={self.H} must be a multiple of Hkv={self.Hkv}")
        f = format_of(self.dtype)
        out = format_of(self.out_dtype or ("bfloat16" if f.bits <= 4 else f.name), "out_dtype")
        object.__setattr__(self, "dtype", f.name)
        object.__setattr__(self, "out_dtype", out.name)
        if out.bits <= 4:
            raise ValueError(f"out_dtype={self.out_dtype}: the outputs of float8 cases are float16 or bfloat16")
        if isinstance(self.flags, str):
            raise TypeError(f"flags={self.flags!r} must be a tuple of names")
        object.__setattr__(self, "flags", tuple(self.flags))
        self._check_types()
        for name in ("q_lens", "k_lens"):
            value = getattr(self, name)
            if value is not None:
                try:
                    lens = tuple(map(operator.index, value))
                except TypeError:
                    raise ValueError(f"{name}={value!r} must be ints, one for each batch entry; None for all") from None
                object.__setattr__(self, name, lens)
        object.__setattr__(self, "want", frozenset(self.want))
        unknown = self.want - set(NAMES)
        if unknown or not self.want:
            raise ValueError(f"want={sorted(self.want)} must hold some of {', '.join(NAMES)}")
        if self.backward and f.bits <= 4:
            raise ValueError(f"dtype={self.dtype}: float8 gradients have no derived bound")
        for name, needed in (("dbias", self.bias), ("dsinks", self.sinks), ("dsoftcap", self.softcap)):
            if name in self.want and needed is None:
                raise ValueError(f"want={sorted(self.want)} asks for {name} of a case without {name[1:]}")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale={self.scale} must be finite; pass None for D**-0.5")
        if self.softcap is not None and not (self.softcap > 0 and math.isfinite(self.softcap)):
            raise ValueError(f"softcap={self.softcap} must be > 0 and finite; pass None for no softcap")
        if self.score_mod is not None and self.score_mod not in tuple(SCORE_MODS):
            raise ValueError(f"score_mod={self.score_mod!r} is not one of {', '.join(SCORE_MODS)}")
        if self.dropout is not None and not 0 <= self.dropout <= 1:
            raise ValueError(f"dropout={self.dropout} must be from 0 to 1; pass None for no dropout")
        self._check_transforms()
        self._check_storage()
        last = slice(-1, None)
        self.visibility.tile(last, last)  # refuses a mask or lengths that do not fit

    def _check_types(self) -> None:
        """Each part is of its class, and numbers are Python's floats."""
        for name, kind in (("mask", Mask), ("bias", BiasSpec), ("rotary", Rotary), ("quant", Quant)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name}={value!r} must be a {kind.__name__}; pass None for no {name}")
        if not isinstance(self.storage, get_args(Storage)):
            names = ", ".join(f"{kind.__name__}()" for kind in get_args(Storage))
            raise TypeError(f"storage={self.storage!r} must be one of {names}; Dense() is the plain one")
        for name in ("scale", "softcap", "dropout"):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise TypeError(f"{name}={value!r} must be a number; pass None for {_OFF[name]}")
            try:
                object.__setattr__(self, name, float(value))
            except OverflowError:
                raise ValueError(f"{name} must be within the range of float64") from None

    def _check_transforms(self) -> None:
        """Rotary and quantisation fit the sizes and what is wanted."""
        if self.rotary is not None:
            if self.rotary.dim > self.D:
                raise ValueError(f"rotary.dim={self.rotary.dim} must be <= D={self.D}")
            if format_of(self.dtype).bits <= 4:
                raise ValueError(f"dtype={self.dtype}: float8 is not rotated; use quant for a float8 cache")
            if any(lq > lk for lq, lk in zip(*self.lengths, strict=True)):
                raise ValueError(f"rotary={self.rotary} needs a key for each query: its position is i + lk - lq")
            if self.backward and format_of(self.dtype).bits <= 11:
                cure = "use float32 or float64"
                raise ValueError(f"dtype={self.dtype} with rotary and gradients has no bound that decides; {cure}")
        if self.quant is None:
            return
        if self.backward:
            raise ValueError(f"quant={self.quant} with {sorted(self.want)}: quantised inputs have no gradients")
        if format_of(self.dtype).bits <= 4:
            raise ValueError(f"dtype={self.dtype} with quant must be that of the queries: float32, float16 or bfloat16")
        if self.quant.kind in ("q8_0", "q4_0") and (self.D % 32 or self.Dv % 32):
            raise ValueError(f"D={self.D}, Dv={self.Dv} must be multiples of 32, the block of {self.quant.kind}")
        if self.rotary is not None:
            raise ValueError(f"quant={self.quant} with rotary={self.rotary}: a cache is rotated before it is quantised")
        if not isinstance(self.storage, (Dense, Strided)) and self.quant.granularity == "block":
            raise ValueError(f"storage={self.storage} has no scales by block; use granularity='head' or 'tensor'")

    def _check_storage(self) -> None:
        if isinstance(self.storage, (Paged, Cache, Shared)) and self.backward:
            raise ValueError(f"storage={self.storage} with {sorted(self.want)}: no gradients are taken through it")
        if isinstance(self.storage, Shared) and (self.Dv > self.D or self.quant is not None):
            raise ValueError(f"storage=Shared() needs Dv={self.Dv} <= D={self.D} and no quant")
        if isinstance(self.storage, Cache):
            lens = self.lengths[1]
            if self.q_lens is not None or self.quant is not None or any(n < self.Lq for n in lens):
                raise ValueError(
                    f"storage={self.storage} needs all Lq={self.Lq} queries among the keys k_lens={lens}, and neither "
                    f"q_lens nor quant"
                )
        elif not self.want.isdisjoint(CACHES):
            raise ValueError(f"want={sorted(self.want)} asks for a cache of storage={self.storage}; use Cache()")
        if not self.want.isdisjoint(MATRICES) and isinstance(self.storage, Packed):
            raise ValueError(f"want={sorted(self.want)}: scores of Packed sequences have no shape of their own")

    @property
    def backward(self) -> bool:
        """Whether any gradient is wanted."""
        return not self.want.isdisjoint(GRADIENTS)

    @property
    def group(self) -> int:
        """How many query heads share a key head; 1 if there is none."""
        return max(1, self.H // max(1, self.Hkv))

    @property
    def scores(self) -> int:
        """How many scores all heads have, hidden ones too."""
        return self.B * self.H * self.Lq * self.Lk

    @property
    def visibility(self) -> Visibility:
        return Visibility(self.mask, self.B, self.H, self.Lq, self.Lk, self.q_lens, self.k_lens)

    @property
    def lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """How many queries and how many keys exist, for each batch entry."""
        return self.q_lens or (self.Lq,) * self.B, self.k_lens or (self.Lk,) * self.B

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The dense shape of an input or an output."""
        rows, keys = (self.B, self.H, self.Lq), (self.B, self.Hkv, self.Lk)
        shapes: dict[str, tuple[int, ...]] = {
            "q": (*rows, self.D), "k": (*keys, self.D), "v": (*keys, self.Dv), "out": (*rows, self.Dv), "lse": rows,
            "bias": self.bias_shape, "sinks": (self.H,), "keep": (*rows, self.Lk), "scale": (), "softcap": (),
            "k_cache": (*keys, self.D), "v_cache": (*keys, self.Dv), **dict.fromkeys(MATRICES, (*rows, self.Lk)),
        }  # fmt: skip
        return shapes[name] if name in shapes else shapes[name.removeprefix("d")]

    @property
    def bias_shape(self) -> tuple[int, ...]:
        dims = "" if self.bias is None else self.bias.dims
        sizes = (("B", self.B), ("H", self.H), ("Q", self.Lq), ("K", self.Lk))
        return tuple(n if letter in dims else 1 for letter, n in sizes)

    def features(self) -> frozenset[str]:
        """The features that an implementation must have, as words: used to count and to refuse."""
        words = {f"dtype={self.dtype}"}
        words |= {kind.lower() for kind in re.findall(r"[A-Z]\w+(?=\()", repr(self.mask))}
        for word, on in {
            "mask": self.mask is not None,
            "gqa": self.H != self.Hkv,
            "D!=Dv": self.D != self.Dv,
            "Lq!=Lk": self.Lq != self.Lk,
            "scale": self.scale is not None,
            "softcap": self.softcap is not None,
            "bias": self.bias is not None,
            f"bias={self.bias and self.bias.family}": self.bias is not None,
            "sinks": self.sinks is not None,
            "q_lens": self.q_lens is not None,
            "k_lens": self.k_lens is not None,
            "backward": self.backward,
            "dlse": self.backward and "lse" in self.want,
            "dscale": "dscale" in self.want,
            "dsoftcap": "dsoftcap" in self.want,
            "out_dtype": self.out_dtype not in (self.dtype, "bfloat16" if "float8" in self.dtype else ""),
            "matrices": not self.want.isdisjoint(MATRICES),
            "strided": isinstance(self.storage, Dense) and self.storage != Dense(),
            "far": isinstance(self.storage, Strided),
            type(self.storage).__name__.lower(): not isinstance(self.storage, (Dense, Strided)),
            f"score_mod={self.score_mod}": self.score_mod is not None,
            "dropout": self.dropout is not None,
            "rotary": self.rotary is not None,
            f"quant={self.quant and self.quant.kind}": self.quant is not None,
        }.items():
            if on:
                words.add(word)
        return frozenset(words)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal case; fields at their default are left out."""
        data: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if value == f.default:
                continue
            if isinstance(value, Mask):
                value = value.to_json()
            elif f.name == "storage":
                value = storage_to_json(value)
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = dataclasses.asdict(value)
            elif isinstance(value, frozenset):
                value = sorted(value)
            data[f.name] = value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        lacking = {"id", "why"} - set(data)
        if lacking:
            raise ValueError(f"a case needs {' and '.join(sorted(lacking))}")
        _check_fields(data, ValueError)
        made = dict(data)
        made["mask"] = mask_from_json(data.get("mask"))
        for name, kind in (("bias", BiasSpec), ("rotary", Rotary), ("quant", Quant)):
            if data.get(name) is not None:
                made[name] = part_from_json(kind, name, data[name])
        if "storage" in data:
            made["storage"] = storage_from_json(data["storage"])
        return cls(**made)


def _check_fields(given: Mapping[str, Any], error: type[Exception]) -> None:
    known = sorted(Case.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise error(f"a case has no field {name}; {nearest(name, known)}it has {', '.join(known)}")
