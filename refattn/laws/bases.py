"""The problems that the laws are asked of: one for each dtype and feature that changes what holds."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..case import Case
from ..masks import Causal, Window

__all__ = ["BASES", "ONLY"]

F64, F32, F16, BF16, E4M3 = "float64", "float32", "float16", "bfloat16", "float8_e4m3fn"
FORWARD = frozenset({"out", "lse"})
GRAD = frozenset({"out", "dq", "dk", "dv"})
ALL = GRAD | {"lse"}
_TL, _BR = Causal("top_left"), Causal("bottom_right")


def _base(chapter: str, id: str, why: str, sizes: tuple[int, ...], dtype: str, **fields: Any) -> Case:
    named = dict(zip(("B", "H", "Hkv", "Lq", "Lk", "D", "Dv"), sizes, strict=True))
    return Case(id, why, (), chapter, dtype=dtype, family="peaked", **{"want": ALL, **named, **fields})


_short, _long = partial(_base, "laws"), partial(_base, "long")

BASES = (
    _short("full-f32", "No mask, grouped heads, a gradient at lse.", (2, 4, 2, 40, 67, 16, 24), F32),
    _short("full-f64", "The same in double precision, alone at lse.", (2, 3, 1, 21, 50, 8, 8), F64),
    _short("full-bf16", "16-bit weights, several tiles; no gradient at lse.",
           (2, 2, 2, 33, 130, 32, 16), BF16, want=GRAD),
    _short("full-f16", "Weights that underflow early.", (1, 4, 2, 29, 77, 16, 16), F16),
    _short("decode-bf16", "One query of each head, four heads a group.", (2, 8, 2, 1, 300, 32, 32), BF16, want=FORWARD),
    _short("decode-e4m3", "Inputs of 8 bits.", (2, 4, 2, 3, 150, 32, 32), E4M3, out_dtype=BF16, want=FORWARD),
    _short("causal-f32", "As many keys as queries.", (1, 2, 2, 80, 80, 16, 16), F32, mask=_TL, want=GRAD),
    _short("causal-wide-f16", "More keys than queries, top left: the last keys are seen by none.",
           (2, 2, 1, 31, 60, 16, 16), F16, mask=_TL),
    _short("causal-br-bf16", "The same, bottom right.", (1, 4, 2, 31, 90, 16, 24), BF16, mask=_BR),
    _short("causal-br-tall-f32", "More queries than keys: the first rows see nothing.",
           (2, 2, 1, 45, 30, 8, 8), F32, mask=_BR),
    _short("window-bf16", "A window of 21 keys.", (1, 2, 2, 70, 70, 16, 16), BF16, mask=Window(20, 0, "bottom_right")),
    _short("softcap-f32", "Softcap, and a scale of its own.", (2, 2, 1, 24, 49, 16, 16), F32, softcap=4.0, scale=0.4),
    _short("sinks-bf16", "A sink in each row.", (2, 4, 2, 30, 65, 16, 16), BF16, sinks="normal", mask=_BR,
           want=ALL | {"dsinks"}),
    _long("far-bf16", "70,001 keys, two queries at the end: positions beyond 2^16.",
          (1, 2, 1, 2, 70_001, 8, 8), BF16, mask=_BR, want=FORWARD),
    _long("far-f32", "66,000 keys, no mask.", (1, 1, 1, 2, 66_000, 8, 8), F32, want=FORWARD),
    _long("tall-f32", "66,001 queries: rows beyond 2^16.", (1, 1, 1, 66_001, 33, 8, 8), F32, want=GRAD),
    _long("million-bf16", "A million keys.", (1, 1, 1, 1, 1_000_000, 4, 4), BF16, want=FORWARD),
)  # fmt: skip

ONLY = {"million-bf16": ("sampled_rows", "split_merge")}
"""what is asked of a base that is dear"""
