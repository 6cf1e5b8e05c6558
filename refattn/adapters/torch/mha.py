"""torch.nn.MultiheadAttention on the CPU, its projections the identity, so that what is judged is the attention.

q, k, v are (B, L, H * D) and the weights of the projections identity matrices, whose products are exact.
True of its boolean attn_mask and key_padding_mask means *hidden*.  Lengths and padding go to key_padding_mask,
a top-left causal mask to is_causal beside attn_mask, as the documentation has it, and a bias is a float
attn_mask.  The scale is fixed, and there are no groups of heads.

With need_weights=False (`mha`) it calls scaled_dot_product_attention, with True (`mha_weights`) it is eager: q is
multiplied by the scale, scores and normalised weights are stored in the inputs' dtype.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...case import Case
from ...exchange import from_torch, to_torch
from ...masks import Padding
from ...precision import Conventions, Precision, eager
from ..adapter import Adapter, hides, is_causal, visible
from .sdpa import FLUSHED, default, flushes

__all__ = ["mha", "mha_weights"]

SOURCE = "torch/nn/functional.py, multi_head_attention_forward: q_scaled, baddbmm, softmax, bmm in the inputs' dtype"


@dataclass(frozen=True)
class MultiheadAttention(Adapter):
    need_weights: bool = False

    def refuses(self, case: Case) -> str | None:
        if not case.B or not case.H * case.D:
            return "no heads" if case.B else "no batch"
        if "poisoned" in case.family:
            return "NaN passes from head to head in its projections"
        return None

    def precision(self, case: Case) -> Precision:
        if not self.need_weights:
            return default.precision(case)
        if case.dtype not in ("float16", "bfloat16"):
            return replace(eager(case.dtype), scores=None, scaled_q=case.dtype, source=SOURCE)
        flush = case.dtype == "bfloat16" and flushes()
        source = f"{SOURCE}; {FLUSHED}" if flush else SOURCE
        return replace(eager(case.dtype), scaled_q=case.dtype, flush_subnormal=flush, source=source)

    def __call__(self, case: Case, given: Mapping[str, Any]) -> Mapping[str, Any]:
        import torch

        names = [n for n in ("q", "k", "v", "bias") if n in given]
        x = {n: to_torch(given[n]).requires_grad_(case.backward) for n in names}
        q, k, v = (x[n].transpose(1, 2).flatten(2) for n in "qkv")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a boolean key_padding_mask beside a float attn_mask
            out, weights = _module(case.H, case.H * case.D, q.dtype)(
                q, k, v, need_weights=self.need_weights, average_attn_weights=False, **_masks(case, x.get("bias"))
            )
        out = out.unflatten(2, (case.H, case.Dv)).transpose(1, 2)
        answer = {"out": out} | ({"weights": weights} if self.need_weights else {})
        wanted = [n for n in names if "d" + n in case.want]
        if wanted:
            found = torch.autograd.grad(out, [x[n] for n in wanted], to_torch(given["dout"]))
            answer |= {"d" + n: g for n, g in zip(wanted, found, strict=True)}
        return {n: from_torch(a) for n, a in answer.items()}


def _module(H: int, E: int, dtype: Any) -> Any:
    """The module, with projections that change nothing."""
    import torch

    module = torch.nn.MultiheadAttention(E, H, bias=False, batch_first=True, dtype=dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(E).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(E))
    return module.requires_grad_(False)


def _masks(case: Case, bias: Any) -> dict[str, Any]:
    """attn_mask, key_padding_mask and is_causal that mean the case's mask and bias."""
    import torch

    shape = (case.B, case.H, case.Lq, case.Lk)
    options: dict[str, Any] = {} if bias is None else {"attn_mask": bias.expand(shape).flatten(0, 1)}
    if not hides(case):
        return options
    hidden = torch.from_numpy(~visible(case))
    if case.q_lens is None and (case.mask is None or isinstance(case.mask, Padding)):
        keys = np.arange(case.Lk) < np.array(case.lengths[1])[:, None]
        if isinstance(case.mask, Padding):
            keys &= np.arange(case.Lk) < np.array(case.mask.lengths[: case.B])[:, None]
        return options | {"key_padding_mask": torch.from_numpy(~keys)}
    if bias is not None:
        return {"attn_mask": torch.where(hidden, -torch.inf, bias).flatten(0, 1)}
    if is_causal(case):
        return {"attn_mask": hidden[0, 0], "is_causal": True}
    return {"attn_mask": hidden.flatten(0, 1)}


def _variant(need_weights: bool) -> MultiheadAttention:
    return MultiheadAttention(
        f"torch MultiheadAttention (need_weights={need_weights})",
        "torch",
        takes=frozenset({"bias", "mask"}),
        dtypes=frozenset({"float64", "float32", "float16", "bfloat16"}),
        outputs=frozenset({"out", "dq", "dk", "dv", "dbias"} | ({"weights"} if need_weights else set())),
        conventions=Conventions(
            masked_nan_k="leaks", masked_nan_v="leaks", empty_rows="nan" if need_weights else "zero"
        ),
        need_weights=need_weights,
    )


mha = _variant(False)
mha_weights = _variant(True)
