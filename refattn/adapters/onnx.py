"""The operator Attention of ONNX by `onnx.reference`: `onnx` is opset 23, `onnx-opset24` and `onnx-opset25` are later.

A mask is realised by is_causal where that means just it: top-left in one call, bottom-right behind a cache (past_key),
and from opset 24 on with nonpad_kv_seqlen, which says how many keys there are; from opset 25 on windows likewise.  All
others are an attn_mask, boolean or, with a bias, additive.  What lies in memory as BLHD goes in with three dimensions.
A cache is past_key and past_value, or from opset 24 on it is filled by TensorScatter.  Scores and weights are
qk_matmul_output, one call for each.

In 16 bits softmax_precision asks for a softmax in float32: without, its sum too is in the inputs' dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import CACHES, MATRICES, Cache, Case, Dense
from ..masks import Causal, Window
from ..precision import Conventions, Precision, preset
from .adapter import Adapter, additive, hides, visible

__all__ = ["OnnxAttention", "default", "opset24", "opset25"]

Array = np.ndarray[Any, Any]

SOURCE = (
    "onnx/reference/ops/op_attention.py: q and k times sqrt(scale), scores, softcap and bias are rounded to the "
    "inputs' dtype, weights once they are normalised"
)


@dataclass(frozen=True)
class OnnxAttention(Adapter):
    """The operator of one opset, run by `onnx.reference`."""

    opset: int = 23

    def refuses(self, case: Case) -> str | None:
        if case.scale is not None and case.scale < 0:
            return "scale<0"  # q and k are multiplied by its root, says the operator
        attributes = (case.softcap or 0.0, math.sqrt(case.scale or 0.0))  # the root is had in float32 too
        if case.dtype == "float64" and any(x != float(np.float32(x)) for x in attributes):
            return "attribute beyond float32"
        if isinstance(case.storage, Cache) and self.opset < 24 and set(case.lengths[1]) != {case.Lk}:
            return "ragged cache"  # "only works correctly [...] where the past [...] do not contain padded tokens"
        return None

    def returned(self, case: Case) -> frozenset[str]:
        return self.outputs | (set(CACHES) if isinstance(case.storage, Cache) else set())

    def precision(self, case: Case) -> Precision:
        contract = replace(preset(case.dtype), scaled_q=case.dtype, scores=case.dtype, source=SOURCE)
        return replace(contract, weights_normalised=True)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        answer: dict[str, Any] = {}
        for name in [n for n in MATRICES if n in case.want] or ["out"]:
            found = self.run(*self.model(case, given, name))
            if name != "out":
                answer[name] = found["qk"][..., : case.Lk]  # the operator has a column for each slot of a cache
        out = found["out"]
        answer["out"] = out if out.ndim == 4 else out.reshape(case.B, case.Lq, case.H, case.Dv).swapaxes(1, 2)
        for name in CACHES if isinstance(case.storage, Cache) else ():
            present = found[f"present_{name[0]}"].swapaxes(1, 2)
            answer[name] = given[name].copy()
            answer[name][:, : present.shape[1]] = present
        return answer

    def run(self, model: Any, feeds: dict[str, Array]) -> dict[str, Array]:
        """The outputs of a model by their names."""
        from onnx.reference import ReferenceEvaluator

        found = ReferenceEvaluator(model).run(None, feeds)
        return {x.name: y for x, y in zip(model.graph.output, found, strict=True)}

    def model(self, case: Case, given: Mapping[str, Any], want: str) -> tuple[Any, dict[str, Array]]:
        """A model of one Attention, with TensorScatter before it where it fills caches, and what goes in."""
        from onnx import helper

        feeds, options = self.inputs(case, given)
        nodes, k, v, present = [], "k", "v", ["", ""]
        if "past_k" in feeds:
            present = ["present_k", "present_v"]
        elif isinstance(case.storage, Cache):
            k, v = "present_k", "present_v"
            for name in "kv":
                moved = [f"{name}_cache", name, "cache_lens"]
                nodes.append(helper.make_node("TensorScatter", moved, [f"present_{name}"], axis=2))
        if want in MATRICES:
            options["qk_matmul_output_mode"] = MATRICES.index(want)
        optional = [name if name in feeds else "" for name in ("mask", "past_k", "past_v", "lengths")]
        outputs = ["out", *present, "qk" if want in MATRICES else ""]
        nodes.append(helper.make_node("Attention", _cut(["q", k, v, *optional]), _cut(outputs), **options))
        made = [name for node in nodes for name in node.output if name]
        infos = [(name, x.dtype, x.shape) for name, x in feeds.items()], [(n, feeds["q"].dtype, None) for n in made]
        inputs, returned = (
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(t), shape) for n, t, shape in part]
            for part in infos
        )
        graph = helper.make_graph(nodes, "attention", inputs, returned)
        opset = helper.make_opsetid("", self.opset)
        return helper.make_model(graph, opset_imports=[opset], ir_version=10), feeds

    def inputs(self, case: Case, given: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
        """Named inputs, and attributes."""
        feeds = {name: given[name] for name in "qkv"}
        options: dict[str, Any] = {}
        if case.scale is not None:
            options["scale"] = case.scale
        if case.softcap is not None:
            options["softcap"] = case.softcap
        if case.dtype in ("float16", "bfloat16"):
            options["softmax_precision"] = 1  # TensorProto.FLOAT
        if case.storage == Dense("BLHD"):
            feeds = {n: x.swapaxes(1, 2).reshape(case.B, x.shape[2], -1) for n, x in feeds.items()}
            options |= {"q_num_heads": case.H, "kv_num_heads": case.Hkv}
        at_end = isinstance(case.storage, Cache)  # the diagonal is counted from there
        if isinstance(case.storage, Cache) and self.opset < 24:
            past = int(given["cache_lens"][0]) if case.B else 0
            feeds |= {f"past_{n}": given[f"{n}_cache"][:, :past].swapaxes(1, 2) for n in "kv"}
        elif isinstance(case.storage, Cache):
            feeds |= {f"{n}_cache": _unpoisoned(given[f"{n}_cache"], case).swapaxes(1, 2) for n in "kv"}
            feeds["cache_lens"] = given["cache_lens"].astype(np.int64)
        if self.opset >= 24 and case.q_lens is None:
            at_end = at_end or case.k_lens is not None or _align(case) == "bottom_right"
            if at_end:
                feeds["lengths"] = np.array(case.lengths[1], np.int64)
        said = self._by_options(case, at_end)
        if said is not None:
            options |= said
        if "bias" in given:
            feeds["mask"] = _keys_whole(given["bias"], case.Lk) if said is not None else additive(case, given)
        elif said is None:
            feeds["mask"] = visible(case)
        return feeds, options

    def _by_options(self, case: Case, at_end: bool) -> dict[str, int] | None:
        """The attributes that realise the mask and the lengths of the case; None if none do."""
        if not hides(case) or (case.mask is None and at_end):
            return {}
        lengths = (case.q_lens, case.k_lens) != (None, None)
        if _align(case) != ("bottom_right" if at_end else "top_left") or (lengths and not at_end):
            return None
        if isinstance(case.mask, Causal):
            return {"is_causal": 1}
        if isinstance(case.mask, Window) and self.opset >= 25:
            sides = {"left_window_size": case.mask.left, "right_window_size": case.mask.right}
            return {name: size for name, size in sides.items() if size is not None}
        return None


def _align(case: Case) -> str | None:
    return case.mask.align if isinstance(case.mask, (Causal, Window)) else None


def _cut(names: list[str]) -> list[str]:
    """Without the empty names at the end."""
    while names and not names[-1]:
        names = names[:-1]
    return names


def _keys_whole(bias: Array, Lk: int) -> Array:
    """A bias whose last dimension is not 1, which is taken for a short mask: -inf beyond it."""
    return np.broadcast_to(bias, (*bias.shape[:3], Lk))


def _unpoisoned(cache: Array, case: Case) -> Array:
    """A cache whose unused slots hold 0: the operator adds -inf to their scores, which does not undo a NaN."""
    used = np.arange(cache.shape[1]) < np.array(case.lengths[1])[:, None] - case.Lq
    return np.where(used[:, :, None, None], cache, np.zeros((), cache.dtype))


def _opset(opset: int) -> OnnxAttention:
    return OnnxAttention(
        f"onnx.reference Attention-{opset}",
        "onnx",
        takes=frozenset({"softcap", "cache", "bias", "mask", "gqa", "D!=Dv", "scale"}),
        dtypes=frozenset({"float64", "float32", "float16", "bfloat16"}),
        outputs=frozenset({"out", *MATRICES}),
        conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),  # measured; it adds -inf, and multiplies
        opset=opset,
    )


default = _opset(23)
opset24 = _opset(24)
opset25 = _opset(25)
