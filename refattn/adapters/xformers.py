"""xformers.ops.memory_efficient_attention by its documented signature; not run where there is no CUDA GPU.

Arrays are (B, L, heads, D), with groups of query heads (B, L, Hkv, group, D).  Causal masks of either alignment and
windows aligned bottom right are its own attn_bias; all others are a tensor of 0 and -inf, whose rows lie a multiple
of 8 elements apart, as its kernels want them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..case import Case
from ..exchange import to_torch
from ..masks import Causal, Window
from ..precision import Conventions
from .adapter import additive, hides, sees_nothing
from .cuda import CudaAdapter, from_device, on_device

__all__ = ["MemoryEfficientAttention", "default"]


@dataclass(frozen=True)
class MemoryEfficientAttention(CudaAdapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.H, case.Lq, case.Lk, case.D, case.Dv):
            return "a size of 0"
        if sees_nothing(case):
            return "rows that see nothing"  # undocumented
        if case.H != case.Hkv and (case.backward or case.bias is not None):
            return "gradients of groups" if case.backward else "bias by group"  # 5 dimensions: forward only
        return "dbias" if "dbias" in case.want else None

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        fmha: Any = importlib.import_module("xformers.ops.fmha")
        x = {n: a.transpose(1, 2) for n, a in on_device(given, self.device).items() if n in ("q", "k", "v", "dout")}
        q, k, v = (x[n] for n in "qkv")
        group = case.H // case.Hkv if case.Hkv else 1
        if group > 1:
            q = q.unflatten(2, (case.Hkv, group))
            k, v = (a[:, :, :, None].expand(-1, -1, -1, group, -1) for a in (k, v))
        bias = _attn_bias(fmha, case, given, self.device)
        if case.backward:
            inputs = [a.requires_grad_() for a in (q, k, v)]
            out = fmha.memory_efficient_attention(*inputs, attn_bias=bias, scale=case.scale)
            found = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, inputs, x["dout"]), strict=True))
            answer = {"out": out} | {n: g for n, g in found.items() if n in case.want}
            return from_device({n: a.transpose(1, 2) for n, a in answer.items()})
        out, lse = fmha.memory_efficient_attention_forward_requires_grad(q, k, v, attn_bias=bias, scale=case.scale)
        if group > 1:
            out, lse = out.flatten(2, 3), lse.flatten(1, 2)
        return from_device({"out": out.transpose(1, 2), "lse": lse[..., : case.Lq]})


def _attn_bias(fmha: Any, case: Case, given: Mapping[str, Any], device: str) -> Any:
    """The attn_bias that means the case's mask and bias."""
    import torch

    mask, kinds = case.mask, fmha.attn_bias
    if case.bias is None and not hides(case):
        return None
    if case.bias is case.q_lens is case.k_lens is None:
        if isinstance(mask, Causal):
            top = mask.align == "top_left"
            return kinds.LowerTriangularMask() if top else kinds.LowerTriangularFromBottomRightMask()
        if isinstance(mask, Window) and mask.align == "bottom_right" and None not in (mask.left, mask.right):
            return kinds.LocalAttentionFromBottomRightMask(window_left=mask.left, window_right=mask.right)
    dense = to_torch(additive(case, given)).expand(case.B, case.H, case.Lq, case.Lk)
    rows = torch.zeros((case.B, case.H, case.Lq, -(-case.Lk // 8) * 8), dtype=dense.dtype, device=device)
    rows[..., : case.Lk] = dense
    bias = rows[..., : case.Lk]
    return bias if case.H == case.Hkv else bias.unflatten(1, (case.Hkv, case.H // case.Hkv))


default = MemoryEfficientAttention(
    "xformers.ops.memory_efficient_attention",
    "xformers",
    takes=frozenset({"bias", "mask", "gqa", "D!=Dv", "scale"}),
    dtypes=frozenset({"float32", "float16", "bfloat16"}),
    outputs=frozenset({"out", "lse", "dq", "dk", "dv"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),
)
