"""Attention layers of tf.keras on TensorFlow: MultiHeadAttention (`tensorflow`) and Attention (`tensorflow-attention`).

The projections of MultiHeadAttention are the identity, so that what is judged is the attention; it takes one mask
for all heads.  Attention knows no heads: each of the batch's is handed over as an entry of its own; its learnt
scale is set to the case's; it takes lengths of the keys, a top-left causal mask, or both.  True = may attend.
Both return weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case
from ..masks import Causal, Padding
from ..precision import Conventions, Precision, eager, preset
from .adapter import Adapter, hides, is_causal, visible
from .keras import FLUSHED, gradients, library

__all__ = ["attention", "default"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer(Adapter):
    heads: bool = True
    """whether the layer itself has heads"""

    def refuses(self, case: Case) -> str | None:
        if case.dtype == "float16":
            return "products summed in float16"  # docs/FINDINGS.md
        if 0 in (case.B, case.H, case.Lq, case.Lk, case.D, case.Dv):
            return "a size of 0"
        if "poisoned" in case.family and self.heads:
            return "NaN passes from head to head in its projections"
        if self.heads:
            seen = visible(case)
            return None if np.array_equal(seen, np.broadcast_to(seen[:, :1], seen.shape)) else "a mask by head"
        return None if _options(case) is not None else "mask"

    def precision(self, case: Case) -> Precision:
        if case.dtype != "bfloat16":
            return replace(preset(case.dtype), flush_subnormal=True, source=FLUSHED)
        file = "multi_head_attention" if self.heads else "attention"
        source = f"keras/src/layers/attention/{file}.py: scale, scores and weights in the layer's dtype; {FLUSHED}"
        scaled_q = case.dtype if self.heads else None
        return replace(eager(case.dtype), scaled_q=scaled_q, flush_subnormal=True, source=source)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        tf = library("tensorflow")
        flat = {n: _tokens(given[n]) if self.heads else given[n].reshape(-1, *given[n].shape[2:]) for n in "qkv"}
        x = {n: tf.constant(a) for n, a in flat.items()}
        attend = _multi_head(tf, case) if self.heads else _attention(tf, case)
        with tf.GradientTape() as tape:
            tape.watch(x)
            out, weights = attend(x["q"], x["k"], x["v"])
        dout = None
        if case.backward:
            dout = _tokens(given["dout"]) if self.heads else given["dout"].reshape(out.shape)
        answer = {n: a.numpy() for n, a in ({"out": out} | gradients(tape, out, x, case, dout)).items()}
        for name, a in answer.items():
            B, H, L, D = case.shape_of(name)
            answer[name] = a.reshape(B, L, H, D).swapaxes(1, 2) if self.heads else a.reshape(B, H, L, D)
        return answer | {"weights": weights.numpy().reshape(case.shape_of("weights"))}


def _tokens(x: Array) -> Array:
    """(B, heads, L, D) as (B, L, heads * D)."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _multi_head(tf: Any, case: Case) -> Any:
    """The layer with projections that change nothing; to be called with q, k, v (B, L, H * D)."""
    H, D, Dv = case.H, case.D, case.Dv
    layer = tf.keras.layers.MultiHeadAttention(H, D, Dv, use_bias=False, output_shape=H * Dv, dtype=case.dtype)
    layer.build((case.B, case.Lq, H * D), (case.B, case.Lk, H * Dv), (case.B, case.Lk, H * D))
    layer.set_weights([np.eye(H * n).reshape(shape) for n, shape in (
        (D, (-1, H, D)), (D, (-1, H, D)), (Dv, (-1, H, Dv)), (Dv, (H, Dv, -1)),
    )])  # fmt: skip
    causal = is_causal(case)
    mask = None if causal or not hides(case) else visible(case)[:, 0]
    options = {"attention_mask": mask, "use_causal_mask": causal, "return_attention_scores": True}
    return lambda q, k, v: layer(q, v, key=k, **options)


def _attention(tf: Any, case: Case) -> Any:
    """The layer, to be called with q, k, v (B * H, L, D)."""
    layer = tf.keras.layers.Attention(use_scale=True, dtype=case.dtype)
    layer.build([(None, case.Lq, case.D), (None, case.Lk, case.Dv), (None, case.Lk, case.D)])
    layer.set_weights([np.array(case.D**-0.5 if case.scale is None else case.scale)])
    options = _options(case) or {}
    return lambda q, k, v: layer([q, v, k], return_attention_scores=True, **options)


def _options(case: Case) -> dict[str, Any] | None:
    """mask and use_causal_mask of Attention that mean the case's mask; None if none do."""
    causal, lens = case.mask == Causal("top_left"), case.k_lens
    if case.q_lens is not None or not (causal or case.mask is None or isinstance(case.mask, Padding)):
        return None
    if isinstance(case.mask, Padding):
        lens = tuple(map(min, case.mask.lengths, case.lengths[1]))
    options: dict[str, Any] = {"use_causal_mask": causal}
    if lens is not None:
        keys = np.arange(case.Lk) < np.array(lens)[:, None]
        options["mask"] = [None, np.repeat(keys, case.H, axis=0)]
    return options


def _layer(name: str, heads: bool, *features: str) -> Layer:
    return Layer(
        f"tf.keras.layers.{name}",
        "tensorflow",
        takes=frozenset({"mask", "D!=Dv", *features}),
        dtypes=frozenset({"float64", "float32", "bfloat16", "float16"}),
        outputs=frozenset({"out", "weights", "dq", "dk", "dv"}),
        conventions=Conventions(
            masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="zero" if heads else "mean_all"
        ),
        heads=heads,
    )


default = _layer("MultiHeadAttention", True)
attention = _layer("Attention", False, "scale")
