"""openvino, opset13 scaled_dot_product_attention on the CPU: `openvino` on inputs of the case's dtype and the hint f32,
`openvino-bf16` on float32 inputs and the hint bf16, which is the default where the processor knows bfloat16.

A causal mask aligned top-left is `causal`, which ignores attention_mask; all others are that, boolean or additive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case
from ..dtypes import FORMATS
from ..precision import Conventions, Precision, preset
from .adapter import Adapter, additive, hides, is_causal, visible

__all__ = ["bf16", "default"]

Array = np.ndarray[Any, Any]

SPECIFIED = "the operator's specification has 1 / sqrt(D) in the dtype of query; else in float32, measured"
NARROW = "k times scale, and weights once normalised, are rounded to bfloat16"
MEASURED = "measured, most cases to the bit; AVX512_BF16 and AMX flush subnormal numbers"


@dataclass(frozen=True)
class ScaledDotProductAttention(Adapter):
    hint: str = "f32"

    def refuses(self, case: Case) -> str | None:
        if case.Hkv not in (1, case.H):
            return "gqa"  # heads broadcast, as the dimensions of a batch do
        return None

    def precision(self, case: Case) -> Precision:
        if case.dtype == "float32":
            return preset("float32")
        if case.dtype == "float16":
            return replace(preset("float16"), weights=None, scaled_q="float16", source=SPECIFIED)
        fields: dict[str, Any] = {"scaled_q": "bfloat16", "weights_normalised": True, "flush_subnormal": True}
        if self.hint == "bf16":
            return replace(preset("bfloat16"), **fields, source=f"{NARROW}; {MEASURED}")
        return replace(preset("bfloat16"), **fields, scores="bfloat16", source=f"{NARROW}, scores too; {MEASURED}")

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import openvino
        from openvino import opset13

        causal = is_causal(case) and case.bias is None
        inputs = [given[name] for name in "qkv"]
        if "bias" in given:
            inputs.append(additive(case, given) if hides(case) else given["bias"])
        elif hides(case) and not causal:
            inputs.append(visible(case))
        if case.scale is not None:
            if len(inputs) == 3:
                inputs.append(np.zeros((), given["q"].dtype))  # "scalar zero value": no mask
            inputs.append(np.asarray(case.scale, given["q"].dtype))
        if self.hint == "bf16":
            inputs = [x if x.dtype == bool else x.astype(np.float32) for x in inputs]
        tensors = [_tensor(x) for x in inputs]
        parameters = [opset13.parameter(list(x.shape), x.element_type) for x in tensors]
        node = opset13.scaled_dot_product_attention(*parameters, causal=causal)
        options = {"INFERENCE_PRECISION_HINT": self.hint, "INFERENCE_NUM_THREADS": 2}
        compiled = openvino.Core().compile_model(openvino.Model([node], parameters), "CPU", options)
        out = np.array(compiled(tensors)[0])
        if case.dtype == "bfloat16" and self.hint == "f32":
            out = out.view(FORMATS["bfloat16"].dtype)  # its bits come as those of float16
        return {"out": out.astype(given["q"].dtype)}


def _tensor(x: Array) -> Any:
    import openvino

    x = np.asarray(x, order="C")
    if x.dtype.name == "bfloat16":
        return openvino.Tensor(x.view(np.uint16), list(x.shape), openvino.Type.bf16)
    return openvino.Tensor(x)


default = ScaledDotProductAttention(
    "openvino scaled_dot_product_attention",
    "openvino",
    takes=frozenset({"bias", "mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float32", "float16", "bfloat16"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="nan"),  # measured
)
bf16 = replace(
    default, name="openvino scaled_dot_product_attention (bf16)", dtypes=frozenset({"bfloat16"}), hint="bf16"
)
