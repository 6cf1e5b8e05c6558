"""The operator Attention of ONNX: opsets 23 and 24 are kernels, 25 is the function that the operator is defined by.

The kernels take no scale <= 0, no empty dimension, and masks of all queries and keys only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...case import Case
from ...precision import Precision, eager, preset
from ..onnx import OnnxAttention
from ..onnx import default as reference
from .session import run

__all__ = ["default", "opset24", "opset25"]

Array = np.ndarray[Any, Any]

SOURCE = (
    "onnxruntime/core/providers/cpu/llm/attention.cc: each product is had in float32 and stored in float16, softcap "
    "and mask are applied there, weights are rounded once normalised"
)


@dataclass(frozen=True)
class Attention(OnnxAttention):
    @property
    def is_kernel(self) -> bool:
        return self.opset < 25

    def refuses(self, case: Case) -> str | None:
        if 0 in (case.Lk, case.D, case.Dv) or (self.is_kernel and 0 in (case.B, case.Lq)):
            return "a dimension of 0"
        if self.is_kernel and case.scale == 0:
            return "scale=0"
        return super().refuses(case)

    def precision(self, case: Case) -> Precision:
        if not self.is_kernel:
            return super().precision(case)
        return preset(case.dtype) if case.dtype == "float32" else replace(eager(case.dtype), source=SOURCE)

    def inputs(self, case: Case, given: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
        feeds, options = super().inputs(case, given)
        if "mask" in feeds and self.is_kernel:
            mask, keys = feeds["mask"], feeds.get("k_cache", feeds["k"]).shape[2]
            mask = np.broadcast_to(mask, (*mask.shape[:2], case.Lq, mask.shape[3]))
            if "k_cache" in feeds:
                hidden = np.zeros((*mask.shape[:3], keys - case.Lk), bool)
                hidden = hidden if mask.dtype == bool else np.where(hidden, mask.dtype.type(0), -np.inf)
                mask = np.concatenate([mask, hidden.astype(mask.dtype)], axis=3)
            feeds["mask"] = mask
        return feeds, options

    def run(self, model: Any, feeds: dict[str, Array]) -> dict[str, Array]:
        return run(model, feeds)


def _opset(opset: int) -> Attention:
    return Attention(
        f"onnxruntime Attention-{opset}",
        "onnxruntime",
        takes=reference.takes,
        dtypes=frozenset({"float32", "float16"} | ({"float64"} if opset >= 25 else set())),
        outputs=reference.outputs,
        conventions=reference.conventions,  # measured
        opset=opset,
    )


default = _opset(23)
opset24 = _opset(24)
opset25 = _opset(25)
