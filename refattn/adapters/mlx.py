"""mlx.core.fast.scaled_dot_product_attention on the CPU.

Its "causal" is aligned bottom right; it serves masks that are just that.  Others are boolean arrays
(True = may attend), or with a bias additive ones.  Gradients come from `mx.vjp`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case
from ..exchange import as_numpy, hand_over
from ..oracle import scale_of
from ..precision import Conventions, Precision, preset
from .adapter import Adapter, hides, is_causal, visible

__all__ = ["default"]

DOCUMENTED = "its documentation: the softmax is performed in float32 regardless of the input precision"
SOURCE = "mlx/fast.cpp, the fallback of scaled_dot_product_attention: q * scale, scores, weights in the inputs' dtype"


@dataclass(frozen=True)
class ScaledDotProductAttention(Adapter):
    def precision(self, case: Case) -> Precision:
        contract = preset(case.dtype, case.out_dtype)
        if case.dtype == "float64":
            return replace(contract, accumulate="float32", source=DOCUMENTED)
        if case.dtype == "float32":
            return contract
        return replace(contract, scores=case.dtype, scaled_q=case.dtype, weights_normalised=True, source=SOURCE)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        mx: Any = importlib.import_module("mlx.core")
        scale = scale_of(case.scale, case.D)
        names = [n for n in ("q", "k", "v", "bias", "sinks") if n in given]
        causal = is_causal(case, "bottom_right")
        seen = hand_over(visible(case), "mlx") if hides(case) else None

        def attend(*arrays: Any) -> list[Any]:
            x = dict(zip(names, arrays, strict=True))
            mask = "causal" if causal else seen
            if "bias" in x:
                mask = x["bias"] if seen is None else mx.where(seen, x["bias"], mx.array(-mx.inf, x["bias"].dtype))
            options = {"scale": scale, "mask": mask, "sinks": x.get("sinks")}
            return [mx.fast.scaled_dot_product_attention(x["q"], x["k"], x["v"], **options)]

        with mx.stream(mx.cpu):
            x = {n: hand_over(np.ascontiguousarray(given[n]), "mlx") for n in (*names, *(["dout"] * case.backward))}
            arrays = [x[n] for n in names]
            answer: dict[str, Any] = {}
            if case.backward:
                [answer["out"]], gradients = mx.vjp(attend, arrays, [x["dout"]])
                answer |= {"d" + n: g for n, g in zip(names, gradients, strict=True)}
            else:
                [answer["out"]] = attend(*arrays)
            mx.eval(answer)
        return {n: as_numpy(a).copy() for n, a in answer.items()}


default = ScaledDotProductAttention(
    "mx.fast.scaled_dot_product_attention",
    "mlx",
    takes=frozenset({"sinks", "bias", "mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float64", "float32", "float16", "bfloat16"}),
    outputs=frozenset({"out", "dq", "dk", "dv", "dbias", "dsinks"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="mean_all"),
)
