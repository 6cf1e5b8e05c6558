"""tinygrad's Tensor.scaled_dot_product_attention on the CPU, whose kernels clang compiles.

`is_causal` serves a top-left causal mask and nothing else, all other masks are boolean or, with a bias, additive.
It has no scale of one's own.  In 16 bits exp, the row sum and its reciprocal are rounded to 16 bits
(tinygrad/mixin/op.py, `softmax`), for which no contract has a bound, so that these are refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..case import Case
from ..precision import Conventions
from .adapter import Adapter, additive, hides, is_causal, visible

__all__ = ["default"]


@dataclass(frozen=True)
class ScaledDotProductAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.H, case.Lq, case.Lk, case.D, case.Dv):
            return "a size of 0"
        if "dbias" in case.want and hides(case):
            return "dbias beside a mask"  # one attn_mask has both
        return None

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        Tensor: Any = importlib.import_module("tinygrad").Tensor
        names = [n for n in ("q", "k", "v", "bias") if n in given]
        x = {n: Tensor(np.ascontiguousarray(given[n])) for n in names}
        options: dict[str, Any] = {"enable_gqa": case.H != case.Hkv}
        if is_causal(case) and case.bias is None:
            options["is_causal"] = True
        elif hides(case):
            options["attn_mask"] = Tensor(visible(case) if case.bias is None else additive(case, given))
        elif "bias" in x:
            options["attn_mask"] = x["bias"]
        out = x["q"].scaled_dot_product_attention(x["k"], x["v"], **options)
        answer = {"out": out}
        wanted = [n for n in names if "d" + n in case.want]
        if wanted:
            found = out.gradient(*(x[n] for n in wanted), gradient=Tensor(np.ascontiguousarray(given["dout"])))
            answer |= {"d" + n: g for n, g in zip(wanted, found, strict=True)}
        Tensor.realize(*answer.values())  # all at once: they share kernels, and compiling takes the time
        return {n: a.numpy() for n, a in answer.items()}


default = ScaledDotProductAttention(
    "tinygrad Tensor.scaled_dot_product_attention",
    "tinygrad",
    takes=frozenset({"bias", "mask", "gqa", "D!=Dv"}),
    dtypes=frozenset({"float64", "float32"}),
    outputs=frozenset({"out", "dq", "dk", "dv", "dbias"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="nan"),
)
