"""Node tests of ONNX: a model of one Attention operator (opset 24), its inputs, and what it must return.

test_attention_ID/model.onnx and test_data_set_0/input_N.pb, output_0.pb, as ONNX's own backend tests have them;
beside them lo_0.pb and hi_0.pb, the interval of each element.  The operator's definition rounds more than other
kernels: q and k times sqrt(scale), scores, softcap and bias to the inputs' dtype, and the weights once they are
normalised.  The interval is that of this contract, not of the case's usual one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..case import Dense
from ..dtypes import FORMATS, round_to
from ..inputs import Problem
from ..masks import Causal
from ..precision import preset
from .balls import scale_of
from .expected import expected_of

__all__ = ["expressible", "write_node"]

Array = np.ndarray[Any, Any]

OPSET = 24
_FIELDS = ("sinks", "score_mod", "dropout", "rotary", "quant", "q_lens", "k_lens")


def expressible(problem: Problem) -> bool:
    """Whether the operator says what the case does: out alone, scale > 0, finite arrays of one dtype, no empty row."""
    case = problem.case
    if any(getattr(case, name) is not None for name in _FIELDS) or case.storage != Dense():
        return False
    if "out" not in case.want or case.dtype != case.out_dtype or case.dtype not in ("float32", "float16", "bfloat16"):
        return False
    scale, softcap = scale_of(case), case.softcap
    if not scale > 0 or min(case.B, case.H, case.Lq, case.Lk, case.D, case.Dv) == 0:
        return False
    bias = problem.logical.get("bias")
    if bias is not None and not np.array_equal(round_to(bias.astype(np.float64), case.dtype), bias.astype(np.float64)):
        return False
    if not all(np.isfinite(problem.logical[name].astype(np.float64)).all() for name in "qkv"):
        return False
    return bool(_seen(problem).any(-1).all()) and (softcap is None or softcap == float(np.float32(softcap)))


def write_node(folder: Path, problem: Problem) -> None:
    import onnx
    from onnx import TensorProto, helper

    case = problem.case
    low: dict[str, Any] = {"scaled_q": case.dtype, "scores": case.dtype, "weights_normalised": True}
    e = expected_of(problem, replace(preset(case.dtype), **low, source=__doc__ or ""), rigorous=True)["out"]
    arrays = {name.upper(): problem.logical[name] for name in "qkv"}
    attributes: dict[str, Any] = {"scale": scale_of(case)}
    if case.softcap is not None:
        attributes["softcap"] = case.softcap
    if FORMATS[case.dtype].bits < 24:
        attributes["softmax_precision"] = TensorProto.FLOAT
    top_left = isinstance(case.mask, Causal) and (case.mask.align == "top_left" or case.Lq == case.Lk)
    if top_left and case.bias is None:
        attributes["is_causal"] = 1
    elif case.bias is not None:
        bias = np.broadcast_to(problem.logical["bias"].astype(np.float64), _seen(problem).shape)
        arrays["attn_mask"] = np.where(_seen(problem), bias, -np.inf).astype(FORMATS[case.dtype].numpy)
    elif case.mask is not None:
        arrays["attn_mask"] = _seen(problem)
    node = helper.make_node("Attention", list(arrays), ["Y"], **attributes)
    types = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in arrays.items()}
    inputs = [helper.make_tensor_value_info(name, types[name], x.shape) for name, x in arrays.items()]
    output = helper.make_tensor_value_info("Y", types["Q"], e.value.shape)
    graph = helper.make_graph([node], case.id, inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    files = {f"input_{n}": (name, x) for n, (name, x) in enumerate(arrays.items())}
    dtype = FORMATS[case.dtype].numpy
    value = round_to(e.value, case.dtype)
    files |= {"output_0": ("Y", value), "lo_0": ("Y", e.lo), "hi_0": ("Y", e.hi)}
    for name, (tensor, x) in files.items():
        x = x if name.startswith("input") else x.astype(dtype)
        made = onnx.numpy_helper.from_array(np.ascontiguousarray(x), tensor)
        (data / f"{name}.pb").write_bytes(made.SerializeToString(deterministic=True))


def _seen(problem: Problem) -> Array:
    seen = problem.case.visibility.tile()
    if "bias" in problem.logical:
        seen = seen & ~np.isneginf(problem.logical["bias"].astype(np.float64))
    return np.asarray(seen)
