"""jax.nn.dot_product_attention by XLA on the CPU, with gradients: `jax` compiles each case, `jax-eager` each operation.

In float16 only the latter works: the product's precision is one that XLA on the CPU does not have, for which the
function has a way out that jax.jit bypasses.

A mask aligned top-left is is_causal or local_window_size, with lengths query_seq_lengths and key_value_seq_lengths; all
others are a boolean mask.  Scores are float32 and the softmax too, of float64 as well; weights are rounded to the
inputs' dtype once normalised, lse likewise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...case import Case
from ...masks import Causal, Window
from ...precision import Conventions, Precision, preset
from ..adapter import Adapter, hides, visible

__all__ = ["FLUSHED", "default", "eager", "options_of"]

Array = np.ndarray[Any, Any]

SOURCE = "jax/_src/nn/functions.py, _dot_product_attention_core: "
FLOAT64 = f"{SOURCE}softmax is always carried out in fp32"
ROUNDED = f"{SOURCE}probs and lse_residual are cast to key.dtype"

FLUSHED = "XLA on CPUs flushes subnormal numbers (jax-ml/jax#16200, and jax's sharp bits)"


@dataclass(frozen=True)
class DotProductAttention(Adapter):
    jit: bool = True

    def precision(self, case: Case) -> Precision:
        contract = replace(preset(case.dtype), lse=case.dtype, flush_subnormal=True, source=FLUSHED)
        if case.dtype == "float64":
            return replace(contract, accumulate="float32", source=f"{FLOAT64}; {FLUSHED}")
        if case.dtype == "float32":
            return contract
        return replace(contract, weights_normalised=True, source=f"{ROUNDED}; {FLUSHED}")

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import jax

        names = [n for n in ("q", "k", "v", "bias") if n in given]
        x = {n: given[n] if n == "bias" else given[n].swapaxes(1, 2) for n in names}
        if case.backward and "dscale" in case.want:
            scale = case.D**-0.5 if case.scale is None else case.scale
            x["scale"] = np.asarray(scale, np.float64 if case.dtype == "float64" else np.float32)
        options = options_of(case)
        dout = given["dout"].swapaxes(1, 2) if "dout" in given else None
        mask = options.pop("mask", None)

        function: Any = jax.nn.dot_product_attention
        options |= {"return_residual": not case.backward, "implementation": "xla"}

        def attend(x: Any, mask: Any) -> Any:
            given = {"scale": case.scale} | {n: x[n] for n in ("bias", "scale") if n in x}
            return function(x["q"], x["k"], x["v"], mask=mask, **given, **options)

        def run(x: Any, mask: Any, dout: Any) -> Any:
            if not case.backward:
                out, lse = attend(x, mask)
                return {"out": out, "lse": lse}
            out, back = jax.vjp(lambda x: attend(x, mask), x)
            return {"out": out} | {f"d{n}": g for n, g in back(dout)[0].items()}

        cpu = jax.devices("cpu")[0]
        with jax.default_device(cpu), jax.enable_x64(case.dtype == "float64"):
            found = (jax.jit(run) if self.jit else run)(x, mask, dout)
            answer = {n: np.array(y) for n, y in found.items()}
        if "dscale" in answer:  # of the scores, which are float32 in the softmax
            answer["dscale"] = answer["dscale"].astype(np.float32)
        return {n: y if y.ndim == 0 or n == "dbias" else y.swapaxes(1, 2) for n, y in answer.items()}


def options_of(case: Case) -> dict[str, Any]:
    """What realises mask and lengths."""
    options: dict[str, Any] = {}
    if isinstance(case.mask, Causal) and case.mask.align == "top_left":
        options["is_causal"] = True
    elif isinstance(case.mask, Window) and case.mask.align == "top_left":
        sides = case.mask.left, case.mask.right
        options["local_window_size"] = tuple(max(case.Lq, case.Lk) if n is None else n for n in sides)
    elif case.mask is not None:
        return {"mask": visible(case)} if hides(case) else {}
    if case.q_lens is not None:
        options["query_seq_lengths"] = np.array(case.q_lens, np.int32)
    if case.k_lens is not None:
        options["key_value_seq_lengths"] = np.array(case.k_lens, np.int32)
    return options


default = DotProductAttention(
    "jax.nn.dot_product_attention",
    "jax",
    takes=frozenset({"bias", "bias of another dtype", "mask", "gqa", "scale"}),
    dtypes=frozenset({"float64", "float32", "bfloat16"}),
    outputs=frozenset({"out", "lse", "dq", "dk", "dv", "dbias", "dscale"}),
    conventions=Conventions(masked_nan_v="leaks", empty_rows="mean_all", empty_lse="any"),  # measured
)
eager = replace(
    default, name="jax.nn.dot_product_attention (eager)", dtypes=default.dtypes | {"float16"}, jit=False
)
