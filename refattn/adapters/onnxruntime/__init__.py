"""onnxruntime on the CPU.

`onnxruntime`, `onnxruntime-opset24` and `onnxruntime-opset25` are the operator Attention of ONNX; `onnxruntime-mha` and
`onnxruntime-gqa` are MultiHeadAttention and GroupQueryAttention of com.microsoft.
"""

from .attention import default, opset24, opset25
from .grouped import gqa
from .multi_head import mha

__all__ = ["default", "gqa", "mha", "opset24", "opset25"]
