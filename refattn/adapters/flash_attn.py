"""FlashAttention-2, the package flash-attn, by its documented signatures; not run where there is no CUDA GPU.

Plain arrays go to `flash_attn_func`, packed ones to `flash_attn_varlen_func`, pages and caches to
`flash_attn_with_kvcache`.  Causal masks and windows are aligned bottom right (its README, 2.1), and there is no other
mask.  Source of what follows: flash_attn/flash_attn_interface.py and csrc/flash_attn.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..case import Cache, Case, Packed, Paged
from ..precision import Conventions, Precision, preset
from .cuda import CudaAdapter, bottom_right_window, from_device, on_device

__all__ = ["FlashAttention", "default"]

TANH = "csrc/flash_attn/src/utils.h: softcap by cutlass::fast_tanh, tanh.approx.f32"
PER_HEAD = "csrc/flash_attn/flash_api.cpp: dk_expanded and dv_expanded, of each query head, in the inputs' dtype"


@dataclass(frozen=True)
class FlashAttention(CudaAdapter):
    def refuses(self, case: Case) -> str | None:
        storage, lengths = case.storage, case.q_lens is not None or case.k_lens is not None
        if bottom_right_window(case) is None:
            return type(case.mask).__name__.lower()
        if 0 in (case.B, case.H, case.Lq, case.Lk, case.D):
            return "a size of 0"
        if case.D > 256:
            return "D>256"
        if isinstance(storage, Packed):
            return "seqused" if storage.gap else None
        if isinstance(storage, Paged):
            return "q_lens" if case.q_lens else "page_size" if storage.page_size % 256 else None
        return "lengths" if lengths and not isinstance(storage, Cache) else None

    def returned(self, case: Case) -> frozenset[str]:
        return self.outputs | ({"k_cache", "v_cache"} if isinstance(case.storage, Cache) else set())

    def precision(self, case: Case) -> Precision:
        contract, sources = preset(case.dtype, case.out_dtype), []
        if case.softcap is not None:
            sources.append(TANH)
            contract = replace(contract, tanh_error=2.0**-11)
        if case.backward and case.H != case.Hkv:
            sources.append(PER_HEAD)
            contract = replace(contract, grad_per_head=True)
        return replace(contract, source="; ".join(sources))

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        library: Any = importlib.import_module("flash_attn")
        x, storage = on_device(given, self.device), case.storage
        options: dict[str, Any] = {
            "softmax_scale": case.scale, "causal": False, "window_size": bottom_right_window(case),
            "softcap": case.softcap or 0.0,
        }  # fmt: skip
        if options["window_size"] == (-1, 0):
            options |= {"causal": True, "window_size": (-1, -1)}
        if isinstance(storage, (Paged, Cache)):
            return from_device(_with_cache(library, case, x, options))
        if not isinstance(storage, Packed):
            x |= {n: x[n].transpose(1, 2) for n in ("q", "k", "v", "dout") if n in x}  # (B, L, heads, D)
        q, k, v = (x[n].requires_grad_(case.backward) for n in "qkv")
        options |= {"deterministic": True, "return_attn_probs": True}
        if isinstance(storage, Packed):
            q_lens, k_lens = case.lengths
            sizes = (x["cu_seqlens_q"], x["cu_seqlens_k"], max(q_lens), max(k_lens))
            out, lse, _ = library.flash_attn_varlen_func(q, k, v, *sizes, **options)
        else:
            out, lse, _ = library.flash_attn_func(q, k, v, **options)
        answer = {"out": out, "lse": lse}
        wanted = [n for n in "qkv" if "d" + n in case.want]
        if wanted:
            import torch

            found = torch.autograd.grad(out, [{"q": q, "k": k, "v": v}[n] for n in wanted], x["dout"])
            answer |= {"d" + n: g for n, g in zip(wanted, found, strict=True)}
        if not isinstance(storage, Packed):
            answer = {n: a if n == "lse" else a.transpose(1, 2) for n, a in answer.items()}
        return from_device(answer)


def _with_cache(library: Any, case: Case, x: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    q = x["q"].transpose(1, 2)
    if isinstance(case.storage, Paged):
        where = {"cache_seqlens": x["seqused_k"], "block_table": x["block_table"].clamp(min=0)}
        k_cache, v_cache = x["k"], x["v"]
    else:
        k_cache, v_cache = x["k_cache"], x["v_cache"]
        where = {"k": x["k"].transpose(1, 2), "v": x["v"].transpose(1, 2), "cache_seqlens": x["cache_lens"]}
    out, lse = library.flash_attn_with_kvcache(q, k_cache, v_cache, **where, **options, return_softmax_lse=True)
    answer = {"out": out.transpose(1, 2), "lse": lse}
    return answer | ({"k_cache": k_cache, "v_cache": v_cache} if isinstance(case.storage, Cache) else {})


default = FlashAttention(
    "flash-attn",
    "flash-attn",
    takes=frozenset({"softcap", "packed", "paged", "cache", "mask", "gqa", "scale"}),
    dtypes=frozenset({"float16", "bfloat16"}),
    outputs=frozenset({"out", "lse", "dq", "dk", "dv"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", empty_lse="any"),  # +inf, in splits -inf
)
