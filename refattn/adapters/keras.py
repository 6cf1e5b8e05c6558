"""keras.ops.dot_product_attention on the TensorFlow backend.

Arrays are (B, L, heads, D).  `is_causal` serves a top-left causal mask, all others are boolean (True = may attend),
which select 0.7 times the largest negative number.  Gradients come from tf.GradientTape.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case
from ..precision import Conventions, Precision, preset
from .adapter import Adapter, hides, is_causal, visible

__all__ = ["FLUSHED", "default", "gradients", "library"]

FLUSHED = "tensorflow/core/platform/denormal.h: its threads flush subnormal numbers"
SOURCE = "keras/src/backend/tensorflow/nn.py, _dot_product_attention_xla: logits = einsum in the inputs' dtype, "
SOURCE += "then float32; probs are normalised, then cast to the inputs' dtype"


def library(name: str) -> Any:
    """tensorflow, or keras on it, without their messages at import."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return importlib.import_module(name)


@dataclass(frozen=True)
class DotProductAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        if case.dtype == "float16":
            return "products summed in float16"  # tf.einsum; docs/FINDINGS.md
        return "a size of 0" if 0 in (case.D, case.Lk) else None

    def precision(self, case: Case) -> Precision:
        contract = replace(preset(case.dtype), flush_subnormal=True, source=FLUSHED)
        if case.dtype != "bfloat16":
            return contract
        return replace(contract, scores=case.dtype, weights_normalised=True, source=f"{SOURCE}; {FLUSHED}")

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        keras, tf = library("keras"), library("tensorflow")
        names = [n for n in ("q", "k", "v", "bias") if n in given]
        x = {n: tf.constant(given[n] if n == "bias" else given[n].swapaxes(1, 2)) for n in names}
        causal = is_causal(case)
        mask = None if causal or not hides(case) else visible(case)
        options = {"mask": mask, "bias": x.get("bias"), "is_causal": causal, "scale": case.scale}
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = keras.ops.dot_product_attention(x["q"], x["k"], x["v"], flash_attention=False, **options)
        dout = np.swapaxes(given["dout"], 1, 2) if case.backward else None
        answer = {"out": out} | gradients(tape, out, x, case, dout)
        return {n: a.numpy() if n == "dbias" else a.numpy().swapaxes(1, 2) for n, a in answer.items()}


def gradients(tape: Any, out: Any, x: Mapping[str, Any], case: Case, dout: Any) -> dict[str, Any]:
    """Those gradients of `x` that the case wants."""
    wanted = [n for n in x if "d" + n in case.want]
    if not wanted:
        return {}
    return {"d" + n: g for n, g in zip(wanted, tape.gradient(out, [x[n] for n in wanted], dout), strict=True)}


default = DotProductAttention(
    "keras.ops.dot_product_attention (tensorflow)",
    "keras",
    takes=frozenset({"bias", "mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float64", "float32", "float16", "bfloat16"}),
    outputs=frozenset({"out", "dq", "dk", "dv", "dbias"}),
    conventions=Conventions(masked_nan_v="leaks", empty_rows="mean_all"),
)
