"""FlashInfer by its documented signatures; not run where there is no CUDA GPU.

Plain arrays go to `single_prefill_with_kv_cache`, entry by entry and as long as each is; pages to
`BatchPrefillWithPagedKVCacheWrapper`.  `causal` is aligned bottom right, `window_left` counts from that diagonal, other
masks, if the same for all heads, are a boolean custom_mask.  lse has base 2.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..case import Case, Paged
from ..precision import Conventions, Precision, preset
from .adapter import sees_nothing, visible
from .cuda import CudaAdapter, bottom_right_window, from_device, on_device

__all__ = ["FlashInfer", "default"]

TANH = "include/flashinfer/attention/variants.cuh: logits_soft_cap by math::tanh, tanh.approx.f32"
WORKSPACE = 128 * 2**20
"""bytes, as its documentation recommends"""


@dataclass(frozen=True)
class FlashInfer(CudaAdapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.H, case.Lq, case.Lk):
            return "a size of 0"
        if {case.D, case.Dv} - {64, 128, 256} or case.D != case.Dv:
            return "D other than 64, 128, 256"
        if sees_nothing(case):
            return "rows that see nothing"  # undocumented
        if _options(case) is not None:
            return "q_lens" if isinstance(case.storage, Paged) and case.q_lens else None
        seen = visible(case)
        if isinstance(case.storage, Paged) or not np.array_equal(seen, np.broadcast_to(seen[:, :1], seen.shape)):
            return type(case.mask).__name__.lower()
        return None

    def precision(self, case: Case) -> Precision:
        contract = preset(case.dtype, case.out_dtype)
        return contract if case.softcap is None else replace(contract, tanh_error=2.0**-11, source=TANH)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        library: Any = importlib.import_module("flashinfer")
        x = on_device(given, self.device)
        usual = {"sm_scale": case.scale, "logits_soft_cap": case.softcap}
        if isinstance(case.storage, Paged):
            out, lse = _paged(library, case, x, usual | (_options(case) or {}))
            return from_device({"out": out.transpose(1, 2), "lse": lse.transpose(1, 2)})
        out = torch.zeros((case.B, case.H, case.Lq, case.Dv), dtype=x["q"].dtype)
        lse = torch.zeros((case.B, case.H, case.Lq), dtype=torch.float32)
        seen = visible(case)
        for b, (lq, lk) in enumerate(zip(*case.lengths, strict=True)):
            mask = _options(case)
            if mask is None:
                mask = {"custom_mask": torch.from_numpy(seen[b, 0, :lq, :lk]).to(self.device)}
            q, k, v = (x[n][b, :, :used].transpose(0, 1).contiguous() for n, used in (("q", lq), ("k", lk), ("v", lk)))
            o, s = library.single_prefill_with_kv_cache(q, k, v, **usual, **mask, return_lse=True)
            out[b, :, :lq], lse[b, :, :lq] = o.transpose(0, 1).cpu(), s.transpose(0, 1).cpu()
        return from_device({"out": out, "lse": lse})


def _options(case: Case) -> dict[str, Any] | None:
    """causal and window_left that mean the case's mask; None if it takes a custom_mask."""
    window = bottom_right_window(case)
    if window is None or window[1] > 0 or (window[1] < 0 and window[0] >= 0):
        return None
    return {"causal": window[1] == 0, "window_left": window[0]}


def _paged(library: Any, case: Case, x: dict[str, Any], options: dict[str, Any]) -> tuple[Any, Any]:
    """out and lse (B, L, heads, ...) from pages, all of the same number of queries."""
    import torch

    size = x["k"].shape[1]
    lens = x["seqused_k"]
    pages = (lens + size - 1) // size
    indptr = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).to(torch.int32)
    indices = torch.cat([row[:n] for row, n in zip(x["block_table"], pages.tolist(), strict=True)]).to(torch.int32)
    rows = torch.arange(case.B + 1, dtype=torch.int32, device=lens.device) * case.Lq
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=lens.device)
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        rows, indptr, indices, (lens - 1) % size + 1, case.H, case.Hkv, case.D, size,
        q_data_type=x["q"].dtype, **options,
    )  # fmt: skip
    out, lse = wrapper.run(x["q"].transpose(1, 2).flatten(0, 1).contiguous(), (x["k"], x["v"]), return_lse=True)
    return out.unflatten(0, (case.B, case.Lq)), lse.unflatten(0, (case.B, case.Lq))


default = FlashInfer(
    "flashinfer",
    "flashinfer-python",
    takes=frozenset({"softcap", "paged", "mask", "gqa", "scale"}),
    dtypes=frozenset({"float16", "bfloat16"}),
    outputs=frozenset({"out", "lse"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks", lse_base="2"),
)
