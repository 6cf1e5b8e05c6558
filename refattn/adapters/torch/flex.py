"""torch.nn.attention.flex_attention, eager, on the CPU.

Mask, bias, score_mod and softcap are given the way its documentation has it: a BlockMask of a mask_mod
and one score_mod, both of which read captured tensors at (b, h, i, j).  Sinks are joined afterwards by
the lse, as gpt-oss has them (transformers, integrations/flex_attention.py):

    out * sigmoid(lse - sink),  logaddexp(lse, sink)

which rounds out twice, and so is refused in 16 bits.  On the CPU flex_attention refuses gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...case import Case
from ...exchange import from_torch, to_torch
from ...precision import Conventions, Precision, preset
from ...score_mods import SCORE_MODS
from ..adapter import Adapter, hides, visible
from .sdpa import FLUSHED, flushes

__all__ = ["flex"]

SOURCE = "torch/_higher_order_ops/flex_attention.py, math_attention: softmax in float32, .to(query.dtype), @ value"


@dataclass(frozen=True)
class FlexAttention(Adapter):
    def refuses(self, case: Case) -> str | None:
        if 0 in (case.B, case.Lq, case.Lk, case.D):  # raises, or returns no lse
            return "a size of 0"
        if case.sinks is not None and case.dtype in ("float16", "bfloat16"):
            return f"sinks applied to an out rounded to {case.dtype}"
        return None

    def precision(self, case: Case) -> Precision:
        contract = preset(case.dtype, case.out_dtype)
        if case.dtype not in ("float16", "bfloat16"):
            return contract
        flush = case.dtype == "bfloat16" and flushes()
        source = f"{SOURCE}; {FLUSHED}" if flush else SOURCE
        return replace(contract, weights_normalised=True, flush_subnormal=flush, source=source)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

        x = {n: to_torch(given[n]) for n in ("q", "k", "v", "bias", "sinks") if n in given}
        block_mask = None
        if hides(case):
            seen = torch.from_numpy(visible(case))
            shape = (case.B, case.H, case.Lq, case.Lk)
            block_mask = create_block_mask(lambda b, h, i, j: seen[b, h, i, j], *shape, device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is not compiled
            out, aux = flex_attention(
                x["q"], x["k"], x["v"],
                score_mod=_score_mod(case, x.get("bias")), block_mask=block_mask, scale=case.scale,
                enable_gqa=case.H != case.Hkv, return_aux=AuxRequest(lse=True),
            )  # fmt: skip
        lse: Any = aux.lse
        if "sinks" in x:
            sinks = x["sinks"][:, None].to(lse.dtype)
            out, lse = out * torch.sigmoid(lse - sinks)[..., None], torch.logaddexp(lse, sinks)
        return {"out": from_torch(out), "lse": from_torch(lse)}


def _score_mod(case: Case, bias: Any) -> Callable[..., Any] | None:
    """softcap, then the case's score_mod, then its bias; None if it has none of them."""
    import torch

    softcap, modify = case.softcap, SCORE_MODS[case.score_mod] if case.score_mod else None
    if bias is not None:
        bias = bias.expand(case.B, case.H, case.Lq, case.Lk)

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if modify is not None:
            s = modify(s, b, h, i, j)
        return s if bias is None else s + bias[b, h, i, j]

    return None if softcap is modify is bias is None else score_mod


flex = FlexAttention(
    "torch flex_attention (eager)",
    "torch",
    takes=frozenset(
        {"softcap", "score_mod", "sinks", "bias", "bias of another dtype", "mask", "gqa", "D!=Dv", "scale"}
    ),
    dtypes=frozenset({"float64", "float32", "float16", "bfloat16"}),
    outputs=frozenset({"out", "lse"}),
    conventions=Conventions(masked_nan_k="leaks", masked_nan_v="leaks"),  # of keys: where a bias of -inf hides
)
