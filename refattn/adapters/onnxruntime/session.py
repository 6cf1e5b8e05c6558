"""Running a model, or one operator of com.microsoft, in onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["contrib", "run"]

Array = np.ndarray[Any, Any]


def run(model: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of an onnx model by their names."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4  # what goes wrong is in the exception
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [x.name for x in model.graph.output]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def contrib(
    operator: str, inputs: Sequence[str], outputs: Sequence[str], options: Mapping[str, Any], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """One operator of com.microsoft; of `inputs`, all its names in their order, those are there that are in `feeds`."""
    from onnx import helper

    def info(name: str, x: Array, shape: tuple[int, ...] | None) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape)

    present = [name if name in feeds else "" for name in inputs]
    node = helper.make_node(operator, present, outputs, domain="com.microsoft", **options)
    graph = helper.make_graph(
        [node], "attention", [info(n, x, x.shape) for n, x in feeds.items()],
        [info(n, feeds["q"], None) for n in outputs if n],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return run(helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds)
