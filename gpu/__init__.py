"""Flash attention for GPUs, written in Numba CUDA; the same source runs on a CPU, warp by warp (`gpu.simt`).

    import cupy, gpu
    from refattn.masks import Causal
    out, lse = gpu.attention(q, k, v, mask=Causal("bottom_right"))
    dq, dk, dv, _ = gpu.attention_grad(dout, q, k, v, out, lse, mask=Causal("bottom_right"))

Nothing is imported before it is asked for, so that NUMBA_ENABLE_CUDASIM can still be set.
"""

from __future__ import annotations

from typing import Any

__all__ = ["Attention", "Gradients", "attention", "attention_grad"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gpu' has no attribute {name!r}")
    from importlib import util

    if util.find_spec("numba_cuda") is None:
        raise ImportError("gpu needs numba-cuda; pip install 'refattn[gpu]'")
    from . import launch

    return getattr(launch, name)
